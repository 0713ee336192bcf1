"""The contract bites: a formula broken on purpose fails the clause that is there for it; a member that nobody wrote about says what is missing."""

import gc
from abc import ABC
from dataclasses import dataclass
from typing import Any, ClassVar

import contract
import formulas
import pytest
import torch
from examples import BASE, example, members, rooms
from pydantic import field_validator
from torch.nn.functional import elu, gelu, hardswish, leaky_relu

from sinklab.config import Part
from sinklab.model.design import Design
from sinklab.model.features import Elu, Mlp
from sinklab.model.ffn import GELU, Gated, Plain, ReLU, Swish
from sinklab.model.heads import Added, Concatenated
from sinklab.model.initial import Narrow
from sinklab.model.masks import Apart, Causal, Prefix, Window
from sinklab.model.norms import PostNorm, PreNorm, QKNorm, Sandwich
from sinklab.model.positions import Alibi, BucketIndex, Learned, Rope, Sinusoidal, T5Relative
from sinklab.model.slots import (
    ElementGate,
    Even,
    FirstAxis,
    FixedValue,
    HeadGate,
    KeyBias,
    KeyValueBias,
    NarrowKeyBias,
    OffByOne,
    SinkLogit,
    ValueBias,
)
from sinklab.model.weights import AtLeastOne, EluPlusOne, Exponential, Linear, PowerSum, RowSum, Sigmoid, Softmax, Softpick, Unnormalised, Weights


@dataclass(frozen=True)
class Broken:
    """A design, and what one of its parts does instead of its formula."""

    change: dict[str, Any]
    kind: type[Part]
    method: str
    wrong: Any
    clause: Any = contract.is_the_formula


ORIGINAL = {kind: dict(kind.__dict__) for room in rooms().values() for kind in members(room).values()}


def right(kind: type[Part], method: str) -> Any:
    """What it was before it was broken."""
    return ORIGINAL[kind][method]


