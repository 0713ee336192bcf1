"""The questions on one GPU: a base of 14 M parameters and 98 M tokens, in which a sink was first seen before 2,000 steps."""

from sinklab.data.corpus import PackageText, TrainedTokenizer
from sinklab.experiments import beyond, questions
from sinklab.experiments.experiment import Data, Experiment
from sinklab.experiments.findings import FOUND
from sinklab.experiments.scale import Scale
from sinklab.model.design import Design
from sinklab.train.optimiser import AdamW

BASE = Experiment(
    model=Design(vocabulary=16384, width=256, depth=8, heads=8, head_size=32, hidden=512),
    data=Data(corpus=PackageText(), tokenizer=TrainedTokenizer(), length=256),
    optimiser=AdamW(lr=3e-3),
    batch=64,
    steps=6000,
)
SCALE = Scale("gpu/default", "gpu/", BASE, {**questions.QUESTIONS, **beyond.QUESTIONS}, FOUND)
