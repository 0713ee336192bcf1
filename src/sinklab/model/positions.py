"""The room of positions: where a token stands, said to the embedding, to queries and keys, or to the scores.

Places count from 0 over a sequence and its learned sink tokens; padding before a text is not counted.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from sinklab.config import Part
from sinklab.model.tensors import BIAS, EMBEDDING, Recipe, Tensors, wide

if TYPE_CHECKING:
    from sinklab.model.design import Design


class Positions(Part, ABC):
    """Of four kinds: added to embeddings, turning queries and keys, added to scores, or none."""

    @property
    @abstractmethod
    def limit(self) -> int:
        """How many places there are, learned sink tokens among them; 0: as many as one likes."""

    @abstractmethod
    def recipes(self, design: "Design") -> dict[str, Recipe]:
        """Parameters of the whole model."""


class AddsToEmbeddings(Positions, ABC):
    """The first hidden state says where."""

    @abstractmethod
    def rows(self, p: Tensors, places: Tensor, width: int) -> Tensor:
        """places (B or 1, T) -> (B or 1, T, d)."""


class TurnsHeads(Positions, ABC):
    """Queries and keys say where."""

    limit: ClassVar[int] = 0

    @abstractmethod
    def angles(self, places: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """places (B or 1, T) -> cosines and sines, float32 (B or 1, T, 1, D / 2)."""


class AddsToScores(Positions, ABC):
    """Scores say how far."""

    limit: ClassVar[int] = 0

    @abstractmethod
    def numbers(self, p: Tensors, heads: int, longest: int, device: torch.device) -> Tensor:
        """float32: what `added` is made of, for distances below `longest`; made once per forward."""

    @abstractmethod
    def added(self, numbers: Tensor, h: Tensor, distance: Tensor) -> Tensor:
        """What is added to scores of head h whose key stands so many places before its query; of integers that broadcast."""


@dataclass(frozen=True, eq=False)
class Distances:
    """What distances add to scores in one forward."""

    kind: AddsToScores
    numbers: Tensor

    def of(self, h: Tensor, distance: Tensor) -> Tensor:
        """Of integers that broadcast; a key after its query is no distance away."""
        return self.kind.added(self.numbers, h, distance.clamp_min(0))


class NoPositions(Positions):
    """NoPE: causality alone says where."""

    limit: ClassVar[int] = 0

    def recipes(self, design: "Design") -> dict[str, Recipe]:  # noqa: ARG002
        """None."""
        return {}


class Rope(TurnsHeads):
    """Rotary positions over the whole head, halves paired as in GPT-NeoX (2104.09864)."""

    base: PositiveFloat = 10000.0

    def recipes(self, design: "Design") -> dict[str, Recipe]:  # noqa: ARG002
        """None."""
        return {}

    def angles(self, places: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """base^(-2 i / D) per place."""
        return _angles(places, self.base, size)


@torch.library.custom_op("sinklab::angles", mutates_args=())
def _angles(places: Tensor, base: float, size: int) -> tuple[Tensor, Tensor]:
    """An operator of its own, so that a compiled model computes them once, and not again for every number that is turned."""
    angles = (places[..., None].float() * frequencies(base, size, places.device))[:, :, None]
    return angles.cos(), angles.sin()


@_angles.register_fake
def _(places: Tensor, _base: float, size: int) -> tuple[Tensor, Tensor]:
    shape = (*places.shape, 1, size // 2)
    return places.new_empty(shape, dtype=torch.float32), places.new_empty(shape, dtype=torch.float32)


class Sinusoidal(AddsToEmbeddings):
    """[sin(t w) | cos(t w)], w_i = 10000^(-2 i / d), halves side by side as the paper's code has them (1706.03762)."""

    limit: ClassVar[int] = 0

    def recipes(self, design: "Design") -> dict[str, Recipe]:  # noqa: ARG002
        """None."""
        return {}

    def rows(self, p: Tensors, places: Tensor, width: int) -> Tensor:  # noqa: ARG002
        """Added unscaled."""
        angles = places[..., None].float() * frequencies(10000.0, width, places.device)
        return torch.cat([angles.sin(), angles.cos()], -1)[..., :width]


