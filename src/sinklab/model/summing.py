"""Causal attention whose weights do not compete, on CUDA: `out[i] = sum_j f(s_ij) v_j` and `sums[i] = sum_j f(s_ij)^p`, forward and backward.

The Triton programs are in `sum_tiles.py`; here is what can be asked of them, how a call is cut into tiles, and how gradients flow: through
`out` and `sums` both, so that a normalised weight is a division outside. Each direction is one operator, which `torch.compile` takes as it is.
With `TRITON_INTERPRET=1` set before this module is imported the same code runs on a CPU, slowly, for tests.
"""

import functools
import importlib.util
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

FUNCTIONS = ("sigmoid", "elu+1")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton too decides where a kernel is defined, not where it is called
TRITON = importlib.util.find_spec("triton") is not None
WIDEST_HEAD = 256
NO_WINDOW = 2**30  # wider than any text, and still a number of 32 bits when a position is added


@dataclass(frozen=True)
class Weight:
    """What a pair weighs: f and its argument's scale, the power under which weights are summed, and how many places are seen."""

    scale: float
    function: str
    power: float = 1.0
    window: int | None = None


@dataclass(frozen=True)
class Plan:
    """How one program works: rows of the tile that stays and of those that stream, warps, stages of tiles under way, registers of a thread."""

    stay: int
    stream: int
    warps: int
    stages: int
    registers: int | None = None


# By the widest head that they are for, in bfloat16 and float16.
FORWARD = {32: Plan(64, 64, 4, 3), 64: Plan(64, 64, 4, 3), 96: Plan(128, 64, 8, 3, 128), 128: Plan(128, 32, 8, 3, 128), 256: Plan(128, 64, 8, 2)}
QUERIES = {32: Plan(64, 32, 4, 3), 64: Plan(64, 32, 4, 3), 96: Plan(128, 32, 8, 3), 128: Plan(64, 64, 4, 2), 256: Plan(64, 32, 8, 2)}
KEYS = {32: Plan(64, 32, 4, 3), 64: Plan(64, 32, 4, 3), 96: Plan(64, 32, 4, 3), 128: Plan(64, 32, 4, 3), 256: Plan(64, 32, 8, 2)}
# In float32, which tensor cores do not multiply: registers hold whole rows.
EXACT = {32: Plan(32, 32, 4, 1), 96: Plan(32, 16, 4, 1), 256: Plan(16, 16, 8, 1)}


def summed(q: Tensor, k: Tensor, v: Tensor, scale: float, function: str, power: float = 1.0, window: int | None = None) -> tuple[Tensor, Tensor]:
    """`out[i] = sum_j f(s_ij) v_j` and `sums[i] = sum_j f(s_ij)^power` where `s_ij = scale * q_i . k_j`, over j <= i, the last `window` of them.

    f is "sigmoid" or "elu+1" (s + 1 where s > 0, else e^s). q, k, v: (B, H, T, D); out: the same in their dtype, laid out as (B, T, H, D);
    sums: float32 (B, H, T). Both can be differentiated once, in q, k and v.
    """
    return _summed(q, k, v, scale, function, power, window)


def refusal(q: Tensor, k: Tensor, v: Tensor, function: str) -> str | None:
    """Why the kernel cannot take these, in one sentence; None where it can."""
    return next(_objections(q, k, v, function), None)


