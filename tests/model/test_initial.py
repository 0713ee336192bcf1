"""First values: how wide each kind of tensor is drawn, that twins share what both have, and how many parameters there are."""

import math
from itertools import product

import pytest
import torch
from examples import BASE, designs

from sinklab.model.decoder import build
from sinklab.model.design import Design
from sinklab.model.features import Mlp
from sinklab.model.initial import Narrow, TorchDefault
from sinklab.model.positions import Learned, T5Relative
from sinklab.model.slots import ElementGate, KeyValueBias, SinkLogit, ValueBias
from sinklab.model.tensors import BIAS, DOWN, EMBEDDING, GAIN, MATRIX, ZERO, Named, Recipe, named

DESIGNS = designs()
WIDE = Design(
    vocabulary=400, width=128, depth=3, heads=2, head_size=64, hidden=192, registers=40,
    positions=Learned(length=100), features=Mlp(), slots=(KeyValueBias(), SinkLogit(), ValueBias(), ElementGate()),
)  # fmt: skip


def tensors(design: Design, seed: int = 0) -> dict[str, Named]:
    return {piece.name: piece for piece in named(build(design, seed))}


# Of two designs, tensors of one name that are of another shape: these, and no others.
RESHAPED = {
    "joined=Added": {"attention.output"},
    "norms=Sandwich, head_norm=QKNorm, joined=Added, slots=ElementGate+ValueBias(shared=True)": {"attention.output"},
    "heads=1": {"attention.query", "attention.key", "attention.value", "attention.output"},
    "heads=3, head_size=6, positions=T5Relative": {"attention.query", "attention.key", "attention.value", "attention.output"},
}


@pytest.mark.parametrize("name", [name for name, design in DESIGNS.items() if isinstance(design.initial, Narrow)])
def test_twins_share_what_both_have(name):
    base, twin = tensors(Design(**BASE)), tensors(DESIGNS[name])
    both = base.keys() & twin.keys()
    other = {key for key in both if base[key].tensor.shape != twin[key].tensor.shape}
    assert {".".join(key.split(".")[2:]) for key in other} == RESHAPED.get(name, set())
    assert {"embed.tokens", "head", "blocks.0.ffn.down", "blocks.1.ffn.up"} <= both - other
    assert all(torch.equal(base[key].tensor, twin[key].tensor) for key in both - other)


def test_what_differs_between_twins_is_their_parts():
    """The names that only one of the two has."""
    base = set(tensors(Design(**BASE)))
    biased = set(tensors(Design(**BASE, slots=(KeyValueBias(),))))
    assert biased - base == {f"blocks.{layer}.attention.slots.KeyValueBias.{name}" for layer, name in product((0, 1), ("key", "value"))}
    assert base - set(tensors(DESIGNS["ffn=Plain"])) == {"blocks.0.ffn.gate", "blocks.1.ffn.gate"}


def test_every_parameter_is_drawn_under_one_name():
    for design in DESIGNS.values():
        model = build(design)
        pieces = list(named(model))
        assert len({piece.name for piece in pieces}) == len(pieces)
        assert sum(piece.tensor.numel() for piece in pieces) == sum(p.numel() for p in model.parameters())
        assert all(piece.recipe.shape == piece.tensor.shape for piece in pieces)


def test_a_seed_is_the_whole_model():
    again, other = tensors(WIDE, 7), tensors(WIDE, 8)
    for name, piece in tensors(WIDE, 7).items():
        assert torch.equal(piece.tensor, again[name].tensor)
        assert torch.equal(piece.tensor, other[name].tensor) == (piece.recipe.role in (GAIN, ZERO))
    first = [piece.tensor for name, piece in again.items() if name.endswith("attention.query")]
    assert not torch.equal(first[0], first[1])  # layers are not copies
    assert not torch.equal(again["blocks.0.attention.query"].tensor, again["blocks.0.attention.key"].tensor)


