"""docs/definitions.md is what the room says; `python -m probe.test_definitions_page` with PYTHONPATH=tests writes it."""

from pathlib import Path

from sinklab.probe.definitions import described

PAGE = Path(__file__).parents[2] / "docs/definitions.md"
HEAD = """\
# Definitions

What people have called an attention sink, each under its name, computed from the same rows:
`sinklab measure MODEL --definition all`, or `result.sink(definition=...)`. Generated from
`src/sinklab/probe/definitions.py`.

A is the attention map, T the number of tokens, k a key's position from 1; alpha_k is the mean of A[i, k] over the queries i that may see k.
A definition with a threshold gives a percentage of (sequence, layer, head), or of heads; one without gives a mean mass in percent.
Position 0 is a learned sink, which no token holds.

| name | what | whose | threshold |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = []
    for name, text, paper, epsilon in described():
        cells = (f"`{name}`", " ".join(text.split()), paper, "none: a mean" if epsilon is None else str(epsilon))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return HEAD + "\n".join(rows) + "\n"


def test_the_page_is_what_the_room_says():
    assert PAGE.read_text() == page()


if __name__ == "__main__":
    PAGE.write_text(page())
