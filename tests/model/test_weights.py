"""What sinks are measured by, and what kernels start from, against the weights themselves."""

import pytest
import torch
from examples import parts, possible
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklab.model.features import Elu
from sinklab.model.positions import NoPositions
from sinklab.model.weights import AtLeastOne, EluPlusOne, Exponential, Linear, Positive, RowSum, Sigmoid, Softmax, Softpick, Weights

ALL = [part for room, part in parts() if room == "Weights"]
ALL += [kind(normaliser=z) for kind in (Sigmoid, EluPlusOne, Linear) for room, z in parts() if room == "Normaliser"]
ALL = [w for w in dict.fromkeys(ALL) if possible(weights=w, features=Elu(), positions=NoPositions())]


def texts(weights: Weights) -> str:
    return repr(weights)


def rows(weights: Weights, scores: list[float]) -> torch.Tensor:
    """Scores as float64; above zero for a sum of scores, which is a normaliser only there."""
    s = torch.tensor(scores, dtype=torch.float64)
    return s.abs() + 0.01 if isinstance(weights, Linear) and weights.normaliser.sums_to_one else s


scores = st.lists(st.floats(-30, 30, width=32).filter(lambda s: abs(s) > 1e-2), min_size=1, max_size=12)


@pytest.mark.parametrize("weights", ALL, ids=texts)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(scores=scores)
def test_numerators_over_their_sum_are_what_is_measured(weights, scores):
    s = rows(weights, scores)
    numerator, summand = (x.exp() for x in weights.logs(s))
    w = weights.weigh(s) / getattr(weights, "alpha", 1)
    wanted = w.abs() / w.abs().sum() if weights.proxy else w
    spare = 1e-8 * s.amax().clamp_min(0).exp() / summand.sum()  # what is added to a divisor so that it is not zero
    assert torch.allclose(numerator / (summand.sum() + weights.floor), wanted, rtol=1e-6 + 2 * spare.item(), atol=1e-12)


@pytest.mark.parametrize("weights", [w for w in ALL if isinstance(w, Positive)], ids=texts)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(scores=scores)
def test_weights_are_their_logarithms(weights, scores):
    s = torch.tensor(scores, dtype=torch.float64)
    n = weights.log(s)
    log_z = weights.log_z(torch.logsumexp(weights.power * n, -1))
    assert torch.allclose((n - log_z).exp(), weights.weigh(s), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("weights", ALL, ids=texts)
def test_a_row_says_whether_its_weights_compete(weights):
    """One more key takes weight from the others, or does not touch them."""
    s = torch.tensor([0.5, 1.5, 2.0], dtype=torch.float64)
    alone, beside = weights.weigh(s[:2]), weights.weigh(s)[:2]
    assert weights.competes == (not torch.allclose(alone, beside, rtol=1e-3))


@pytest.mark.parametrize("weights", ALL, ids=texts)
def test_rows_that_need_no_proxy_sum_to_one(weights):
    s = torch.tensor([0.5, 1.5, 2.0], dtype=torch.float64)
    if weights.proxy:
        return
    assert weights.weigh(s).sum().item() == pytest.approx(getattr(weights, "alpha", 1))
    if isinstance(weights, Softpick):
        assert weights.weigh(s - 1).sum() < 1
        assert weights.weigh(s - 3).sum() == 0


def test_the_papers_stars():
    """Tables 4 and 6, and section 1 of paper.md: which sinks are measured by proxy."""
    assert not any(w.proxy for w in (Softmax(), Softmax(alpha=0.2), Sigmoid(normaliser=RowSum()), Linear(normaliser=RowSum())))
    assert all(w.proxy for w in (Softmax(p=2), Sigmoid(), EluPlusOne(), Linear(), Linear(normaliser=AtLeastOne()), Exponential()))


@pytest.mark.parametrize("weights", ALL, ids=texts)
def test_what_is_not_seen_weighs_nothing_and_has_no_gradient(weights):
    hidden = torch.tensor([False, True, False, True])
    s = torch.tensor([0.5, 7.0, 1.5, 9.0], dtype=torch.float64, requires_grad=True)
    w = weights.weigh(s.masked_fill(hidden, -torch.inf))
    assert (w[hidden] == 0).all()
    assert torch.allclose(w[~hidden], weights.weigh(s[~hidden]))
    (grad,) = torch.autograd.grad(w[0], s)
    assert torch.isfinite(grad).all()
    assert (grad[hidden] == 0).all()


@pytest.mark.parametrize("weights", ALL, ids=texts)
@pytest.mark.parametrize("level", [-80.0, 80.0])
def test_large_scores_give_numbers(weights, level):
    """In float32, forward and backward; exp(80) is one still."""
    s = torch.tensor([0.9, 1.0, -0.5], requires_grad=True)
    w = weights.weigh(level * s)
    assert torch.isfinite(w).all()
    (grad,) = torch.autograd.grad((w / w.detach().abs().max().clamp_min(1)).sum(), s)
    assert torch.isfinite(grad).all()
