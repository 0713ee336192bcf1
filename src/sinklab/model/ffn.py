"""The rooms of feed-forward functions and their activations."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from sinklab.config import Part


class Activation(Part, ABC):
    """A function of one number."""

    @abstractmethod
    def of(self, x: Tensor) -> Tensor:
        """Element by element."""


class ReLU(Activation):
    """max(x, 0)."""

    def of(self, x: Tensor) -> Tensor:
        """Element by element."""
        return F.relu(x)


class GELU(Activation):
    """x Phi(x), exactly."""

    def of(self, x: Tensor) -> Tensor:
        """Element by element."""
        return F.gelu(x)


class Swish(Activation):
    """x sigmoid(x)."""

    def of(self, x: Tensor) -> Tensor:
        """Element by element."""
        return F.silu(x)


class FeedForward(Part, ABC):
    """Between the first matrices and the last one."""

    activation: Activation

    @abstractmethod
    def pieces(self, hidden: int) -> Mapping[str, int]:
        """The first matrices, by name, and how many outputs each has."""

    @abstractmethod
    def between(self, x: Tensor) -> Tensor:
        """All their outputs side by side -> (..., hidden)."""


class Plain(FeedForward):
    """W2 act(W1 x)."""

    activation: Activation = GELU()

    def pieces(self, hidden: int) -> Mapping[str, int]:
        """One."""
        return {"up": hidden}

    def between(self, x: Tensor) -> Tensor:
        """The activation."""
        return self.activation.of(x)


class Gated(FeedForward):
    """W3 (act(W1 x) * W2 x); with Swish it is SwiGLU (2002.05202)."""

    activation: Activation = Swish()

    def pieces(self, hidden: int) -> Mapping[str, int]:
        """The gate and what it gates."""
        return {"gate": hidden, "up": hidden}

    def between(self, x: Tensor) -> Tensor:
        """Their product."""
        gate, up = x.chunk(2, -1)
        return self.activation.of(gate) * up
