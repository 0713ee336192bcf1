"""Calls of the fast column sums, and what they must give: the formula in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sinklab.probe import kernel


@dataclass(frozen=True)
class Case:
    """One call: its shapes, which queries see which keys, how tensors lie in memory, and a cut where the kernel is not to choose."""

    name: str
    mask: str = "causal"
    heads: int = 2
    kv_heads: int = 1
    queries: int = 150
    keys: int = 150
    head: int = 64
    dtype: torch.dtype = torch.float16
    softcap: float | None = None
    batch: int = 1
    layout: str = "plain"
    cut: kernel.Plan | None = None
    spread: float = 2.0  # of the scores: their standard deviation

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Inputs:
    """Arguments of `column_sums`."""

    q: Tensor
    k: Tensor
    lse: Tensor
    first: Tensor
    last: Tensor
    scale: float
    softcap: float | None = None
    cut: kernel.Plan | None = field(default=None)


def inputs(case: Case, device: str = "cpu") -> Inputs:
    torch.manual_seed(sum(map(ord, case.name)))
    size = math.sqrt(case.spread)
    q = laid_out((case.batch, case.heads, case.queries, case.head), size, case, device)
    k = laid_out((case.batch, case.kv_heads, case.keys, case.head), size, case, device)
    first, last = (bound.to(device, torch.int32) for bound in bounds(case))
    scale = case.head**-0.5
    lse = normaliser(q, k, first, last, scale, case.softcap)
    if case.layout == "transposed":
        lse = lse.transpose(1, 2).contiguous().transpose(1, 2)
    return Inputs(q, k, lse, first, last, scale, case.softcap, case.cut)


def laid_out(shape: tuple[int, int, int, int], size: float, case: Case, device: str) -> Tensor:
    """Random numbers as models leave them: contiguous, as (B, T, H, D), or as a part of a larger projection."""
    batch, heads, length, head = shape
    if case.layout == "plain":
        return (torch.randn(shape, device=device) * size).to(case.dtype)
    wider = 3 if case.layout == "sliced" else 1
    numbers = (torch.randn(batch, length, wider * heads, head, device=device) * size).to(case.dtype)
    return numbers[:, :, (wider - 1) * heads :].transpose(1, 2)


def bounds(case: Case) -> tuple[Tensor, Tensor]:
    """First and last query that see each key; queries are the last ones of the text that the keys hold."""
    j, behind, end = torch.arange(case.keys)[None], case.keys - case.queries, case.queries - 1
    first, last = (j - behind).clamp_min(0), torch.full_like(j, end)
    match case.mask:
        case "causal":
            return first, last
        case "window":
            return first, (j - behind + 39).clamp_max(end)
        case "chunks":
            return first, (j // 50 * 50 + 49 - behind).clamp_max(end)
        case "padded":  # the batch's second row has 37 tokens less, its third almost none
            padding = torch.tensor([0, 37, case.keys - 2])[: case.batch, None]
            return first, torch.where(j < padding, -1, last)
        case "scattered":  # any intervals, empty ones and ones beyond the queries among them
            start = torch.randint(-20, case.queries + 20, (case.batch, case.keys))
            return start, start + torch.randint(-10, case.queries, (case.batch, case.keys))
    raise ValueError(case.mask)


def normaliser(q: Tensor, k: Tensor, first: Tensor, last: Tensor, scale: float, softcap: float | None) -> Tensor:
    """lse of the keys that each query sees; +inf where it sees none, as for padding."""
    lse = scores(q, k, scale, softcap).masked_fill(~seen(q, first, last), -torch.inf).logsumexp(-1)
    return lse.masked_fill(lse == -torch.inf, torch.inf).float()


def reference(given: Inputs) -> Tensor:
    """The formula."""
    weights = torch.exp(scores(given.q, given.k, given.scale, given.softcap) - given.lse.double()[..., None])
    return torch.where(seen(given.q, given.first, given.last), weights, 0).sum(-2)


def scores(q: Tensor, k: Tensor, scale: float, softcap: float | None) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    s = torch.stack([q[:, h].double() @ k[:, h // groups].double().mT for h in range(q.shape[1])], 1) * scale
    return s if softcap is None else softcap * torch.tanh(s / softcap)


def seen(q: Tensor, first: Tensor, last: Tensor) -> Tensor:
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    return ((i >= first[:, None]) & (i <= last[:, None]))[:, None]


def by_kernel(given: Inputs) -> Tensor:
    call = (given.q, given.k, given.lse, given.first, given.last, given.scale, given.softcap)
    return kernel.column_sums(*call) if given.cut is None else kernel.launch(*call, given.cut)


def excess(got: Tensor, want: Tensor) -> float:
    """The largest difference as a multiple of what is allowed: at most 1 is right."""
    assert got.dtype == torch.float32
    assert got.shape == want.shape
    return float(((got.double() - want).abs() / (1e-5 * want + 1e-6)).nan_to_num(torch.inf).max())


def kernel_excess(case: Case, device: str = "cpu") -> float:
    given = inputs(case, device)
    return excess(by_kernel(given), reference(given))


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32
FLAT, TALL = kernel.Plan(32, 16, 4, 2, together=2), kernel.Plan(16, 32, 4, 2)

CASES = [
    *(Case(f"{mask}, {short(t)}", mask, dtype=t, batch=3) for mask in ("causal", "window", "padded") for t in (HALF, BRAIN, FULL)),
    *(Case(f"head of {d}, {short(t)}", head=d, dtype=t, queries=70, keys=70) for d in (80, 96, 112, 128, 192, 256) for t in (HALF, FULL)),
    *(Case(f"head of {d}, {short(t)}", head=d, dtype=t, queries=70, keys=70) for d in (1, 7, 33, 72, 200) for t in (BRAIN, FULL)),
    Case("chunks", "chunks"),
    Case("chunks, a prompt continued", "chunks", queries=90),
    Case("window, a prompt continued", "window", queries=90, dtype=FULL),
    Case("any intervals", "scattered", batch=2, kv_heads=2),
    Case("any intervals, float32", "scattered", batch=2, dtype=FULL),
    Case("scores under a cap", softcap=5.0, spread=8.0),
    Case("scores far under a cap", softcap=30.0, dtype=FULL),
    Case("scores that a cap bends", softcap=30.0, spread=5.0, heads=8, kv_heads=4, dtype=FULL),
    Case("eight heads read two", heads=8, kv_heads=2, queries=70, keys=70),
    Case("six heads read three, padded", "padded", batch=2, heads=6, kv_heads=3, queries=70, keys=70),
    Case("decoding one token", queries=1),
    Case("decoding one token, float32", queries=1, dtype=FULL),
    Case("a prompt continued", queries=40),
    Case("one token in all", queries=1, keys=1),
    Case("whole tiles", queries=256, keys=256),
    Case("one more than whole tiles", queries=129, keys=129),
    Case("few keys of many queries", "scattered", queries=600, keys=8),
    Case("as (B, T, H, D)", batch=2, layout="transposed"),
    Case("part of a projection", batch=2, layout="sliced", kv_heads=2),
    Case("part of a projection, float32", batch=2, layout="sliced", dtype=FULL),
    Case("small tiles, whole", queries=128, keys=128, cut=FLAT),
    Case("small tiles, ragged", "window", queries=121, keys=121, cut=FLAT),
    Case("small tiles, padded", "padded", batch=3, queries=121, keys=121, cut=FLAT, head=80),
    Case("small tiles, any intervals", "scattered", batch=2, cut=TALL),
    Case("heads apart", "window", batch=2, heads=4, queries=70, keys=70, cut=TALL),
    Case("three heads together", batch=2, heads=4, queries=70, keys=70, cut=kernel.Plan(16, 32, 4, 2, together=3)),
    Case("pieces", "padded", batch=3, queries=100, keys=100, cut=kernel.Plan(16, 32, 4, 2, pieces=2)),
    Case("pieces, any intervals", "scattered", batch=2, cut=kernel.Plan(32, 16, 4, 2, pieces=3)),
    Case("more pieces than tiles", "window", queries=40, keys=40, cut=kernel.Plan(16, 16, 4, 2, pieces=9)),
]  # fmt: skip
