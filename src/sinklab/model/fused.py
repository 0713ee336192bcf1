"""Softmax by the kernels that PyTorch brings, virtual keys included.

A virtual key joins after the kernel: with lse' = logaddexp(lse, logits), the output is exp(lse - lse') * out + exp(logits - lse') @ values. Backward
nothing is joined: a kernel's backward pass needs (out, lse) only for the weights exp(s - lse) and for rowsum(dout * out), and given lse' and the
final output in their place it gives the gradients of attention over tokens and virtual keys together.
"""

# ruff: noqa: SLF001
# PyTorch's public function hides lse; the operators beneath it return it.

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinklab.model.weights import Softmax

if TYPE_CHECKING:
    from sinklab.model.attending import Attending

_aten = torch.ops.aten


def refusal(call: "Attending") -> str | None:
    """Why PyTorch's kernels cannot do it; None where they can."""
    q = call.q
    if q.device.type != "cuda":
        return "on a CPU rows of scores are quicker"
    if not isinstance(call.weights, Softmax) or call.weights.p != 1 or not call.grid.causal or call.distances is not None:
        return "the kernels know softmax over products of queries and keys, causal and nothing else"
    if q.dtype not in (torch.bfloat16, torch.float16) or q.shape[-1] % 8 or q.shape[-1] > 256:
        return f"the kernels take bfloat16 and float16 in heads of a multiple of 8 up to 256, not {q.dtype} in heads of {q.shape[-1]}"
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        return "the kernels need a CUDA device of compute capability 8.0 or later"
    return None


def attend(call: "Attending") -> Tensor:
    """(B, H, T, D)."""
    assert isinstance(call.weights, Softmax)
    out, _ = softmax(call.q, call.k, call.v, call.scale, call.logits, call.values)
    return out if call.weights.alpha == 1 else out * call.weights.alpha


def softmax(q: Tensor, k: Tensor, v: Tensor, scale: float, logits: Tensor | None = None, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Causal softmax attention and its lse, float32 (B, H, T), virtual keys in it. No gradient flows through lse."""
    return _Softmax.apply(q, k, v, logits, values, scale)


class _Softmax(torch.autograd.Function):
    """The kernel, joined by virtual keys; a `Function` because the kernels' own gradients know nothing of lse."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, logits: Tensor | None, values: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
        out, lse, *kept = _forward(q, k, v, scale)
        p = None
        if logits is not None:
            lse, rest, p = _shares(lse, logits)
            out = _joined(out, rest, p, values)
        ctx.save_for_backward(q, k, v, p, values, out, lse, *kept)
        ctx.logits = None if logits is None else logits.shape
        ctx.scale = scale
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p, values, out, lse, *kept = ctx.saved_tensors
        grad = grads[0]
        of_tokens = _backward(grad, q, k, v, out, lse, kept, ctx.scale)
        if p is None:
            return *of_tokens, None, None, None
        grad = grad.float()
        rise = -(grad * out.float()).sum(-1, keepdim=True)
        if values is None:
            return *of_tokens, (p * rise).sum_to_size(ctx.logits), None, None
        each = range(p.shape[-1])  # one by one: a product of matrices this thin would be slower than reading the gradient again
        rise = rise + torch.stack([(grad * values[:, n, None].float()).sum(-1) for n in each], -1)
        of_values = torch.stack([(p[..., n, None] * grad).sum((0, 2)) for n in each], 1)
        return *of_tokens, (p * rise).sum_to_size(ctx.logits), of_values.sum_to_size(values.shape).to(values.dtype), None


@torch.library.custom_op("sinklab::shares", mutates_args=())
def _shares(lse: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(total, rest, p): lse with virtual keys in it, the share of weight that tokens keep (B, H, T), and that of each virtual key (B, H, T, N).

    An operator of its own, so that compiled they are computed once for a row and not again for each of its numbers.
    """
    total = torch.logaddexp(lse, logits.logsumexp(-1)).contiguous()
    return total, torch.exp(lse - total).contiguous(), torch.exp(logits - total[..., None]).contiguous()


@_shares.register_fake
def _(lse: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return lse.new_empty(lse.shape), lse.new_empty(lse.shape), lse.new_empty(*lse.shape, logits.shape[-1])


def _joined(out: Tensor, rest: Tensor, p: Tensor, values: Tensor | None) -> Tensor:
    """Over tokens and virtual keys; values (H or 1, N, D)."""
    joined = out * rest[..., None]
    if values is not None:
        joined = joined + sum(p[..., n, None] * values[:, n, None].float() for n in range(p.shape[-1]))
    return joined.to(out.dtype)


def _forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, ...]:
    """(out, lse, what the backward pass wants besides)."""
    if q.device.type == "cpu":
        return _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale)
    if _cudnn(q):
        out, lse, _, _, _, _, seed, offset, _ = _aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True, False, scale=scale)
        return out, lse.reshape(q.shape[:3]), seed, offset
    out, lse, _, _, _, _, seed, offset, _ = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False, scale=scale)
    return out, lse, seed, offset


def _backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, kept: list[Tensor], scale: float) -> tuple[Tensor, ...]:
    """Gradients of q, k and v."""
    if q.device.type == "cpu":
        return _aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, lse, 0.0, True, scale=scale)
    seed, offset = kept
    if _cudnn(q):
        given = (grad, q, k, v, out, lse[..., None], seed, offset, None, None, None, q.shape[2], k.shape[2], 0.0, True)
        return _aten._scaled_dot_product_cudnn_attention_backward(*given, scale=scale)
    flash = (grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, True, seed, offset)
    return _aten._scaled_dot_product_flash_attention_backward(*flash, scale=scale)


def _cudnn(q: Tensor) -> bool:
    """cuDNN where it is the faster one: on Hopper and Blackwell, in heads up to 128."""
    return q.shape[-1] <= 128 and torch.cuda.get_device_capability(q.device)[0] in (9, 10)
