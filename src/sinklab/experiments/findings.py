"""What the paper says of each of its runs (2410.10781).

Sink at 0.3 in percent, over 100 sequences of 64 tokens; valid loss on Pile-CC, in nats.
"""

from collections.abc import Mapping

from sinklab.experiments.experiment import Found

FIRST, VIRTUAL, LOSS = "Sink_1", "Sink_*", "valid loss"
NO_CODE = "The paper's repository has no code for it."
CONSTANT = "The text says a cosine; every settings file has the lowest rate equal to the highest, which is constant."
SEVERAL_GPUS = "Probably what the paper's runs on several GPUs had: there its own acts on empty tensors."
CRASHES = "The published line of code crashes; this is what it means."
PREFIX = "The paper's validation loss counts the prefix, whose tokens see what they predict."
BUCKETS = "The code adds the bucket's number itself, which alone gives alpha_1 = 0.334 at 64 tokens; relative-t5 learns numbers."
STARRED = "Marked as a proxy in the table; its rows sum to one, and the code takes them as they are."
SMALLER_P = "trains; the smaller p, the smaller the massive activations, which remain"
CHECKPOINT = "The rate is constant in the paper's code, so a shorter run may be a checkpoint of a longer one."
NO_YAML = "The paper's repository has no settings for it."


def sink(where: str, first: float, loss: float, note: str = "") -> Found:
    """The usual pair."""
    return Found(where, {FIRST: first, LOSS: loss}, note=note)


def virtual(where: str, star: float, first: float, loss: float, note: str = "") -> Found:
    """With what goes to the learned key."""
    return Found(where, {VIRTUAL: star, FIRST: first, LOSS: loss}, note=note)


def proxy(where: str, first: float, loss: float, note: str = "") -> Found:
    """Of proxy scores."""
    return Found(where, {FIRST: first, LOSS: loss}, proxy=True, note=note)


def first(where: str, percent: float, note: str = "") -> Found:
    """Sink_1 alone."""
    return Found(where, {FIRST: percent}, note=note)


def told(where: str, said: str, note: str = "") -> Found:
    """Words, where there are no numbers."""
    return Found(where, said=said, note=note)


