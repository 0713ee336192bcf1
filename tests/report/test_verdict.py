"""Verdicts: every sentence can occur, says what the numbers say, and is not there when they do not."""

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from synthetic import entry, made, three, with_norms

from sinklab.report import paper, words
from sinklab.report.summary import Asked
from sinklab.report.verdict import CODES, of_kind, verdict


def edited(change=None, results=None, **more):
    """An entry whose main input's numbers are changed after the fact."""
    found = entry(results or three(), **more)
    change(found["inputs"][words.Case.of(found).main])
    return found


def first(value, **more):
    """The headline percentage set to a value."""

    def change(facts):
        facts["sinks"][0] |= {"percent": value, "low": value - 1, "high": min(100, value + 1)} | more

    return edited(change)


def other(name, value):
    found = entry(three())
    found["inputs"][name]["sinks"][0] |= {"percent": value, "low": value, "high": value}
    return found


def with_facts(**more):
    return edited(lambda facts: facts.update(more))


def same_first_token():
    result = made()
    result.tokens[:, 0] = 7
    return {"natural": replace(result, texts=tuple(("<s>", *row[1:]) for row in result.texts))}


def quiet():
    return entry({"natural": with_norms(made(0.05), long=1.1, massive=False)})


PLACE = {"position": 9, "percent": 12.0, "heads_percent": 20.0, "first_layer": 1, "last_layer": 2}
TOKEN = {"token": 4, "percent": 30.0, "heads_percent": 20.0, "first_layer": 2, "last_layer": 2, "examples": [" the"]}
VALUES = {"ratio": 0.1, "small_percent": 90.0, "of": "norm.output"}

