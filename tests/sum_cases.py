"""Calls of the kernel for weights that do not compete, and what they must give: the formula in float64."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sinklab.model import summing
from sinklab.model.summing import Plan

Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # out, sums, d_q, d_k, d_v
LIMITS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}  # rounding, row by row


@dataclass(frozen=True)
class Case:
    """One call: what a pair weighs, shapes, how tensors lie in memory, and a cut where the table's is not wanted."""

    function: str = "sigmoid"
    power: float = 1.0
    window: int | None = None
    length: int = 70
    head: int = 32
    dtype: torch.dtype = torch.float16
    batch: int = 1
    heads: int = 2
    layout: str = "fused"
    cut: Plan | None = None
    centre: float = 0.0  # of the scores

    def __str__(self) -> str:
        return ", ".join(f"{f.name} {getattr(self, f.name)}" for f in dataclasses.fields(self) if getattr(self, f.name) != f.default) or "plain"


@dataclass(frozen=True)
class Inputs:
    """What a call is given, and what its results are pulled at with."""

    q: Tensor
    k: Tensor
    v: Tensor
    d_out: Tensor
    d_sums: Tensor
    scale: float


def inputs(case: Case, device: str = "cpu") -> Inputs:
    torch.manual_seed(case.length + case.head)
    q, k, v = laid_out(case, 3, device)
    if case.centre != 0:
        q, k = q + case.centre / math.sqrt(case.head), k + 1
    (d_out,) = laid_out(case, 1, device)
    d_sums = torch.randn(case.batch, case.length, case.heads, device=device).transpose(1, 2)
    return Inputs(q, k, v, d_out, d_sums, case.head**-0.5)


def laid_out(case: Case, count: int, device: str) -> tuple[Tensor, ...]:
    """Random numbers as parts of one projection, as (B, T, H, D), or as (B, H, T, D) of which each second row is there."""
    batch, heads, length, head = case.batch, case.heads, case.length, case.head
    if case.layout == "fused":
        return (torch.randn(batch, length, count, heads, head, device=device) * 1.3).to(case.dtype).permute(2, 0, 3, 1, 4).unbind()
    if case.layout == "apart":
        return tuple((torch.randn(batch, length, heads, head, device=device) * 1.3).to(case.dtype).transpose(1, 2) for _ in range(count))
    return tuple((torch.randn(batch, heads, 2 * length, head, device=device) * 1.3).to(case.dtype)[:, :, ::2] for _ in range(count))


def reference(case: Case, given: Inputs) -> Five:
    """The formula, and its derivatives."""
    q, k, v = (x.detach().double().requires_grad_() for x in (given.q, given.k, given.v))
    s = given.scale * q @ k.mT
    f = torch.sigmoid(s) if case.function == "sigmoid" else torch.where(s > 0, s + 1, s.exp())
    i = torch.arange(case.length, device=q.device)
    behind = i[:, None] - i
    seen = (behind >= 0) & (behind < (case.window or case.length))
    out, sums = torch.where(seen, f, 0) @ v, torch.where(seen, f**case.power, 0).sum(-1)
    pulled = torch.autograd.grad((out, sums), (q, k, v), (given.d_out.double(), given.d_sums.double()))
    return out.detach(), sums.detach(), *pulled


def by_kernel(case: Case, given: Inputs) -> Five:
    """Through the operators and their gradient; where a case has a cut, by the programs themselves."""
    if case.cut is not None:
        return by_programs(case, given, case.cut)
    q, k, v = (x.detach().requires_grad_() for x in (given.q, given.k, given.v))
    out, sums = summing.summed(q, k, v, given.scale, case.function, case.power, case.window)
    pulled = torch.autograd.grad((out, sums), (q, k, v), (given.d_out, given.d_sums))
    return out.detach(), sums.detach(), *pulled


def by_programs(case: Case, given: Inputs, cut: Plan) -> Five:
    weight = summing.Weight(given.scale, case.function, case.power, case.window)
    out, d_q, d_k, d_v = (torch.full_like(given.q, torch.nan).transpose(1, 2).contiguous().transpose(1, 2) for _ in range(4))
    sums = torch.full(given.d_sums.shape, torch.nan, device=given.q.device)
    summing.launch_forward(given.q, given.k, given.v, out, sums, weight, cut)
    summing.launch_keys(given.q, given.k, given.v, given.d_out, given.d_sums, d_k, d_v, weight, cut)
    summing.launch_queries(given.q, given.k, given.v, given.d_out, given.d_sums, d_q, weight, cut)
    return out, sums, d_q, d_k, d_v


def excess(got: Five, want: Five, dtype: torch.dtype) -> float:
    """The largest error of a row of any result, over the size of that result's rows, as a multiple of what is allowed: at most 1 is right."""
    limits = (LIMITS[dtype], max(2e-6, LIMITS[dtype] / 100), *(LIMITS[dtype],) * 3)
    assert [x.dtype for x in got] == [dtype, torch.float32, dtype, dtype, dtype]
    return max(row_error(one, other) / limit for one, other, limit in zip(got, want, limits, strict=True))


def row_error(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    rows, size = (got.double() - want).reshape(-1, want.shape[-1]), want.reshape(-1, want.shape[-1])
    if want.dim() == 3:  # sums: each is a row
        rows, size = rows.reshape(-1, 1), size.reshape(-1, 1)
    return float((rows.norm(dim=-1).max() / size.norm(dim=-1).square().mean().sqrt().clamp_min(1e-30)).nan_to_num(torch.inf))


def relative(got: Five, want: Five) -> list[float]:
    """|difference| / |what it must be| of each result."""
    return [float(((one.double() - other).norm() / other.norm()).nan_to_num(torch.inf)) for one, other in zip(got, want, strict=True)]


def case_excess(case: Case, device: str = "cpu") -> float:
    given = inputs(case, device)
    return excess(by_kernel(case, given), reference(case, given), case.dtype)


HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32
SMALL, TALL, WIDE = Plan(16, 16, 4, 1), Plan(32, 16, 4, 2), Plan(16, 32, 4, 2)

CASES = [
    *(Case(f, p, w, dtype=t) for f in summing.FUNCTIONS for p, w, t in ((1.0, None, HALF), (2.0, 25, BRAIN), (0.5, None, FULL), (3.5, 25, HALF))),
    *(Case(f, 1.0, w, 60, heads=1, cut=cut) for cut in (SMALL, TALL, WIDE) for f, w in (("sigmoid", None), ("elu+1", 7), ("sigmoid", 33))),
    *(
        Case(head=d, length=40, heads=1, dtype=t)
        for d, t in ((16, HALF), (64, BRAIN), (80, HALF), (96, HALF), (128, FULL), (192, HALF), (256, BRAIN))
    ),
    *(Case(head=d, length=20, heads=1, dtype=t) for d, t in ((1, FULL), (7, HALF), (20, FULL), (33, HALF), (112, BRAIN), (200, HALF))),
    *(Case(f, length=n, heads=1, cut=SMALL) for n in (1, 2, 15, 16, 17, 32) for f in summing.FUNCTIONS),
    *(Case(layout=name, window=w, batch=2, heads=3, length=20) for name, w in (("apart", None), ("strided", 5))),
    *(Case(f, p, centre=c, length=40, heads=1, dtype=FULL) for f in summing.FUNCTIONS for c, p in ((-12.0, 1.0), (4.0, 0.5))),
    *(Case("elu+1", window=w, length=40, heads=1, cut=TALL) for w in (1, 16, 17, 39, 40, 10**10)),
    Case(length=150, window=90, heads=1),
    Case("elu+1", 2.0, length=130, heads=1),
]