FAILED = "training fails"
OPTIMISATION: Mapping[str, Found] = {
    "default": sink("tables 2 to 14", 18.18, 3.73, CONSTANT),
    "lr-8e-4": sink("table 9", 32.23, 3.70, NO_YAML),
    "lr-8e-4-10k": sink("table 9", 23.44, 3.79, CHECKPOINT),
    "lr-2e-4": sink("table 9", 11.21, 3.78, CHECKPOINT),
    "lr-2e-4-40k": sink("table 9", 16.81, 3.68, NO_YAML),
    "lr-1e-4": sink("table 9", 2.90, 3.92, CHECKPOINT),
    "lr-1e-4-80k": sink("table 9", 6.29, 3.67, "The settings file that the repository has, for figure 4, ends at 40,000 steps."),
    "lr-1e-3": told("figure 4", "in the plot only: the smaller the rate, the later and weaker the sink"),
    "lr-1e-5-80k": told("figure 4", "in the plot only: the smaller the rate, the later and weaker the sink"),
    "cosine": told("", "no number of its own", "What the text says of the default; the code that was run is constant."),
    "batch-128": sink("table 10", 16.45, 3.92),
    "batch-256": sink("table 10", 17.19, 3.78),
    "batch-1024": sink("table 10", 16.19, 3.68),
    "decay-0": sink("table 2", 15.20, 3.72),
    "decay-0.001": sink("table 2", 15.39, 3.72),
    "decay-0.01": sink("table 2", 15.23, 3.72),
    "decay-0.5": sink("table 2", 41.08, 3.80),
    "decay-1": sink("table 2", 37.71, 3.90),
    "decay-2": sink("table 2", 6.13, 4.23),
    "decay-5": sink("table 2", 0.01, 5.24, "The repository has settings for a decay of 10 too, which the paper does not report."),
    "torch-initial": told("", "no number of its own", SEVERAL_GPUS),
    "1b": Found("section 7, figure 8", {FIRST: 45.11, LOSS: 3.07}, note="The two 1B scripts of the repository have each other's names."),
    "1b-sigmoid": Found("section 7, figure 8", {FIRST: 2.46, LOSS: 3.10}, proxy=True),
}  # fmt: skip
DATA: Mapping[str, Found] = {
    "data-0.5": told("figure 5", "in the plot only"),
    "data-0.1": told("figure 5", "in the plot only"),
    "data-0.04": told("figure 5", "in the plot only"),
    "data-0.02": told("figures 5 and 28", "Sink_1 below 1 %; it overfits between steps 1,000 and 2,000"),
    "data-0.01": told("figures 5 and 28", "Sink_1 below 1 %; it overfits between steps 1,000 and 2,000"),
    "random-1": first("section 5", 27.03),
    "random-1-to-2": Found("section 5", {FIRST: 1.98, "Sink_2": 14.08}),
    "random-2": first("section 5", 20.99),
    "random-1-to-5": told("section 5", "with more random tokens the sink tends to disappear", "How many is not said; five is our choice."),
    "random-1-to-10": told("section 5", "with more random tokens the sink tends to disappear", "How many is not said; ten is our choice."),
    "fixed-1": Found("table 10", {FIRST: 74.11, "Sink_2": 0.00, "Sink_3": 0.00, "Sink_4": 0.01}, note=CRASHES),
    "fixed-2": Found("table 10", {FIRST: 0.00, "Sink_2": 69.03, "Sink_3": 0.00, "Sink_4": 0.01}, note=CRASHES),
    "fixed-3": Found("table 10", {FIRST: 0.00, "Sink_2": 0.00, "Sink_3": 69.64, "Sink_4": 0.00}, note=CRASHES),
    **{f"prefix-{p}": told("figure 5", "in the plot only", PREFIX) for p in (2, 3, 4, 10)},
    "prefix-5": told("figure 5", "in each of five sequences one of the first five tokens has it: 15 to 19 of 80 heads", PREFIX),
    **{f"window-{w}": told("figure 6", "no sink in small windows: in the plot only") for w in (32, 64, 128)},
    **{f"window-{w}": told("figure 6", "a sink on the first token of all: in the plot only") for w in (256, 512, 1024)},
    "documents-apart": told("", "no number of its own", "In the paper documents of one sequence see each other."),
}  # fmt: skip
ARCHITECTURE: Mapping[str, Found] = {
    "no-positions": sink("table 3", 20.35, 3.81),
    "sinusoidal": sink("table 3", 32.73, 3.74, "Sines and cosines stand side by side in the code; in the paper they alternate."),
    "learned-positions": sink("table 3", 33.13, 3.79),
    "relative": sink("table 3", 35.53, 5.45, BUCKETS),
    "relative-t5": told("table 3", "no number of its own", "What the text names; the code that was run is `relative`."),
    "alibi": sink("table 3", 20.78, 3.71),
    "post-norm": first("section 7.2", 13.54),
    "sink-token": virtual("table 4", 74.12, 0.00, 3.72, NO_CODE),
    "kv-bias": virtual("tables 4 and 12", 72.76, 0.04, 3.72),
    "kv-bias-shared": virtual("table 12", 56.61, 12.44, 3.72),
    "k-bias": virtual("tables 4, 5 and 12", 73.34, 0.00, 3.72),
    "k-bias-shared": virtual("table 12", 68.31, 0.23, 3.72),
    "v-bias": sink("table 4", 17.53, 3.73),
    "v-bias-shared": told("", "no number"),
    "fixed-v-first-1": virtual("table 5", 70.03, 0.06, 3.72, NO_CODE),
    "fixed-v-first-5": virtual("table 5", 44.43, 3.71, 3.72, NO_CODE),
    "fixed-v-first-20": virtual("table 5", 1.51, 25.88, 3.71, NO_CODE),
    "fixed-v-even-1": virtual("table 5", 69.74, 2.15, 3.72, NO_CODE),
    "fixed-v-even-5": virtual("table 5", 27.99, 5.93, 3.72, NO_CODE),
    "fixed-v-even-20": virtual("table 5", 0.00, 11.21, 3.73, NO_CODE),
    "k-bias-1d": virtual("table 13", 32.18, 4.74, 3.73, NO_CODE),
    "k-bias-2d": virtual("table 13", 30.88, 4.96, 3.72, NO_CODE),
    "k-bias-4d": virtual("table 13", 30.94, 4.39, 3.72, NO_CODE),
    "k-bias-8d": virtual("table 13", 31.39, 4.54, 3.73, NO_CODE),
    "k-bias-16d": virtual("table 13", 23.30, 2.19, 3.73, NO_CODE),
    "k-bias-32d": virtual("table 13", 51.23, 1.94, 3.73, NO_CODE),
    "k-bias-64d": virtual("table 13", 69.19, 0.04, 3.72, NO_CODE),
    "relu": sink("table 11", 16.90, 3.82),
    "gelu": sink("table 11", 14.76, 3.79),
    "swish": sink("table 11", 17.89, 3.80),
    "reglu": sink("table 11", 13.88, 3.75),
    "geglu": sink("table 11", 17.86, 3.73),
    "heads-1": sink("table 12", 19.50, 3.78),
    "heads-2": sink("table 12", 12.95, 3.76),
    "heads-4": sink("table 12", 10.68, 3.74),
    "heads-added": sink("table 12", 21.76, 3.74, NO_CODE),
}  # fmt: skip
OPERATIONS: Mapping[str, Found] = {
    "sigmoid": proxy("tables 6, 14 and 15", 0.44, 3.70),
    "sigmoid-normalised": sink("tables 6 and 15", 30.24, 3.74),
    "elu": proxy("tables 6 and 15", 0.80, 3.69),
    "elu-normalised": told("table 15", FAILED),
    "identity-kernel": proxy("tables 6 and 15", 0.00, 3.99),
    "identity-kernel-normalised": told("table 15", FAILED),
    "elu-kernel": told("table 15", FAILED),
    "elu-kernel-normalised": sink("tables 6 and 15", 53.65, 4.19, STARRED),
    "mlp-kernel": proxy("tables 6 and 15", 0.74, 3.91),
    "mlp-kernel-normalised": proxy("tables 6 and 15", 0.19, 3.85),
    **{
        f"softmax-scale-{alpha}": sink("table 14", percent, loss, f"Whether the measure is scaled back by alpha is not said. {NO_CODE}")
        for alpha, percent, loss in (("2", 29.10, 3.72), ("0.2", 9.41, 3.72), ("0.1", 3.59, 3.76), ("0.05", 4.53, 3.78))
    },
    **{f"softmax-p-{p}": told("figure 29", FAILED, NO_CODE) for p in (2, 3, 4)},
    **{f"softmax-p-{p}": told("figure 29", SMALLER_P, NO_CODE) for p in ("0.5", "0.33", "0.25")},
    **{f"sigmoid-p-{p}": told("figure 29", "trains, with strong massive activations", NO_CODE) for p in (2, 3, 4)},
    "sigmoid-decay-0": proxy("table 14", 0.64, 3.77),
    "sigmoid-decay-0.5": proxy("table 14", 0.18, 3.76),
    "sigmoid-decay-1": proxy("table 14", 0.30, 4.06),
    "sigmoid-lr-1e-3": proxy("table 14", 0.81, 3.68),
    "sigmoid-lr-1e-4": proxy("table 14", 0.36, 4.08),
}  # fmt: skip
FOUND: Mapping[str, Found] = {**OPTIMISATION, **DATA, **ARCHITECTURE, **OPERATIONS}
