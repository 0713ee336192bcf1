"""The paper's questions, each written once, as variations of whatever base it is given (2410.10781, sections 4 to 7).

What depends on a base's size (rates, windows, steps) is a function of the base; `like` then names the paper's run of the same kind.
"""

from collections.abc import Iterator, Mapping

from sinklab.data.transforms import FixedToken, RandomTokens
from sinklab.experiments.experiment import Experiment
from sinklab.experiments.scale import Question, Variation
from sinklab.model.features import Elu, Mlp
from sinklab.model.ffn import GELU, Gated, Plain, ReLU, Swish
from sinklab.model.heads import Added
from sinklab.model.initial import TorchDefault
from sinklab.model.masks import Apart, Prefix, Window
from sinklab.model.norms import PostNorm
from sinklab.model.positions import Alibi, BucketIndex, Learned, NoPositions, Sinusoidal, T5Relative
from sinklab.model.slots import Even, FirstAxis, FixedValue, KeyBias, KeyValueBias, NarrowKeyBias, ValueBias
from sinklab.model.weights import AtLeastOne, EluPlusOne, Linear, PowerSum, RowSum, Sigmoid
from sinklab.train.schedule import Cosine

PAPER = Experiment()
Variations = Iterator[Variation]


def learning_rate(base: Experiment) -> Variations:
    """A smaller rate: a later and weaker sink, even where rate times steps stays (figure 4, table 9)."""
    for factor, longer in ((2, 0.5), (1 / 2, 2), (1 / 4, 4)):
        name, like = _rate(base, factor), _rate(PAPER, factor)
        yield Variation(f"lr-{name}", {"optimiser.lr": _lr(base, factor)}, like=f"lr-{like}")
        steps, paper_steps = round(base.steps * longer), round(PAPER.steps * longer)
        yield Variation(f"lr-{name}-{_thousands(steps)}", {"steps": steps}, of=f"lr-{name}", like=f"lr-{like}-{_thousands(paper_steps)}")
    yield Variation(f"lr-{_rate(base, 2.5)}", {"optimiser.lr": _lr(base, 2.5)}, like=f"lr-{_rate(PAPER, 2.5)}")
    smallest, long, paper_long = _rate(base, 1 / 40), _thousands(base.steps * 4), _thousands(PAPER.steps * 4)
    yield Variation(
        f"lr-{smallest}-{long}",
        {"optimiser.lr": _lr(base, 1 / 40)},
        of=f"lr-{_rate(base, 1 / 4)}-{long}",
        like=f"lr-{_rate(PAPER, 1 / 40)}-{paper_long}",
    )
    yield Variation("cosine", {"schedule": Cosine()})


def batch(base: Experiment) -> Variations:
    """Sequences of a step, at the same number of steps (table 10)."""
    for factor in (1 / 4, 1 / 2, 2):
        many, like = round(base.batch * factor), round(PAPER.batch * factor)
        yield Variation(f"batch-{many}", {"batch": many}, like=f"batch-{like}")


def data_amount(base: Experiment) -> Variations:  # noqa: ARG001
    """Less data, seen more often (figures 5 and 28)."""
    for fraction in (0.5, 0.1, 0.04, 0.02, 0.01):
        yield Variation(f"data-{fraction:g}", {"data.fraction": fraction})


def random_tokens(base: Experiment) -> Variations:  # noqa: ARG001
    """The first tokens are random, so that the sink moves or goes (section 5)."""
    for first, last in ((1, 1), (1, 2), (2, 2), (1, 5), (1, 10)):
        place = f"{first}" if first == last else f"{first}-to-{last}"
        yield Variation(f"random-{place}", {"data.transforms": (RandomTokens(first=first, last=last),)})


def fixed_token(base: Experiment) -> Variations:
    """One token at one position, and the sink goes there (table 10)."""
    for position in (1, 2, 3):
        yield Variation(f"fixed-{position}", {"data.transforms": (FixedToken(position=position),)})
    if base.data.transforms:
        yield Variation("no-fixed-token", {"data.transforms": ()}, like="default")


