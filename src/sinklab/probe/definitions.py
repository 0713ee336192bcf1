"""The room of definitions: what people have called an attention sink, each under its name, computed from the same rows.

A definition gives a number per (sequence, layer, head) and says how a percentage is made of them. Positions count from 1; 0 is the virtual sink.
All of it is numpy, so that a report needs neither a model nor torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

import numpy as np

from sinklab.errors import SinklabError, nearest

LEAST_QUERIES = 16  # a mean over fewer is not called a sink


class Numbers(Protocol):
    """What a definition reads: see `result.Texts`."""

    @property
    def alpha(self) -> np.ndarray:
        """(N, L, H, T): mean weight of each key over the queries that may see it."""

    @property
    def queries(self) -> np.ndarray:
        """(N, L, 1 or H, T): how many those are."""

    @property
    def asked(self) -> np.ndarray:
        """(N,): tokens that are not padding."""

    @property
    def carried(self) -> np.ndarray:
        """(N, L, H): the mean over queries of what keys that no token holds write out; zero where they have no values."""

    @property
    def places(self) -> int:
        """Tokens of a row, padding included."""

    def number(self, name: str) -> np.ndarray:
        """An array by its name, refused in a sentence where it was not measured."""


class Definition(Protocol):
    """What people call a sink: a number for each head, and what share is made of them."""

    name: ClassVar[str]
    paper: ClassVar[str]

    @property
    def epsilon(self) -> float | None:
        """The threshold; None for a mean mass, which has none."""

    def cells(self, numbers: Numbers, position: int) -> np.ndarray:
        """(N, L, H), NaN where the question makes no sense."""

    def shares(self, cells: np.ndarray, epsilon: float | None, weights: np.ndarray) -> np.ndarray:
        """(R,), from 0 to 1: once for each row of weights (R, N) over the sequences."""


def share_of_cells(cells: np.ndarray, epsilon: float | None, weights: np.ndarray) -> np.ndarray:
    """How many (sequence, layer, head) are above the threshold, strictly."""
    return mean_of_cells(np.where(np.isnan(cells), np.nan, cells > epsilon), weights)


def mean_of_cells(cells: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean over layers and heads of each sequence, then over sequences."""
    return _weighted(mean(cells, (1, 2)), weights)


def share_of_heads(cells: np.ndarray, epsilon: float | None, weights: np.ndarray) -> np.ndarray:
    """How many (layer, head) have a mean over the sequences above the threshold."""
    heads = _weighted(cells.reshape(len(cells), -1), weights)
    return mean(np.where(np.isnan(heads), np.nan, heads > epsilon), 1)


def mean(x: np.ndarray, axis: int | tuple[int, ...] | None = None) -> np.ndarray:
    """nanmean that is silent, and NaN, where there is nothing."""
    there = ~np.isnan(x)
    return np.where(there, x, 0).sum(axis, dtype=np.float64) / np.where(there.any(axis), there.sum(axis), np.nan)


