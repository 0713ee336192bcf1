"""Pairs of parts that cannot be together, or of which one would do nothing: each is refused in a sentence, and no refusal lacks its case here."""

import ast
import inspect
import re

import pytest
from examples import BASE, designs

from sinklab.errors import SinklabError
from sinklab.model import design as file
from sinklab.model.design import Design, impossible
from sinklab.model.features import Elu, Mlp
from sinklab.model.heads import Added
from sinklab.model.masks import Apart, Prefix
from sinklab.model.norms import Sandwich
from sinklab.model.positions import Alibi, Learned, Rope
from sinklab.model.slots import FixedValue, KeyBias, KeyValueBias, NarrowKeyBias, OffByOne, SinkLogit, ValueBias
from sinklab.model.weights import AtLeastOne, EluPlusOne, Exponential, Linear, PowerSum, RowSum, Sigmoid, Softmax, Softpick

PAIRS = [
    ({"positions": Rope(), "head_size": 7}, "Rope turns pairs of dimensions, and heads of 7 have one left over."),
    (
        {"weights": Linear(normaliser=RowSum())},
        "Linear(normaliser=RowSum) divides by a sum that can be zero: scores of Identity features have both signs. AtLeastOne does not.",
    ),
    (
        {"weights": Linear(normaliser=RowSum()), "features": Mlp()},
        "Linear(normaliser=RowSum) divides by a sum that can be zero: scores of Mlp features have both signs. AtLeastOne does not.",
    ),
    (
        {"weights": Linear(normaliser=RowSum()), "features": Elu(), "positions": Alibi()},
        "Linear(normaliser=RowSum) divides by a sum that can be zero: Alibi adds numbers below zero to its scores.",
    ),
    ({"weights": Linear(normaliser=PowerSum(p=2))}, "Linear(normaliser=PowerSum(p=2.0)) takes powers of scores that can be below zero."),
    (
        {"weights": Linear(normaliser=RowSum()), "features": Elu(), "positions": Rope(), "slots": (KeyValueBias(),)},
        "Linear(normaliser=RowSum) divides by a sum that can be zero: the scores of a virtual key, which has no features, have both signs.",
    ),
    (
        {"weights": Softmax(alpha=2), "norms": Sandwich()},
        "Softmax(alpha=2.0) scales what attention puts out, and the norm after it in Sandwich takes that away.",
    ),
    ({"slots": (SinkLogit(),), "weights": Softpick()}, "SinkLogit begins at a score of zero, where Softpick has no gradient: it would stay there."),
    (
        {"slots": (ValueBias(),), "joined": Added()},
        "ValueBias per head is no more than a shared one where heads are Added: make it shared.",
    ),
    ({"positions": Learned(length=4), "registers": 4}, "4 learned sink tokens leave no place for a text in Learned(length=4)."),
    (
        {"weights": Sigmoid(normaliser=AtLeastOne())},
        "Sigmoid(normaliser=AtLeastOne): AtLeastOne is for signed weights; RowSum divides positive ones by their sum.",
    ),
    (
        {"weights": EluPlusOne(normaliser=AtLeastOne())},
        "EluPlusOne(normaliser=AtLeastOne): AtLeastOne is for signed weights; RowSum divides positive ones by their sum.",
    ),
    ({"slots": (KeyBias(), KeyBias(shared=True))}, "Two slots are KeyBias: their parameters would have one name."),
    (
        {"slots": (KeyBias(),), "weights": Sigmoid()},
        "KeyBias has no value, and beside Sigmoid, whose weights do not compete, it would do nothing.",
    ),
    (
        {"slots": (FixedValue(times=0),), "weights": Exponential()},
        "FixedValue(times=0.0) has no value, and beside Exponential, whose weights do not compete, it would do nothing.",
    ),
    (
        {"slots": (SinkLogit(),), "weights": Linear()},
        "SinkLogit has no value, and beside Linear, whose weights do not compete, it would do nothing.",
    ),
    ({"slots": (OffByOne(),), "weights": Softpick()}, "OffByOne is a score of zero, which weighs nothing in Softpick."),
    (
        {"slots": (OffByOne(),), "weights": Linear(normaliser=AtLeastOne())},
        "OffByOne is a score of zero, which weighs nothing in Linear(normaliser=AtLeastOne).",
    ),
    ({"slots": (NarrowKeyBias(dimensions=9),)}, "NarrowKeyBias(dimensions=9) has more dimensions than heads of 8."),
    (
        {"documents": Apart(), "mask": Prefix(length=2)},
        "Prefix(length=2) is seen by every token, and documents that are kept apart see only themselves.",
    ),
    ({"documents": Apart(separator=30)}, "Apart(separator=30) is not in a vocabulary of 30."),
]


@pytest.mark.parametrize(("change", "sentence"), PAIRS, ids=[sentence for _, sentence in PAIRS])
def test_is_refused_in_its_sentence(change, sentence):
    with pytest.raises(SinklabError) as refusal:
        Design(**(BASE | change))
    assert str(refusal.value) == sentence


def test_the_first_of_several_reasons_is_given():
    with pytest.raises(SinklabError, match="Rope turns pairs"):
        Design(**(BASE | {"positions": Rope(), "head_size": 7, "documents": Apart(separator=30)}))


def test_what_makes_a_pair_impossible_is_the_pair():
    """Each part of a pair stands beside others."""
    for part in (
        {"features": Elu(), "positions": Rope(), "weights": Linear(normaliser=RowSum())},
        {"weights": Linear(normaliser=AtLeastOne())},
        {"head_size": 7},
    ):
        Design(**(BASE | part))
    assert not any(list(impossible(design)) for design in designs().values())


def test_every_reason_is_listed_once():
    """A refusal that is written in design.py has a pair above, and no sentence is another's."""
    written = [_pattern(node.value) for node in ast.walk(ast.parse(inspect.getsource(file))) if isinstance(node, ast.Yield) and node.value]
    assert len(written) >= 9
    found = [[pattern for pattern in written if re.fullmatch(pattern, sentence)] for _, sentence in PAIRS]
    assert all(len(patterns) == 1 for patterns in found)
    assert {patterns[0] for patterns in found} == set(written)


def _pattern(sentence: ast.expr) -> str:
    """An f-string as a pattern: what is filled in can be anything."""
    assert isinstance(sentence, ast.JoinedStr | ast.Constant), "a refusal is one sentence, written where it is yielded"
    if isinstance(sentence, ast.Constant):
        return re.escape(sentence.value)
    return "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in sentence.values)
