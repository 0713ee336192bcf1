"""Weights that need no maximum over their row, by a kernel of our own: out = sum_j f(s_ij) v_j, and the sums that normalise it.

Virtual keys are added to both.
"""

from typing import TYPE_CHECKING, Any

import torch
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
    return divided(out, weights.normaliser.z(sums)) if weights.normaliser.competes else out


@torch.library.custom_op("sinklab::divided", mutates_args=())
def divided(out: Tensor, z: Tensor) -> Tensor:
    """out / z[..., None] in out's dtype. An operator of its own: torch 2.11's compiler gave the gradient of z in another order than it said."""
    return torch.div(out, z[..., None], out=torch.empty_like(out))


@divided.register_fake
def _(out: Tensor, _z: Tensor) -> Tensor:
    return torch.empty_like(out)


@torch.library.custom_op("sinklab::divided_backward", mutates_args=())
def _divided_backward(grad: Tensor, quotient: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    of_out = torch.div(grad, z[..., None], out=torch.empty_like(grad))
    return of_out, -(of_out.float() * quotient.float()).sum(-1).contiguous()


@_divided_backward.register_fake
def _(grad: Tensor, _quotient: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(grad), z.new_empty(z.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])


def _pull_back(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    quotient, z = ctx.saved_tensors
    of_out, of_z = _divided_backward(grad, quotient, z)
    return of_out, of_z


divided.register_autograd(_pull_back, setup_context=_keep)
