"""Column sums of an attention map that is never built, on CUDA: one Triton kernel, which `tiles.py` holds.

A tile of keys stays, the queries that may see it stream past, and `exp(score - lse)` is summed per key: one product of queries and
keys, no atomics, float32 out. `columns.py` holds the specification; this must equal it and refuses what it cannot do. With
`TRITON_INTERPRET=1` set before this module is imported the same code runs on a CPU, slowly, for tests.
"""

import functools
import importlib.util
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NAME = "kernel"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton too decides where a kernel is defined, not where it is called
HALF_TILES = {  # keys, queries, warps and stages up to this head size, in bfloat16 and float16
    64: (64, 64, 4, 3),
    112: (128, 64, 4, 3),
    128: (128, 128, 4, 2),
    192: (128, 64, 8, 2),
    256: (128, 32, 8, 3),
}
WIDEST_HEAD = max(HALF_TILES)
BUSY = 4  # programs for each processor, where queries are cut into pieces because there is not one for each


@dataclass(frozen=True)
class Plan:
    """How one call is cut: a tile's keys and queries, a program's warps and stages, heads that run side by side, pieces of the queries."""

    keys: int
    queries: int
    warps: int
    stages: int
    together: int = 1
    pieces: int = 1


@torch.no_grad()
def column_sums(q: Tensor, k: Tensor, lse: Tensor, first: Tensor, last: Tensor, scale: float, softcap: float | None = None) -> Tensor:
    """For each key j, the sum over queries `first[b, j] <= i <= last[b, j]` of `exp(f(scale * q_i . k_j) - lse_i)`.

    `f(s)` is `softcap * tanh(s / softcap)`, or `s`. q: (B, H, Tq, D); k: (B, Hkv, Tk, D), query head h reads key head
    `h // (H // Hkv)`; lse: (B, H, Tq) float32, +inf where a query is not to be counted; first, last: (B or 1, Tk) int32,
    `last < first` where nobody sees the key. Returns float32 (B, H, Tk), without a gradient.
    """
    reason = refusal(q, k, softcap)
    if reason is not None:
        raise ValueError(reason)
    return launch(q, k, lse, first, last, scale, softcap, plan(q, k))


def refusal(q: Tensor, k: Tensor, softcap: float | None = None) -> str | None:
    """Why the kernel cannot take queries and keys like these, in one sentence; None where it can."""
    return next(_objections(q, k, softcap), None)


def _objections(q: Tensor, k: Tensor, softcap: float | None) -> Iterator[str]:
    if q.device != k.device:
        yield f"the kernel needs queries and keys on one device, not {q.device} and {k.device}"
    if not INTERPRETED and (q.device.type != "cuda" or torch.version.cuda is None):
        yield f"the kernel runs on CUDA, not on {q.device.type}"
    if not _triton_is_there():
        yield "the kernel needs Triton, which is not installed"
    if not INTERPRETED and torch.cuda.get_device_capability(q.device) < (8, 0):
        yield "the kernel needs a CUDA device of compute capability 8.0 or later"
    if q.dtype != k.dtype or q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        yield f"the kernel takes queries and keys in float32, bfloat16 or float16, both in the same, not {q.dtype} and {k.dtype}"
    if q.shape[-1] > WIDEST_HEAD:
        yield f"the kernel takes heads of at most {WIDEST_HEAD} dimensions, not {q.shape[-1]}"
    if q.shape[-1] > 1 and (q.stride(-1) != 1 or k.stride(-1) != 1):
        yield "the kernel needs queries and keys whose last dimension is contiguous"
    if softcap is not None and softcap <= 0:
        yield f"the kernel needs a positive softcap, not {softcap}"


@functools.cache
def _triton_is_there() -> bool:
    return importlib.util.find_spec("triton") is not None


