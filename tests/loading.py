"""What the tests of loading share."""

from __future__ import annotations

import pytest
import torch

from sinklab.errors import SinklabError
from sinklab.models import load_model

TOKENS = torch.arange(3, 23)[None]


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits


def complaint(name: object, **options: object) -> str:
    """The sentence that loading ends with."""
    with pytest.raises(SinklabError) as caught:
        load_model(str(name), device="cpu", **options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400, text
    return text
