"""The room of transforms: what is done to blocks of tokens before a model sees them, in training and in validation alike (2410.10781, section 5).

Positions count from 1, as in the paper's formulas and in `--position`; its code counts from 0. A block is one token longer than its inputs.
"""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt, PositiveInt

from sinklab.config import Part

Tokens = npt.NDArray[np.integer]  # (B, T + 1)
Numbers = npt.NDArray[np.integer]  # (B,): which blocks of the data set they are


class Transform(Part, ABC):
    """Tokens by position, replaced."""

    @property
    @abstractmethod
    def reaches(self) -> int:
        """The last position that it touches."""

    @abstractmethod
    def replacement(self, blocks: Numbers, vocabulary: int) -> tuple[slice, Tokens | int]:
        """Which columns, and what comes there."""

    def apply(self, tokens: Tokens, blocks: Numbers, vocabulary: int) -> Tokens:
        """A changed copy."""
        columns, values = self.replacement(blocks, vocabulary)
        changed = tokens.copy()
        changed[:, columns] = values
        return changed


class FixedToken(Transform):
    """x_position = token, in every sequence (2410.10781, table 10; token 1 is padding, which stands nowhere else)."""

    position: PositiveInt = 1
    token: NonNegativeInt = 1

    @property
    def reaches(self) -> int:
        """The position."""
        return self.position

    def replacement(self, blocks: Numbers, vocabulary: int) -> tuple[slice, Tokens | int]:  # noqa: ARG002
        """One column."""
        return slice(self.position - 1, self.position), self.token


class RandomTokens(Transform):
    """x_first to x_last ~ Uniform(V): drawn from (seed, block, position), the same in every epoch (2410.10781, section 5)."""

    first: PositiveInt = 1
    last: PositiveInt = 1  # this one too
    seed: NonNegativeInt = 1024

    @property
    def reaches(self) -> int:
        """The last."""
        return self.last

    def replacement(self, blocks: Numbers, vocabulary: int) -> tuple[slice, Tokens | int]:
        """A few columns."""
        positions = np.arange(self.first, self.last + 1, dtype=np.uint64)
        keys = _scrambled(_scrambled(np.asarray(blocks).astype(np.uint64) + _scrambled(np.array([self.seed], np.uint64)))[:, None] + positions)
        return slice(self.first - 1, self.last), (keys % np.uint64(vocabulary)).astype(np.int64)


def _scrambled(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64: 64 bits of which each depends on all of x."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
