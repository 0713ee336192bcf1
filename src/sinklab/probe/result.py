"""What was measured on one set of texts: arrays, and the questions people ask of them.

Needs no model and, but for `alpha` and `virtual`, no torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sinklab.errors import SinklabError
from sinklab.probe.definitions import LEAST_QUERIES, TailWindow, mean, named

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

RESAMPLES = 2000
HIDDEN = {"norm.hidden", "massive", "matrix-entropy"}  # numbers of hidden states: their layer 0 is what enters the first


@dataclass(frozen=True)
class Sink:
    """One number under one definition. NaN where fewer queries can see the key than were asked for."""

    definition: str
    position: int
    epsilon: float | None
    percent: float
    low: float  # 95 % bootstrap interval over sequences; NaN with a single sequence
    high: float
    layers: int  # that have softmax attention and were counted
    queries: int  # that could see the key, where most could
    boost: float | None = None  # over what uniform attention would give; for `tail_window`
    proxy: bool = False  # weights that are not softmax's, normalised for the comparison


class Head(NamedTuple):
    """A head and its mean alpha at a position."""

    layer: int
    head: int
    position: int
    alpha: float


class SinkToken(NamedTuple):
    """A token that heads use as a sink."""

    sequence: int
    index: int  # type: ignore[assignment]  # in `input_ids` as they were given, padding included; hides the tuple's own `index`
    position: int  # from 1, in its document
    token: int
    text: str | None
    percent: float  # of heads whose alpha is above epsilon
    first_layer: int
    last_layer: int


class Massive(NamedTuple):
    """A hidden activation far above the others (Sun et al., 2402.17762); layer 0 is what enters the first."""

    layer: int
    position: int
    dimension: int
    value: float
    ratio: float  # to the median magnitude of its sequence and layer
    percent: float  # of sequences that have it


@dataclass(frozen=True, eq=False)
class Result:
    """Arrays are float32 (sequences, layers, heads, n); positions count from a sequence's first real token."""

    numbers: dict[str, np.ndarray]
    tokens: np.ndarray  # int64 (sequences, places), -1 where there is none
    padding: np.ndarray  # (sequences,): places before the first token
    model: str = ""
    input: str = "given"
    run: str = ""
    ways: tuple[str, ...] = ()  # how each layer was measured; "" where it does not attend
    weights: tuple[str, ...] = ()  # kind of weight of each layer; "" is softmax, or does not attend
    proxy: bool = False  # weights of some layer do not sum to one, and were normalised for the comparison
    starts: np.ndarray | None = None  # boolean (sequences, places): where packed documents begin
    texts: tuple[tuple[str, ...], ...] | None = None
    loss: np.ndarray | None = None  # (sequences,): mean over tokens, in nats
    notes: tuple[str, ...] = field(default=())

    @property
    def alpha(self) -> "Tensor":
        """float32 (sequences, layers, heads, positions): alpha[i, l, h, 0] is sequence i's first real token.

        NaN under padding and where a layer does not attend.
        """
        return self._tensor("alpha")

    @property
    def virtual(self) -> "Tensor":
        """float32 (sequences, layers, heads): mean mass on a learned sink; zero where the model has none."""
        return self._tensor("virtual")[..., 0]

    @property
    def attends(self) -> np.ndarray:
        """Boolean (layers,)."""
        return ~np.isnan(self.number("queries")).all((0, 2, 3))

    @property
    def has_virtual(self) -> bool:
        """Some head gives mass to a learned sink."""
        return "virtual" in self.numbers and bool((np.nan_to_num(self.numbers["virtual"]) > 0).any())

    def number(self, name: str) -> np.ndarray:
        """An array by its name."""
        if name not in self.numbers:
            raise SinklabError(f"`{name}` was not measured; there are {', '.join(sorted(self.numbers))}. Ask for the probe that gives it.")
        return self.numbers[name]

    def sink(self, position: int = 1, epsilon: float | None = None, definition: str = "gu2024", least_queries: int = LEAST_QUERIES) -> Sink:
        """The percentage under a definition, at its own threshold unless one is given, with an interval over sequences (documents, if packed).

        A key that fewer than `least_queries` can see is not called a sink: the percentage is NaN.
        """
        chosen = named(definition)
        if position != int(position) or position < 0:
            raise SinklabError(f"Positions are whole numbers, from 1 (0 is a learned sink), not {position}.")
        if epsilon is not None and not 0 <= epsilon <= 1:
            raise SinklabError(f"epsilon is a share of attention, from 0 to 1, not {epsilon}.")
        if epsilon is not None and chosen.epsilon is None:
            raise SinklabError(f"`{definition}` is a mean mass and has no threshold; leave epsilon out.")
        epsilon = chosen.epsilon if epsilon is None else epsilon
        texts = self._documents
        seen = _seen(texts, position, definition)
        cells = np.where(seen >= least_queries, chosen.cells(texts, position), np.nan)
        many = len(cells)
        percent = 100 * chosen.shares(cells, epsilon, np.full((1, many), 1 / many))[0]
        low, high = _interval(chosen.shares(cells, epsilon, _resampling(many)), many)
        boost = None
        if isinstance(chosen, TailWindow):
            boost = float(percent / 100 / chosen.uniform(texts.asked, position))
        layers = int((~np.isnan(cells)).any((0, 2)).sum())
        return Sink(definition, position, epsilon, float(percent), low, high, layers, int(np.nan_to_num(seen).max()), boost, self.proxy)

    def sweep(self, epsilons: Sequence[float] = (0.2, 0.3, 0.4, 0.5), positions: Sequence[int] = (1,)) -> list[Sink]:
        """The paper's Fig. 3, one length at a time."""
        return [self.sink(position, epsilon) for position in positions for epsilon in epsilons]

    def heads(self, above: float = 0.3, position: int = 1) -> list[Head]:
        """Heads whose alpha, averaged over the sequences, is above a threshold; the strongest first."""
        texts = self._documents
        cells = np.where(_seen(texts, position, "gu2024") >= LEAST_QUERIES, named("gu2024").cells(texts, position), np.nan)
        means = mean(cells, 0)
        found = [Head(int(la), int(h), position, float(means[la, h])) for la, h in np.argwhere(np.nan_to_num(means) > above)]
        return sorted(found, key=lambda head: -head.alpha)

    def sink_tokens(self, epsilon: float = 0.3, least: float = 5.0) -> list[SinkToken]:
        """Tokens to which at least `least` percent of the heads give more than epsilon; sequence by sequence, in order."""
        seen = np.broadcast_to(self.number("queries"), self.number("alpha").shape)
        with np.errstate(invalid="ignore"):
            above = (self.number("alpha") > epsilon) & (seen >= LEAST_QUERIES)
        counted = (~np.isnan(self.number("alpha"))).sum((1, 2))
        percents = 100 * above.sum((1, 2)) / np.maximum(counted, 1)
        return [self._token(int(n), int(place), percents, above) for n, place in np.argwhere((percents >= least) & (percents > 0))]

    def massive_activations(self, least_value: float = 100.0, least_ratio: float = 1000.0) -> list[Massive]:
        """Activations of at least this magnitude and ratio to the median (both as in 2402.17762), averaged over the sequences that have them.

        Those that most sequences have come first, and of these the largest.
        """
        if "massive" not in self.numbers:
            return []
        found: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
        quads = self.numbers["massive"].reshape(*self.numbers["massive"].shape[:2], -1, 4)
        for n, layer, i in np.argwhere((np.abs(quads[..., 0]) >= least_value) & (quads[..., 3] >= least_ratio)):
            value, position, dimension, ratio = quads[n, layer, i]
            found.setdefault((int(layer), int(position), int(dimension)), []).append((float(value), float(ratio)))
        rows = []
        for key, pairs in found.items():
            value, ratio = np.mean(pairs, 0).tolist()
            rows.append(Massive(*key, value, ratio, 100 * len(pairs) / len(quads)))
        return sorted(rows, key=lambda row: (-row.percent, -abs(row.value)))

    def rows(self) -> "pa.Table":
        """One row per (run, input, length, step, sequence, layer, head, name), its value a list over positions where there are any."""
        from sinklab.probe.rows import table

        return table(self)

    def save(self, folder: str | Path) -> Path:
        """Write rows and tokens into `folder`, for `sinklab.load`."""
        from sinklab.probe.rows import save

        return save(self, Path(folder))

    def select(self, sequences: slice) -> "Result":
        """Some of the sequences."""
        return replace(
            self,
            numbers={name: x[sequences] for name, x in self.numbers.items()},
            tokens=self.tokens[sequences],
            padding=self.padding[sequences],
            starts=None if self.starts is None else self.starts[sequences],
            texts=None if self.texts is None else self.texts[sequences],
            loss=None if self.loss is None else self.loss[sequences],
        )

    @cached_property
    def _documents(self) -> "Texts":
        return Texts.of(self)

    def _token(self, n: int, place: int, percents: np.ndarray, above: np.ndarray) -> SinkToken:
        layers = np.flatnonzero(above[n, :, :, place].any(-1))
        begin = 0 if self.starts is None else int(np.flatnonzero(self.starts[n, : place + 1])[-1])
        text = None if self.texts is None else self.texts[n][place]
        return SinkToken(
            n,
            place + int(self.padding[n]),
            place - begin + 1,
            int(self.tokens[n, place]),
            text,
            float(percents[n, place]),
            int(layers[0]),
            int(layers[-1]),
        )

    def _tensor(self, name: str) -> "Tensor":
        import torch

        return torch.from_numpy(np.ascontiguousarray(self.number(name)))


