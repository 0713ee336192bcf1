"""Experiments by name: a scale is a base, and the questions are asked of each."""

import functools
import inspect

from sinklab.errors import SinklabError, nearest
from sinklab.experiments import beyond, gpu, laptop, paper, questions
from sinklab.experiments.experiment import Entry


@functools.cache
def every() -> dict[str, Entry]:
    """All of them, by name."""
    found: dict[str, Entry] = {}
    for scale in (paper.SCALE, gpu.SCALE, laptop.SCALE, laptop.BACKCOPY):
        found |= scale.entries()
    return found


def groups() -> dict[str, str]:
    """Every group and what is asked in it, in order."""
    asked = {**questions.QUESTIONS, "1B": questions.larger, **beyond.QUESTIONS}
    return {"base": "What everything else of a scale is compared with."} | {name: inspect.getdoc(question) or "" for name, question in asked.items()}


def named(name: str) -> Entry:
    """The one of that name."""
    if name not in every():
        raise SinklabError(f"There is no experiment `{name}`.{nearest(name, every()) or ' `sinklab list` names them all.'}")
    return every()[name]