def _objections(q: Tensor, k: Tensor, v: Tensor, function: str) -> Iterator[str]:
    if function not in FUNCTIONS:
        yield f"the kernel knows the functions {' and '.join(FUNCTIONS)}, not {function}"
    if not q.device == k.device == v.device:
        yield f"the kernel needs queries, keys and values on one device, not {q.device}, {k.device} and {v.device}"
    if not INTERPRETED and (q.device.type != "cuda" or torch.version.cuda is None):
        yield f"the kernel runs on CUDA, not on {q.device.type}"
    if not TRITON:
        yield "the kernel needs Triton, which is not installed"
    if not INTERPRETED and torch.cuda.get_device_capability(q.device) < (8, 0):
        yield "the kernel needs a CUDA device of compute capability 8.0 or later"
    if not q.dtype == k.dtype == v.dtype or q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        yield f"the kernel takes queries, keys and values in float32, bfloat16 or float16, all in the same, not {q.dtype}, {k.dtype} and {v.dtype}"
    if not q.shape == k.shape == v.shape or q.dim() != 4:
        yield f"the kernel needs queries, keys and values of one shape (B, H, T, D), not {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
    if q.shape[-1] > WIDEST_HEAD:
        yield f"the kernel takes heads of at most {WIDEST_HEAD} dimensions, not {q.shape[-1]}"
    if q.shape[-1] > 1 and not q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
        yield "the kernel needs queries, keys and values whose last dimension is contiguous"


