"""Optimisers and schedules: each member of a room against its formula."""

import math

import pytest
import torch
from torch.nn import functional as F

from sinklab.config import parse, plain
from sinklab.model.decoder import build
from sinklab.model.design import Design
from sinklab.model.positions import T5Relative
from sinklab.model.slots import HeadGate, KeyBias
from sinklab.train.optimiser import SGD, AdamW, Everything, Matrices, Muon, Optimiser, parameters
from sinklab.train.schedule import Constant, Cosine, Schedule

SMALL = Design(vocabulary=32, width=16, depth=2, heads=2, head_size=8, hidden=24, registers=1, slots=(KeyBias(), HeadGate()), positions=T5Relative())
EXAMPLES = {"AdamW": AdamW(lr=1e-2), "SGD": SGD(lr=0.3), "Muon": Muon(lr=1e-2, rest=AdamW(lr=1e-2))}


def held(optimisers):
    return [tensor for optimiser in optimisers for group in optimiser.param_groups for tensor in group["params"]]


def with_gradients(model, value=None):
    for tensor in model.parameters():
        tensor.grad = torch.randn_like(tensor) if value is None else torch.full_like(tensor, value)


def loss(model, tokens):
    return F.cross_entropy(model.logits(model(tokens))[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("kind", Optimiser.members())
def test_the_contract_of_an_optimiser(kind):
    member, model = EXAMPLES[kind], build(SMALL)
    assert parse(Optimiser, plain(member)) == member
    optimisers = member.build(model)
    assert sorted(map(id, held(optimisers))) == sorted(map(id, model.parameters()))
    assert all(group["initial_lr"] == group["lr"] for optimiser in optimisers for group in optimiser.param_groups)
    tokens = torch.randint(32, (8, 12), generator=torch.Generator().manual_seed(0))
    before = loss(model, tokens)
    for _ in range(5):
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss(model, tokens).backward()
        for optimiser in optimisers:
            optimiser.step()
    assert loss(model, tokens) < before - 0.05


def test_every_parameter_has_its_role():
    model = build(SMALL)
    named = {one.name: one for one in parameters(model)}
    assert {name: id(one.tensor) for name, one in named.items()} == {name: id(tensor) for name, tensor in model.named_parameters()}
    roles = {name: one.role for name, one in named.items()}
    assert roles["embed.tokens"] == roles["registers.rows"] == "embedding" and roles["blocks.1.ffn.output.weight"] == "down"
    assert roles["blocks.0.attention.slots.KeyBias.key"] == roles["positions.bias"] == "bias" and roles["norm.gain"] == "gain"
    hidden = {name for name, one in named.items() if one.hidden}
    assert "head.weight" not in hidden and "blocks.0.attention.slots.KeyBias.key" not in hidden
    assert {"blocks.0.attention.inputs.weight", "blocks.0.attention.slots.HeadGate.gate", "blocks.1.ffn.output.weight"} <= hidden


@pytest.mark.parametrize("on", [Everything(), Matrices()])
@pytest.mark.parametrize("kind", [AdamW, SGD])
def test_decay_on_everything_or_on_matrices(kind, on):
    model = build(SMALL)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    with_gradients(model, 0.0)
    for optimiser in kind(lr=0.1, decay=0.5, on=on).build(model):
        optimiser.step()
    for one in parameters(model):
        decays = on.decays(one.role)
        assert decays == (isinstance(on, Everything) or one.role in {"matrix", "down", "embedding"})
        torch.testing.assert_close(one.tensor.detach(), before[one.name] * (0.95 if decays else 1.0))


def test_a_step_of_adamw_is_its_formula():
    torch.manual_seed(0)
    member, model = AdamW(lr=0.01, betas=(0.8, 0.9), eps=1e-3, decay=0.3), build(SMALL)
    w = model.head.weight.detach().double().clone()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    (optimiser,) = member.build(model)
    for step in (1, 2, 3):
        with_gradients(model)
        g = model.head.weight.grad.double()
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        w = w - 0.01 * (m / (1 - 0.8**step) / ((v / (1 - 0.9**step)).sqrt() + 1e-3) + 0.3 * w)
        optimiser.step()
    torch.testing.assert_close(model.head.weight.detach().double(), w, rtol=1e-5, atol=1e-7)


def test_a_step_of_muon_turns_every_direction_alike():
    torch.manual_seed(0)
    model = build(SMALL)
    weight = model.blocks[0].ffn.inputs.weight  # (48, 16)
    before, head = weight.detach().clone(), model.head.weight.detach().clone()
    with_gradients(model)
    for optimiser in Muon(lr=0.01, decay=0.0, rest=AdamW(lr=0.002, decay=0.0)).build(model):
        optimiser.step()
    sizes = torch.linalg.svdvals(weight.detach() - before) / (0.01 * 0.2 * math.sqrt(48))
    assert sizes.min() > 0.5 and sizes.max() < 1.3
    torch.testing.assert_close((model.head.weight.detach() - head).abs(), torch.full_like(head, 0.002), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", Schedule.members())
def test_the_contract_of_a_schedule(kind):
    member = parse(Schedule, {"kind": kind})
    assert parse(Schedule, plain(member)) == member
    rates = [member.rate(step, 1000) for step in range(1000)]
    assert rates[:100] == pytest.approx([(step + 1) / 100 for step in range(100)]) and rates[100] == pytest.approx(1)
    assert min(rates) >= 0 and max(rates) == 1
    assert [member.rate(step, 10) for step in range(10)] == pytest.approx([(step + 1) / 100 for step in range(10)])
    assert type(member)(warmup=0).rate(0, 1) == 1


def test_schedules_by_hand():
    assert {Constant().rate(step, 300) for step in range(99, 300)} == {1.0}
    cosine = Cosine(warmup=0, end=0.2)
    assert [cosine.rate(step, 5) for step in range(5)] == pytest.approx([0.2 + 0.8 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(5)])
    assert cosine.rate(4, 5) == pytest.approx(0.2) == pytest.approx(cosine.rate(9, 5))