def weight_decay(base: Experiment) -> Variations:  # noqa: ARG001
    """More decay, more sink, until it breaks training (table 2)."""
    for decay in (0.0, 0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0):
        yield Variation(f"decay-{decay:g}", {"optimiser.decay": decay})


def prefix(base: Experiment) -> Variations:  # noqa: ARG001
    """The first tokens see each other: the sink is on one of them (figure 5)."""
    for length in (2, 3, 4, 5, 10):
        yield Variation(f"prefix-{length}", {"model.mask": Prefix(length=length)})


def window(base: Experiment) -> Variations:
    """Tokens see a few before them: the sink is on the first token of all, if the window is large (figure 6)."""
    for part in (64, 32, 16, 8, 4, 2):
        size, like = base.data.length // part, PAPER.data.length // part
        if size > 1:
            yield Variation(f"window-{size}", {"model.mask": Window(size=size)}, like=f"window-{like}")


def positions(base: Experiment) -> Variations:
    """Where a token stands, said in other ways (table 3)."""
    yield Variation("no-positions", {"model.positions": NoPositions()})
    yield Variation("sinusoidal", {"model.positions": Sinusoidal()})
    yield Variation("learned-positions", {"model.positions": Learned(length=base.data.length)})
    yield Variation("relative", {"model.positions": BucketIndex()})
    yield Variation("relative-t5", {"model.positions": T5Relative()})
    yield Variation("alibi", {"model.positions": Alibi()})


def norms(base: Experiment) -> Variations:  # noqa: ARG001
    """The norm after the sum (section 7.2)."""
    yield Variation("post-norm", {"model.norms": PostNorm()})


def biases(base: Experiment) -> Variations:  # noqa: ARG001
    """A learned sink token, or biases of K and V: the sink goes there (tables 4 and 12)."""
    yield Variation("sink-token", {"model.registers": 1})
    for name, kind in (("kv-bias", KeyValueBias), ("k-bias", KeyBias), ("v-bias", ValueBias)):
        yield Variation(name, {"model.slots": (kind(),)})
        yield Variation(f"{name}-shared", {"model.slots": (kind(shared=True),)})


def fixed_values(base: Experiment) -> Variations:  # noqa: ARG001
    """A K bias whose value is fixed: the longer it is, the less it serves as a sink (table 5)."""
    for name, direction in (("first", FirstAxis()), ("even", Even())):
        for times in (1, 5, 20):
            yield Variation(f"fixed-v-{name}-{times}", {"model.slots": (FixedValue(times=times, direction=direction),)})


def narrow_keys(base: Experiment) -> Variations:
    """A K bias of which a few dimensions are learnt (table 13)."""
    for many in (1, 2, 4, 8, 16, 32, 64):
        if many < base.model.head_size:
            yield Variation(f"k-bias-{many}d", {"model.slots": (NarrowKeyBias(dimensions=many),)})


def similarity(base: Experiment) -> Variations:  # noqa: ARG001
    """Other weights of the same scores, divided by their sum or not (tables 6 and 15)."""
    for name, kind in (("sigmoid", Sigmoid), ("elu", EluPlusOne)):
        yield Variation(name, {"model.weights": kind()})
        yield Variation(f"{name}-normalised", {"model.weights": kind(normaliser=RowSum())})


def kernels(base: Experiment) -> Variations:  # noqa: ARG001
    """Weights that are products of features, divided by their sum or not (tables 6 and 15)."""
    yield Variation("identity-kernel", {"model.weights": Linear()})
    yield Variation("identity-kernel-normalised", {"model.weights.normaliser": AtLeastOne()}, of="identity-kernel")
    yield Variation("elu-kernel", {"model.features": Elu()}, of="identity-kernel")
    yield Variation("elu-kernel-normalised", {"model.weights.normaliser": RowSum()}, of="elu-kernel")
    yield Variation("mlp-kernel", {"model.features": Mlp()}, of="identity-kernel")
    yield Variation("mlp-kernel-normalised", {"model.weights.normaliser": AtLeastOne()}, of="mlp-kernel")


def softmax_scale(base: Experiment) -> Variations:  # noqa: ARG001
    """Softmax whose rows sum to alpha (table 14)."""
    for alpha in (2.0, 0.2, 0.1, 0.05):
        yield Variation(f"softmax-scale-{alpha:g}", {"model.weights.alpha": alpha})


