"""docs/architectures.md is what the classes say today."""

import pytest

from families.special import REFUSED
from families.table import PAGE, counts, page
from families.tiny import causal_types

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns about configs as small as these


def test_the_page_is_what_is_generated():
    text = PAGE.read_text()
    assert text == page(), "run `PYTHONPATH=tests python -m families.table`"
    measured, refused = counts(text)
    assert (measured, refused) == (len(causal_types()) - len(REFUSED), len(REFUSED))
    assert f"**{measured} are measured, {refused} are refused.**" in text
    assert measured >= 165
