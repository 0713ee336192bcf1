"""docs/parts.md is what the rooms say."""

import difflib
import re

import examples
from parts_page import COMMAND, PAGE, page

from sinklab.experiments.experiment import Experiment
from sinklab.experiments.overrides import paths
from sinklab.model import ffn, positions


def test_the_page_is_what_the_rooms_say():
    lines = difflib.unified_diff(PAGE.read_text(encoding="utf-8").splitlines(), page().splitlines(), "written", "said", n=0, lineterm="")
    differing = "\n".join(lines)
    assert not differing, f"{PAGE.name} is not what the rooms say; if they are right: {COMMAND}\n{differing}"


def test_every_member_of_every_room_has_one_row():
    rows = re.findall(r"^\| `(\w+)` \|", page(), re.MULTILINE)
    wanted = {name for room in examples.rooms().values() for name in examples.members(room)}
    assert wanted - set(rows) == set()
    assert len(rows) == len(set(rows))


def test_every_path_is_one_that_can_be_overridden():
    said = [path for line in re.findall(r"^\*\*\w+\*\*, at (.*?)\. [A-Z]", page(), re.MULTILINE) for path in line.split(", ") if " of " not in path]
    assert len(said) >= len(examples.FIELDS)
    assert {path.strip("`") for path in said} <= {path.removeprefix("experiment.") for path in paths(Experiment(), "experiment")}


def test_settings_papers_and_stars():
    lines = page().splitlines()
    assert "| `Window` | i - size < j <= i: itself and the size - 1 before it. | `size` required, above 0 |" in lines
    assert "| `Swish` | x sigmoid(x). |  |" in lines
    assert any("`alpha` = 1, `p` = 1" in line and "alpha \\* softmax(p \\* s)^(1/p)" in line for line in lines)
    assert "**Normaliser**, at `model.weights.normaliser` of `Sigmoid`, " in page() and "**Direction**, at `direction` of `FixedValue`. " in page()
    assert page().count("](https://arxiv.org/abs/2504.20966)") == 1


def test_every_paper_that_a_member_cites_is_a_link():
    for room in examples.rooms().values():
        for kind in examples.members(room).values():
            for number in re.findall(r"\d{4}\.\d{5}", kind.__doc__ or ""):
                row = next(line for line in page().splitlines() if line.startswith(f"| `{kind.__name__}` |"))
                assert f"[{number}](https://arxiv.org/abs/{number})" in row


def test_a_formula_or_a_default_that_changes_is_noticed(monkeypatch):
    before = page()
    monkeypatch.setattr(ffn.Swish, "__doc__", "x sigmoid(1.7 x).")
    assert page() != before
    monkeypatch.undo()
    monkeypatch.setattr(positions.Learned.model_fields["length"], "default", 4096)
    assert page() != before
    monkeypatch.undo()
    assert page() == before
