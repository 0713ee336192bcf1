"""The room of features: q, k -> phi(q), phi(k), after positions."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sinklab.config import Part
from sinklab.model.tensors import Recipe, Tensors


class Features(Part, ABC):
    """A function of each head's queries and keys, the same for both."""

    positive: ClassVar[bool] = False  # products of what it gives are above zero

    @abstractmethod
    def recipes(self, size: int) -> dict[str, Recipe]:
        """Parameters, for heads of that size."""

    @abstractmethod
    def phi(self, p: Tensors, x: Tensor) -> Tensor:
        """(B, H, T, D) -> the same shape."""


class Identity(Features):
    """phi(x) = x."""

    def recipes(self, size: int) -> dict[str, Recipe]:  # noqa: ARG002
        """None."""
        return {}

    def phi(self, p: Tensors, x: Tensor) -> Tensor:  # noqa: ARG002
        """As it is."""
        return x


class Elu(Features):
    """phi(x) = elu(x) + 1 (linear attention, 2006.16236)."""

    positive: ClassVar[bool] = True

    def recipes(self, size: int) -> dict[str, Recipe]:  # noqa: ARG002
        """None."""
        return {}

    def phi(self, p: Tensors, x: Tensor) -> Tensor:  # noqa: ARG002
        """exp(x) below zero, x + 1 above."""
        return torch.where(x > 0, x + 1, x.clamp_max(0).exp())


class Mlp(Features):
    """phi(x) = W2 relu(W1 x), of one block, shared between q and k and between heads (2410.10781, table 6)."""

    def recipes(self, size: int) -> dict[str, Recipe]:
        """Two square matrices."""
        return {"first": Recipe((size, size)), "second": Recipe((size, size))}

    def phi(self, p: Tensors, x: Tensor) -> Tensor:
        """Without biases."""
        return F.linear(F.linear(x, p.first).relu(), p.second)
