"""The CPU's column sums against the formula in float64, however the call is cut, and what they leave behind."""

import contextlib
import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from column_cases import CASES, Case, excess, inputs, reference
from sinklab.probe import columns, cpu
from sinklab.probe.call import Call
from sinklab.probe.visible import describe

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MASKS = ["causal", "window", "chunks", "padded", "scattered"]


def arguments(of):
    return of.q, of.k, of.lse, of.first, of.last, of.scale, of.softcap


def cpu_excess(case: Case) -> float:
    made = inputs(case)
    return excess(cpu.column_sums(*arguments(made)), reference(made))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_formula(case):
    assert cpu_excess(case) <= 1


LARGE = [
    Case(f"several blocks, {mask}, {str(dtype)[6:]}", mask, 6, 2, queries=700, keys=700, dtype=dtype, batch=3, layout="transposed")
    for mask in MASKS
    for dtype in DTYPES
] + [
    Case("several runs of queries", queries=3000, keys=3000, dtype=torch.bfloat16, head=16),
    Case("scores up to thirty", heads=4, queries=1500, keys=1500, dtype=torch.float32, head=128, spread=5.5),
    Case("scores up to thirty, bfloat16", heads=4, queries=1500, keys=1500, dtype=torch.bfloat16, head=128, spread=5.5),
    Case("many short texts", "padded", heads=9, kv_heads=3, queries=64, keys=64, dtype=torch.bfloat16, batch=40, layout="transposed"),
    Case("one token after a long text", heads=8, kv_heads=2, queries=1, keys=5000, dtype=torch.float32, batch=2),
    Case("float64 is read as float32", "window", queries=300, keys=300, dtype=torch.float64),
]  # fmt: skip


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_equals_the_formula_over_several_blocks(case):
    if case.mask == "padded":  # `column_cases` knows three rows of padding; more of them repeat these
        made = repeated(inputs(dataclasses.replace(case, batch=3)), case.batch)
        assert excess(cpu.column_sums(*arguments(made)), reference(made)) <= 1
    else:
        assert cpu_excess(case) <= 1


def repeated(made, batch: int):
    rows = torch.arange(batch) % len(made.q)
    first, last = made.first[rows % len(made.first)], made.last[rows % len(made.last)]
    return dataclasses.replace(made, q=made.q[rows], k=made.k[rows], lse=made.lse[rows], first=first, last=last)


@st.composite
def cases(draw) -> Case:
    kv_heads, keys = draw(st.integers(1, 3)), draw(st.integers(3, 90))
    return Case(
        name=draw(st.text("abcdef", max_size=4)),  # the seed of the numbers
        mask=draw(st.sampled_from(MASKS)),
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        queries=draw(st.integers(1, keys)),
        keys=keys,
        head=draw(st.integers(1, 72)),
        dtype=draw(st.sampled_from(DTYPES)),
        softcap=draw(st.sampled_from([None, None, 3.0, 50.0])),
        batch=draw(st.integers(1, 3)),
        layout=draw(st.sampled_from(["plain", "transposed", "sliced"])),
        spread=draw(st.sampled_from([0.1, 2.0, 6.0])),
    )


@st.composite
def cuts(draw) -> cpu.Cut:
    keys, queries, heads = draw(st.integers(1, 100)), draw(st.integers(1, 100)), draw(st.integers(1, 12))
    return cpu.Cut(max(keys, 7), max(queries, 7), heads, draw(st.integers(1, 3)), draw(st.integers(1, 3)))


@given(cases(), cuts())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_equals_the_formula_however_it_is_cut(case, cut):
    made = inputs(case)
    assert excess(cpu.in_blocks(*arguments(made), cut), reference(made)) <= 1


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_query_more_or_less_is_seen(mask, dtype):
    made = inputs(Case("moved", mask, batch=2, dtype=dtype, queries=300, keys=300))
    for changed in ({"first": made.first + 1}, {"last": made.last.clamp_max(299) - 1}, {"lse": made.lse.roll(1, -1)}):
        assert excess(cpu.column_sums(*arguments(dataclasses.replace(made, **changed))), reference(made)) > 1


