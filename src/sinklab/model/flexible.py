"""FlexAttention for whatever has a logarithm: windows, prefixes, documents, numbers added to scores, positive weights of any kind.

A weight n(s) is the score log n(s) of a softmax, and out * exp(lse - log Z) is divided by the normaliser of choice. Virtual keys join afterwards.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from sinklab.model.compiled import compiled
from sinklab.model.masks import Mask, same_document, visible
from sinklab.model.positions import Distances
from sinklab.model.weights import Positive

if TYPE_CHECKING:
    from sinklab.model.attending import Attending


DEVICE = "cuda"


def refusal(call: "Attending") -> str | None:
    """Why FlexAttention cannot do it; None where it can."""
    if call.q.device.type != DEVICE:
        return "FlexAttention has no backward pass on a CPU"
    if not isinstance(call.weights, Positive) or call.weights.power != 1:
        return f"{type(call.weights).__name__} has no logarithm, or sums of powers, which would take a second pass"
    if call.grid.queries != call.grid.keys or call.grid.real is not None:
        return "a few queries against a cache, or padded texts, are no work for it"
    if call.distances is not None and call.distances.numbers.requires_grad:
        return "its backward pass with a learnt table wants more shared memory than there is"
    if not torch.compiler.is_compiling() and not torch.is_grad_enabled():
        return "it is compiled for a length, and texts that are only read have many"
    return None


def attend(call: "Attending") -> Tensor:
    """(B, H, T, D)."""
    assert isinstance(call.weights, Positive)
    way = _attend if torch.compiler.is_compiling() else _compiled(call.weights, call.grid.mask, call.grid.registers)
    tensors = (call.q, call.k, call.v, call.distances, call.grid.documents, call.logits, call.values)
    return way(call.weights, call.grid.mask, call.grid.registers, call.scale, *tensors)


@functools.cache
def _compiled(_weights: Positive, _mask: Mask, _registers: int) -> Callable[..., Tensor]:
    """One compiled function per variant."""
    return compiled(_attend)


def _attend(
    weights: Positive, mask: Mask, registers: int, scale: float, q: Tensor, k: Tensor, v: Tensor,
    distances: Distances | None, documents: Tensor | None, logits: Tensor | None, values: Tensor | None,
) -> Tensor:  # fmt: skip
    blocks = _blocks(mask, registers, documents, q)
    score = _score(weights, distances)
    out, aux = flex_attention(q, k, v, score_mod=score, block_mask=blocks, scale=scale, return_aux=AuxRequest(lse=True))
    lse = cast("Tensor", aux.lse)
    extra = None if logits is None else weights.log(logits)
    log_z = weights.log_z(lse if extra is None else torch.logaddexp(lse, extra.logsumexp(-1)))
    result = out * torch.exp(lse - log_z)[..., None].to(out.dtype)
    if extra is None or values is None:
        return result
    return result + torch.exp(extra - log_z[..., None]).to(out.dtype) @ values.to(out.dtype)


def _score(weights: Positive, distances: Distances | None) -> Callable[..., Tensor]:
    def score(s: Tensor, _b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if distances is not None:
            s = s + distances.of(h, i - j)
        return weights.log(s)

    return score


def _blocks(mask: Mask, registers: int, documents: Tensor | None, q: Tensor) -> BlockMask:
    def seen(b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        found = visible(mask, i, j, registers)
        if documents is not None:
            found = found & same_document(documents, b, i, j, registers)
        return found

    batch: Any = q.shape[0] if documents is not None else None
    return create_block_mask(seen, batch, None, q.shape[2], q.shape[2], device=q.device)
