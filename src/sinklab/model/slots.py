"""The room of slots: what is put into attention beside the tokens.

Two kinds. A `VirtualKey` is a key that no token holds: it has a score with every query, and a value or none, and joins the normaliser. An
`AfterAttention` changes what the heads put out. Fast kernels know neither: both start from (out, lse), or are that simple.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from sinklab.config import Part
from sinklab.model.tensors import BIAS, ZERO, Recipe, Tensors, wide

if TYPE_CHECKING:
    from sinklab.model.design import Design


class Slot(Part, ABC):
    """Something beside the tokens, with its parameters."""

    @abstractmethod
    def recipes(self, design: "Design") -> dict[str, Recipe]:
        """Parameters of one block."""


class VirtualKey(Slot, ABC):
    """A key that no token holds."""

    @property
    @abstractmethod
    def has_value(self) -> bool:
        """It puts something out; otherwise it only takes weight from the others."""

    @abstractmethod
    def logit(self, p: Tensors, q: Tensor, scale: float) -> Tensor:
        """Its score with every query (B, H, T, D) -> (B or 1, H, T or 1)."""

    @abstractmethod
    def value(self, p: Tensors, design: "Design") -> Tensor | None:
        """(H or 1, D), or nothing."""


class AfterAttention(Slot, ABC):
    """A change of what the heads put out."""

    gates: ClassVar[bool] = False  # it does nothing but take away

    @abstractmethod
    def change(self, p: Tensors, x: Tensor, out: Tensor) -> Tensor:
        """`x` (B, T, d) is what the queries were made of; out (B, H, T, D) -> the same."""


class KeyBias(VirtualKey):
    """K bias: softmax(Q [k* K^T]) [0; V], k* not rotated (2410.10781, table 4)."""

    has_value: ClassVar[bool] = False
    shared: bool = False  # one for all heads

    def recipes(self, design: "Design") -> dict[str, Recipe]:
        """k*."""
        return {"key": _per_head(design, self.shared)}

    def logit(self, p: Tensors, q: Tensor, scale: float) -> Tensor:
        """q.k*."""
        return _product(q, p.key, scale)

    def value(self, p: Tensors, design: "Design") -> None:
        """None."""


class KeyValueBias(VirtualKey):
    """KV bias: softmax(Q [k* K^T]) [v*; V] (2410.10781, table 4; 2402.17762)."""

    has_value: ClassVar[bool] = True
    shared: bool = False

    def recipes(self, design: "Design") -> dict[str, Recipe]:
        """k* and v*."""
        return {"key": _per_head(design, self.shared), "value": _per_head(design, self.shared)}

    def logit(self, p: Tensors, q: Tensor, scale: float) -> Tensor:
        """q.k*."""
        return _product(q, p.key, scale)

    def value(self, p: Tensors, design: "Design") -> Tensor:  # noqa: ARG002
        """v*."""
        return p.value


class Direction(Part, ABC):
    """A unit vector."""

    @abstractmethod
    def vector(self, like: Tensor, size: int) -> Tensor:
        """(size,)."""


class FirstAxis(Direction):
    """[1, 0, ..., 0]."""

    def vector(self, like: Tensor, size: int) -> Tensor:
        """e_1."""
        return torch.cat([like.new_ones(1), like.new_zeros(size - 1)])


class Even(Direction):
    """[1, ..., 1] / sqrt(d)."""

    def vector(self, like: Tensor, size: int) -> Tensor:
        """All axes alike."""
        return like.new_full((size,), size**-0.5)


class FixedValue(VirtualKey):
    """K bias with v* = times * direction, which is not learnt (2410.10781, table 5)."""

    times: float = 1.0
    direction: Direction = FirstAxis()

    @property
    def has_value(self) -> bool:
        """Unless it is zero."""
        return self.times != 0

    def recipes(self, design: "Design") -> dict[str, Recipe]:
        """k*."""
        return {"key": _per_head(design, shared=False)}

    def logit(self, p: Tensors, q: Tensor, scale: float) -> Tensor:
        """q.k*."""
        return _product(q, p.key, scale)

    def value(self, p: Tensors, design: "Design") -> Tensor:
        """The same for all heads."""
        return self.times * self.direction.vector(p.key, design.head_size)[None]


class NarrowKeyBias(VirtualKey):
    """K bias of which the first `dimensions` are learnt and the others are zero (2410.10781, table 13)."""

    has_value: ClassVar[bool] = False
    dimensions: PositiveInt

    def recipes(self, design: "Design") -> dict[str, Recipe]:
        """The learnt part of k*."""
        return {"key": Recipe((design.heads, self.dimensions), BIAS)}

    def logit(self, p: Tensors, q: Tensor, scale: float) -> Tensor:
        """q.k*, over the dimensions that k* has."""
        return _product(q[..., : self.dimensions], p.key, scale)

    def value(self, p: Tensors, design: "Design") -> None:
        """None."""


class SinkLogit(VirtualKey):
    """A learnt score per head, the same for every query, without a value (gpt-oss, 2508.10925)."""

    has_value: ClassVar[bool] = False

    def recipes(self, design: "Design") -> dict[str, Recipe]:
        """One number per head."""
        return {"score": Recipe((design.heads,), ZERO)}

    def logit(self, p: Tensors, q: Tensor, scale: float) -> Tensor:  # noqa: ARG002
        """It is one already: neither scaled nor asked."""
        return p.score[None, :, None]

    def value(self, p: Tensors, design: "Design") -> None:
        """None."""


class OffByOne(VirtualKey):
    """exp(s) / (1 + sum_j exp(s)): a score of zero without a value (softmax-off-by-one)."""

    has_value: ClassVar[bool] = False

    def recipes(self, design: "Design") -> dict[str, Recipe]:  # noqa: ARG002
        """None."""
        return {}

    def logit(self, p: Tensors, q: Tensor, scale: float) -> Tensor:  # noqa: ARG002
        """Zero."""
        return q.new_zeros(1, q.shape[1], 1)

    def value(self, p: Tensors, design: "Design") -> None:
        """None."""


class ValueBias(AfterAttention):
    """V bias: softmax(Q K^T) V + v* (2410.10781, table 4)."""

    shared: bool = False

    def recipes(self, design: "Design") -> dict[str, Recipe]:
        """v*."""
        return {"value": _per_head(design, self.shared)}

    def change(self, p: Tensors, x: Tensor, out: Tensor) -> Tensor:  # noqa: ARG002
        """Added to every token's output."""
        return out + p.value[None, :, None].to(out.dtype)