def test_rounding_of_the_normaliser_to_bfloat16_is_seen():
    made = inputs(Case("rounded", dtype=torch.bfloat16))
    rounded = dataclasses.replace(made, lse=made.lse.bfloat16().float())
    assert excess(cpu.column_sums(*arguments(rounded)), reference(made)) > 10


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("softcap", [None, 20.0])
def test_equals_the_readable_reference_on_a_padded_batch(window, softcap):
    from transformers.masking_utils import and_masks, causal_mask_function, sliding_window_overlay

    torch.manual_seed(0)
    real = torch.ones(2, 600, dtype=torch.bool)
    real[1, :150] = False
    function = causal_mask_function if window is None else and_masks(causal_mask_function, sliding_window_overlay(window))
    visible = describe(2, 600, 600, mask_function=function, attention_mask=real)
    assert visible.unbroken
    q, k = torch.randn(2, 600, 4, 32).transpose(1, 2), torch.randn(2, 600, 2, 32).transpose(1, 2)
    call = Call(0, q, k, k, visible, 0.3, softcap)
    lse = call.scores(0, 600, slice(0, 600)).logsumexp(-1).masked_fill(~visible.queries_real[:, None], torch.inf)
    got = cpu.column_sums(q, k, lse, visible.first, visible.last, 0.3, softcap)
    torch.testing.assert_close(got, columns.reference(call, lse), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.sum(-1), real.sum(-1)[:, None].expand(-1, 4).float(), rtol=1e-5, atol=0)


class LargestTensor(TorchDispatchMode):
    """The largest tensor that any operation returned."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numbers = max(
            [
                self.numbers,
                *(leaf.untyped_storage().nbytes() // leaf.itemsize for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)),
            ]
        )
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_map_is_never_built(dtype, batch):
    length = 3000
    q, k, lse = (
        torch.randn(batch, 1, length, 8, dtype=dtype),
        torch.randn(batch, 1, length, 8, dtype=dtype),
        torch.full((batch, 1, length), 9.0),
    )
    first = torch.arange(length, dtype=torch.int32).expand(batch, -1)
    with LargestTensor() as largest:
        cpu.column_sums(q, k, lse, first, torch.full_like(first, length - 1), 0.3)
    assert 0 < largest.numbers <= min(cpu.BLOCK * torch.get_num_threads(), cpu.LARGEST_BLOCK) < length * length / 2


def precision() -> list[str]:
    parts = torch.backends, torch.backends.mkldnn, torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv
    return [part.fp32_precision for part in parts]


@contextlib.contextmanager
def setting(name: str):
    """How a user may allow float32 products to be rounded."""
    before = torch.get_float32_matmul_precision(), torch.backends.fp32_precision
    try:
        if name == "medium":
            torch.set_float32_matmul_precision("medium")
        elif name == "everywhere":
            torch.backends.fp32_precision = "bf16"
        elif name == "matmul":
            torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.fp32_precision = before[1]
        torch.backends.mkldnn.matmul.fp32_precision = "none"


@pytest.mark.parametrize("name", ["as it comes", "medium", "everywhere", "matmul"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_settings_are_neither_obeyed_nor_changed(name, dtype):
    made = inputs(Case("settings", dtype=dtype, queries=300, keys=300))
    with setting(name):
        before = precision()
        assert excess(cpu.column_sums(*arguments(made)), reference(made)) <= 1
        assert precision() == before
        if name in {"as it comes", "medium"}:  # after the others PyTorch refuses to answer
            assert torch.get_float32_matmul_precision() == {"medium": "medium"}.get(name, "highest")
        with pytest.raises(RuntimeError, match="meta"):  # a tensor without numbers gets past the checks
            cpu.in_blocks(made.q, made.k, made.lse.to("meta"), *arguments(made)[3:], cpu.plan(made.q, made.k))
        assert precision() == before


class PrecisionOfProducts(TorchDispatchMode):
    """What products were allowed to round their factors to: many processors make no use of it, so that numbers would not show it."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in {torch.ops.aten.addmm, torch.ops.aten.baddbmm}:
            self.found.add(torch.backends.mkldnn.matmul.fp32_precision)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("batch", [1, 40])