@torch.library.custom_op("sinklab::summed", mutates_args=())
def _summed(q: Tensor, k: Tensor, v: Tensor, scale: float, function: str, power: float, window: int | None) -> tuple[Tensor, Tensor]:
    weight = Weight(scale, function, power, window)
    _check(q, k, v, weight)
    out, sums = _empty(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    if q.numel():
        launch_forward(q, k, v, out, sums, weight, plan(FORWARD, q))
    return out, sums if q.numel() else sums.zero_()


@_summed.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _empty(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("sinklab::summed_backward", mutates_args=())
def _summed_backward(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, d_sums: Tensor | None, scale: float, function: str, power: float, window: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    weight = Weight(scale, function, power, window)
    d_q, d_k, d_v = _empty(q), _empty(q), _empty(q)
    if q.numel():
        d_out = d_out if d_out.stride(-1) == 1 else d_out.contiguous()
        launch_keys(q, k, v, d_out, d_sums, d_k, d_v, weight, plan(KEYS, q))
        launch_queries(q, k, v, d_out, d_sums, d_q, weight, plan(QUERIES, q))
    return d_q, d_k, d_v


@_summed_backward.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(q), _empty(q), _empty(q)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:3])
    ctx.settings = inputs[3:]
    ctx.set_materialize_grads(False)  # whoever does not use the sums does not pay for their gradient


def _pull_back(ctx: Any, d_out: Tensor | None, d_sums: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v = ctx.saved_tensors
    no_settings = (None,) * len(ctx.settings)
    if d_out is None and d_sums is None:
        return None, None, None, *no_settings
    d_out = torch.zeros_like(q) if d_out is None else d_out
    return *_summed_backward(q, k, v, d_out, d_sums, *ctx.settings), *no_settings


_summed.register_autograd(_pull_back, setup_context=_keep)


def _check(q: Tensor, k: Tensor, v: Tensor, weight: Weight) -> None:
    reason = refusal(q, k, v, weight.function)
    if reason is not None:
        raise ValueError(reason)
    if not 0 < weight.power < math.inf:
        raise ValueError(f"the power of a weight is a positive number, not {weight.power}")
    if weight.window is not None and weight.window < 1:
        raise ValueError(f"a window holds at least one place, not {weight.window}")


def _empty(like: Tensor) -> Tensor:
    """(B, H, T, D), laid out as (B, T, H, D): what a projection reads and writes."""
    batch, heads, length, head = like.shape
    return like.new_empty((batch, length, heads, head)).transpose(1, 2)


def launch_forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, weight: Weight, cut: Plan) -> None:
    """Fills `out` and `sums`."""
    _launch("forward", (q, k, v), (out, sums), weight, cut, {"QUERIES": cut.stay, "KEYS": cut.stream})


def launch_keys(q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, d_sums: Tensor | None, d_k: Tensor, d_v: Tensor, weight: Weight, cut: Plan) -> None:
    """Fills `d_k` and `d_v`."""
    given = (q, k, v, d_out, d_out if d_sums is None else d_sums)  # where there are no sums, nothing reads the last
    _launch("backward_keys", given, (d_k, d_v), weight, cut, {"SUMS": d_sums is not None, "KEYS": cut.stay, "QUERIES": cut.stream})


def launch_queries(q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, d_sums: Tensor | None, d_q: Tensor, weight: Weight, cut: Plan) -> None:
    """Fills `d_q`."""
    given = (q, k, v, d_out, d_out if d_sums is None else d_sums)
    _launch("backward_queries", given, (d_q,), weight, cut, {"SUMS": d_sums is not None, "QUERIES": cut.stay, "KEYS": cut.stream})


def _launch(program: str, given: tuple[Tensor, ...], filled: tuple[Tensor, ...], weight: Weight, cut: Plan, constants: dict[str, int]) -> None:
    from sinklab.model import sum_tiles

    (batch, heads, length, head), device = given[0].shape, given[0].device
    main, tail = slices(head)
    together = _chip(device).cache // (2 * given[0].element_size() * length * head)  # what streams is two tensors of a head
    read, written = _readable(given), _readable(filled)
    with _on(device):
        getattr(sum_tiles, program)[-(-length // cut.stay) * batch * heads,](
            *read, *written, *(stride for x in read for stride in x.stride()[:3]),
            length, heads, batch * heads, max(1, min(together, batch * heads)), min(weight.window or NO_WINDOW, NO_WINDOW), weight.scale,
            SIGMOID=weight.function == "sigmoid", POWER=weight.power, D=head, MAIN=main, TAIL=tail, FAST=not INTERPRETED, **constants,
            num_warps=cut.warps, num_stages=cut.stages, maxnreg=cut.registers,
        )  # fmt: skip
    for wanted, there in zip(filled, written, strict=True):
        if wanted is not there:
            wanted.copy_(there)


def _readable(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The interpreter would multiply bfloat16's bits as integers."""
    return tuple(x.float() if INTERPRETED and x.dtype == torch.bfloat16 else x for x in tensors)


def slices(head: int) -> tuple[int, int]:
    """Powers of two from 16 on: 80 is 64 + 16, 96 is 64 + 32, 112 is 64 + 64 of which 16 are masked."""
    main = max(16, 1 << (head.bit_length() - 1))
    return main, max(16, _power_of_2(head - main)) if head > main else 0


def plan(table: dict[int, Plan], q: Tensor) -> Plan:
    """The table's cut for this head; tiles no longer than the text, and no more of them under way than the chip has room for."""
    length, head = q.shape[2:]
    table = EXACT if q.dtype == torch.float32 else table
    cut = next(cut for widest, cut in table.items() if head <= widest)
    longest = max(16, _power_of_2(length))
    cut = replace(cut, stay=min(cut.stay, longest), stream=min(cut.stream, longest))
    while cut.stages > 1 and _shared(cut, q) > _chip(q.device).shared:
        cut = replace(cut, stages=cut.stages - 1)
    while cut.stream > 16 and _shared(cut, q) > _chip(q.device).shared:
        cut = replace(cut, stream=cut.stream // 2)
    return cut


def _shared(cut: Plan, q: Tensor) -> int:
    """Bytes that a program shares: two tensors' tiles that stay, and two that stream, for each stage."""
    return 2 * q.element_size() * sum(slices(q.shape[-1])) * (cut.stay + cut.stages * cut.stream)


def _power_of_2(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


@dataclass(frozen=True)
class Chip:
    """What a cut depends on: bytes that one program may share, bytes that stay cached beside everything else."""

    shared: int
    cache: int


@functools.cache
def _chip(device: torch.device) -> Chip:
    if device.type != "cuda":
        return Chip(2**20, 2**24)
    properties: Any = torch.cuda.get_device_properties(device)  # its stub lacks one field
    return Chip(properties.shared_memory_per_block_optin - 2048, properties.L2_cache_size // 3)


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensors'."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
