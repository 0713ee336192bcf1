"""From rows to summary.json: what was asked for, under every definition, and what a verdict is made of. Its schema lies beside."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from sinklab.errors import SinklabError
from sinklab.probe.definitions import Gu2024, named
from sinklab.probe.result import Result, Sink, Texts
from sinklab.report import paper, profile
from sinklab.report.verdict import verdict

SCHEMA = 1
DIGITS = 7  # as many as float32 holds


@dataclass(frozen=True)
class Asked:
    """What the percentages are wanted for. The epsilons go with the definitions whose threshold is the paper's; others keep their own."""

    definitions: tuple[str, ...] = ("gu2024",)
    epsilons: tuple[float, ...] = (0.3,)
    positions: tuple[int, ...] = (1,)

    @property
    def detail(self) -> tuple[int, float]:
        """The position and the threshold for which heads, layers and tokens are listed: the paper's where they were asked for."""
        epsilon = paper.EPSILON if paper.EPSILON in self.epsilons else self.epsilons[0]
        return next((p for p in (1, *self.positions) if p in self.positions and p > 0), 1), epsilon

    def thresholds(self, definition: str) -> tuple[float | None, ...]:
        """The thresholds of one definition; None stands for a mean mass."""
        own = named(definition).epsilon
        return self.epsilons if own == Gu2024.epsilon else (own,)


def whole(models: list[dict[str, Any]]) -> dict[str, Any]:
    """summary.json."""
    return {"schema": SCHEMA, "models": models}


def summarise(model: str, settings: Mapping[str, Any], results: Mapping[str, Result], asked: Asked) -> dict[str, Any]:
    """One entry of `models`: every input's numbers, and the verdict that follows from them."""
    notes = dict.fromkeys([*settings.get("notes", ()), *(note for result in results.values() for note in result.notes)])
    inputs = {name: summarise_input(result, asked) for name, result in results.items()}
    entry = plain({"model": model, "settings": dict(settings), "notes": list(notes), "inputs": inputs})
    return entry | {"verdict": verdict(entry)}


def summarise_input(result: Result, asked: Asked) -> dict[str, Any]:
    """The numbers of one input."""
    texts, (position, epsilon) = Texts.of(result), asked.detail
    first = profile.sink_cells(texts, 1, epsilon)
    tokens = result.sink_tokens(epsilon)
    heads = result.heads(epsilon, position)
    places = profile.sink_positions(tokens, len(result.tokens))
    return {
        "sequences": len(result.tokens),
        "length": result.tokens.shape[1],
        "documents": len(texts.asked) if texts.packed else None,
        "loss": None if result.loss is None else float(np.nanmean(result.loss)) if np.isfinite(result.loss).any() else None,
        "layers": len(result.attends),
        "attending_layers": int(result.attends.sum()),
        "heads": int((~np.isnan(texts.alpha)).any((0, 3)).sum()),
        "ways": dict(Counter(way for way in result.ways if way)),
        "sinks": sinks(result, asked),
        "detail": {"position": position, "epsilon": epsilon},
        "sink_heads": len(heads),
        "top_heads": [head._asdict() for head in heads[: profile.MANY]],
        "first_token": first_token(result),
        "sink_tokens": places,
        "other_positions": [
            {key: x for key, x in place.items() if key != "examples"} for place in places if place["position"] not in asked.positions
        ],
        "other_tokens": profile.sink_texts(tokens, len(result.tokens), (1, *asked.positions)),
        "virtual": profile.virtual_percent(result),
        "gate_suppressed": profile.gate_percent(result),
        "massive_activations": profile.massive_activations(result.massive_activations()) if "massive" in result.numbers else None,
        "norm_ratio": profile.norm_ratio(texts),
        "value_norm_ratio": profile.value_norm_ratio(texts, first),
        "contribution": profile.contribution(texts, first),
        "by_layer": by_layer(texts, position, epsilon),
    }


def sinks(result: Result, asked: Asked) -> list[dict[str, Any]]:
    """Every definition, position and threshold that was asked for; the virtual sink of its own accord where the model has one."""
    wanted = dict.fromkeys(asked.positions)
    by_itself = result.has_virtual and 0 not in wanted
    found = [
        answered(result, position, epsilon, definition)
        for definition in asked.definitions
        for position in [*wanted, *([0] if by_itself else [])]
        for epsilon in asked.thresholds(definition)
    ]
    return [sink_entry(sink) for sink in found if not (by_itself and sink.position == 0 and math.isnan(sink.percent))]


def answered(result: Result, position: int, epsilon: float | None, definition: str) -> Sink:
    """A definition whose numbers these rows do not have gives no percentage."""
    named(definition)
    try:
        return result.sink(position, epsilon, definition)
    except SinklabError:
        return Sink(definition, position, epsilon, math.nan, math.nan, math.nan, layers=0, queries=0, proxy=result.proxy)


def sink_entry(sink: Sink) -> dict[str, Any]:
    """A number under a definition; `boost` only where the definition has one."""
    entry = {
        "definition": sink.definition,
        "position": sink.position,
        "epsilon": sink.epsilon,
        "percent": sink.percent,
        "low": sink.low,
        "high": sink.high,
        "proxy": sink.proxy,
        "layers": sink.layers,
        "queries": sink.queries,
    }
    return entry if sink.boost is None else entry | {"boost": sink.boost}


def first_token(result: Result) -> dict[str, Any] | None:
    """The most frequent first token, and in how many percent of the sequences: at 100, place and token cannot be told apart."""
    if not (result.tokens[:, 0] >= 0).any():
        return None
    token, count = Counter(result.tokens[:, 0].tolist()).most_common(1)[0]
    row = int(np.flatnonzero(result.tokens[:, 0] == token)[0])
    text = None if result.texts is None else result.texts[row][0]
    return {"token": token, "text": text, "percent": 100 * count / len(result.tokens)}


def by_layer(texts: Texts, position: int, epsilon: float) -> dict[str, Any]:
    """Profiles over depth; those of hidden states have one entry more, as their layer 0 is what enters the first."""
    norms = profile.hidden_norms(texts)
    return {
        "sink_percent": profile.sinks_by_layer(texts, position, epsilon),
        "norm_first": None if norms is None else norms[0],
        "norm_others": None if norms is None else norms[1],
    }


def plain(value: Any) -> Any:
    """The same in types of JSON: what is not a finite number becomes null, floats keep the digits that float32 has."""
    if isinstance(value, Mapping):
        return {str(key): plain(x) for key, x in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(x) for x in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def schema() -> dict[str, Any]:
    """The JSON Schema of summary.json."""
    loaded: dict[str, Any] = json.loads(files("sinklab.report").joinpath("summary.schema.json").read_text("utf-8"))
    return loaded
