"""The rooms of norms: where the norm stands in a block, and whether queries and keys have one."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from sinklab.config import Part
from sinklab.model.tensors import GAIN, Recipe, Tensors, wide

EPSILON = 1e-5
Function = Callable[[Tensor], Tensor]


def rms(x: Tensor, gain: Tensor) -> Tensor:
    """x / sqrt(mean x^2 + 1e-5) * gain."""
    return F.rms_norm(wide(x), gain.shape, wide(gain), EPSILON).to(x.dtype)


class Placement(Part, ABC):
    """How a block's function and its norms make the next hidden state."""

    names: ClassVar[tuple[str, ...]]  # of the gains that one function needs
    final: ClassVar[bool]  # a norm after the last block

    def recipes(self, width: int) -> dict[str, Recipe]:
        """Gains of one function of a block."""
        return {name: Recipe((width,), GAIN) for name in self.names}

    @abstractmethod
    def apply(self, p: Tensors, x: Tensor, f: Function) -> Tensor:
        """The hidden state after f."""


class PreNorm(Placement):
    """x + f(norm(x))."""

    names: ClassVar[tuple[str, ...]] = ("before",)
    final: ClassVar[bool] = True

    def apply(self, p: Tensors, x: Tensor, f: Function) -> Tensor:
        """The residual stream is never normed."""
        return x + f(rms(x, p.before))


class PostNorm(Placement):
    """norm(x + f(x)); none after the last block."""

    names: ClassVar[tuple[str, ...]] = ("after",)
    final: ClassVar[bool] = False

    def apply(self, p: Tensors, x: Tensor, f: Function) -> Tensor:
        """The residual stream is normed each time."""
        return rms(x + f(x), p.after)


class Sandwich(Placement):
    """x + norm(f(norm(x)))."""

    names: ClassVar[tuple[str, ...]] = ("before", "after")
    final: ClassVar[bool] = True

    def apply(self, p: Tensors, x: Tensor, f: Function) -> Tensor:
        """What a function adds is bounded."""
        return x + rms(f(rms(x, p.before)), p.after)


class HeadNorm(Part, ABC):
    """What becomes of each head's queries and keys before positions."""

    @abstractmethod
    def recipes(self, size: int) -> dict[str, Recipe]:
        """Gains of one block."""

    @abstractmethod
    def apply(self, p: Tensors, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """(..., D) each."""


class NoHeadNorm(HeadNorm):
    """Queries and keys as they are."""

    def recipes(self, size: int) -> dict[str, Recipe]:  # noqa: ARG002
        """None."""
        return {}

    def apply(self, p: Tensors, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """As they are."""
        return q, k


class QKNorm(HeadNorm):
    """Each head's queries and keys are normed, with learnt gains that the heads of a block share (2302.05442)."""

    def recipes(self, size: int) -> dict[str, Recipe]:
        """One gain for queries, one for keys."""
        return {"query": Recipe((size,), GAIN), "key": Recipe((size,), GAIN)}

    def apply(self, p: Tensors, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Scores are bounded by the gains."""
        return rms(q, p.query), rms(k, p.key)
