"""An experiment: everything that decides what a model learns, and nothing about the machine that it learns on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from sinklab.config import Config, changes, short
from sinklab.data.corpus import Corpus, HubTokenizer, RegmixSample, Tokenizer
from sinklab.data.transforms import FixedToken, RandomTokens, Transform
from sinklab.errors import SinklabError
from sinklab.model.design import Design
from sinklab.model.masks import Prefix
from sinklab.model.positions import Learned
from sinklab.train.optimiser import AdamW, Optimiser
from sinklab.train.schedule import Constant, Schedule


class Data(Config):
    """What a model learns from."""

    corpus: Corpus = RegmixSample()
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0  # of its training documents; the steps stay, so less data is seen more often
    tokenizer: Tokenizer = HubTokenizer()
    length: PositiveInt = 2048  # tokens of a sequence
    transforms: tuple[Transform, ...] = ()


class Experiment(Config):
    """What is asked; the defaults are the paper's 60M run (2410.10781)."""

    model: Design = Design()
    data: Data = Data()
    optimiser: Optimiser = AdamW()
    schedule: Schedule = Constant()
    clip: PositiveFloat = 1.0  # the largest norm of all gradients together
    batch: PositiveInt = 512  # sequences of a step
    steps: PositiveInt = 20000

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for reason in impossible(self):
            raise SinklabError(reason)
        return self

    @property
    def tokens(self) -> int:
        """How many it learns from, repetitions counted."""
        return self.steps * self.batch * self.data.length


class Machine(Config):
    """Where and how fast it runs: never part of an experiment's identity."""

    device: str = "auto"
    dtype: Literal["auto", "float32", "bf16"] = "auto"
    micro_batch: PositiveInt | Literal["auto"] = "auto"  # sequences at a time on one device
    compile: bool = True


class Job(Config):
    """An experiment and a machine: the two roots of every path that can be overridden."""

    experiment: Experiment
    machine: Machine = Machine()


@dataclass(frozen=True)
class Found:
    """What the paper says of a run."""

    where: str  # a table, a figure, a section
    numbers: Mapping[str, float] = field(default_factory=dict)  # Sink_1 and Sink_* in percent, valid loss in nats
    proxy: bool = False  # Sink_1 is of proxy scores
    said: str = ""  # what there is in place of numbers
    note: str = ""  # where its code and its text differ, and the like


@dataclass(frozen=True)
class Entry:
    """An experiment under its name."""

    name: str
    group: str
    experiment: Experiment
    base: "Entry | None" = None  # what it is compared with; a scale's own base has none
    because: str = ""  # why it differs in more than one thing
    paper: str = ""  # the name of the paper's run of this kind
    found: Found = Found("not in the paper")

    @property
    def difference(self) -> dict[str, Any]:
        """The leaves that are not as in its base; for a scale's base, not as in the paper's default."""
        return changes(self.experiment, self.base.experiment if self.base else Experiment())


def impossible(experiment: Experiment) -> Iterator[str]:
    """Each pair of model and data that cannot be together, in a sentence."""
    model, data = experiment.model, experiment.data
    corpus, tokenizer, positions, mask = data.corpus, data.tokenizer, model.positions, model.mask
    if tokenizer.reads_text and corpus.symbols:
        yield f"{short(corpus)} has tokens of its own, and {short(tokenizer)} makes them of text; OwnTokens does not."
    if not tokenizer.reads_text and not corpus.symbols:
        yield f"{short(corpus)} is text, of which {short(tokenizer)} makes no tokens."
    if corpus.symbols > model.vocabulary:
        yield f"{short(corpus)} has {corpus.symbols} kinds of tokens, and the vocabulary {model.vocabulary}."
    if isinstance(positions, Learned) and positions.length < data.length + model.registers:
        yield f"{short(positions)} has rows for {positions.length} places, and sequences have {data.length + model.registers}."
    if isinstance(mask, Prefix) and mask.length >= data.length:
        yield f"{short(mask)} leaves nothing to predict in sequences of {data.length} tokens."
    for transform in data.transforms:
        if transform.reaches > data.length:
            yield f"{short(transform)} is beyond sequences of {data.length} tokens."
        if isinstance(transform, RandomTokens) and transform.first > transform.last:
            yield f"{short(transform)} ends before it begins."
        if isinstance(transform, FixedToken) and transform.token >= model.vocabulary:
            yield f"{short(transform)} is not in a vocabulary of {model.vocabulary}."