class HeadGate(AfterAttention):
    """One gate per head and token: out * sigmoid(x W) (gated attention, 2505.06708)."""

    gates: ClassVar[bool] = True

    def recipes(self, design: "Design") -> dict[str, Recipe]:
        """W."""
        return {"gate": Recipe((design.heads, design.width))}

    def change(self, p: Tensors, x: Tensor, out: Tensor) -> Tensor:
        """The query's input decides."""
        gate = torch.nn.functional.linear(x, p.gate).transpose(1, 2)[..., None]
        return out * torch.sigmoid(gate).to(out.dtype)


class ElementGate(AfterAttention):
    """One gate per element: out * sigmoid(x W) (gated attention, 2505.06708)."""

    gates: ClassVar[bool] = True

    def recipes(self, design: "Design") -> dict[str, Recipe]:
        """W."""
        return {"gate": Recipe((design.heads * design.head_size, design.width))}

    def change(self, p: Tensors, x: Tensor, out: Tensor) -> Tensor:
        """The query's input decides."""
        gate = torch.nn.functional.linear(x, p.gate).unflatten(-1, (out.shape[1], out.shape[-1])).transpose(1, 2)
        return out * torch.sigmoid(gate).to(out.dtype)


def _per_head(design: "Design", shared: bool) -> Recipe:
    return Recipe((1 if shared else design.heads, design.head_size), BIAS)


def _product(q: Tensor, key: Tensor, scale: float) -> Tensor:
    """(B, H, T, D) and (H or 1, D) -> (B, H, T)."""
    return (wide(q) * wide(key)[None, :, None]).sum(-1) * scale