def whole(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """That are divided already."""
    return weights, torch.ones_like(weights[..., :1])


PARTS, LOGIT, VALUE, CHANGE, OF = "parts", "logit", "value", "change", "of"
BROKEN = {
    "softmax without alpha": Broken({"weights": Softmax(alpha=0.2)}, Softmax, PARTS, lambda w, s: whole(torch.softmax(s, -1))),
    "softmax over queries": Broken({}, Softmax, PARTS, lambda w, s: whole(torch.softmax(s, -2).nan_to_num())),
    "p-norm without root": Broken({"weights": Softmax(p=2)}, Softmax, PARTS, lambda w, s: whole(torch.softmax(w.p * s, -1))),
    "exponential with its normaliser": Broken({"weights": Exponential()}, Exponential, PARTS, lambda w, s: whole(torch.softmax(s, -1))),
    "sigmoid with a bias": Broken({"weights": Sigmoid()}, Sigmoid, PARTS, lambda w, s: whole(torch.sigmoid(s - 0.01))),
    "sigmoid without its gradient": Broken({"weights": Sigmoid()}, Sigmoid, PARTS, lambda w, s: whole(torch.sigmoid(s).detach())),
    "elu without one": Broken({"weights": EluPlusOne()}, EluPlusOne, PARTS, lambda w, s: whole(elu(s) * (s != -torch.inf))),
    "linear over what is not seen": Broken({"weights": Linear()}, Linear, PARTS, lambda w, s: whole(s.nan_to_num(neginf=-1.0))),
    "softpick over what is above zero": Broken(
        {"weights": Softpick()}, Softpick, PARTS, lambda w, s: ((n := (s.exp() - 1).relu()), n.sum(-1, keepdim=True) + 1e-8)
    ),
    "a row sum that is larger": Broken({"weights": Sigmoid(normaliser=RowSum())}, RowSum, "z", lambda z, sums: sums + 1e-6),
    "one that is not": Broken({"weights": Sigmoid()}, Unnormalised, "z", lambda z, sums: sums + 1),
    "a p-norm of the normaliser without root": Broken({"weights": Sigmoid(normaliser=PowerSum(p=2))}, PowerSum, "z", lambda z, sums: sums),
    "at least one, with its sign": Broken({"weights": Linear(normaliser=AtLeastOne())}, AtLeastOne, "z", lambda z, sums: sums.clamp_min(1)),
    "elu features without one": Broken({"features": Elu()}, Elu, "phi", lambda f, p, x: elu(x)),
    "mlp features in the other order": Broken({"features": Mlp()}, Mlp, "phi", lambda f, p, x: (x @ p.second.T).relu() @ p.first.T),
    "a key bias that is not scaled": Broken({"slots": (KeyBias(),)}, KeyBias, LOGIT, lambda s, p, q, scale: right(KeyBias, LOGIT)(s, p, q, 1)),
    "a value bias that is lost": Broken({"slots": (KeyValueBias(),)}, KeyValueBias, VALUE, lambda s, p, design: None),
    "a fixed value in each head alike": Broken(
        {"slots": (FixedValue(),)}, FixedValue, VALUE, lambda s, p, design: p.key.new_ones(1, design.head_size) / design.head_size
    ),
    "the first axis last": Broken({"slots": (FixedValue(),)}, FirstAxis, "vector", lambda d, like, size: torch.eye(size, dtype=like.dtype)[-1]),
    "even, not of length one": Broken(
        {"slots": (FixedValue(direction=Even()),)}, Even, "vector", lambda d, like, size: torch.ones(size, dtype=like.dtype)
    ),
    "the last dimensions learnt": Broken(
        {"slots": (NarrowKeyBias(dimensions=3),)}, NarrowKeyBias, LOGIT, lambda s, p, q, scale: (q[..., -3:] * p.key[None, :, None]).sum(-1) * scale
    ),
    "a learnt score that is scaled": Broken({"slots": (SinkLogit(),)}, SinkLogit, LOGIT, lambda s, p, q, scale: p.score[None, :, None] * scale),
    "off by two": Broken({"slots": (OffByOne(),)}, OffByOne, LOGIT, lambda s, p, q, scale: q.new_full((1, q.shape[1], 1), 0.7)),
    "a value bias for one head": Broken({"slots": (ValueBias(),)}, ValueBias, CHANGE, lambda s, p, x, out: out + p.value[0]),
    "a gate that sees the output": Broken({"slots": (HeadGate(),)}, HeadGate, CHANGE, lambda s, p, x, out: out * torch.sigmoid(out)),
    "an element gate with a head's": Broken(
        {"slots": (ElementGate(),)},
        ElementGate,
        CHANGE,
        lambda s, p, x, out: out * torch.sigmoid((x @ p.gate[: out.shape[1]].T).transpose(1, 2)[..., None]),
    ),
    "rope of another base": Broken(
        {"positions": Rope()}, Rope, "angles", lambda r, places, size: right(Rope, "angles")(Rope(base=9000), places, size)
    ),
    "rope that turns back": Broken(
        {"positions": Rope(), "slots": (KeyBias(),)}, Rope, "angles", lambda r, places, size: right(Rope, "angles")(r, -places, size)
    ),
    "sines and cosines that alternate": Broken(
        {"positions": Sinusoidal()}, Sinusoidal, "rows",
        lambda s, p, places, width: right(Sinusoidal, "rows")(s, p, places, width).unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2),
    ),
    "learnt places that count from one": Broken(
        {"positions": Learned(length=20)}, Learned, "rows", lambda k, p, places, width: right(Learned, "rows")(k, p, places + 1, width)
    ),
    "learnt places that count padding": Broken(
        {"positions": Learned(length=20)}, Learned, "rows", lambda k, p, places, width: p.table[: places.shape[1]], contract.does_not_see_padding
    ),
    "learnt places that begin again": Broken(
        {"positions": Learned(length=20)}, Learned, "rows", lambda k, p, places, width: p.table[: places.shape[1]], contract.remembers
    ),
    "alibi upside down": Broken({}, Alibi, "added", lambda a, *given: -right(Alibi, "added")(a, *given)),
    "buckets of another head": Broken(
        {"positions": T5Relative()}, T5Relative, "numbers", lambda t, *given: right(T5Relative, "numbers")(t, *given).flip(0)
    ),
    "buckets from one": Broken({"positions": BucketIndex(), "mask": Prefix(length=3)}, BucketIndex, "numbers",
        lambda b, p, heads, longest, device: torch.arange(longest).clamp_min(1).float()),
    "a token ahead": Broken({}, Causal, "seen", lambda m, i, j: j < i + 1 + (i == 4), contract.looks_back_only),
    "a window too wide": Broken({"mask": Window(size=3)}, Window, "seen", lambda m, i, j: (j <= i) & (j >= i - m.size)),
    "a prefix too long": Broken({"mask": Prefix(length=3)}, Prefix, "seen", lambda m, i, j: (j <= i) | (j <= m.length), contract.looks_back_only),
    "a separator in the next document": Broken({"documents": Apart()}, Apart, "number", lambda d, text: (text == d.separator).long().cumsum(-1)),
    "no norm before": Broken({}, PreNorm, "apply", lambda n, p, x, f: x + f(x)),
    "a residual after the norm": Broken(
        {"norms": PostNorm()}, PostNorm, "apply", lambda n, p, x, f: x + right(PostNorm, "apply")(n, p, 0 * x, lambda _: f(x))
    ),
    "a sandwich of one slice": Broken({"norms": Sandwich()}, Sandwich, "apply", right(PreNorm, "apply")),
    "gains of queries and keys exchanged": Broken(
        {"head_norm": QKNorm(), "positions": Rope()}, QKNorm, "apply", lambda n, p, q, k: right(QKNorm, "apply")(n, p, k, q)[::-1]
    ),
    "relu that leaks": Broken({"ffn": Plain(activation=ReLU())}, ReLU, OF, lambda a, x: leaky_relu(x)),
    "gelu by tanh": Broken({"ffn": Plain(activation=GELU())}, GELU, OF, lambda a, x: gelu(x, approximate="tanh")),
    "a harder swish": Broken({}, Swish, OF, lambda a, x: hardswish(x)),
    "a gate for what it gates": Broken({}, Gated, "between", lambda g, x: right(Gated, "between")(g, x.roll(x.shape[-1] // 2, -1))),
    "a plain function twice": Broken({"ffn": Plain()}, Plain, "between", lambda g, x: g.activation.of(g.activation.of(x))),
    "heads averaged": Broken({"joined": Added()}, Added, "join", lambda j, out: out.mean(1)),
    "heads in the other order": Broken({}, Concatenated, "join", lambda j, out: out.flip(1).transpose(1, 2).flatten(2)),
    "weights that know how many queries there are": Broken(
        {}, Softmax, PARTS, lambda w, s: whole(torch.softmax(s, -1) * (1 + s.shape[-2] / 1000)), contract.is_the_same_in_chunks
    ),
    "weights that are worse under autocast": Broken(
        {}, Softmax, PARTS, lambda w, s: whole(torch.softmax(s, -1) * (0.7 if torch.is_autocast_enabled("cpu") else 1)), contract.bears_bfloat16
    ),
    "nothing to begin with": Broken({}, Narrow, "matrix", lambda i, value, recipe, depth, generator: value.zero_(), contract.learns),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_member_fails_its_clause(name, monkeypatch):
    broken = BROKEN[name]
    design = Design(**(BASE | broken.change))
    broken.clause(design)
    monkeypatch.setattr(broken.kind, broken.method, broken.wrong)
    with pytest.raises(AssertionError):
        broken.clause(design)


def test_settings_that_json_does_not_give_back_fail():
    class Doubling(Weights):
        size: float = 1.0
        proxy: ClassVar[bool] = True
        competes: ClassVar[bool] = True
        parts: ClassVar[None] = None
        logs: ClassVar[None] = None

        @field_validator("size")
        @classmethod
        def _twice(cls, size):
            return 2 * size

    try:
        with pytest.raises(AssertionError):
            contract.survives_json(Design(**BASE, weights=Doubling(size=3)))
        assert "Doubling" in Weights.members()
        assert "Doubling" not in members(Weights)
    finally:
        del Doubling
        gc.collect()
    assert "Doubling" not in Weights.members()


def test_a_new_member_says_what_is_missing():
    class Room(Part, ABC):
        """One of these tests alone."""

    class Invented(Room):
        size: int
        sort: str = "a"

    with pytest.raises(AssertionError, match="Invented needs size: add settings of it to REQUIRED"):
        example(Invented)
    with pytest.raises(AssertionError, match=r"formulas.py has no formula of Invented: write it down there"):
        formulas.named(formulas.WEIGHTS, Invented(size=1))


def test_every_member_is_broken_once():
    """So that a formula that nobody would miss is noticed."""
    nothing = {"Identity", "NoPositions", "NoHeadNorm", "Mixed"}  # to break
    by_their_spread = {"TorchDefault"}  # in test_initial.py
    members = {kind.__name__ for kind in ORIGINAL} - nothing - by_their_spread
    unbroken = members - {broken.kind.__name__ for broken in BROKEN.values()}
    assert not unbroken, f"add a line to BROKEN with a wrong formula for {', '.join(sorted(unbroken))}"