def _weighted(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(N, ...) and (R, N) -> (R, ...): means over the sequences that have a number."""
    there = ~np.isnan(x)
    total = weights @ there.astype(np.float64)
    return weights @ np.where(there, x, 0).astype(np.float64) / np.where(total > 0, total, np.nan)


def _column(x: np.ndarray, position: int) -> np.ndarray:
    """(N, L, H, T) at one position; NaN where texts are shorter."""
    if not 1 <= position <= x.shape[-1]:
        return np.full(x.shape[:-1], np.nan, np.float32)
    return x[..., position - 1]


def _virtual(numbers: Numbers) -> np.ndarray:
    """alpha of the virtual sink as the paper counts it: one dummy query, all on itself, is among the rows. Zero where a head has no such sink."""
    mass, rows = numbers.number("virtual")[..., 0], numbers.asked[:, None, None]
    return np.where(mass > 0, (1 + rows * mass) / (rows + 1), mass)


@dataclass(frozen=True)
class Gu2024:
    """alpha_k = (1 / queries that may see k) * sum of A[i, k]; the diagonal and the first row count."""

    name: ClassVar[str] = "gu2024"
    paper: ClassVar[str] = "Gu et al., 2410.10781"
    epsilon: float | None = 0.3

    def cells(self, numbers: Numbers, position: int) -> np.ndarray:
        """alpha at the position."""
        return _virtual(numbers) if position == 0 else _column(numbers.alpha, position)

    def shares(self, cells: np.ndarray, epsilon: float | None, weights: np.ndarray) -> np.ndarray:
        """The share of cells above the threshold."""
        return share_of_cells(cells, epsilon, weights)


@dataclass(frozen=True)
class FirstRowExcluded:
    """As gu2024 without the key's own query, which at the first position gives all that it has to itself; a mean mass."""

    name: ClassVar[str] = "first_row_excluded"
    paper: ClassVar[str] = "attention-sink-playground (2026)"
    epsilon: float | None = None

    def cells(self, numbers: Numbers, position: int) -> np.ndarray:
        """The mean over the queries after the key; NaN where there are none."""
        if position == 0:
            return numbers.number("virtual")[..., 0]
        many, own = _column(numbers.queries, position), _column(numbers.number("own"), position)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(many > 1, (_column(numbers.alpha, position) * many - own) / (many - 1), np.nan)

    def shares(self, cells: np.ndarray, _epsilon: float | None, weights: np.ndarray) -> np.ndarray:
        """A mean mass."""
        return mean_of_cells(cells, weights)


@dataclass(frozen=True)
class TailWindow:
    """Mass that the last 64 queries give to the first 1, 4 or 8 keys (as many as `position` says); a mean mass."""

    name: ClassVar[str] = "tail_window"
    paper: ClassVar[str] = "attention-sink-profiler (2026)"
    epsilon: float | None = None

    def cells(self, numbers: Numbers, position: int) -> np.ndarray:
        """What the last queries give to the first keys together."""
        tail = numbers.number("tail")
        if not 1 <= position <= tail.shape[-1]:
            return np.full(tail.shape[:-1], np.nan, np.float32)
        return tail[..., :position].sum(-1)

    @staticmethod
    def uniform(asked: np.ndarray, position: int) -> float:
        """The same mass if attention were uniform: what `boost` is over."""
        means = [np.minimum(1, position / np.arange(max(1, n - 63), n + 1)).mean() for n in asked.astype(int)]
        return float(np.mean(means))

    def shares(self, cells: np.ndarray, _epsilon: float | None, weights: np.ndarray) -> np.ndarray:
        """A mean mass."""
        return mean_of_cells(cells, weights)


@dataclass(frozen=True)
class MassAboveHalf:
    """Percentage of heads whose mass, averaged over the sequences first, is above a half."""

    name: ClassVar[str] = "mass>0.5"
    paper: ClassVar[str] = "attention-sinks-quant (2026)"
    epsilon: float | None = 0.5

    def cells(self, numbers: Numbers, position: int) -> np.ndarray:
        """alpha at the position, without a dummy row for the virtual sink."""
        return numbers.number("virtual")[..., 0] if position == 0 else _column(numbers.alpha, position)

    def shares(self, cells: np.ndarray, epsilon: float | None, weights: np.ndarray) -> np.ndarray:
        """The share of heads whose mean is above the threshold."""
        return share_of_heads(cells, epsilon, weights)


@dataclass(frozen=True)
class Softpick:
    """Sum of the column over the number of all queries, those that cannot see the key among them."""

    name: ClassVar[str] = "softpick"
    paper: ClassVar[str] = "Zuhri et al., 2504.20966"
    epsilon: float | None = 0.3

    def cells(self, numbers: Numbers, position: int) -> np.ndarray:
        """The sum of the column over every query of the text."""
        if position == 0:
            return numbers.number("virtual")[..., 0]
        return _column(numbers.alpha, position) * _column(numbers.queries, position) / numbers.asked[:, None, None]

    def shares(self, cells: np.ndarray, epsilon: float | None, weights: np.ndarray) -> np.ndarray:
        """The share of cells above the threshold."""
        return share_of_cells(cells, epsilon, weights)


@dataclass(frozen=True)
class BosScore:
    """The same column mean, averaged over heads and layers without a threshold."""

    name: ClassVar[str] = "bos_score"
    paper: ClassVar[str] = "2601.06787"
    epsilon: float | None = None

    def cells(self, numbers: Numbers, position: int) -> np.ndarray:
        """As softpick's."""
        return Softpick().cells(numbers, position)

    def shares(self, cells: np.ndarray, _epsilon: float | None, weights: np.ndarray) -> np.ndarray:
        """A mean mass."""
        return mean_of_cells(cells, weights)


@dataclass(frozen=True)
class ColumnMeanAllRows:
    """Sum of the column over all rows of the map, masked and padded ones among them; biased to early keys."""

    name: ClassVar[str] = "column_mean_all_rows"
    paper: ClassVar[str] = "SinkVis 1.0 (PyPI)"
    epsilon: float | None = 0.1

    def cells(self, numbers: Numbers, position: int) -> np.ndarray:
        """The sum of the column over every row of the map."""
        if position == 0:
            return numbers.number("virtual")[..., 0] * numbers.asked[:, None, None] / numbers.places
        return _column(numbers.alpha, position) * _column(numbers.queries, position) / numbers.places

    def shares(self, cells: np.ndarray, epsilon: float | None, weights: np.ndarray) -> np.ndarray:
        """The share of cells above the threshold."""
        return share_of_cells(cells, epsilon, weights)


@dataclass(frozen=True)
class OutputShare:
    """alpha_k |v_k W_O| as a share of all keys: does the sink carry anything (no-op or broadcast)? Needs the probe `contribution`."""

    name: ClassVar[str] = "output_share"
    paper: ClassVar[str] = "Kobayashi et al., 2004.10102; 2606.08105"
    epsilon: float | None = None

    def cells(self, numbers: Numbers, position: int) -> np.ndarray:
        """The key's part in the norms of all that is carried."""
        parts = numbers.alpha * numbers.queries * numbers.number("norm.output")
        virtual = numbers.asked[:, None, None] * numbers.carried
        with np.errstate(divide="ignore", invalid="ignore"):
            return (virtual if position == 0 else _column(parts, position)) / (np.nansum(parts, -1) + virtual)

    def shares(self, cells: np.ndarray, _epsilon: float | None, weights: np.ndarray) -> np.ndarray:
        """A mean mass."""
        return mean_of_cells(cells, weights)


ALL: Mapping[str, Definition] = {
    d.name: d for d in (Gu2024(), FirstRowExcluded(), TailWindow(), MassAboveHalf(), Softpick(), BosScore(), ColumnMeanAllRows(), OutputShare())
}


def named(name: str) -> Definition:
    """A definition, or the nearest name to one that there is not."""
    if name not in ALL:
        raise SinklabError(f"There is no definition `{name}`.{nearest(name, ALL)} Known: {', '.join(ALL)}.")
    return ALL[name]


def described() -> Iterator[tuple[str, str, str, float | None]]:
    """(name, what it says, whose it is, its threshold), for the documentation."""
    for definition in ALL.values():
        assert {f.name for f in fields(definition)} == {"epsilon"}  # type: ignore[arg-type]
        yield definition.name, (type(definition).__doc__ or "").strip(), definition.paper, definition.epsilon
