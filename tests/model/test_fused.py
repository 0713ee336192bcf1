"""Softmax by PyTorch's kernels, virtual keys joined after them: outputs and gradients are those of rows of scores, eager and compiled.

The kernels of a CPU stand in for those of a GPU: what is ours is the same.
"""

import pytest
import torch

from sinklab.model import fused, rows
from sinklab.model.attending import Attending
from sinklab.model.compiled import compiled
from sinklab.model.grid import Grid
from sinklab.model.masks import Causal
from sinklab.model.weights import Softmax

SHAPES = {
    "nothing beside": (),
    "a key": ((2, 4, 33, 1),),
    "two keys and values": ((2, 4, 33, 2), (4, 2, 16)),
    "one for all queries": ((1, 4, 1, 1),),
    "one for all, values shared": ((1, 4, 1, 3), (1, 3, 16)),
}


@pytest.mark.parametrize("whole", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", SHAPES)
def test_equals_rows_of_scores(name, whole):
    torch.manual_seed(0)
    given = [torch.randn(shape, requires_grad=True) for shape in ((2, 4, 33, 16),) * 3 + SHAPES[name]]
    q, k, v, logits, values = (*given, None, None)[:5]
    pull = torch.randn(2, 4, 33, 16)

    def ours(q, k, v, logits, values):
        return fused.softmax(q, k, v, 0.3, logits, values)[0]

    run = compiled(ours) if whole else ours
    wanted = rows.attend(Attending(0, q, k, v, 0.3, Softmax(), Grid(Causal(), 33, 33, q.device), None, logits, values))
    for out, other in ((run(q, k, v, logits, values), wanted),):
        assert torch.allclose(out, other, atol=1e-5)
        for one, two in zip(*(torch.autograd.grad((x * pull).sum(), given) for x in (out, other)), strict=True):
            assert (one - two).norm() <= 1e-5 * two.norm()


def test_lse_has_virtual_keys_in_it():
    torch.manual_seed(0)
    q, k, v, logits = torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 2)
    scores = (q @ k.transpose(-1, -2) * 0.3).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    assert torch.allclose(fused.softmax(q, k, v, 0.3, logits)[1], torch.cat([logits, scores], -1).logsumexp(-1), atol=1e-5)


@pytest.mark.parametrize("logits", [(2, 4, 9, 1), (1, 4, 1, 2)])
def test_the_operators_are_what_they_say(logits):
    """Shapes and strides too: a compiler believes them."""
    lse = torch.randn(2, 9, 4).transpose(1, 2)
    torch.library.opcheck(torch.ops.sinklab.shares.default, (lse, torch.randn(logits)))
    torch.library.opcheck(torch.ops.sinklab.angles.default, (torch.arange(5)[None], 10000.0, 8))
    out = torch.randn(2, 9, 4, 8).transpose(1, 2).requires_grad_()
    torch.library.opcheck(torch.ops.sinklab.divided.default, (out, torch.rand(2, 4, 9).requires_grad_()))
    torch.library.opcheck(torch.ops.sinklab.divided_backward.default, (out.detach(), out.detach(), lse.contiguous()))


def test_is_not_asked_for_on_a_cpu():
    q = torch.randn(1, 1, 5, 16)
    assert "on a CPU" in (fused.refusal(Attending(0, q, q, q, 1.0, Softmax(), Grid(Causal(), 5, 5, q.device))) or "")
