"""The room of schedules: which share of the learning rate a step has. Steps count from 0."""

import math
from abc import ABC, abstractmethod
from typing import Annotated

from pydantic import Field, NonNegativeInt

from sinklab.config import Part


class Schedule(Part, ABC):
    """Linear from 0 over the first `warmup` steps, then as the member says."""

    warmup: NonNegativeInt = 100

    @abstractmethod
    def after(self, share: float) -> float:
        """The factor when this share of the steps after the warm-up is done."""

    def rate(self, step: int, steps: int) -> float:
        """The factor of a step; the first one's is 1 / warmup, not 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        return self.after((step - self.warmup) / max(1, steps - 1 - self.warmup))


class Constant(Schedule):
    """1: what the paper's code does, whose settings have the lowest rate equal to the highest (2410.10781)."""

    def after(self, share: float) -> float:  # noqa: ARG002
        """One."""
        return 1.0


class Cosine(Schedule):
    """end + (1 - end) (1 + cos(pi share)) / 2: what the paper's text says (2410.10781; 1608.03983)."""

    end: Annotated[float, Field(ge=0, le=1)] = 0.1

    def after(self, share: float) -> float:
        """Half a wave, down to `end` at the last step."""
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * min(1.0, share))) / 2
