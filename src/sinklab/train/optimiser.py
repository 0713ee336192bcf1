"""The room of optimisers: settings, and torch's optimisers built from them over a model's parameters."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import nn

from sinklab.config import Part
from sinklab.model.tensors import DOWN, EMBEDDING, MATRIX, Linear, Tensors


@dataclass(frozen=True, eq=False)
class Named:
    """A parameter, under its name, with what it is for (one of the roles in `model.tensors`)."""

    name: str
    role: str
    tensor: nn.Parameter

    @property
    def hidden(self) -> bool:
        """A matrix inside of a block."""
        return self.role in {MATRIX, DOWN} and self.name.startswith("blocks.") and self.tensor.ndim == 2


def parameters(model: nn.Module) -> Iterator[Named]:
    """Those of a decoder, in the order of its modules."""
    for path, module in model.named_modules():
        if isinstance(module, Tensors | Linear):
            roles = {name: recipe.role for name, recipe in module.recipes.items()} if isinstance(module, Tensors) else {"weight": module.role}
            for name, role in roles.items():
                yield Named(f"{path}.{name}", role, module.get_parameter(name))


class Decayed(Part, ABC):
    """Which parameters decay."""

    @abstractmethod
    def decays(self, role: str) -> bool:
        """Whether one of this role does."""


class Everything(Decayed):
    """All of them, embeddings, gains and biases too: as in the paper's code."""

    def decays(self, role: str) -> bool:  # noqa: ARG002
        """Yes."""
        return True


class Matrices(Decayed):
    """Matrices and embeddings; gains and biases do not."""

    def decays(self, role: str) -> bool:
        """Whether it is drawn as a matrix is."""
        return role in {MATRIX, DOWN, EMBEDDING}


class Optimiser(Part, ABC):
    """How gradients become steps."""

    lr: PositiveFloat = 4e-4  # at its highest; the schedule says how much of it a step has

    @abstractmethod
    def over(self, named: list[Named]) -> list[torch.optim.Optimizer]:
        """One for each kind of parameter that is treated in a way of its own; together they have every parameter once."""

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Those of a decoder. Each group keeps its highest rate as `initial_lr`, as torch's schedulers do."""
        built = self.over(list(parameters(model)))
        for group in (group for optimiser in built for group in optimiser.param_groups):
            group["initial_lr"] = group["lr"]
        return built


class AdamW(Optimiser):
    """w -= lr (m / (sqrt(v) + eps) + decay w), the decay apart from the gradient (1711.05101)."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    decay: NonNegativeFloat = 0.1
    on: Decayed = Everything()

    def over(self, named: list[Named]) -> list[torch.optim.Optimizer]:
        """One."""
        return [torch.optim.AdamW(_groups(named, self.on, self.decay), lr=self.lr, betas=self.betas, eps=self.eps)]


class SGD(Optimiser):
    """w -= lr m, m = momentum m + gradient + decay w."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    decay: NonNegativeFloat = 0.1
    on: Decayed = Everything()

    def over(self, named: list[Named]) -> list[torch.optim.Optimizer]:
        """One."""
        return [torch.optim.SGD(_groups(named, self.on, self.decay), lr=self.lr, momentum=self.momentum)]


class Muon(Optimiser):
    """w -= lr (0.2 sqrt(larger side) orthogonalised m + decay w) for the matrices of blocks, AdamW for the rest (2502.16982).

    The factor makes a step as large as AdamW's, so that one rate fits both. Matrices that read the same input are one matrix here.
    """

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    decay: NonNegativeFloat = 0.1
    rest: AdamW = AdamW()

    def over(self, named: list[Named]) -> list[torch.optim.Optimizer]:
        """Two."""
        hidden = [one.tensor for one in named if one.hidden]
        muon = torch.optim.Muon(hidden, lr=self.lr, momentum=self.momentum, weight_decay=self.decay, adjust_lr_fn="match_rms_adamw")
        return [muon, *self.rest.over([one for one in named if not one.hidden])]


def _groups(named: Iterable[Named], on: Decayed, decay: float) -> list[dict[str, Any]]:
    """Those that decay and those that do not, none empty."""
    sorted_by: dict[float, list[nn.Parameter]] = {}
    for one in named:
        sorted_by.setdefault(decay if on.decays(one.role) else 0.0, []).append(one.tensor)
    return [{"params": tensors, "weight_decay": share} for share, tensors in sorted_by.items()]
