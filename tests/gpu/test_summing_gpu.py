"""What only a GPU shows of weights that do not compete: the numbers on tensor cores, races, speed, and that they stand in a compiled graph."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sinklab.model import summing
from sinklab.model.independent import divided
from sum_cases import CASES, Case, by_kernel, case_excess, inputs, reference, relative

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

HEADS = (16, 32, 64, 80, 96, 128, 192, 256)
LIMITS = {torch.float32: 2e-6, torch.float16: 5e-4, torch.bfloat16: 3.5e-3}  # of a whole result; softmax attention in bfloat16 has 2e-3


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_formula(case):
    assert case_excess(case, "cuda") <= 1


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dtype", LIMITS)
def test_equals_the_formula_over_many_tiles(head, dtype):
    for function, (length, window), power in itertools.product(summing.FUNCTIONS, ((1024, None), (777, 200)), (1.0, 2.0)):
        case = Case(function, power, window, length, head, dtype, batch=2, heads=3)
        given = inputs(case, "cuda")
        out, sums, *pulled = relative(by_kernel(case, given), reference(case, given))
        assert max(out, *pulled) <= LIMITS[dtype], case
        assert sums <= 5e-6, case


@pytest.mark.parametrize("centre", [-8.0, 8.0])
def test_small_and_large_weights_keep_their_digits(centre):
    for function in summing.FUNCTIONS:
        case = Case(function, length=500, head=64, dtype=torch.bfloat16, centre=centre)
        given = inputs(case, "cuda")
        assert max(relative(by_kernel(case, given), reference(case, given))[:2]) <= LIMITS[torch.bfloat16]


def test_more_heads_than_a_grid_has_rows():
    assert case_excess(Case(length=20, batch=300, heads=300, dtype=torch.float32), "cuda") <= 1


def test_every_element_is_written_and_repeats_are_equal():
    case = Case("elu+1", 1.0, 333, 700, 96, torch.bfloat16, batch=3, heads=8)
    given = inputs(case, "cuda")
    outcomes = []
    for _ in range(10):
        poison = [torch.full_like(given.d_out, torch.nan) for _ in range(6)]
        del poison  # its memory is what comes next
        outcomes.append(by_kernel(case, given))
    assert all(torch.equal(one, other) for outcome in outcomes for one, other in zip(outcome, outcomes[0], strict=True))
    assert max(relative(outcomes[0], reference(case, given))) <= LIMITS[torch.bfloat16]


def test_stays_within_its_tensors():
    """Rows and columns past the end are other memory: NaN there must not be seen."""
    case = Case(length=333, head=80, dtype=torch.bfloat16, layout="apart")
    given = inputs(case, "cuda")
    inside = []
    for x in (given.q, given.k, given.v, given.d_out):
        wide = torch.full((*x.shape[:2], 400, 96), torch.nan, dtype=x.dtype, device="cuda")
        wide[:, :, :333, :80] = x
        inside.append(wide[:, :, :333, :80])
    wider = type(given)(*inside, given.d_sums, given.scale)
    for one, other in zip(by_kernel(case, wider), by_kernel(case, given), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("normalised", [True, False])
def test_stands_in_a_compiled_graph(normalised):
    """One graph, forward and backward, with the projection before and behind; equal to the same without a compiler."""
    torch.manual_seed(0)
    batch, length, heads, head = 2, 300, 4, 96
    x = torch.randn(batch, length, heads * head, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    into = (torch.randn(heads * head, 3 * heads * head, device="cuda", dtype=torch.bfloat16) * (heads * head) ** -0.5).requires_grad_()

    def block(x: Tensor, into: Tensor) -> Tensor:
        q, k, v = (x @ into).view(batch, length, 3, heads, head).permute(2, 0, 3, 1, 4).unbind()
        out, sums = summing.summed(q, k, v, head**-0.5, "sigmoid", window=100)
        out = divided(out, sums) if normalised else out
        return out.transpose(1, 2).reshape(x.shape)

    results = []
    for run in (block, torch.compile(block, fullgraph=True)):
        out = run(x, into)
        results.append((out, *torch.autograd.grad(out.float().square().sum(), (x, into))))
    for one, other in zip(*results, strict=True):
        assert (one - other).float().norm() <= 5e-3 * other.float().norm()


def test_memory_is_what_comes_out():
    given = inputs(Case(length=8192, head=96, heads=8, dtype=torch.bfloat16), "cuda")
    q, k, v = (x.requires_grad_() for x in (given.q, given.k, given.v))
    summing.summed(q, k, v, 0.1, "sigmoid")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out, sums = summing.summed(q, k, v, 0.1, "sigmoid")
    torch.autograd.grad((out, sums), (q, k, v), (given.d_out, given.d_sums))
    assert torch.cuda.max_memory_allocated() - before <= 4 * out.numel() * 2 + sums.numel() * 4 + 2**21


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="measured on Hopper")
def test_is_not_slower_than_flash_attention():
    """FlashAttention 2 took 3.58 ms here on an H200."""
    given = inputs(Case(length=2048, head=96, batch=32, heads=8, dtype=torch.bfloat16), "cuda")
    q, k, v = (x.requires_grad_() for x in (given.q, given.k, given.v))

    def ours() -> None:
        torch.autograd.grad(summing.summed(q, k, v, given.scale, "sigmoid")[0], (q, k, v), given.d_out)

    def flash() -> None:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), given.d_out)

    assert milliseconds(ours) < milliseconds(flash)


def milliseconds(run) -> float:
    from triton.testing import do_bench

    return do_bench(run, warmup=20, rep=100, return_mode="median")
