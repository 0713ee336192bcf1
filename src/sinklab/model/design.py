"""Which parts a decoder is made of: the whole of an architecture as data. Two designs that differ in one leaf make twins that differ in one thing."""

from collections.abc import Iterator
from typing import Self

from pydantic import NonNegativeInt, PositiveInt, model_validator

from sinklab.config import Config, short
from sinklab.errors import SinklabError
from sinklab.model.features import Features, Identity
from sinklab.model.ffn import FeedForward, Gated
from sinklab.model.heads import Added, Concatenated, Joined
from sinklab.model.initial import Initial, Narrow
from sinklab.model.masks import Apart, Causal, Documents, Mask, Mixed, Prefix
from sinklab.model.norms import HeadNorm, NoHeadNorm, Placement, PreNorm, Sandwich
from sinklab.model.positions import Alibi, Positions, Rope, T5Relative, TurnsHeads
from sinklab.model.slots import NarrowKeyBias, OffByOne, SinkLogit, Slot, ValueBias, VirtualKey
from sinklab.model.weights import AtLeastOne, Linear, Normalised, PowerSum, RowSum, Softmax, Softpick, Weights


class Design(Config):
    """A decoder; the defaults are the paper's 60M model (2410.10781)."""

    vocabulary: PositiveInt = 50432
    width: PositiveInt = 768
    depth: PositiveInt = 10
    heads: PositiveInt = 8
    head_size: PositiveInt = 96
    hidden: PositiveInt = 1536  # of the feed-forward function
    registers: NonNegativeInt = 0  # learned sink tokens: rows before the first token
    weights: Weights = Softmax()
    features: Features = Identity()
    slots: tuple[Slot, ...] = ()
    positions: Positions = Rope()
    mask: Mask = Causal()
    documents: Documents = Mixed()
    norms: Placement = PreNorm()
    head_norm: HeadNorm = NoHeadNorm()
    ffn: FeedForward = Gated()
    joined: Joined = Concatenated()
    initial: Initial = Narrow()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for reason in impossible(self):
            raise SinklabError(reason)
        return self


def impossible(design: Design) -> Iterator[str]:
    """Each pair of parts that cannot be together, in a sentence: the one place where parts know of each other."""
    yield from _of_sizes(design)
    yield from _of_weights(design)
    yield from _of_slots(design)
    yield from _of_documents(design)


def _of_sizes(design: Design) -> Iterator[str]:
    if design.positions.limit and design.registers >= design.positions.limit:
        yield f"{design.registers} learned sink tokens leave no place for a text in {short(design.positions)}."
    if isinstance(design.positions, TurnsHeads) and design.head_size % 2:
        yield f"{short(design.positions)} turns pairs of dimensions, and heads of {design.head_size} have one left over."


def _of_weights(design: Design) -> Iterator[str]:
    weights = design.weights
    if isinstance(weights, Linear) and isinstance(weights.normaliser, PowerSum):
        yield f"{short(weights)} takes powers of scores that can be below zero."
    if isinstance(weights, Linear) and isinstance(weights.normaliser, RowSum):
        yield from _below_zero(design)
    if isinstance(weights, Normalised) and isinstance(weights.normaliser, AtLeastOne):
        yield f"{short(weights)}: AtLeastOne is for signed weights; RowSum divides positive ones by their sum."
    if isinstance(weights, Softmax) and weights.alpha != 1 and isinstance(design.norms, Sandwich):
        yield f"{short(weights)} scales what attention puts out, and the norm after it in {short(design.norms)} takes that away."


def _below_zero(design: Design) -> Iterator[str]:
    """Scores that are weights themselves, and are divided by their sum."""
    weights = short(design.weights)
    if not design.features.positive:
        yield f"{weights} divides by a sum that can be zero: scores of {short(design.features)} features have both signs. AtLeastOne does not."
    if isinstance(design.positions, Alibi | T5Relative):
        yield f"{weights} divides by a sum that can be zero: {short(design.positions)} adds numbers below zero to its scores."
    if any(isinstance(slot, VirtualKey) for slot in design.slots):
        yield f"{weights} divides by a sum that can be zero: the scores of a virtual key, which has no features, have both signs."


def _of_slots(design: Design) -> Iterator[str]:
    kinds = [type(slot).__name__ for slot in design.slots]
    for kind in dict.fromkeys(kind for kind in kinds if kinds.count(kind) > 1):
        yield f"Two slots are {kind}: their parameters would have one name."
    for slot in design.slots:
        if isinstance(slot, VirtualKey) and not slot.has_value and not design.weights.competes:
            yield f"{short(slot)} has no value, and beside {short(design.weights)}, whose weights do not compete, it would do nothing."
        elif isinstance(slot, OffByOne) and isinstance(design.weights, Linear | Softpick):
            yield f"{short(slot)} is a score of zero, which weighs nothing in {short(design.weights)}."
        if isinstance(slot, SinkLogit) and isinstance(design.weights, Softpick):
            yield f"{short(slot)} begins at a score of zero, where {short(design.weights)} has no gradient: it would stay there."
        if isinstance(slot, ValueBias) and not slot.shared and isinstance(design.joined, Added):
            yield f"{short(slot)} per head is no more than a shared one where heads are {short(design.joined)}: make it shared."
        if isinstance(slot, NarrowKeyBias) and slot.dimensions > design.head_size:
            yield f"{short(slot)} has more dimensions than heads of {design.head_size}."


def _of_documents(design: Design) -> Iterator[str]:
    if isinstance(design.documents, Apart) and isinstance(design.mask, Prefix):
        yield f"{short(design.mask)} is seen by every token, and documents that are kept apart see only themselves."
    if isinstance(design.documents, Apart) and design.documents.separator >= design.vocabulary:
        yield f"{short(design.documents)} is not in a vocabulary of {design.vocabulary}."
