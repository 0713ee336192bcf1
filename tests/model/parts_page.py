"""docs/parts.md from the rooms: `python tests/model/parts_page.py` writes it anew."""

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo
from test_impossible import PAIRS

from sinklab.config import Config, Part, short
from sinklab.experiments.experiment import Data, Experiment
from sinklab.model.design import Design

PAGE = Path(__file__).parents[2] / "docs/parts.md"
COMMAND = "python tests/model/parts_page.py"
HEAD = f"""\
# Parts

What a decoder is made of, and what else decides what it learns, room by room. Each line is what a class says of itself.
Generated: `{COMMAND}` writes this page anew. How to add one: [Add a part](add-a-part.md). Why it is built so: [the decoder](design/decoder.md).

A part is written by its name, `Sigmoid`, or with settings: `Sigmoid(normaliser=RowSum())` in Python, and as data
`{{"kind": "Sigmoid", "normaliser": "RowSum"}}`. In an override every path here stands after `experiment.`:
`sinklab show gpu/default experiment.model.weights=Sigmoid`.
"""
TOGETHER = """\
## What cannot be together

One example of each refusal, in the words in which `Design` says it:
"""
GROUPS: dict[str, dict[type[Config], str]] = {
    "The decoder": {Design: "model."},
    "Its data and its training": {Data: "data.", Experiment: ""},
}  # with their paths in an experiment
BOUNDS = {"gt": "above", "ge": "from", "lt": "below", "le": "up to"}


def page() -> str:
    """The whole of it."""
    blocks = [block for name, configs in GROUPS.items() for block in (f"## {name}", *_group(configs))]
    refused = "\n".join(f"- {sentence}" for _, sentence in PAIRS)
    return "\n\n".join([HEAD.rstrip(), *blocks, TOGETHER.rstrip(), refused]) + "\n"


def members(room: type[Part]) -> list[type[Part]]:
    """Those of the package, as they stand in their file."""
    return [kind for kind in room.members().values() if kind.__module__.startswith("sinklab.")]


def places(config: type[Config], path: str = "") -> Iterator[tuple[type[Part], str]]:
    """Every room that has a place in a config, and then those in its members."""
    for name, field in config.model_fields.items():
        if room := _room(field):
            yield room, f"`{path}{name}`"
            inside = "" if get_origin(field.annotation) is tuple else f"{path}{name}."  # one of several has no path of its own
            for member in members(room):
                yield from ((inner, f"{where} of `{member.__name__}`") for inner, where in places(member, inside))


def _group(configs: dict[type[Config], str]) -> Iterator[str]:
    found: dict[type[Part], list[str]] = {}
    for config, path in configs.items():
        yield f"`{config.__name__}`. {_said(config)} Settings that are no parts: {_settings(config, path)}."
        for room, where in places(config, path):
            found.setdefault(room, []).append(where)
    files: set[str] = set()
    for room, where in found.items():
        if room.__module__ not in files:
            files.add(room.__module__)
            yield from _file(room.__module__)
        yield from _table(room, list(dict.fromkeys(where)))


def _file(module: str) -> Iterator[str]:
    """What it says of all that is in it."""
    yield f"### {module.removeprefix('sinklab.').replace('.', '/')}.py"
    yield _shown(inspect.getdoc(sys.modules[module]) or "")


def _table(room: type[Part], where: Sequence[str]) -> Iterator[str]:
    """A room and its members."""
    yield f"**{room.__name__}**, at {', '.join(where)}. {_said(room)}"
    kinds = list(dict.fromkeys(kind for member in members(room) for kind in _kinds(member, room)))
    if kinds:
        yield "\n".join(f"- {kind.__name__}: {_said(kind)}" for kind in kinds)
    head = ["part", *["kind"] * bool(kinds), "what it is", "settings"]
    rows = [head, ["---"] * len(head)] + [_row(member, room, bool(kinds)) for member in members(room)]
    yield "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(member: type[Part], room: type[Part], has_kinds: bool) -> list[str]:
    kinds = [", ".join(kind.__name__ for kind in _kinds(member, room)[:1])] * has_kinds
    return [f"`{member.__name__}`", *kinds, _said(member).replace("|", "\\|"), _settings(member)]


def _kinds(member: type[Part], room: type[Part]) -> list[type[Part]]:
    """Between a member and its room, the nearest first."""
    return [kind for kind in member.__mro__[1:] if issubclass(kind, room) and kind is not room and inspect.isabstract(kind)]


def _settings(config: type[Config], path: str = "") -> str:
    """Of a part all, of a group those that are neither parts nor groups."""
    fields = {name: field for name, field in config.model_fields.items() if issubclass(config, Part) or not _is_config(field)}
    return ", ".join(f"`{path}{name}` {_value(field)}" for name, field in fields.items())


def _is_config(field: FieldInfo) -> bool:
    return any(isinstance(kind, type) and issubclass(kind, Config) for kind in (field.annotation, *get_args(field.annotation)))


def _value(field: FieldInfo) -> str:
    """Its default, or what it must be."""
    bounds = [f"{word} {getattr(limit, key)}" for limit in field.metadata for key, word in BOUNDS.items() if hasattr(limit, key)]
    if field.is_required():
        return ", ".join(["required", *bounds])
    return f"= {_plain(field.get_default(call_default_factory=True))}"


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_plain, value))})"
    return f"{value:g}" if isinstance(value, float) else str(short(value)) if value != "" else '""'


def _room(field: FieldInfo) -> type[Part] | None:
    """Of a field that holds a part, or several; a field that holds one certain member is a setting."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, Part) and inspect.isabstract(kind):
            return next(one for one in reversed(kind.__mro__) if one is not Part and issubclass(one, Part))
    return None


def _said(kind: type[Config]) -> str:
    """The first line of what it says of itself."""
    return _shown((inspect.getdoc(kind) or "").splitlines()[0])


def _shown(text: str) -> str:
    """Stars are stars, and the numbers of papers are links."""
    text = re.sub(r"(?<!\\)\*", r"\\*", text)
    return re.sub(r"\b(\d{4}\.\d{5})\b", r"[\1](https://arxiv.org/abs/\1)", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
