"""FlexAttention with a logarithm for a score: what it is given here is what a GPU compiles, traced whole and run on a CPU by torch's own formulas."""

import pytest
import torch

from sinklab.model import flexible, rows
from sinklab.model.attending import Attending
from sinklab.model.compiled import compiled
from sinklab.model.grid import Grid
from sinklab.model.masks import Causal, Prefix, Window
from sinklab.model.positions import Alibi, BucketIndex, Distances
from sinklab.model.tensors import Tensors
from sinklab.model.weights import EluPlusOne, Exponential, Linear, PowerSum, RowSum, Sigmoid, Softmax

LENGTH = 150  # more than one block of FlexAttention, and not a multiple of it
WEIGHTS = [Softmax(alpha=0.5), Exponential(), Sigmoid(), Sigmoid(normaliser=RowSum()), EluPlusOne(normaliser=RowSum())]
MASKS = {"window": (Window(size=70), 0), "prefix, registers": (Prefix(length=7), 2), "causal": (Causal(), 0)}
BESIDE = ["documents", "ALiBi", "buckets and virtual keys"]
MIXED = [(weights, list(MASKS)[(i + j) % 3], beside) for i, weights in enumerate(WEIGHTS) for j, beside in enumerate(BESIDE)]


@pytest.mark.parametrize(("weights", "mask", "beside"), MIXED, ids=str)
def test_equals_rows_of_scores(weights, mask, beside, monkeypatch):
    call = _call(weights, *MASKS[mask], beside)
    monkeypatch.setattr(flexible, "_compiled", lambda *_: compiled(flexible._attend, backend="eager"))
    with torch.no_grad():
        out, wanted = flexible.attend(call), rows.attend(call)
    assert (out - wanted).norm() <= 1e-5 * wanted.norm()


def test_notices_another_mask(monkeypatch):
    monkeypatch.setattr(flexible, "_compiled", lambda *_: compiled(flexible._attend, backend="eager"))
    with torch.no_grad():
        out = flexible.attend(_call(Softmax(), Window(size=70), 0, "ALiBi"))
        wanted = rows.attend(_call(Softmax(), Window(size=71), 0, "ALiBi"))
    assert (out - wanted).norm() > 1e-3 * wanted.norm()


@pytest.mark.parametrize(("weights", "sentence"), [
    (Linear(), "no logarithm"), (Softmax(p=2), "second pass"), (Sigmoid(normaliser=PowerSum(p=2)), "second pass"),
], ids=str)  # fmt: skip
def test_refuses_what_it_cannot_do(weights, sentence, monkeypatch):
    """As on a GPU, but for the device."""
    call = _call(weights, Causal(), 0, "ALiBi")
    assert "on a CPU" in (flexible.refusal(call) or "")
    monkeypatch.setattr(flexible, "DEVICE", "cpu")
    assert sentence in (flexible.refusal(call) or "")
    assert flexible.refusal(_call(Softmax(), Causal(), 0, "ALiBi")) is None


def _call(weights, mask, registers, beside) -> Attending:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, LENGTH, 16) for _ in range(3))
    documents = torch.randint(0, 20, (2, LENGTH - registers)).eq(0).long().cumsum(-1) if beside == "documents" else None
    grid = Grid(mask, LENGTH, LENGTH, q.device, registers, documents)
    if beside == "documents":
        return Attending(0, q, k, v, 0.3, weights, grid)
    kind = Alibi() if beside == "ALiBi" else BucketIndex()
    distances = Distances(kind, 0.1 * kind.numbers(Tensors({}), 3, LENGTH, q.device))
    keys = (torch.randn(2, 3, LENGTH, 2), torch.randn(3, 2, 16)) if beside == "buckets and virtual keys" else (None, None)
    return Attending(0, q, k, v, 0.3, weights, grid, distances, *keys)