OCCURS = {
    "sink-strong": lambda: first(67.8),
    "sink-clear": lambda: first(31),
    "sink-faint": lambda: first(4),
    "no-sink": lambda: first(0.4, low=0.1),
    "sink-as-asked": lambda: entry(asked=Asked(positions=(1, 2))),
    "paper-within": lambda: first(92),
    "paper-below": lambda: first(67.8),
    "paper-above": lambda: first(99.5),
    "virtual-sink": lambda: with_facts(virtual=33.0),
    "gate-suppresses": lambda: with_facts(gate_suppressed=40.0),
    "first-token-varies": lambda: entry(three()),
    "first-token-constant": lambda: entry(same_first_token()),
    "random-keeps": lambda: other("random", 40),
    "random-weakens": lambda: other("random", 20),
    "repeat-vanishes": lambda: other("repeat", 0),
    "repeat-weakens": lambda: other("repeat", 20),
    "repeat-keeps": lambda: other("repeat", 40),
    "repeat-all-massive": lambda: entry(three()),
    "depth": lambda: entry(three()),
    "other-sinks": lambda: with_facts(other_positions=[PLACE]),
    "only-first": lambda: entry(three()),
    "massive-activations": lambda: entry(three()),
    "no-massive-activations": lambda: with_facts(massive_activations=[]),
    "long-first-state": lambda: entry(three()),
    "values-no-op": lambda: entry(three()),
    "values-between": lambda: with_facts(value_norm_ratio=VALUES | {"ratio": 0.6}),
    "values-carry": lambda: with_facts(value_norm_ratio=VALUES | {"ratio": 1.1}),
    "length-trend": lambda: entry({"natural": made(), "natural@128": made(0.2, length=128)}),
    "epsilon-trend": lambda: entry(asked=Asked(epsilons=(0.2, 0.3))),
    "keep-first-token": lambda: first(31),
    "virtual-needs-no-token": lambda: with_facts(virtual=33.0),
    "quantise-with-care": lambda: entry(three()),
    "sink-is-not-damage": lambda: entry(three()),
    "exclude-from-statistics": lambda: entry(three()),
    "nothing-to-do": quiet,
    "no-natural-text": lambda: entry({"random": made()}),
    "single-sequence": lambda: entry({"natural": made(sequences=1)}),
    "few-sequences": lambda: entry({"natural": made(sequences=29)}),
    "wide-interval": lambda: first(50, low=40, high=60),
    "short-text": lambda: entry({"natural": made(length=32)}),
    "other-length": lambda: entry({"natural": made(length=128)}),
    "few-queries": lambda: entry(asked=Asked(positions=(1, 60))),
    "some-layers": lambda: with_facts(attending_layers=2),
    "proxy-weights": lambda: first(50, proxy=True),
    "quantised-weights": lambda: entry(settings={"notes": ["4-bit weights (Q4_1), dequantised"]}),
    "instruct-model": lambda: entry(model="google/gemma-3-4b-it"),
    "low-precision": lambda: entry(settings={"dtype": "bfloat16"}),
}
ABSENT = {
    "sink-strong": [lambda: first(49), quiet],
    "sink-clear": [lambda: first(50), lambda: first(9)],
    "sink-faint": [lambda: first(0.9), lambda: first(10)],
    "no-sink": [lambda: first(1)],
    "sink-as-asked": [entry],
    "paper-within": [lambda: entry({"natural": made(length=128)})],
    "paper-below": [lambda: entry(asked=Asked(epsilons=(0.2,)))],
    "paper-above": [lambda: first(92)],
    "virtual-sink": [entry],
    "gate-suppresses": [entry],
    "first-token-varies": [lambda: entry(same_first_token()), lambda: first(0.5)],
    "first-token-constant": [entry, lambda: entry({"natural": made(sequences=1)})],
    "random-keeps": [entry, lambda: first(0.5)],
    "random-weakens": [entry, lambda: other("random", 40)],
    "repeat-vanishes": [entry, lambda: other("repeat", 6), lambda: first(0.5)],
    "repeat-weakens": [lambda: other("repeat", 30)],
    "repeat-keeps": [lambda: other("repeat", 20)],
    "repeat-all-massive": [entry, lambda: entry({"natural": three()["natural"], "repeat": made(0.05)})],
    "depth": [quiet],
    "other-sinks": [entry],
    "only-first": [lambda: with_facts(other_tokens=[TOKEN]), quiet],
    "massive-activations": [entry, lambda: with_facts(massive_activations=[])],
    "no-massive-activations": [entry, lambda: entry(three())],
    "long-first-state": [entry, quiet],
    "values-no-op": [entry, quiet],
    "values-between": [lambda: entry(three())],
    "values-carry": [lambda: entry(three())],
    "length-trend": [lambda: entry(three())],
    "epsilon-trend": [entry],
    "keep-first-token": [lambda: first(9)],
    "virtual-needs-no-token": [entry],
    "quantise-with-care": [quiet, entry],
    "sink-is-not-damage": [quiet, entry],
    "exclude-from-statistics": [quiet, entry],
    "nothing-to-do": [entry, lambda: first(0.5)],
    "no-natural-text": [entry, lambda: entry({"prompt": made()})],
    "single-sequence": [entry],
    "few-sequences": [entry, lambda: entry({"natural": made(sequences=1)})],
    "wide-interval": [entry],
    "short-text": [entry],
    "other-length": [entry],
    "few-queries": [entry, lambda: entry(asked=Asked(("tail_window",), positions=(60,)))],
    "some-layers": [entry],
    "proxy-weights": [entry],
    "quantised-weights": [entry],
    "instruct-model": [entry, lambda: entry(model="kitchen/switch-8b", settings={"chat_template": "chat"})],
    "low-precision": [entry],
}


def codes(found):
    return [one["code"] for one in verdict(found)]


def text(found, code):
    return next(one["text"] for one in verdict(found) if one["code"] == code)


@cache
def occurring(code):
    return OCCURS[code]()


def test_every_code_is_tried_both_ways():
    assert set(OCCURS) == set(CODES) == set(ABSENT)


@pytest.mark.parametrize("code", CODES)
def test_every_code_can_occur(code):
    assert code in codes(occurring(code))


@pytest.mark.parametrize("code", CODES)
def test_every_code_can_be_absent(code):
    for make in ABSENT[code]:
        assert code not in codes(make())


@pytest.mark.parametrize("code", CODES)
def test_sentences_are_sentences(code):
    for one in verdict(occurring(code)):
        assert one["code"] in CODES
        assert one["text"][0].isupper() or one["text"][0].isdigit()
        assert one["text"].endswith((".", ")."))
        assert not any(word in one["text"] for word in ("None", "nan", "inf ", "{", "}", "  "))


def test_codes_are_kebab_case_of_three_kinds_and_said_once():
    assert {code.kind for code in CODES.values()} == {"found", "so-what", "caution"}
    for code in OCCURS:
        said = codes(occurring(code))
        assert len(said) == len(set(said))
        kinds = [CODES[one].kind for one in said]
        assert kinds == sorted(kinds, key=["found", "so-what", "caution"].index)
    assert len(of_kind(verdict(entry(three())), "so-what")) == 4


def test_the_verdict_is_made_of_the_entry_alone():
    found = entry(three())
    before = copy.deepcopy(found)
    assert verdict(found) == found["verdict"]
    assert found == before


