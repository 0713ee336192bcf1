"""Column sums of an attention map that is never built, on a CPU: plain PyTorch in blocks that stay in caches.

A block of keys stays, runs of the queries that may see it stream past, and `exp2(score - lse)` is summed per key. The normaliser takes part
in the product: queries get `-lse` as further dimensions, in which every key is one, so that the product is the exponent already.
`columns.py` holds the specification; this file must equal it and refuses what it cannot do.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sinklab.model.attend import repeat_heads
from sinklab.probe.products import float32_products, onednn_is_exact

NAME = "cpu"
KEYS = 256  # of a block: more of them waste more along the diagonal, fewer make slower products
BLOCK = 1 << 19  # float32 numbers of a block for each thread: 2 MiB stay in caches, and less makes more calls than it saves
LARGEST_BLOCK = 1 << 22
PREPARED = 1 << 22  # float32 numbers of queries that stand ready at a time
NEVER = 1e9  # as good as an lse of +inf, and no NaN comes of it in a product


@dataclass(frozen=True)
class Cut:
    """How one call is cut: keys, queries and heads of a block; sequences and key heads that are made ready together."""

    keys: int
    queries: int
    heads: int
    sequences: int
    kv_heads: int


def column_sums(q: Tensor, k: Tensor, lse: Tensor, first: Tensor, last: Tensor, scale: float, softcap: float | None = None) -> Tensor:
    """For each key j, the sum over queries `first[b, j] <= i <= last[b, j]` of `exp(f(scale * q_i . k_j) - lse_i)`.

    `f(s)` is `softcap * tanh(s / softcap)`, or `s`. q: (B, H, Tq, D); k: (B, Hkv, Tk, D), query head h reads key head
    `h // (H // Hkv)`; lse: (B, H, Tq) float32, +inf where a query is not to be counted; first, last: (B or 1, Tk) int32,
    `last < first` where nobody sees the key. Returns float32 (B, H, Tk), without a gradient.
    """
    reason = refusal(q, k, softcap)
    if reason is not None:
        raise ValueError(reason)
    _check(q, k, lse, first, last, scale, softcap)
    if 0 in (*q.shape, k.shape[2]):
        return torch.zeros(*q.shape[:2], k.shape[2])
    return in_blocks(q, k, lse, first, last, scale, softcap, plan(q, k))


def refusal(q: Tensor, k: Tensor, softcap: float | None = None) -> str | None:  # noqa: ARG001
    """Why queries and keys like these are not taken, in one sentence; None where they are. Any cap is."""
    if q.device.type != "cpu" or k.device.type != "cpu":
        return f"these column sums need queries and keys on a CPU, not on {q.device} and {k.device}"
    if not (q.is_floating_point() and k.is_floating_point()):
        return f"these column sums need queries and keys in floating point, not {q.dtype} and {k.dtype}"
    return None


def plan(q: Tensor, k: Tensor) -> Cut:
    """The cut for these shapes: long texts go head by head, short ones several sequences at a time."""
    (batch, heads, queries, dim), kv_heads, all_keys = q.shape, k.shape[1], k.shape[2]
    block = min(BLOCK * torch.get_num_threads(), LARGEST_BLOCK)
    keys = min(all_keys, max(KEYS, block // (8 * queries)))
    run = min(queries, max(1, block // keys))
    rows = max(1, block // (keys * run))
    sequences = min(batch, max(1, rows // heads))
    ready = sequences * max(queries * (heads // kv_heads), all_keys) * dim
    return Cut(keys, run, min(heads, rows), sequences, min(kv_heads, max(1, PREPARED // ready)))


@torch.no_grad()
def in_blocks(q: Tensor, k: Tensor, lse: Tensor, first: Tensor, last: Tensor, scale: float, softcap: float | None, cut: Cut) -> Tensor:
    """`column_sums` with a cut of the caller's."""
    batch, kv_heads = k.shape[:2]
    shared = q.shape[1] // kv_heads
    halves = q.dtype == k.dtype == torch.bfloat16
    sums = torch.zeros(*q.shape[:2], k.shape[2])
    first, last = torch.broadcast_tensors(first.clamp_min(0), last.clamp_max(q.shape[2] - 1))
    with float32_products("bf16" if halves or onednn_is_exact() else "ieee"):
        for b in _slices(0, batch, cut.sequences):
            bounds = (first[b], last[b]) if len(first) > 1 else (first, last)
            for kv in _slices(0, kv_heads, cut.kv_heads):
                h = slice(kv.start * shared, kv.stop * shared)
                _add_sums(sums[b, h], _Ready(q[b, h], k[b, kv], lse[b, h], scale, softcap, halves), *bounds, cut)
    return sums.masked_fill_((last < first)[:, None], 0)


def _check(q: Tensor, k: Tensor, lse: Tensor, first: Tensor, last: Tensor, scale: float, softcap: float | None) -> None:
    (batch, heads, queries, dim), (rows, kv_heads, keys, width) = q.shape, k.shape
    if rows != batch or width != dim or kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"queries {tuple(q.shape)} and keys {tuple(k.shape)} do not fit together")
    if lse.shape != (batch, heads, queries):
        raise ValueError(f"lse must be {(batch, heads, queries)}, not {tuple(lse.shape)}")
    for name, bound in (("first", first), ("last", last)):
        if bound.shape not in ((batch, keys), (1, keys)):
            raise ValueError(f"{name} must be {(batch, keys)} or {(1, keys)}, not {tuple(bound.shape)}")
    if scale == 0:
        raise ValueError("scale must not be zero")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap must be positive, not {softcap}")


