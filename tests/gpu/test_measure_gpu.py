"""Whole models on a CUDA device: the numbers of the CPU, by the kernel where its conditions hold."""

import pytest
import torch

import sinklab
from four_models import MODELS, agree, generated, tokens
from sinklab.probe.probes import ALL

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padded", [False, True])
def test_float32_equals_the_cpu(name, padded):
    model, ids = MODELS[name](), tokens(2, 40)
    mask = torch.ones_like(ids)
    mask[0, : 7 * padded] = 0
    here = sinklab.measure(model, ids, mask, probes=list(ALL.values()), loss=True)
    there = sinklab.measure(model.cuda(), ids, mask, probes=list(ALL.values()), loss=True)
    assert set(there.ways) == {"kernel"}
    agree(there, here, 1e-4)
    torch.testing.assert_close(torch.from_numpy(there.loss), torch.from_numpy(here.loss), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_mass_and_logits(name, dtype):
    """Watched logits are as near to those of float32 as the unwatched ones are."""
    model, ids = MODELS[name]().cuda(), tokens(2, 40).cuda()
    with torch.no_grad():
        exact = model(ids).logits
        plain = model.to(dtype)(ids).logits
        with sinklab.watch(model) as rows:
            watched = model(ids).logits
    result = rows.result()
    assert (watched - exact).norm() <= 1.2 * (plain - exact).norm()
    mass = (result.alpha * torch.from_numpy(result.numbers["queries"])).sum(-1) / 40 + result.virtual
    torch.testing.assert_close(mass, torch.ones_like(mass), atol=5e-3, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_prompt_and_decoding_equal_one_forward(name):
    model, ids = MODELS[name]().cuda(), tokens().cuda()
    with sinklab.watch(model) as rows:
        text = generated(model, ids)
    agree(rows.result(), sinklab.measure(model, text[:, :-1]), 1e-4)


def test_doctor_passes():
    for make in MODELS.values():
        lines = sinklab.doctor(make().cuda())
        assert all(line.passed is not False for line in lines), lines