@dataclass(frozen=True, eq=False)
class Texts:
    """What definitions read: one entry per text. Packed documents are taken apart, so that each has a first position."""

    numbers: dict[str, np.ndarray]
    asked: np.ndarray
    places: int
    packed: bool = False

    @classmethod
    def of(cls, result: Result) -> "Texts":
        """The texts of a result: its sequences, or the documents in them."""
        places = result.tokens.shape[1]
        if result.starts is None:
            asked = (result.tokens >= 0).sum(1) if (result.tokens >= 0).any() else np.full(len(result.tokens), places)
            return cls(result.numbers, asked, places)
        pieces = [(n, a, b) for n, row in enumerate(result.starts) for a, b in _runs(row)]
        width = max(b - a for _, a, b in pieces)
        numbers = {}
        for name, x in result.numbers.items():
            cut = [x[n, ..., a:b] if x.shape[-1] == places else x[n] for n, a, b in pieces]
            numbers[name] = np.stack([_padded(c, width if x.shape[-1] == places else c.shape[-1]) for c in cut])
        if "virtual.place" in numbers:
            numbers["virtual"] = mean(numbers.pop("virtual.place"), -1)[..., None]
        known = (result.tokens >= 0).any()
        asked = [int((result.tokens[n, a:b] >= 0).sum()) if known else b - a for n, a, b in pieces]
        return cls(numbers, np.array(asked), places, packed=True)

    @property
    def alpha(self) -> np.ndarray:
        """(N, L, H, T)."""
        return self.number("alpha")

    @property
    def queries(self) -> np.ndarray:
        """(N, L, 1 or H, T)."""
        return self.number("queries")

    @property
    def carried(self) -> np.ndarray:
        """(N, L, H)."""
        if "virtual.output" in self.numbers:
            return self.number("virtual.output")[..., 0]
        return np.zeros(self.alpha.shape[:-1], np.float32)

    def number(self, name: str) -> np.ndarray:
        """An array by its name, if it was measured and has a meaning here."""
        if name not in self.numbers:
            raise SinklabError(f"`{name}` was not measured; ask for the probe that gives it.")
        if self.packed and name == "tail":
            raise SinklabError("`tail_window` looks at the end of a text, and these rows hold several packed documents each.")
        return self.numbers[name]


