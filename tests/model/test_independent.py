"""Weights that need no maximum, by the kernel: outputs and gradients are those of rows of scores, normalisers and virtual keys included."""

import pytest
import torch

from sinklab.model import independent, rows
from sinklab.model.attending import Attending
from sinklab.model.grid import Grid
from sinklab.model.masks import Causal, Prefix, Window
from sinklab.model.weights import EluPlusOne, PowerSum, RowSum, Sigmoid, Softmax

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

WEIGHTS = [
    Sigmoid(), Sigmoid(normaliser=RowSum()), Sigmoid(normaliser=PowerSum(p=2)), EluPlusOne(), EluPlusOne(normaliser=RowSum()),
]  # fmt: skip


@pytest.mark.parametrize("beside", ["nothing", "keys", "keys and values"])
@pytest.mark.parametrize("mask", [Causal(), Window(size=9)], ids=str)
@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_equals_rows_of_scores(interpreter, weights, mask, beside):
    for wrong in interpreter.submit(apart, weights, mask, beside).result():
        assert wrong <= 2e-5


def test_a_wrong_window_is_noticed(interpreter):
    assert max(interpreter.submit(apart, Sigmoid(normaliser=RowSum()), Window(size=9), "keys", Window(size=10)).result()) > 1e-2


def test_refuses_what_it_does_not_know():
    q = torch.randn(1, 1, 5, 16)
    whole = Grid(Causal(), 5, 5, q.device)
    assert "no function" in (independent.refusal(Attending(0, q, q, q, 1.0, Softmax(), whole)) or "")
    assert "causal masks" in (independent.refusal(Attending(0, q, q, q, 1.0, Sigmoid(), Grid(Prefix(length=2), 5, 5, q.device))) or "")
    assert "causal masks" in (independent.refusal(Attending(0, q[:, :, :1], q, q, 1.0, Sigmoid(), Grid(Causal(), 1, 5, q.device))) or "")
    assert "runs on CUDA" in (independent.refusal(Attending(0, q, q, q, 1.0, Sigmoid(), whole)) or "")


def apart(weights, mask, beside, other=None):
    """Relative distances of the output and of every gradient from those of rows."""
    torch.manual_seed(0)
    leaves = [torch.randn(2, 2, 37, 24) for _ in range(3)]
    leaves += [torch.randn(2, 2, 37, 2)] if beside != "nothing" else []
    leaves += [torch.randn(2, 2, 24)] if beside == "keys and values" else []
    pull = torch.randn(2, 2, 37, 24)
    outcomes = []
    for way, seen in ((independent.attend, mask), (rows.attend, other or mask)):
        given = [leaf.clone().requires_grad_() for leaf in leaves]
        q, k, v, logits, values = (*given, None, None)[:5]
        call = Attending(0, q, k, v, 0.3, weights, Grid(seen, 37, 37, q.device), None, logits, values)
        if way is independent.attend:
            assert independent.refusal(call) is None
        out = way(call)
        used = given if weights.competes or beside != "keys" else given[:3]  # a key without a value takes nothing from weights that do not compete
        outcomes.append([out.detach(), *torch.autograd.grad((out * pull).sum(), used)])
    return [((one - two).norm() / two.norm()).item() for one, two in zip(*outcomes, strict=True)]
