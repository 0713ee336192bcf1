"""The room of initialisations: how a parameter gets its first value."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sinklab.config import Part
from sinklab.model.tensors import BIAS, DOWN, EMBEDDING, GAIN, ZERO, Recipe


class Initial(Part, ABC):
    """How matrices and embeddings are drawn. What parts bring is the same under all: gains are 1, biases N(0, 0.02)."""

    def fill(self, value: Tensor, recipe: Recipe, depth: int, generator: torch.Generator) -> None:
        """Draw in place."""
        if recipe.role in (GAIN, ZERO):
            value.fill_(1.0 if recipe.role == GAIN else 0.0)
        elif recipe.role == BIAS:
            value.normal_(0, 0.02, generator=generator)
        else:
            self.matrix(value, recipe, depth, generator)

    @abstractmethod
    def matrix(self, value: Tensor, recipe: Recipe, depth: int, generator: torch.Generator) -> None:
        """Draw a matrix (out, in) or an embedding (tokens, width) in place."""


class Narrow(Initial):
    """N(0, sqrt(2 / (5 in))), the last matrix of a feed-forward block N(0, 1 / (sqrt(in) * layers)): what the paper's code asks for (2410.10781)."""

    def matrix(self, value: Tensor, recipe: Recipe, depth: int, generator: torch.Generator) -> None:
        """Of the number of inputs; an embedding's are its columns."""
        inputs = recipe.shape[-1]
        spread = 1 / (math.sqrt(inputs) * depth) if recipe.role == DOWN else math.sqrt(2 / (5 * inputs))
        value.normal_(0, spread, generator=generator)


class TorchDefault(Initial):
    """Embeddings N(0, 1), matrices uniform within 1 / sqrt(in): what PyTorch's modules do, and probably what the paper's runs on several GPUs had."""

    def matrix(self, value: Tensor, recipe: Recipe, depth: int, generator: torch.Generator) -> None:  # noqa: ARG002
        """As nn.Embedding and nn.Linear do."""
        if recipe.role == EMBEDDING:
            value.normal_(generator=generator)
        else:
            bound = 1 / math.sqrt(recipe.shape[-1])
            value.uniform_(-bound, bound, generator=generator)
