"""Column sums of a few named keys: one thin product, O(Tq * keys). The kernel does it where it can, plain PyTorch on any other device."""

import torch
from torch import Tensor

from sinklab.probe import kernel

CHUNK_NUMBERS = 1 << 22


def column_sums(q: Tensor, k: Tensor, lse: Tensor, first: Tensor, last: Tensor, scale: float, softcap: float | None = None) -> Tensor:
    """sum over first[b, j] <= i <= last[b, j] of exp(f(scale * q_i . k_j) - lse_i), f the cap.

    q: (B, H, Tq, D); k: (B, Hkv, P, D), the named keys alone; lse: (B, H, Tq); first, last: (B or 1, P) int32. Returns float32 (B, H, P).
    """
    if kernel.refusal(q, k, softcap) is None:
        return kernel.column_sums(q, k, lse, first, last, scale, softcap)
    batch, heads, queries, dim = q.shape
    grouped = q.view(batch, k.shape[1], -1, queries, dim)
    keys = k.float().transpose(-1, -2)[:, :, None] * scale
    sums = torch.zeros(batch, k.shape[1], heads // k.shape[1], k.shape[2], device=q.device)
    step = max(1, CHUNK_NUMBERS // max(1, batch * heads * max(dim, k.shape[2])))
    for start in range(0, queries, step):
        stop = min(start + step, queries)
        scores = grouped[:, :, :, start:stop].float() @ keys
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        i = torch.arange(start, stop, device=q.device)[None, :, None]
        inside = (i >= first[:, None]) & (i <= last[:, None])
        weights = torch.exp(scores - lse[:, :, start:stop].view(batch, k.shape[1], -1, stop - start, 1))
        sums += torch.where(inside[:, None, None], weights, 0).sum(-2)
    return sums.view(batch, heads, -1)