class _Ready:
    """Queries and keys made ready: `weights` gives exp(f(scale * q . k) - lse) for a block."""

    def __init__(self, q: Tensor, k: Tensor, lse: Tensor, scale: float, softcap: float | None, halves: bool) -> None:
        lse = lse.float().clamp_max(NEVER)
        self.heads = q.shape[1]
        self.softcap = softcap
        self.buffer = torch.empty(0)
        if softcap is None:
            bias = _in_parts(-lse / scale, halves)
            self.factor = scale / math.log(2)
            self.queries, self.keys = _among(q.float(), bias), _among(k.float(), [torch.ones(1).expand(k.shape[:3])] * len(bias))
        else:
            self.factor = scale / softcap
            self.queries, self.keys, self.lse = q.float(), k.float(), lse / math.log(2)

    def weights(self, keys: Tensor, heads: slice, run: slice, masks: list[tuple[slice, Tensor]]) -> Tensor:
        """float32 (sequences, heads, keys, queries) in a buffer that the next call overwrites; `keys` are repeated for all heads."""
        keys, queries = keys[:, heads], self.queries[:, heads, run]
        shape = (*keys.shape[:3], queries.shape[2])
        if self.buffer.numel() < math.prod(shape):
            self.buffer = torch.empty(math.prod(shape))
        out = self.buffer[: math.prod(shape)].view(shape)
        _multiply(keys.flatten(0, 1), queries.flatten(0, 1).mT, self.factor, out.flatten(0, 1))
        if self.softcap is not None:
            out.tanh_().mul_(self.softcap / math.log(2)).sub_(self.lse[:, heads, None, run])
        for zone, mask in masks:
            out[..., zone].add_(mask)
        return out.exp2_()


def _in_parts(x: Tensor, halves: bool) -> list[Tensor]:
    """Numbers whose sum is x: two, or, where each must be a bfloat16, three (which hold all of a float32), the largest in the middle."""
    if not halves:
        return [x / 2, x / 2]
    most = x.bfloat16().float()
    more = (x - most).bfloat16().float()
    return [more, most, x - most - more]


def _among(x: Tensor, columns: list[Tensor]) -> Tensor:
    """Columns spread evenly among the last dimension.

    A product is summed in this order: where the normaliser is subtracted on the way, sums stay small, and their rounding with them.
    """
    count, width = len(columns), x.shape[-1]
    parts = x.tensor_split([width * (2 * at + 1) // (2 * count) for at in range(count)], -1)
    return torch.cat([piece for part, column in zip(parts, columns, strict=False) for piece in (part, column[..., None])] + [parts[-1]], -1)


def _multiply(left: Tensor, right: Tensor, factor: float, out: Tensor) -> None:
    """A product of two matrices is faster than that of a batch of one."""
    if len(left) == 1:
        torch.addmm(out[0], left[0], right[0], beta=0, alpha=factor, out=out[0])
    else:
        torch.baddbmm(out, left, right, beta=0, alpha=factor, out=out)


def _add_sums(sums: Tensor, ready: _Ready, first: Tensor, last: Tensor, cut: Cut) -> None:
    """One piece of the call, added to its `sums` (sequences, heads, keys)."""
    for j in _slices(0, sums.shape[2], cut.keys):
        start, stop, full_start, full_stop = _span(first[:, j], last[:, j])
        keys = repeat_heads(ready.keys[:, :, j], ready.heads)
        for run in _slices(start, stop, cut.queries):
            masks = _masks(first[:, j], last[:, j], full_start, full_stop, run)
            for h in _slices(0, ready.heads, cut.heads):
                sums[:, h, j] += ready.weights(keys, h, run, masks).sum(-1)


def _span(first: Tensor, last: Tensor) -> tuple[int, int, int, int]:
    """Queries start..stop that see any of these keys, and among them those that see all; keys that nobody sees have no part in it."""
    seen = first <= last
    if not seen.any():
        return 0, 0, 0, 0
    first, last = first[seen], last[seen]
    start, stop, full_start, full_stop = int(first.min()), int(last.max()) + 1, int(first.max()), int(last.min()) + 1
    return (start, stop, full_start, full_stop) if full_start < full_stop else (start, stop, stop, stop)


def _masks(first: Tensor, last: Tensor, full_start: int, full_stop: int, run: slice) -> list[tuple[slice, Tensor]]:
    """Zones of this run of queries that do not see all keys, each with what to add there, 0 or -inf: (sequences, 1, keys, queries).

    Addition is faster than `masked_fill_`, and before the exponential nothing has overflowed.
    """
    masks = []
    for start, stop in ((run.start, min(full_start, run.stop)), (max(full_stop, run.start), run.stop)):
        if start < stop:
            i = torch.arange(start, stop, dtype=first.dtype)
            hidden = (i < first[..., None]) | (i > last[..., None])
            mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
            masks.append((slice(start - run.start, stop - run.start), mask[:, None]))
    return masks


def _slices(start: int, stop: int, step: int) -> Iterator[slice]:
    return (slice(at, min(at + step, stop)) for at in range(start, stop, step))
