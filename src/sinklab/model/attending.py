"""One attention call of our decoder, as data, and the way that is taken: the fastest that does not refuse it, else rows of scores."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from sinklab.model import flexible, fused, independent, rows
from sinklab.model.grid import Grid
from sinklab.model.positions import Distances
from sinklab.model.weights import Weights


@dataclass(frozen=True, eq=False)
class Attending:
    """Everything that attention depends on; q and k after positions and features, over learned sink tokens and text."""

    layer: int
    q: Tensor  # (B, H, Tq, D)
    k: Tensor  # (B, H, Tk, D)
    v: Tensor  # (B, H, Tk, D)
    scale: float
    weights: Weights
    grid: Grid
    distances: Distances | None = None  # what they add to scores
    logits: Tensor | None = None  # float32 (B, H, Tq, N): scores of N virtual keys
    values: Tensor | None = None  # (H or 1, N, D): their values; None: they have none


Attend = Callable[[Attending], Tensor]

PATHS = (fused, independent, flexible)  # in the order of their speed


def attend(call: Attending) -> Tensor:
    """(B, H, Tq, D)."""
    for path in PATHS:
        if path.refusal(call) is None:
            return path.attend(call)
    return rows.attend(call)