@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, "ieee"), (torch.float16, "ieee"), (torch.bfloat16, "bf16")], ids=str)
def test_only_bfloat16_may_be_rounded_to_bfloat16(dtype, expected, batch, monkeypatch):
    """Where the permission to round would be used; elsewhere it only says which library multiplies."""
    monkeypatch.setattr(cpu, "onednn_is_exact", lambda: False)
    made = repeated(inputs(Case("rounded", dtype=dtype)), batch)
    with setting("medium"), PrecisionOfProducts() as products:
        cpu.column_sums(*arguments(made))
    assert products.found == {expected}


def test_what_was_inherited_is_inherited_again():
    made = inputs(Case("inherited", dtype=torch.bfloat16))
    with setting("everywhere"):
        cpu.column_sums(*arguments(made))
        torch.backends.fp32_precision = "ieee"
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_under_autocast_and_with_gradients(dtype):
    made = inputs(Case("autocast", dtype=dtype))
    made.q.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        got = cpu.column_sums(*arguments(made))
    assert not got.requires_grad
    made.q.requires_grad_(False)
    assert excess(got, reference(made)) <= 1


def test_what_memory_held_before_does_not_matter():
    """With deterministic algorithms PyTorch fills new memory with NaN."""
    made = [inputs(Case("memory", "scattered", batch=2, dtype=dtype, queries=300, keys=300)) for dtype in DTYPES]
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        got = [cpu.column_sums(*arguments(each)) for each in made]
    finally:
        torch.use_deterministic_algorithms(False)
    assert max(excess(sums, reference(each)) for sums, each in zip(got, made, strict=True)) <= 1


def test_scores_that_nobody_sees_may_be_of_any_size():
    q, k = torch.ones(1, 1, 4, 2), torch.tensor([1.0, 1e4, 1.0, 1e20])[None, None, :, None].expand(-1, -1, -1, 2)
    first, last = torch.tensor([[0, 4, 2, 4]], dtype=torch.int32), torch.tensor([[3, 3, 1, -1]], dtype=torch.int32)
    got = cpu.column_sums(q, k, torch.full((1, 1, 4), 2.0), first, last, 1.0)
    assert got.tolist() == [[[pytest.approx(4.0), 0.0, 0.0, 0.0]]]


@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 5, 1), (5, 0, 1), (5, 5, 0)])
def test_nothing_gives_nothing(queries, keys, batch):
    bound = torch.zeros(1, keys, dtype=torch.int32)
    got = cpu.column_sums(torch.ones(batch, 2, queries, 4), torch.ones(batch, 1, keys, 4), torch.ones(batch, 2, queries), bound, bound, 1.0)
    assert got.shape == (batch, 2, keys)
    assert not got.any()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": torch.ones(1, 3, 150, 64)}, "do not fit together"),
        ({"k": torch.ones(1, 1, 150, 32)}, "do not fit together"),
        ({"lse": torch.ones(1, 2, 149)}, "lse must be"),
        ({"first": torch.zeros(2, 150, dtype=torch.int32)}, "first must be"),
        ({"last": torch.zeros(1, 149, dtype=torch.int32)}, "last must be"),
        ({"scale": 0.0}, "scale"),
        ({"softcap": 0.0}, "softcap"),
        ({"q": torch.ones(1, 2, 150, 64, device="meta")}, "on a CPU"),
        ({"k": torch.ones(1, 1, 150, 64, dtype=torch.int32)}, "floating point"),
    ],
)
def test_what_does_not_fit_is_refused(changed, message):
    made = inputs(Case("refused", heads=2, kv_heads=2 if "q" in changed else 1))
    with pytest.raises(ValueError, match=message):
        cpu.column_sums(*arguments(dataclasses.replace(made, **changed)))


def test_a_cut_covers_what_it_must():
    for batch, heads, kv_heads, queries, keys in (
        (100, 9, 3, 64, 64),
        (1, 9, 3, 4096, 4096),
        (2, 32, 8, 1, 100_000),
        (1, 1, 1, 100_000, 3),
    ):
        q, k = torch.empty(1, 1, 1, 64).expand(batch, heads, queries, 64), torch.empty(1, 1, 1, 64).expand(batch, kv_heads, keys, 64)
        cut = cpu.plan(q, k)
        assert min(dataclasses.astuple(cut)) >= 1
        assert math.prod((cut.keys, cut.queries, cut.heads)) <= cpu.LARGEST_BLOCK
