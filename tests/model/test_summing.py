"""Weights that do not compete: the programs' indexing, masks and gradients, in Triton's interpreter on a CPU, against the formula in float64."""

import dataclasses
import importlib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sinklab.model
from sinklab.model import summing
from sum_cases import CASES, SMALL, TALL, WIDE, Case, Plan, by_kernel, case_excess, excess, inputs, reference

pytest.importorskip("triton", reason="Triton has no wheel for this platform")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_formula(interpreter, case):
    assert interpreter.submit(case_excess, case).result() <= 1


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(
    length=st.integers(1, 60), head=st.integers(1, 48), window=st.none() | st.integers(1, 60), power=st.sampled_from([0.5, 1.0, 1.5, 2.0]),
    function=st.sampled_from(summing.FUNCTIONS),
    cut=st.sampled_from([SMALL, TALL, WIDE, Plan(32, 32, 4, 1)]), layout=st.sampled_from(["fused", "apart"]),
)  # fmt: skip
def test_equals_the_formula_for_any_shape(interpreter, length, head, window, power, function, cut, layout):
    case = Case(function, power, window, length, head, torch.float32, heads=1, layout=layout, cut=cut)
    assert interpreter.submit(case_excess, case).result() <= 1


def broken(case: Case, mutant: str) -> float:
    """How far the formula is from the kernel when the kernel is asked something else."""
    right = inputs(case)
    weight, given = {
        "twice the scale": ({}, {"scale": 2 * right.scale}),
        "window one wider": ({"window": (case.window or 0) + 1}, {}),
        "window one narrower": ({"window": (case.window or case.length) - 1}, {}),
        "the other function": ({"function": "elu+1" if case.function == "sigmoid" else "sigmoid"}, {}),
        "another power": ({"power": case.power + 1}, {}),
        "keys one later": ({}, {"k": right.k.roll(1, 2)}),
        "keys and values of the other head": ({}, {"k": right.k.flip(1), "v": right.v.flip(1)}),
        "nothing pulls at the sums": ({}, {"d_sums": torch.zeros_like(right.d_sums)}),
        "nothing pulls at the output": ({}, {"d_out": torch.zeros_like(right.d_out)}),
    }[mutant]
    got = by_kernel(dataclasses.replace(case, **weight), dataclasses.replace(right, **given))
    return excess(got, reference(case, right), case.dtype)


MUTANTS = [
    *((Case(window=20, length=50), mutant) for mutant in ("window one wider", "window one narrower", "twice the scale")),
    *((Case("elu+1", 2.0, length=50), mutant) for mutant in ("window one narrower", "the other function", "another power", "keys one later")),
    (Case(length=20), "keys and values of the other head"),
    *((Case(power=p, length=20), f"nothing pulls at the {what}") for p in (1.0, 2.0) for what in ("sums", "output")),
]


@pytest.mark.parametrize(("case", "mutant"), MUTANTS, ids=str)
def test_what_is_asked_wrongly_is_noticed(interpreter, case, mutant):
    assert interpreter.submit(broken, case, mutant).result() > 10


