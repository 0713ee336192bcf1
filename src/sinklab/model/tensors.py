"""Parameters: what shape, drawn how, under which name.

Each is drawn from (seed, its name) alone, so twins share every one that both have, bit for bit.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from sinklab.model.initial import Initial

EMBEDDING, MATRIX, DOWN, GAIN, BIAS, ZERO = (
    "embedding",
    "matrix",
    "down",
    "gain",
    "bias",
    "zero",
)  # what a tensor is for, which decides how it is drawn


@dataclass(frozen=True)
class Recipe:
    """A parameter that is yet to be drawn. A matrix is (out, in), as in nn.Linear."""

    shape: tuple[int, ...]
    role: str = MATRIX


def wide(x: Tensor) -> Tensor:
    """In float32, or in float64 where it is that already: for what half precision would lose."""
    return x if x.dtype == torch.float64 else x.float()


class Tensors(nn.Module):
    """The parameters of one part, as attributes."""

    def __init__(self, recipes: Mapping[str, Recipe]) -> None:
        super().__init__()
        self.recipes = dict(recipes)
        for name, recipe in recipes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(recipe.shape)))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor:
            """They are all tensors."""


class Several(nn.ModuleDict):
    """The parameters of several parts, by name."""

    if TYPE_CHECKING:

        def __getitem__(self, key: str) -> Tensors:
            """Of one part."""


class Linear(nn.Linear):
    """A matrix without bias; of several `pieces` that read the same input, multiplied at once and drawn each under its own name."""

    def __init__(self, width: int, pieces: Mapping[str, int], role: str = MATRIX) -> None:
        super().__init__(width, sum(pieces.values()), bias=False)
        self.pieces, self.role = dict(pieces), role

    def reset_parameters(self) -> None:
        """Drawn later, by name."""


@dataclass(frozen=True)
class Named:
    """A tensor, or the rows of one, as it is drawn."""

    name: str
    recipe: Recipe
    tensor: Tensor


def named(model: nn.Module) -> Iterator[Named]:
    """Every tensor to draw, in the order of the modules."""
    for path, module in model.named_modules():
        here = f"{path}." if path else ""
        if isinstance(module, Tensors):
            for name, recipe in module.recipes.items():
                yield Named(here + name, recipe, getattr(module, name))
        elif isinstance(module, Linear):
            rows = module.weight.split(list(module.pieces.values()))
            for (name, many), piece in zip(module.pieces.items(), rows, strict=True):
                yield Named(_beside(path, name), Recipe((many, module.in_features), module.role), piece)


@torch.no_grad()
def draw(model: nn.Module, initial: "Initial", depth: int, seed: int) -> None:
    """Give every parameter its first value."""
    for piece in named(model):
        generator = torch.Generator().manual_seed(_seed(seed, piece.name))
        value = torch.empty(piece.recipe.shape)
        initial.fill(value, piece.recipe, depth, generator)
        piece.tensor.copy_(value)


def _beside(path: str, name: str) -> str:
    """`blocks.0.attention.inputs` and `query` -> `blocks.0.attention.query`: the name does not say what it is multiplied together with."""
    return ".".join([*path.split(".")[:-1], name])


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1
