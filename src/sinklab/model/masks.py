"""The room of masks: which keys a query may see, by their places in the text; and of documents that lie in one sequence."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from sinklab.config import Part


class Mask(Part, ABC):
    """Which keys a query sees, by their places."""

    unbroken: ClassVar[bool] = True  # each key is seen by one run of queries that begins with its own

    @abstractmethod
    def seen(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether the query at place i sees the key at place j."""

    @property
    @abstractmethod
    def span(self) -> int:
        """How many places back a query looks, its own among them; 0: to the beginning."""

    @property
    @abstractmethod
    def given(self) -> int:
        """Tokens at the beginning that are given rather than predicted: the loss is of those after them."""


class Causal(Mask):
    """j <= i."""

    span: ClassVar[int] = 0
    given: ClassVar[int] = 1

    def seen(self, i: Tensor, j: Tensor) -> Tensor:
        """Itself and what is before it."""
        return j <= i


class Window(Mask):
    """i - size < j <= i: itself and the size - 1 before it."""

    size: PositiveInt
    given: ClassVar[int] = 1

    @property
    def span(self) -> int:
        """The window."""
        return self.size

    def seen(self, i: Tensor, j: Tensor) -> Tensor:
        """Itself and a few before it."""
        return (j <= i) & (j > i - self.size)


class Prefix(Mask):
    """j <= i or j < length: the first tokens see each other, and the loss is of the tokens after them (prefix language model)."""

    length: PositiveInt
    unbroken: ClassVar[bool] = False
    span: ClassVar[int] = 0

    @property
    def given(self) -> int:
        """The prefix."""
        return self.length

    def seen(self, i: Tensor, j: Tensor) -> Tensor:
        """What is before it, and the prefix."""
        return (j <= i) | (j < self.length)


class Documents(Part, ABC):
    """Whether documents that were packed into one sequence see each other."""

    @abstractmethod
    def number(self, tokens: Tensor) -> Tensor | None:
        """(B, T) -> which document each token is of; None where that is not asked."""


class Mixed(Documents):
    """Documents packed into one sequence see each other, as in the paper."""

    def number(self, tokens: Tensor) -> None:
        """Not asked."""


class Apart(Documents):
    """Documents packed into one sequence do not see each other: each ends with the token `separator`."""

    separator: NonNegativeInt = 0

    def number(self, tokens: Tensor) -> Tensor:
        """How many separators came before."""
        ends = (tokens == self.separator).long()
        return ends.cumsum(-1) - ends


def visible(mask: Mask, i: Tensor, j: Tensor, registers: int) -> Tensor:
    """The mask with learned sink tokens before the text: every query sees them, and they see each other only, in order."""
    if not registers:
        return mask.seen(i, j)
    among = (j < registers) & (j <= i)
    return among | ((i >= registers) & (j >= registers) & mask.seen(i - registers, j - registers))


def counted(real: Tensor, registers: int) -> Tensor:
    """(B, tokens) -> int64 (B, registers + tokens): places over a text and its learned sink tokens; padding has the place before it, -1 at first."""
    return torch.nn.functional.pad(real.long(), (registers, 0), value=1).cumsum(-1) - 1


def same_document(number: Tensor | None, b: Tensor, i: Tensor, j: Tensor, registers: int) -> Tensor:
    """Whether two places are of one document; learned sink tokens are of all."""
    if number is None:
        return torch.ones_like(i == j)
    of_i, of_j = number[b, (i - registers).clamp_min(0)], number[b, (j - registers).clamp_min(0)]
    return (of_i == of_j) | (j < registers)