WRONG = {
    "the diagonal is not seen": ("< window.to(tl.uint32)", "- 1 < window.to(tl.uint32) - 1"),
    "a window is one wider": ("< window.to(tl.uint32)", "<= window.to(tl.uint32)"),
    "a tile is full that is not, for queries": ("full_to = (i + 1) // KEYS * KEYS", "full_to = (i + KEYS) // KEYS * KEYS"),
    "a tile is full that is not, for a window": ("tl.maximum(i + QUERIES - window, 0)", "tl.maximum(i + 1 - window, 0)"),
    "a tile is full that is not, for keys": ("tl.cdiv(j + KEYS - 1, QUERIES)", "tl.cdiv(j, QUERIES)"),
    "tiles behind the full ones are left out": ("+ tl.cdiv(tl.maximum(stop - full_to, 0), STEP)", ""),
    "tiles before the full ones are left out": ("(full_from - start) // STEP +", "0 +"),
    "the scale is forgotten in d_k": ("_store(d_k, dk_main * scale", "_store(d_k, dk_main"),
    "a tail is added twice": ("tail = tl.dot(w, x_tail, tail,", "tail = 2 * tl.dot(w, x_tail, tail,"),
    "the slope is the weight": ("(f - f * f if SIGMOID", "(f if SIGMOID"),
    "the sums pull as if p were one": ("if SUMS and POWER == 1:", "if SUMS:"),
    "rows past the end": ("mask=inside[:, None], other=0.0", "mask=inside[:, None], other=1.0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_noticed(interpreter, name):
    assert interpreter.submit(excess_of_a_program_with, *WRONG[name]).result() > 3


def excess_of_a_program_with(old: str, new: str) -> float:
    """The worst of some calls, with a line of the programs changed."""
    right = importlib.import_module("sinklab.model.sum_tiles")
    source = Path(right.__file__).read_text()
    assert old in source
    with tempfile.TemporaryDirectory() as folder:
        wrong = Path(folder) / "sum_tiles.py"
        wrong.write_text(source.replace(old, new))
        spec = importlib.util.spec_from_file_location("sum_tiles", wrong)
        sinklab.model.sum_tiles = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sinklab.model.sum_tiles)
        try:
            return max(
                case_excess(case) for case in (Case(head=24, length=33, heads=1, cut=SMALL), Case("sigmoid", 2.0, 17, 45, 16, heads=1, cut=SMALL))
            )
        finally:
            sinklab.model.sum_tiles = right


def test_operators_are_what_they_say(interpreter):
    assert set(interpreter.submit(verdicts).result()) == {"SUCCESS"}


def verdicts() -> list[str]:
    """torch's own checks of schema, shapes and strides without data, and gradients traced."""
    given = inputs(Case(length=5, head=16))
    q, k, v = (x.requires_grad_() for x in (given.q, given.k, given.v))
    settings = (given.scale, "sigmoid", 1.0, None)
    forward = torch.library.opcheck(torch.ops.sinklab.summed.default, (q, k, v, *settings))
    pulls = (given.d_out, given.d_sums), (given.d_out, None)
    backward = [
        torch.library.opcheck(torch.ops.sinklab.summed_backward.default, (*(x.detach() for x in (q, k, v)), *pull, *settings)) for pull in pulls
    ]
    return [verdict for answer in (forward, *backward) for verdict in answer.values()]


def test_stands_in_a_graph_without_a_break(interpreter):
    assert interpreter.submit(difference_when_compiled).result() == 0.0


def difference_when_compiled() -> float:
    """Of a normalised weight and its gradients, traced as one graph and not."""
    x = torch.randn(2, 9, 3, 2, 16, requires_grad=True)

    def normalised(x):
        q, k, v = x.transpose(1, 3).unbind(2)
        out, sums = summing.summed(q, k, v, 0.25, "elu+1")
        return out / sums[..., None]

    results = []
    for run in (normalised, torch.compile(normalised, backend="aot_eager", fullgraph=True)):
        out = run(x)
        results.append((out, *torch.autograd.grad(out.square().sum(), x)))
    return max(float((one - other).abs().max()) for one, other in zip(*results, strict=True))


def test_only_what_is_pulled_at_gets_gradients(interpreter):
    for difference in interpreter.submit(differences_of_single_pulls).result():
        assert difference <= 1


def differences_of_single_pulls() -> list[float]:
    """Through the output alone, through the sums alone, and through neither."""
    case = Case(power=2.0, length=20, dtype=torch.float32)
    full = inputs(case)
    answers = []
    for pulled in ("d_out", "d_sums"):
        given = dataclasses.replace(full, **{pulled: torch.zeros_like(getattr(full, pulled))})
        q, k, v = (x.detach().requires_grad_() for x in (full.q, full.k, full.v))
        out, sums = summing.summed(q, k, v, full.scale, case.function, case.power)
        one, pull = (sums, full.d_sums) if pulled == "d_out" else (out, full.d_out)
        got = torch.autograd.grad(one, (q, k, v), pull, allow_unused=True)
        answers.append(excess((out, sums, *got), reference(case, given), case.dtype))
    return answers


def test_results_lie_as_a_projection_reads_them(interpreter):
    assert set(interpreter.submit(strides).result()) == {(5 * 2 * 16, 16, 2 * 16, 1)}


def strides() -> list[tuple[int, ...]]:
    case = Case(length=5, head=16, layout="strided")
    given = inputs(case)
    q, k, v = (x.detach().requires_grad_() for x in (given.q, given.k, given.v))
    out, _ = summing.summed(q, k, v, 1.0, "sigmoid")
    upright = given.d_out.mT.contiguous().mT  # a gradient may come with any strides
    got, want = (torch.autograd.grad(out, (q, k, v), pull, retain_graph=True) for pull in (upright, given.d_out))
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    return [x.stride() for x in (out, *got)]


def test_nothing_in_nothing_out(interpreter):
    assert interpreter.submit(shapes_of_nothing).result() == [(2, 3, 0, 16), (2, 3, 0), (2, 3, 0, 16)]


def shapes_of_nothing() -> list[tuple[int, ...]]:
    q = torch.zeros(2, 3, 0, 16, requires_grad=True)
    out, sums = summing.summed(q, q, q, 1.0, "sigmoid")
    return [tuple(x.shape) for x in (out, sums, *torch.autograd.grad(out.sum() + sums.sum(), q))]


def test_refuses_in_one_sentence():
    q = torch.zeros(1, 2, 3, 64)
    assert "runs on CUDA" in summing.refusal(q, q, q, "sigmoid")
    with pytest.raises(ValueError, match="runs on CUDA"):
        summing.summed(q, q, q, 1.0, "sigmoid")


def test_refuses_what_it_cannot_do(interpreter):
    for words, reason in interpreter.submit(refusals).result().items():
        assert reason is not None, words
        assert words in reason


def refusals() -> dict[str, str | None]:
    q = torch.zeros(1, 2, 3, 64)
    assert summing.refusal(q, q, q, "elu+1") is None
    wide = torch.zeros(1, 2, 3, 288)
    return {
        "knows the functions sigmoid and elu+1, not relu": summing.refusal(q, q, q, "relu"),
        "float64": summing.refusal(q.double(), q.double(), q.double(), "sigmoid"),
        "all in the same": summing.refusal(q, q, q.half(), "sigmoid"),
        "of one shape": summing.refusal(q, q[:, :1], q[:, :1], "sigmoid"),
        "at most 256": summing.refusal(wide, wide, wide, "sigmoid"),
        "contiguous": summing.refusal(q, q, q.mT.contiguous().mT, "sigmoid"),
        "one device": summing.refusal(q, q.to("meta"), q, "sigmoid"),
        "a positive number": error_of(q, power=0.0),
        "a positive number, not nan": error_of(q, power=float("nan")),
        "at least one place": error_of(q, window=0),
    }


def error_of(q: torch.Tensor, **setting: float) -> str | None:
    try:
        summing.summed(q, q, q, 1.0, "sigmoid", **setting)
    except ValueError as error:
        return str(error)
    return None


def test_every_head_has_a_cut():
    for table in (summing.FORWARD, summing.QUERIES, summing.KEYS):
        assert max(table) == summing.WIDEST_HEAD
        assert list(table) == sorted(table)


@pytest.mark.parametrize("head", [1, 16, 33, 80, 96, 112, 192, 200, 256])
def test_slices_hold_the_head(head):
    main, tail = summing.slices(head)
    assert all(width == 0 or (width >= 16 and width & (width - 1) == 0) for width in (main, tail))
    assert head <= main + tail < 2 * max(head, 16)


def test_triton_is_imported_only_to_launch():
    code = "import sys; from sinklab.model import summing; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
