"""The specification of attention, for every kind of weight: rows of scores, weights, their product with the values.

On a CPU this is the fast path too, compiled, in bfloat16: short maps are quicker than flash attention's backward pass there. Where a call's scores
would take more than `AT_ONCE` bytes, queries go in chunks, and each chunk is computed again in the backward pass: no map outlives its chunk.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sinklab.model.tensors import wide

if TYPE_CHECKING:
    from sinklab.model.attending import Attending

AT_ONCE = 1 << 28  # bytes of float32 scores that a call may have at once, and keep for its backward pass
FEW, MANY = 128, 8  # on a CPU: queries of a piece, and pieces, so that later keys are left out of earlier rows


def attend(call: "Attending") -> Tensor:
    """(B, H, Tq, D) in the dtype of v."""
    batch, heads, queries, _ = call.q.shape
    fits = max(1, AT_ONCE // (4 * batch * heads * max(1, call.grid.keys)))
    step = min(fits, queries, _piece(call, queries))
    again = torch.is_grad_enabled() and fits < queries
    logits = None if call.logits is None else call.logits.expand(batch, heads, queries, -1)
    parts = []
    for start in range(0, queries, step):
        given = (call, start, min(start + step, queries), call.q, call.k, call.v, logits, call.values)  # tensors by themselves: checkpoints see them
        parts.append(checkpoint(chunk, *given, use_reentrant=False) if again else chunk(*given))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _piece(call: "Attending", queries: int) -> int:
    """Half of a causal map is not seen: pieces of rows have shorter rows, which pays from 256 queries on a CPU."""
    return max(FEW, -(-queries // MANY)) if call.q.device.type == "cpu" and call.grid.mask.unbroken else queries


def chunk(call: "Attending", start: int, stop: int, q: Tensor, k: Tensor, v: Tensor, logits: Tensor | None, values: Tensor | None) -> Tensor:
    """Queries start..stop. Virtual keys are columns of the row before the others."""
    keys = call.grid.columns(start, stop)
    scores = q[:, :, start:stop] @ k[:, :, keys].transpose(-1, -2)
    scores = wide(scores) * call.scale
    if call.distances is not None:
        scores = scores + call.grid.added(call.distances, q.shape[1], start, stop, keys)
    scores = scores.masked_fill(~call.grid.seen(start, stop, keys), -torch.inf)
    many = 0 if logits is None else logits.shape[-1]
    if logits is not None:
        scores = torch.cat([logits[:, :, start:stop].to(scores.dtype), scores], -1)
    n, z = call.weights.parts(scores)
    n = n.to(v.dtype)
    out = n[..., many:] @ v[:, :, keys]
    if values is not None:
        out = out + n[..., :many] @ values.to(v.dtype)
    return (out / z).to(v.dtype)  # divided after the product, which has fewer numbers
