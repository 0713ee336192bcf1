"""Numbers as words, and which of an entry's numbers a sentence is about."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sinklab.report import paper

Facts = Mapping[str, Any]
Saying = Iterator[tuple[str, str]]  # (code, sentence)

STRONG, CLEAR, FAINT = 50.0, 10.0, 1.0  # percent of the heads
LONG_NORM = 10.0  # times the others': a state that stands out
SYNTHETIC = {"random", "repeat"}


@dataclass(frozen=True)
class Case:
    """A model's entry, and the input that sentences are about: natural text where there is some."""

    entry: Facts
    main: str

    @classmethod
    def of(cls, entry: Facts) -> "Case":
        """Natural text first, then whatever else is text; random and repeated tokens last."""
        return cls(entry, min(entry["inputs"], key=lambda name: (base(name) != "natural", base(name) in SYNTHETIC)))

    @property
    def facts(self) -> Facts:
        """The numbers of that input."""
        return self.entry["inputs"][self.main]

    @property
    def kind(self) -> str:
        """The kind of that input."""
        return base(self.main)

    def sibling(self, wanted: str) -> Facts | None:
        """Another input of the same length."""
        same = [facts for name, facts in self.entry["inputs"].items() if base(name) == wanted]
        return next((facts for facts in same if facts["length"] == self.facts["length"]), None)


def base(name: str) -> str:
    """`natural@512` -> `natural`."""
    return re.sub(r"@\d+$", "", name)


def headline(facts: Facts) -> Facts | None:
    """The number that stands for an input: gu2024 at the first position, at 0.3 if that was asked for; None where it is not known."""
    found = [s for s in facts["sinks"] if (s["definition"], s["position"]) == ("gu2024", 1) and s["percent"] is not None]
    return next((sink for sink in found if sink["epsilon"] == paper.EPSILON), found[0] if found else None)


def first_percent(facts: Facts) -> float | None:
    """The headline's percentage."""
    sink = headline(facts)
    return None if sink is None else sink["percent"]


def has_sink(facts: Facts, least: float = FAINT) -> bool:
    """Whether there is one on the first token."""
    return (first_percent(facts) or 0) >= least


def percent(x: float) -> str:
    """67.8 %, 0 %, under 0.1 %."""
    if 0 < x < 0.05:
        return "under 0.1 %"
    return f"{x:.0f} %" if x == 0 or x >= 99.95 else f"{x:.1f} %"


def with_interval(sink: Facts) -> str:
    """67.8 % (66.1 to 69.5)."""
    if sink["low"] is None or sink["low"] == sink["high"]:
        return percent(sink["percent"])
    return f"{percent(sink['percent'])} ({sink['low']:.1f} to {sink['high']:.1f})"


def times(x: float) -> str:
    """24,527 or 2.4."""
    return f"{x:,.0f}" if abs(x) >= 10 else f"{x:.2g}"


def listed(parts: Sequence[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def spread(peers: Mapping[str, float]) -> str:
    """70.3 to 91.2 %."""
    return f"{min(peers.values()):.1f} to {max(peers.values()):.1f} %"


def counted(facts: Facts) -> str:
    """Over what a percentage is taken."""
    many, layers, all_layers = facts["sequences"], facts["attending_layers"], facts["layers"]
    where = f"all {layers} layers" if layers == all_layers else f"the {layers} of {all_layers} layers that have softmax attention"
    asked = max((sink["layers"] for sink in facts["sinks"] if sink["position"] > 0), default=layers)
    if 0 < asked < layers:  # in the others too few queries see the key: short windows
        where = f"the {asked} of {all_layers} layers in which enough queries see it"
    return f"{many} sequence{'s' * (many != 1)} of {facts['length']} tokens and {where}"


def state(layer: int, layers: int) -> str:
    """A hidden state, named by the layer that it enters."""
    return "the last state" if layer == layers else f"the state that enters layer {layer}"


def span(first: int, last: int) -> str:
    """Layers 3 to 9, layer 3."""
    return f"layer {first}" if first == last else f"layers {first} to {last}"


def unbroken(sentence: str) -> str:
    """A number stays on one line with its percent sign."""
    return re.sub(r"(?<=\d) (?=%)", "\N{NO-BREAK SPACE}", sentence)
