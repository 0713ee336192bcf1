"""The room of heads: how what they put out becomes the input of one matrix."""

from abc import ABC, abstractmethod

from torch import Tensor

from sinklab.config import Part


class Joined(Part, ABC):
    """What becomes of (B, H, T, D)."""

    @abstractmethod
    def width(self, heads: int, size: int) -> int:
        """How many numbers a token has then."""

    @abstractmethod
    def join(self, out: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, T, width)."""


class Concatenated(Joined):
    """Side by side, each with its part of W_O."""

    def width(self, heads: int, size: int) -> int:
        """All of them."""
        return heads * size

    def join(self, out: Tensor) -> Tensor:
        """One after another."""
        return out.transpose(1, 2).flatten(2)


class Added(Joined):
    """(sum_h out_h) W_O, W_O (d, D) for all heads (2410.10781, table 12)."""

    def width(self, heads: int, size: int) -> int:  # noqa: ARG002
        """One head's."""
        return size

    def join(self, out: Tensor) -> Tensor:
        """Added up."""
        return out.sum(1)
