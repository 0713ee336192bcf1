"""Sentences about what to do with a finding, and about how far to trust it. Each says its condition by being there."""

import re
from collections.abc import Callable

from sinklab.probe.definitions import LEAST_QUERIES
from sinklab.report import paper
from sinklab.report.words import CLEAR, FAINT, LONG_NORM, SYNTHETIC, Case, Saying, has_sink, headline, listed, times

FEW_SEQUENCES, WIDE = 30, 10.0


def _cache(case: Case) -> Saying:
    facts = case.facts
    if has_sink(facts, CLEAR):
        text = "If you evict from the KV cache or slide over a long text, keep the first token: these heads have nowhere else to put "
        text += "attention that they do not need (StreamingLLM, 2309.17453, keeps the first four)."
        others = " The other sinks named above matter too." if facts["other_tokens"] or facts["other_positions"] else ""
        yield "keep-first-token", text + others
    if (facts["virtual"] or 0) >= FAINT:
        yield "virtual-needs-no-token", "The learned sink is no token of the text: none has to be kept in a cache for it."


def _quantisation(case: Case) -> Saying:
    found, norms = case.facts["massive_activations"], case.facts["norm_ratio"]
    if found:
        largest = max(abs(fact["value"]) for fact in found)
        text = f"One scale for all activations has to reach {times(largest)} and leaves few levels for the rest: scale per token, or keep the "
        yield "quantise-with-care", f"{text}first token in higher precision, and measure the loss."
    if has_sink(case.facts, CLEAR) and (found is not None or norms is not None):
        text = "The percentage of sinks does not predict what quantisation breaks: in one audit the model with the least suffered most."
        yield "sink-is-not-damage", text


def _statistics(case: Case) -> Saying:
    ratio = case.facts["norm_ratio"]
    if ratio is not None and ratio["ratio"] >= LONG_NORM:
        text = "Leave the first token out of activation statistics and of SAE training data: "
        yield "exclude-from-statistics", f"{text}states that long decide means, scales and losses alone."


def _nothing(case: Case) -> Saying:
    facts = case.facts
    loud = facts["massive_activations"] or facts["other_positions"] or facts["other_tokens"] or facts["virtual"] is not None
    long = facts["norm_ratio"] is not None and facts["norm_ratio"]["ratio"] >= LONG_NORM
    if headline(facts) is not None and not (has_sink(facts) or loud or long):
        yield "nothing-to-do", "No token needs special treatment in a cache, in quantisation or in statistics on account of sinks."


def _sample(case: Case) -> Saying:
    many, sink = case.facts["sequences"], headline(case.facts)
    if case.kind in SYNTHETIC:
        yield "no-natural-text", "Only random or repeated tokens were measured: measure text before saying what the model does."
    if many == 1:
        yield "single-sequence", "One sequence is no sample: there is no interval, and another text can differ."
    elif many < FEW_SEQUENCES:
        yield "few-sequences", f"{many} sequences are few; the paper takes 100."
    if sink is not None and sink["low"] is not None and sink["high"] - sink["low"] > WIDE:
        width = f"{sink['high'] - sink['low']:.0f}"
        yield "wide-interval", f"The interval is {width} points wide: measure more sequences before comparing models."


def _length(case: Case) -> Saying:
    length = case.facts["length"]
    if length < paper.LENGTH:
        uniform = sum(1 / i for i in range(1, length + 1)) / length
        text = f"At {length} tokens uniform attention alone gives the first one {uniform:.2f}; at 64 it is 0.07. Longer texts say more."
        yield "short-text", text
    elif length > paper.LENGTH:
        text = f"The paper's table is at 64 tokens, and percentages fall with length: those at {length} are not comparable with it."
        yield "other-length", text


def _unseen(case: Case) -> Saying:
    unknown = [s for s in case.facts["sinks"] if s["percent"] is None and s["position"] > 0 and s["queries"] < LEAST_QUERIES]
    if unknown:
        parts = [f"position {position} (by {many})" for position, many in {s["position"]: s["queries"] for s in unknown}.items()]
        yield "few-queries", f"Too few queries see {listed(parts)}: under {LEAST_QUERIES} a mean says little, and nothing is called a sink."


def _model(case: Case) -> Saying:
    layers, attending, settings = case.facts["layers"], case.facts["attending_layers"], case.entry["settings"]
    if attending < layers:
        text = f"Percentages are over the {attending} of {layers} layers that have softmax attention"
        yield "some-layers", f"{text}; the others cannot have this kind of sink."
    if any(sink["proxy"] for sink in case.facts["sinks"]):
        yield "proxy-weights", "The weights are not softmax's; they were normalised for the comparison, as the paper's starred numbers are."
    about = " ".join([case.entry["model"], *case.entry["notes"]])
    if quantised := re.search(r"(?:(\d+)-bit|\bquantised) weights", about):
        bits = f"{quantised[1]}-bit" if quantised[1] else "quantised"
        yield "quantised-weights", f"These are {bits} weights: the numbers are this checkpoint's; at full precision they may differ."
    if re.search(r"instruct|\bchat\b|-it\b", about, re.IGNORECASE):
        text = "An instruct or chat model: in the paper these differ from their base models by less than one point (Mistral-7B by nine)."
        yield "instruct-model", text
    if precision := re.search(r"\b(bfloat16|float16|bf16|fp16)\b", str(settings.get("dtype", ""))):
        yield "low-precision", f"Computed in {precision[1]}: heads near the threshold may be on its other side in float32."


ADVICE: tuple[Callable[[Case], Saying], ...] = (_cache, _quantisation, _statistics, _nothing)
CAUTIONS: tuple[Callable[[Case], Saying], ...] = (_sample, _length, _unseen, _model)