def _runs(starts: np.ndarray) -> Iterator[tuple[int, int]]:
    edges = [*np.flatnonzero(starts).tolist(), len(starts)]
    yield from pairwise(edges)


def _padded(x: np.ndarray, width: int) -> np.ndarray:
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])], constant_values=np.nan)


def _seen(texts: Texts, position: int, definition: str) -> np.ndarray:
    """(N, L, H or 1): how many queries could have given to that key; for the virtual sink and for tails, all of the text's."""
    queries = texts.queries
    if position == 0 or definition == TailWindow.name:
        everywhere = np.broadcast_to(texts.asked[:, None, None], queries.shape[:-1])
        return np.where(np.isnan(queries).all(-1), np.nan, everywhere)
    if position > queries.shape[-1]:
        return np.full(queries.shape[:-1], np.nan)
    return queries[..., position - 1]


def _resampling(many: int) -> np.ndarray:
    """(R, N) weights: sequences drawn with replacement, always the same draw."""
    drawn = np.random.default_rng(0).multinomial(many, np.full(many, 1 / many), RESAMPLES)
    return drawn / many


def _interval(shares: np.ndarray, many: int) -> tuple[float, float]:
    if many < 2 or np.isnan(shares).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(100 * shares, [2.5, 97.5])
    return float(low), float(high)


def joined(parts: Sequence[Result]) -> Result:
    """Batches of one set of texts as one result; narrower arrays are padded with NaN."""
    first = parts[0]
    names = [name for name in first.numbers if all(name in part.numbers for part in parts)]
    numbers = {}
    for name in names:
        width = max(part.numbers[name].shape[-1] for part in parts)
        numbers[name] = np.concatenate([_padded(part.numbers[name], width) for part in parts])
    packed = any(part.starts is not None for part in parts)
    return replace(
        first,
        numbers=numbers,
        tokens=np.concatenate([part.tokens for part in parts]),
        padding=np.concatenate([part.padding for part in parts]),
        starts=np.concatenate([_starts(part) for part in parts]) if packed else None,
        texts=None if first.texts is None else tuple(text for part in parts for text in part.texts or ()),
        loss=None if first.loss is None else np.concatenate([part.loss for part in parts if part.loss is not None]),
    )


def _starts(part: Result) -> np.ndarray:
    if part.starts is not None:
        return part.starts
    starts = np.zeros(part.tokens.shape, bool)
    starts[:, 0] = True
    return starts
