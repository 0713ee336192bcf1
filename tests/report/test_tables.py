"""Tables on a terminal: nothing is cut, nothing is coloured by strangers, nothing is named that cannot be known."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from synthetic import entry, made, three, with_norms

from sinklab.probe.definitions import ALL
from sinklab.probe.doctor import Line
from sinklab.report.summary import Asked
from sinklab.report.tables import across, checks, in_detail, spoken, tables

HOSTILE = "x/[red]y[/red]\x1b[31m\u202ez"


def printed(*things, width=120, terminal=False):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system="standard" if terminal else None, highlight=False)
    for thing in things:
        console.print(thing)
    return file.getvalue()


def many():
    results = {name: with_norms(made(sequences=20, seed=i)) for i, name in enumerate(("natural", "random", "repeat", "natural@128"))}
    return entry(results, Asked(tuple(ALL), (0.2, 0.3), (1, 2, 0, 60)))


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_terminal_and_no_number_is_cut(width):
    found = many()
    text = printed(*tables([found, entry(three(), model="meta-llama/Meta-Llama-3.1-8B-Instruct")]), spoken(found["verdict"]), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "50.0" in text
    assert "\x1b" not in text
    assert all(name in text for name in ALL)
    assert not any(line.strip() in {"%", ")"} for line in text.splitlines())


def test_models_stand_down_and_inputs_across():
    text = printed(across([entry(three(), model="base"), entry({"natural": made(0.05)}, model="chat")]))
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip().startswith(("base", "chat", "model"))}
    assert lines["model"] == ["layers", "natural", "random", "repeat"]
    assert lines["base"] == ["4", "50.0", "50.0", "0.0"]
    assert lines["chat"] == ["4", "0.0"]
    assert "alpha above 0.3" in text
    assert "40 sequences of 64 tokens" in text


def test_the_interval_stands_beside_the_number():
    found = entry()
    found["inputs"]["natural"]["sinks"][0] |= {"percent": 67.83, "low": 66.13, "high": 69.5}
    assert "67.8 66.1–69.5" in printed(across([found]))
    found["inputs"]["natural"]["sinks"][0] |= {"low": None, "high": None, "proxy": True}
    assert "67.8* " in printed(across([found]))


def test_what_few_queries_see_is_a_dash_that_says_how_many():
    text = printed(in_detail(entry(asked=Asked(positions=(1, 60, 100)))))
    assert "- seen by 5 queries" in text
    assert "- seen by 0 queries" in text
    assert "- seen by 5 queries" in printed(across([entry({"natural": made(length=5)})]))


def test_layers_without_attention_are_counted_out():
    found = entry()
    found["inputs"]["natural"]["attending_layers"] = 2
    assert "2 of 4" in printed(across([found]))


def test_definitions_stand_in_one_table_with_their_own_thresholds():
    lines = [line.split() for line in printed(in_detail(many())).splitlines()]
    assert ["mass>0.5", "1", "0.5"] in [line[:3] for line in lines]
    assert ["bos_score", "1", "mean"] in [line[:3] for line in lines]
    assert ["gu2024", "virtual", "0.2"] in [line[:3] for line in lines]
    assert any("×" in word for line in lines if line[:1] == ["tail_window"] for word in line)


def test_a_second_table_comes_only_where_more_was_asked():
    assert len(list(tables([entry(three())]))) == 1
    assert len(list(tables([entry(three()), many()]))) == 2
    assert len(list(tables([entry(asked=Asked(("bos_score",)))]))) == 2
    assert "not asked" in printed(across([entry(asked=Asked(("bos_score",)))]))


def test_names_from_outside_are_shown_as_they_are_and_control_nothing():
    results = {HOSTILE: replace(made(), input=HOSTILE)}
    found = entry(results, Asked(positions=(1, 2)), model=HOSTILE)
    text = printed(*tables([found]), spoken(found["verdict"]), checks(HOSTILE, []), width=160)
    assert text.count("x/[red]y[/red]␛[31m⟨U+202E⟩z") >= 3
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_verdict_is_said_in_three_parts_and_in_full():
    found = entry(three(), settings={"notes": ["4-bit weights"]})
    text = printed(spoken(found["verdict"]), width=100)
    assert text.index("The first token is a strong") < text.index("\nSo what") < text.index("\nKeep in mind")
    words = text.replace("\n", " ").replace("\u00a0", " ").split()
    for one in found["verdict"]:
        assert " ".join(one["text"].split()) in " ".join(word for word in words if word != "·")


def test_checks_pass_fail_or_say_why_not():
    lines = [Line("same logits", True, 1.2e-7, 1e-4), Line("alpha", False, 0.5, 1e-4), Line("padding", None, None, None, "no padding here")]
    text = [line.split() for line in printed(checks("m", lines)).splitlines()]
    assert ["pass", "same", "logits", "1.2e-07", "1.0e-04"] in text
    assert ["FAIL", "alpha", "5.0e-01", "1.0e-04"] in text
    assert ["skip", "padding:", "no", "padding", "here"] in text


def test_strong_sinks_are_coloured_on_a_terminal():
    assert "\x1b[1;35m50.0" in printed(across([entry()]), terminal=True)
