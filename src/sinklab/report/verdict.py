"""From numbers to sentences: does this model have attention sinks, where, what are they like, so what, and how far can that be trusted.

Everything is made of one entry of summary.json, so it can be said again at any time. A sentence has a code that stays the
same, for programs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinklab.report.advice import ADVICE, CAUTIONS
from sinklab.report.findings import FINDINGS
from sinklab.report.words import Case


@dataclass(frozen=True)
class Code:
    """What kind of sentence it is (`found`, `so-what` or `caution`), and what it says."""

    kind: str
    says: str


CODES: Mapping[str, Code] = {
    "sink-strong": Code("found", "half of the heads or more use the first token as a sink"),
    "sink-clear": Code("found", "a tenth to a half of them do"),
    "sink-faint": Code("found", "a hundredth to a tenth of them do"),
    "no-sink": Code("found", "fewer than a hundredth do, which is a valid result"),
    "sink-as-asked": Code("found", "the percentage at other positions or under other definitions that were asked for"),
    "paper-within": Code("found", "inside of the range of the paper's Table 1"),
    "paper-below": Code("found", "below that range"),
    "paper-above": Code("found", "above that range"),
    "virtual-sink": Code("found", "mass on a learned sink, which no token holds"),
    "gate-suppresses": Code("found", "an output gate takes part of what heads write away"),
    "first-token-varies": Code("found", "the sink is a place: it is there whatever token comes first"),
    "first-token-constant": Code("found", "every sequence begins with the same token, so place and token are not told apart"),
    "random-keeps": Code("found", "random tokens have at least half of the sink"),
    "random-weakens": Code("found", "they have less than half of it"),
    "repeat-vanishes": Code("found", "one token repeated has less than a tenth of it: identical tokens cannot be told apart"),
    "repeat-weakens": Code("found", "one token repeated has less than half of it"),
    "repeat-keeps": Code("found", "one token repeated has at least half of it: places are told apart without content"),
    "repeat-all-massive": Code("found", "with one token repeated every hidden state is as long as the first one's on text"),
    "depth": Code("found", "the layers in which the sinks are"),
    "other-sinks": Code("found", "there are sinks on other tokens or places too"),
    "only-first": Code("found", "there are none in as many as a twentieth of the sequences"),
    "massive-activations": Code("found", "which activations are massive, where, and between which layers"),
    "no-massive-activations": Code("found", "none is"),
    "long-first-state": Code("found", "the first hidden state is ten times as long as the others or more"),
    "values-no-op": Code("found", "the sink writes less than half of what other tokens do: a place to do nothing"),
    "values-between": Code("found", "it writes less, but not nothing"),
    "values-carry": Code("found", "it writes about as much as others: it carries something"),
    "length-trend": Code("found", "how the percentage changes with the length of the text"),
    "epsilon-trend": Code("found", "how it changes with the threshold"),
    "keep-first-token": Code("so-what", "keep the first token in a cache that evicts or slides"),
    "virtual-needs-no-token": Code("so-what", "a learned sink needs no token to be kept"),
    "quantise-with-care": Code("so-what", "massive activations stretch the scale of a whole tensor"),
    "sink-is-not-damage": Code("so-what", "the percentage of sinks does not predict quantisation damage"),
    "exclude-from-statistics": Code("so-what", "leave the first token out of activation statistics and SAE training"),
    "nothing-to-do": Code("so-what", "no sink, no special treatment"),
    "no-natural-text": Code("caution", "only random or repeated tokens were measured"),
    "single-sequence": Code("caution", "one sequence has no interval"),
    "few-sequences": Code("caution", "fewer than 30 sequences"),
    "wide-interval": Code("caution", "the interval is wider than 10 points"),
    "short-text": Code("caution", "shorter than 64 tokens: uniform attention already gives the first token much"),
    "other-length": Code("caution", "longer than 64 tokens, so not comparable with the paper's table"),
    "few-queries": Code("caution", "a position that fewer than 16 queries can see is not called a sink"),
    "some-layers": Code("caution", "some layers have no softmax attention and are not counted"),
    "proxy-weights": Code("caution", "the weights are not softmax's and were normalised for the comparison"),
    "quantised-weights": Code("caution", "the weights are quantised"),
    "instruct-model": Code("caution", "an instruct or chat model, not a base model"),
    "low-precision": Code("caution", "computed in 16 bits"),
}


def verdict(entry: Mapping[str, Any]) -> list[dict[str, str]]:
    """Sentences about one model, the most important first: what was found, what to do about it, how far to trust it."""
    if not entry["inputs"]:
        return []
    case = Case.of(entry)
    return [{"code": code, "text": text} for tell in (*FINDINGS, *ADVICE, *CAUTIONS) for code, text in tell(case)]


def of_kind(said: list[dict[str, str]], kind: str) -> list[str]:
    """The sentences of one kind."""
    return [one["text"] for one in said if CODES[one["code"]].kind == kind]
