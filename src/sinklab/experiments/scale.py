"""A scale: a base, and the questions that are asked of it. A question yields variations of whatever base it is given."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sinklab.config import Config, parse
from sinklab.experiments.experiment import Entry, Experiment, Found

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Variation:
    """What is changed, by path."""

    name: str
    changes: Mapping[str, Any]
    of: str = ""  # the variation that it changes; the base, unless said
    because: str = ""  # why it changes more than one thing
    like: str = ""  # the paper's name for it, where names hold sizes


Question = Callable[[Experiment], Iterator[Variation]]


@dataclass(frozen=True)
class Scale:
    """Names begin with `prefix`; the base's own is `base_name`."""

    base_name: str
    prefix: str
    base: Experiment
    questions: Mapping[str, Question]
    found: Mapping[str, Found] = field(default_factory=dict)  # what the paper says, by its names

    def entries(self) -> dict[str, Entry]:
        """The base and every variation of it; one that changes nothing is the base."""
        base = Entry(self.base_name, "base", self.base, **self._known("default"))
        made = {"": base}
        for group, question in self.questions.items():
            for one in question(self.base):
                entry = self._entry(group, one, made[one.of])
                if entry.experiment != made[one.of].experiment:
                    made[one.name] = entry
        return {entry.name: entry for entry in made.values()}

    def _entry(self, group: str, one: Variation, base: Entry) -> Entry:
        changed = varied(base.experiment, one.changes)
        return Entry(f"{self.prefix}{one.name}", group, changed, base, one.because, **self._known(one.like or one.name))

    def _known(self, name: str) -> dict[str, Any]:
        return {"paper": f"paper/{name}", "found": self.found[name]} if name in self.found else {}


def varied(config: C, changes: Mapping[str, Any]) -> C:
    """The same with leaves or parts replaced, all at once, so that pairs which need each other come together."""
    own: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        own.setdefault(name, {})[rest] = value
    return parse(
        type(config), dict(config) | {name: inner[""] if "" in inner else varied(getattr(config, name), inner) for name, inner in own.items()}
    )
