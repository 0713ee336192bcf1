"""The questions on two cores: narrow and deep on text, with a fixed first token; and one block on bigram-backcopy."""

from sinklab.data.corpus import BigramBackcopy, OwnTokens, PackageText, TrainedTokenizer
from sinklab.data.transforms import FixedToken
from sinklab.experiments import beyond, questions
from sinklab.experiments.experiment import Data, Experiment
from sinklab.experiments.findings import FOUND
from sinklab.experiments.scale import Scale
from sinklab.model.design import Design
from sinklab.train.optimiser import AdamW

# A fixed first token makes the sink come earlier: without it none was seen at this size.
BASE = Experiment(
    model=Design(vocabulary=4096, width=96, depth=8, heads=4, head_size=24, hidden=192),
    data=Data(corpus=PackageText(), tokenizer=TrainedTokenizer(), length=64, transforms=(FixedToken(),)),
    optimiser=AdamW(lr=4e-3),
    batch=32,
    steps=6000,
)
BACKCOPY_BASE = Experiment(
    model=Design(vocabulary=65, width=64, depth=1, heads=1, head_size=64, hidden=128),
    data=Data(corpus=BigramBackcopy(), tokenizer=OwnTokens(), length=64),
    optimiser=AdamW(lr=1e-3),
    batch=64,
    steps=1500,
)
OF_ATTENTION = ("norms", "sink token and biases", "similarity", "softmax scale")  # what a task of one block can tell about

SCALE = Scale("laptop/default", "laptop/", BASE, {**questions.QUESTIONS, **beyond.QUESTIONS}, FOUND)
BACKCOPY = Scale(
    "laptop/backcopy", "laptop/backcopy-", BACKCOPY_BASE, {name: questions.QUESTIONS[name] for name in OF_ATTENTION} | dict(beyond.QUESTIONS)
)