def test_the_dice_of_others_are_not_touched():
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    build(DESIGNS["weights=Softmax"])
    assert torch.equal(torch.rand(3), wanted)


def spread(initial: Narrow | TorchDefault, recipe: Recipe) -> float:
    """paper.md, 4.2; biases of attention are N(0, 0.02) under both."""
    inputs = recipe.shape[-1]
    if recipe.role in (GAIN, ZERO):
        return 0.0
    if recipe.role == BIAS:
        return 0.02
    if isinstance(initial, TorchDefault):
        return 1.0 if recipe.role == EMBEDDING else 1 / math.sqrt(3 * inputs)
    return 1 / (math.sqrt(inputs) * WIDE.depth) if recipe.role == DOWN else math.sqrt(2 / (5 * inputs))


@pytest.mark.parametrize("initial", [Narrow(), TorchDefault()], ids=repr)
def test_each_role_is_as_wide_as_the_paper_has_it(initial):
    pieces = list(tensors(WIDE.model_copy(update={"initial": initial})).values())
    pieces += list(tensors(WIDE.model_copy(update={"initial": initial, "positions": T5Relative()})).values())
    assert {piece.recipe.role for piece in pieces} == {EMBEDDING, MATRIX, DOWN, GAIN, BIAS, ZERO}
    for piece in pieces:
        value, wanted, many = piece.tensor.double(), spread(initial, piece.recipe), piece.tensor.numel()
        if wanted == 0:
            assert (value == (1 if piece.recipe.role == GAIN else 0)).all()
            continue
        assert value.square().mean().sqrt().item() == pytest.approx(wanted, rel=4 / math.sqrt(2 * many)), piece.name
        assert abs(value.mean().item()) < 4.5 * wanted / math.sqrt(many)
        uniform = isinstance(initial, TorchDefault) and piece.recipe.role in (MATRIX, DOWN)
        if many > 1000:
            assert (value.abs().max() <= math.sqrt(3) * wanted * (1 + 1e-6)) == uniform


def test_what_each_tensor_is_for():
    roles = {piece.name.removeprefix("blocks.0."): piece.recipe.role for piece in tensors(WIDE).values() if not piece.name.startswith("blocks.1")}
    assert roles["embed.tokens"] == roles["registers.rows"] == roles["positions.table"] == EMBEDDING
    assert roles["ffn.down"] == DOWN
    assert {roles[name] for name in ("head", "attention.query", "attention.output", "ffn.up", "attention.features.first")} == {MATRIX}
    assert roles["attention.slots.KeyValueBias.value"] == roles["attention.slots.ValueBias.value"] == BIAS
    assert roles["attention.slots.SinkLogit.score"] == ZERO
    assert roles["norm.gain"] == roles["norms.ffn.before"] == GAIN


@pytest.mark.parametrize(
    ("design", "matrices", "blocks", "whole"),
    [
        (Design(), 58_982_400, 58_982_400 + 2 * 10 * 768, 136_462_080),
        (Design(width=2048, depth=22, heads=16, head_size=128, hidden=5632), 1_130_364_928, 1_130_364_928 + 2 * 22 * 2048, 1_337_026_560),
    ],
    ids=["60M", "1B"],
)
def test_the_papers_sizes(design, matrices, blocks, whole):
    """paper.md, 4.1, to the last one."""
    model = build(design, device="meta")
    assert all(p.device.type == "meta" for p in model.parameters())
    of_blocks = sum(p.numel() for p in model.blocks.parameters())
    assert sum(p.numel() for p in model.blocks.parameters() if p.dim() == 2) == matrices
    assert of_blocks == blocks
    assert sum(p.numel() for p in model.parameters()) == whole == of_blocks + design.width + 2 * design.vocabulary * design.width


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_heads_share_the_papers_width(heads):
    """Its models with fewer heads are of the same size."""
    model = build(Design(heads=heads, head_size=768 // heads), device="meta")
    assert sum(p.numel() for p in model.parameters()) == 136_462_080
