"""Weights that need no maximum over their row, by a kernel of our own: out = sum_j f(s_ij) v_j, and the sums that normalise it.

Virtual keys are added to both.
"""

from typing import TYPE_CHECKING

from torch import Tensor

from sinklab.model import summing
from sinklab.model.weights import Normalised

if TYPE_CHECKING:
    from sinklab.model.attending import Attending


def refusal(call: "Attending") -> str | None:
    """Why the kernel cannot do it; None where it can."""
    if not isinstance(call.weights, Normalised):
        return f"{type(call.weights).__name__} is no function that the kernel knows"
    if not call.grid.unmasked or call.grid.queries != call.grid.keys or call.distances is not None:
        return "the kernel knows causal masks and windows over a whole text, and scores that are products"
    return summing.refusal(call.q, call.k, call.v, call.weights.kernel)


def attend(call: "Attending") -> Tensor:
    """(B, H, T, D)."""
    weights = call.weights
    assert isinstance(weights, Normalised)
    power = weights.normaliser.power
    out, sums = summing.summed(call.q, call.k, call.v, call.scale, weights.kernel, power, call.grid.mask.span or None)
    if call.logits is not None:
        n = weights.log(call.logits).exp()
        sums = sums + n.pow(power).sum(-1)
        out = out if call.values is None else out + n.to(out.dtype) @ call.values.to(out.dtype)
    return out if not weights.normaliser.competes else (out / weights.normaliser.z(sums)[..., None]).to(out.dtype)