def test_the_numbers_are_in_the_sentences():
    found = entry(three())
    assert "50.0 %" in text(found, "sink-strong")
    assert "40 sequences of 64 tokens and all 4 layers" in text(found, "sink-strong")
    assert "dimension 7" in text(found, "massive-activations")
    assert "-6,000, 2,500 times" in text(found, "massive-activations")
    assert "enters layer 2 to the last state" in text(found, "massive-activations")
    assert "up to 200 times" in text(found, "long-first-state")
    assert "0.1 times as long" in text(found, "values-no-op")
    assert "layers 0–3" in text(found, "depth")
    assert "77.0 % (GPT2-XL) to 99.0 % (LLaMA3-8B)" in text(found, "paper-below")
    assert "60 (by 5)" in text(entry(asked=Asked(positions=(1, 60))), "few-queries")
    assert "2 of 4 layers" in text(with_facts(attending_layers=2), "some-layers")
    assert "0.13" in text(entry({"natural": made(length=32)}), "short-text")


def test_the_interval_is_said_where_there_is_one():
    assert "67.8 % (66.8 to 68.8)" in text(first(67.8), "sink-strong")
    assert "0 % of the heads" in text(first(0, low=0, high=0), "no-sink")
    assert "under 0.1 % (0.0 to 0.1)" in text(first(0.02, low=0.0, high=0.1), "no-sink")
    assert "100 %" in text(first(100, low=100, high=100), "sink-strong")


def test_a_learned_sink_takes_the_place_of_the_first_tokens():
    result = made(0.05)
    result.numbers["virtual"][:] = 0.5
    found = entry({"natural": result})
    assert "learned sink takes that part" in text(found, "no-sink")
    assert "50.0 % of their attention" in text(found, "virtual-sink")
    assert "100 % of them give it more than 0.3" in text(found, "virtual-sink")
    assert "nothing-to-do" not in codes(found)


def test_a_learned_sink_that_gets_what_any_key_gets_takes_nobodys_place():
    """Uniform attention over 64 tokens gives a key 7 %."""
    result = made(0.05)
    result.numbers["virtual"][:] = 0.07
    assert "takes that part" not in text(entry({"natural": result}), "no-sink")


def test_other_sinks_are_named_by_their_token():
    two = with_facts(other_tokens=[TOKEN, TOKEN | {"examples": ["\n"], "token": 5}])
    assert "“ the” (then “⏎”): in 30 % of the sequences, for 20 % of the heads there, in layer 2." in text(two, "other-sinks")
    assert "number 4" in text(with_facts(other_tokens=[TOKEN | {"examples": []}]), "other-sinks")
    assert "position 9" in text(with_facts(other_positions=[PLACE]), "other-sinks")
    assert "named above" in text(two, "keep-first-token")


def test_tokens_in_sentences_hide_nothing():
    results = same_first_token()
    hostile = replace(results["natural"], texts=tuple(("\u202e<b>\x1b[31m", *row[1:]) for row in results["natural"].texts))
    assert "“⟨U+202E⟩<b>␛[31m”" in text(entry({"natural": hostile}), "first-token-constant")


def test_natural_text_is_spoken_of_first_and_other_text_before_synthetic_tokens():
    assert words.Case.of(entry({"repeat": made(), "random": made(), "natural": made()})).main == "natural"
    assert words.Case.of(entry({"repeat": made(), "prompt": made()})).main == "prompt"
    assert words.Case.of(entry({"natural@512": made(), "random@512": made()})).kind == "natural"
    assert verdict({"inputs": {}}) == []


def test_inputs_are_compared_at_the_same_length_only():
    found = entry({"natural": made(), "repeat@128": made(0.05, length=128)})
    assert "repeat-vanishes" not in codes(found)
    assert "repeat-vanishes" in codes(entry({"natural@128": made(length=128), "repeat@128": made(0.05, length=128)}))


def test_the_papers_numbers():
    assert paper.peers("natural", 64)["LLaMA3-8B"] == 99.02
    assert paper.peers("repeat", 64)["GPT2-XL"] == 62.28
    assert paper.peers("natural", 128) == paper.peers("prompt", 64) == {}


def test_any_numbers_make_a_verdict():
    random = np.random.default_rng(0)
    for _ in range(50):
        results = {
            name: with_norms(made(random.random(), sequences=3, seed=1), long=10 ** random.uniform(-2, 4), value=random.random()) for name in three()
        }
        assert verdict(entry(results))