class Learned(AddsToEmbeddings):
    """A learnt vector per place."""

    length: PositiveInt = 2048

    @property
    def limit(self) -> int:
        """The table's length."""
        return self.length

    def recipes(self, design: "Design") -> dict[str, Recipe]:
        """One row for each place that a text may have."""
        return {"table": Recipe((self.length, design.width), EMBEDDING)}

    def rows(self, p: Tensors, places: Tensor, width: int) -> Tensor:  # noqa: ARG002
        """Looked up."""
        return torch.nn.functional.embedding(places, p.table)


class Alibi(AddsToScores):
    """-m_h (i - j), m_h = 2^(-8 h / H) (2108.12409)."""

    def recipes(self, design: "Design") -> dict[str, Recipe]:  # noqa: ARG002
        """None."""
        return {}

    def numbers(self, p: Tensors, heads: int, longest: int, device: torch.device) -> Tensor:  # noqa: ARG002
        """A slope per head."""
        return -torch.exp2(-8.0 * torch.arange(1, heads + 1, device=device) / heads)

    def added(self, numbers: Tensor, h: Tensor, distance: Tensor) -> Tensor:
        """In proportion."""
        return numbers[h] * distance


class BucketIndex(AddsToScores):
    """The number of T5's bucket itself, 0 to 31, for all heads: "relative" as the paper's code has it, not learnt, and more for keys far away."""

    def recipes(self, design: "Design") -> dict[str, Recipe]:  # noqa: ARG002
        """None."""
        return {}

    def numbers(self, p: Tensors, heads: int, longest: int, device: torch.device) -> Tensor:  # noqa: ARG002
        """The same for all heads."""
        return buckets(longest, device).float()

    def added(self, numbers: Tensor, h: Tensor, distance: Tensor) -> Tensor:  # noqa: ARG002
        """Looked up."""
        return numbers[distance]


class T5Relative(AddsToScores):
    """A learnt number per bucket of distances and head, shared by all layers (T5, 1910.10683)."""

    def recipes(self, design: "Design") -> dict[str, Recipe]:
        """32 buckets."""
        return {"bias": Recipe((design.heads, BUCKETS), BIAS)}

    def numbers(self, p: Tensors, heads: int, longest: int, device: torch.device) -> Tensor:  # noqa: ARG002
        """By distance instead of by bucket."""
        return wide(p.bias[:, buckets(longest, device)])

    def added(self, numbers: Tensor, h: Tensor, distance: Tensor) -> Tensor:
        """Looked up."""
        return numbers[h, distance]


BUCKETS, EXACT, FARTHEST = 32, 16, 128  # T5's: distances below 16 have a bucket each, from 128 on they share the last


def buckets(longest: int, device: torch.device) -> Tensor:
    """int64 (longest,): the bucket of each distance, exact up to 15 and logarithmic after it."""
    distance = torch.arange(longest, device=device)
    steps = (distance.clamp_min(1) / EXACT).log() / math.log(FARTHEST / EXACT) * (BUCKETS - EXACT)
    return torch.where(distance < EXACT, distance, (EXACT + steps.floor().long()).clamp_max(BUCKETS - 1))


def frequencies(base: float, size: int, device: torch.device) -> Tensor:
    """float32 (ceil(size / 2),)."""
    return torch.exp(torch.arange(0, size, 2, device=device).float() * (-math.log(base) / size))


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, T, H, D) by angles (B or 1, T, 1, D / 2): the first half is the real part."""
    real, imaginary = wide(x).chunk(2, -1)
    return torch.cat([real * cos - imaginary * sin, imaginary * cos + real * sin], -1).to(x.dtype)