def p_norm(base: Experiment) -> Variations:  # noqa: ARG001
    """Rows whose p-norm is one; p = 1 is softmax and sigmoid-normalised (figure 29)."""
    for p in (2, 3, 4, 1 / 2, 1 / 3, 1 / 4):
        yield Variation(f"softmax-p-{p:.2g}", {"model.weights.p": p})
    for p in (2, 3, 4):
        yield Variation(f"sigmoid-p-{p}", {"model.weights.normaliser": PowerSum(p=p)}, of="sigmoid-normalised")


def sigmoid_training(base: Experiment) -> Variations:
    """Whether sigmoid attention has no sink at other rates and decays too (table 14)."""
    for decay in (0.0, 0.5, 1.0):
        yield Variation(f"sigmoid-decay-{decay:g}", {"optimiser.decay": decay}, of="sigmoid")
    for factor in (2.5, 1 / 4):
        like = f"sigmoid-lr-{_rate(PAPER, factor)}"
        yield Variation(f"sigmoid-lr-{_rate(base, factor)}", {"optimiser.lr": _lr(base, factor)}, of="sigmoid", like=like)


def feed_forward(base: Experiment) -> Variations:  # noqa: ARG001
    """Other activations, gated or not, with the same hidden size (table 11)."""
    for name, activation in (("relu", ReLU()), ("gelu", GELU()), ("swish", Swish())):
        yield Variation(name, {"model.ffn": Plain(activation=activation)})
    for name, activation in (("reglu", ReLU()), ("geglu", GELU())):
        yield Variation(name, {"model.ffn": Gated(activation=activation)})


def heads(base: Experiment) -> Variations:
    """Fewer heads, or their outputs added up (table 12)."""
    wide = base.model.heads * base.model.head_size
    for many in (1, 2, 4):
        changed = {"model.heads": many, "model.head_size": wide // many}
        yield Variation(f"heads-{many}", changed, because="the width is shared out among the heads")
    yield Variation("heads-added", {"model.joined": Added()})


def initialisation(base: Experiment) -> Variations:  # noqa: ARG001
    """PyTorch's own first weights: probably what the paper's runs on several GPUs had."""
    yield Variation("torch-initial", {"model.initial": TorchDefault()})


def documents(base: Experiment) -> Variations:  # noqa: ARG001
    """Documents in one sequence do not see each other."""
    yield Variation("documents-apart", {"model.documents": Apart()})


def larger(base: Experiment) -> Variations:  # noqa: ARG001
    """The paper's 1B model, with softmax and with sigmoid (figure 8)."""
    size = {"model.depth": 22, "model.heads": 16, "model.width": 2048, "model.head_size": 128, "model.hidden": 5632, "steps": 40000}
    yield Variation("1b", size, because="a larger model and its steps")
    yield Variation("1b-sigmoid", {"model.weights": Sigmoid()}, of="1b")


QUESTIONS: Mapping[str, Question] = {
    "learning rate": learning_rate,
    "batch": batch,
    "data amount": data_amount,
    "random tokens": random_tokens,
    "fixed token": fixed_token,
    "weight decay": weight_decay,
    "prefix": prefix,
    "window": window,
    "positions": positions,
    "norms": norms,
    "sink token and biases": biases,
    "fixed v*": fixed_values,
    "dimensions of k*": narrow_keys,
    "similarity": similarity,
    "kernels": kernels,
    "softmax scale": softmax_scale,
    "p-norm": p_norm,
    "sigmoid's rate and decay": sigmoid_training,
    "feed-forward": feed_forward,
    "heads": heads,
    "initialisation": initialisation,
    "documents": documents,
}


def _lr(base: Experiment, factor: float) -> float:
    """Without the last digits that a product brings."""
    return float(f"{base.optimiser.lr * factor:.6g}")


def _rate(base: Experiment, factor: float) -> str:
    """8e-4, 1.5e-3."""
    digits, exponent = f"{_lr(base, factor):.2e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def _thousands(steps: int) -> str:
    """10k."""
    return f"{steps / 1000:g}k"
