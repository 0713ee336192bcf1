"""The paper's own scale: 60M parameters, 21 billion tokens a run (2410.10781), and what it says of each run.

Its two fine-tuned 1B models are not here: they begin at another run's weights, which is no setting of an experiment.
"""

from sinklab.experiments import beyond, questions
from sinklab.experiments.experiment import Experiment
from sinklab.experiments.findings import FOUND
from sinklab.experiments.scale import Scale

SCALE = Scale("paper/default", "paper/", Experiment(), {**questions.QUESTIONS, "1B": questions.larger, **beyond.QUESTIONS}, FOUND)
