"""Questions that the paper did not ask: designs that came after it or that it left out. Asked of every scale, as its own questions are."""

from collections.abc import Mapping

from sinklab.experiments.experiment import Experiment
from sinklab.experiments.questions import Variations
from sinklab.experiments.scale import Question, Variation
from sinklab.model.norms import QKNorm, Sandwich
from sinklab.model.slots import ElementGate, HeadGate, OffByOne, SinkLogit
from sinklab.model.weights import Softpick
from sinklab.train.optimiser import AdamW, Muon


def less_than_one(base: Experiment) -> Variations:  # noqa: ARG001
    """Rows that may sum to less than one: does a head that has nothing to look for still need a token?"""
    yield Variation("sink-logit", {"model.slots": (SinkLogit(),)})
    yield Variation("off-by-one", {"model.slots": (OffByOne(),)})
    yield Variation("softpick", {"model.weights": Softpick()})


def gates(base: Experiment) -> Variations:  # noqa: ARG001
    """A head that can silence its output: the same question, behind attention."""
    yield Variation("head-gate", {"model.slots": (HeadGate(),)})
    yield Variation("element-gate", {"model.slots": (ElementGate(),)})


def registers(base: Experiment) -> Variations:  # noqa: ARG001
    """Several learned sink tokens: one sink, or one on each? (One of them is the paper's sink token.)"""
    yield Variation("registers-4", {"model.registers": 4})


def more_norms(base: Experiment) -> Variations:  # noqa: ARG001
    """Norms that bound scores, or what a block adds to the residual stream."""
    yield Variation("qk-norm", {"model.head_norm": QKNorm()})
    yield Variation("sandwich-norm", {"model.norms": Sandwich()})


def optimiser(base: Experiment) -> Variations:
    """Orthogonalised steps for matrices; the rest learns as before."""
    if isinstance(base.optimiser, AdamW):
        yield Variation("muon", {"optimiser": Muon(lr=base.optimiser.lr, decay=base.optimiser.decay, rest=base.optimiser)})


QUESTIONS: Mapping[str, Question] = {
    "beyond: rows below one": less_than_one,
    "beyond: gates": gates,
    "beyond: registers": registers,
    "beyond: norms": more_norms,
    "beyond: optimiser": optimiser,
}