def plan(q: Tensor, k: Tensor) -> Plan:
    """The cut for these shapes: fixed per head size and dtype, with smaller tiles where there are few queries or few keys."""
    (batch, heads, queries, head), keys, chip = q.shape, k.shape[2], _chip(q.device)
    wide, tall, warps, stages = _tile(keys, batch * heads, head, q.dtype == torch.float32, chip)
    tall = min(tall, max(16, _power_of_2(queries)))
    room = (chip.shared // (q.element_size() * sum(_slices(head, q.dtype))) - wide) // tall  # tiles of queries beside one of keys
    programs = -(-keys // wide) * batch * heads
    idle = programs < chip.processors
    pieces = min(BUSY * chip.processors // max(1, programs), queries // (2 * tall)) if idle else 1
    together = min(chip.cache // max(1, queries * head * q.element_size()), batch * heads)
    return Plan(wide, tall, warps, max(1, min(stages, room)), max(1, together), max(1, pieces))


@dataclass(frozen=True)
class Chip:
    """What a cut depends on: processors, bytes that one program may share, bytes of queries that stay cached beside everything else."""

    processors: int
    shared: int
    cache: int


@functools.cache
def _chip(device: torch.device) -> Chip:
    if device.type != "cuda":
        return Chip(1, 2**20, 2**24)
    properties: Any = torch.cuda.get_device_properties(device)  # its stub lacks one field
    return Chip(properties.multi_processor_count, properties.shared_memory_per_block_optin - 2048, properties.L2_cache_size // 3)


def _tile(keys: int, rows: int, head: int, exact: bool, chip: Chip) -> tuple[int, int, int, int]:
    """Keys, queries, warps and stages: the fastest of some thirty for heads of 64 to 256 and lengths of 64 to 131,072 on an H200."""
    if keys <= 16:  # reading the queries is what takes time
        return 16, 128, 4, 2
    if keys <= 64 or -(-keys // 128) * rows < 2 * chip.processors:
        return (64, 128, 4, 2) if exact else (64, 64, 4, 3)
    return (128, 128, 8, 3) if exact else next(tile for widest, tile in HALF_TILES.items() if head <= widest)


def _power_of_2(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def launch(q: Tensor, k: Tensor, lse: Tensor, first: Tensor, last: Tensor, scale: float, softcap: float | None, cut: Plan) -> Tensor:
    """`column_sums` with a cut of the caller's."""
    _check(q, k, lse, first, last)
    (batch, heads, queries, head), keys = q.shape, k.shape[2]
    if 0 in (*q.shape, keys):
        return torch.zeros((batch, heads, keys), dtype=torch.float32, device=q.device)
    from sinklab.probe import tiles

    out = torch.empty((cut.pieces, batch, heads, keys), dtype=torch.float32, device=q.device)
    main, tail = _slices(head, q.dtype)
    exact = q.dtype == torch.float32
    if INTERPRETED and q.dtype == torch.bfloat16:
        q, k = q.float(), k.float()  # the interpreter would multiply bfloat16's bits as integers
    first, last = first.contiguous(), last.contiguous()
    with _on(q.device):
        tiles.column_sums[-(-keys // cut.keys) * batch * heads, cut.pieces](
            q, k, lse, first, last, out,
            *q.stride()[:3], *k.stride()[:3], *lse.stride(), _per_batch(first), _per_batch(last),
            queries, keys, heads, heads // k.shape[1], batch * heads, cut.together, *_factors(scale, softcap),
            CAPPED=softcap is not None, D=head, MAIN=main, TAIL=tail, EXACT=exact,
            KEYS=cut.keys, QUERIES=cut.queries, RAGGED=queries % cut.queries > 0,
            num_warps=cut.warps, num_stages=cut.stages, enable_fp_fusion=True,
        )  # fmt: skip
    return out[0] if cut.pieces == 1 else out.sum(0)


def _check(q: Tensor, k: Tensor, lse: Tensor, first: Tensor, last: Tensor) -> None:
    """The kernel reads raw memory: shapes and types that do not fit are an error here, not garbage there."""
    (batch, heads, queries, head), (rows, kv_heads, keys, width) = q.shape, k.shape
    if rows != batch or width != head or heads % kv_heads:
        raise ValueError(f"queries {tuple(q.shape)} and keys {tuple(k.shape)} do not fit together")
    if lse.shape != (batch, heads, queries) or lse.dtype != torch.float32:
        raise ValueError(f"lse must be float32 {(batch, heads, queries)}, not {lse.dtype} {tuple(lse.shape)}")
    for name, bound in (("first", first), ("last", last)):
        if bound.shape not in ((batch, keys), (1, keys)) or bound.dtype != torch.int32:
            raise ValueError(f"{name} must be int32 {(batch, keys)} or {(1, keys)}, not {bound.dtype} {tuple(bound.shape)}")
    if len({tensor.device for tensor in (q, k, lse, first, last)}) > 1:
        raise ValueError("q, k, lse, first and last must be on one device")


def _per_batch(bound: Tensor) -> int:
    return bound.shape[1] if bound.shape[0] > 1 else 0


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensors'."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _factors(scale: float, softcap: float | None) -> tuple[float, float]:
    """What a product is multiplied by inside the cap and outside it; exponents are to base 2."""
    if softcap is None:
        return 1.0, scale / math.log(2)
    return scale / softcap, softcap / math.log(2)


def _slices(head: int, dtype: torch.dtype) -> tuple[int, int]:
    """Powers of two from 16 on: 80 is 64 + 16, 192 is 128 + 64, 112 is 64 + 64 of which 16 are masked. float32 goes in steps of one."""
    if dtype == torch.float32:
        return 16 if head % 32 else 32, 0
    main = max(16, 1 << (head.bit_length() - 1))
    return main, max(16, _power_of_2(head - main)) if head > main else 0
