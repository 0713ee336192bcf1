"""The CUDA kernel's indexing and masks, in Triton's interpreter on a CPU, against the formula in float64."""

import dataclasses
import os
import subprocess
import sys

import pytest
import torch

from column_cases import CASES, Case, by_kernel, excess, inputs, kernel_excess, reference
from sinklab.probe import kernel

pytest.importorskip("triton", reason="Triton has no wheel for this platform")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_formula(interpreter, case):
    assert interpreter.submit(kernel_excess, case).result() <= 1


def broken(case: Case, mutant: str) -> float:
    """How far the kernel is from the formula when it is given something else than the formula."""
    given = inputs(case)
    changed = {
        "first one later": {"first": given.first + 1},
        "last one earlier": {"last": given.last - 1},
        "heads by remainder": {"k": given.k[:, [h % given.k.shape[1] for h in range(given.q.shape[1])]]},
        "twice the scale": {"scale": 2 * given.scale},
        "no cap": {"softcap": None},
        "padding counts": {"lse": given.lse.masked_fill(given.lse == torch.inf, 0.0), "last": given.last.clamp_min(case.queries - 1)},
        "lse of the query before": {"lse": given.lse.roll(1, -1)},
    }[mutant]
    return excess(by_kernel(dataclasses.replace(given, **changed)), reference(given))


MASKS = ["causal", "window", "chunks", "padded", "scattered"]
MUTANTS = [
    *((mask, mutant) for mask in MASKS for mutant in ("first one later", "last one earlier", "twice the scale", "lse of the query before")),
    ("causal", "heads by remainder"),
    ("causal", "no cap"),
    ("padded", "padding counts"),
]


@pytest.mark.parametrize(("mask", "mutant"), MUTANTS)
def test_what_is_broken_is_noticed(interpreter, mask, mutant):
    case = Case(mutant, mask, batch=2, heads=4, kv_heads=2, queries=70, keys=70, softcap=4.0 if mutant == "no cap" else None)
    assert interpreter.submit(broken, case, mutant).result() > 100


def test_parts_that_see_nothing_are_zero(interpreter):
    assert interpreter.submit(sums_where_nobody_sees).result() == [0.0, 0.0]


def sums_where_nobody_sees() -> list[float]:
    given = inputs(Case("nobody sees", "padded", batch=3))
    unseen = by_kernel(given)[2, :, :100]
    empty = by_kernel(dataclasses.replace(given, q=given.q[:, :, :0], lse=given.lse[:, :, :0]))
    return [float(part.abs().max()) for part in (unseen, empty)]


def test_refuses_in_one_sentence():
    q = torch.zeros(1, 2, 3, 64)
    assert "runs on CUDA" in kernel.refusal(q, q, None)
    with pytest.raises(ValueError, match="runs on CUDA"):
        kernel.column_sums(q, q, q[..., 0], q[0, :1, :, 0].int(), q[0, :1, :, 0].int(), 1.0)


def test_refuses_what_it_cannot_do(interpreter):
    for words, reason in interpreter.submit(refusals).result().items():
        assert reason is not None, words
        assert words in reason


def refusals() -> dict[str, str | None]:
    q = torch.zeros(1, 2, 3, 64)
    assert kernel.refusal(q, q, 30.0) is None
    wide = torch.zeros(1, 2, 3, 288)
    return {
        "float64": kernel.refusal(q.double(), q.double(), None),
        "both in the same": kernel.refusal(q, q.half(), None),
        "at most 256": kernel.refusal(wide, wide, None),
        "contiguous": kernel.refusal(q.mT.contiguous().mT, q, None),
        "positive softcap": kernel.refusal(q, q, 0.0),
        "one device": kernel.refusal(q, q.to("meta"), None),
    }


@pytest.mark.parametrize("name", ["lse", "first", "last", "k", "heads"])
def test_shapes_that_do_not_fit_are_errors(interpreter, name):
    assert interpreter.submit(error_of_a_wrong, name).result().startswith("ValueError")


def error_of_a_wrong(name: str) -> str:
    given = inputs(Case("shapes", heads=4, kv_heads=2, queries=5, keys=5))
    wrong = {
        "lse": {"lse": given.lse.double()},
        "first": {"first": given.first.long()},
        "last": {"last": given.last[:, :-1]},
        "k": {"k": given.k[..., :-1]},
        "heads": {"k": given.k.repeat(1, 2, 1, 1)[:, :3]},
    }[name]
    try:
        by_kernel(dataclasses.replace(given, **wrong))
    except ValueError as error:
        return repr(error)
    return "nothing"


WITHOUT_TRITON = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == "triton" else super().find_spec(name, path, target)

sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
"""
ASK = """
import sys, torch
from sinklab.probe import kernel
print(kernel.refusal(torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 1, 16), None), "triton" in sys.modules)
"""


def test_without_triton_it_refuses():
    assert answer(WITHOUT_TRITON + ASK, TRITON_INTERPRET="1") == "the kernel needs Triton, which is not installed False"


def test_triton_is_imported_only_to_launch():
    assert answer(ASK, TRITON_INTERPRET="1") == "None False"


def answer(code: str, **environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()
