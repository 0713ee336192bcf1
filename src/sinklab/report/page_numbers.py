"""The numbers of a page: where a model stands beside the paper's, and every percentage that was asked for."""

from collections.abc import Mapping
from typing import Any

from sinklab.probe.definitions import LEAST_QUERIES
from sinklab.report import paper
from sinklab.report.markup import Html, join, prose, table, tag
from sinklab.report.plain import plain
from sinklab.report.words import base, headline, percent

Entry = Mapping[str, Any]


def strips(entry: Entry) -> Html:
    """A line from 0 to 100 % for every input, with this model and the paper's on it."""
    rows = [strip(plain(name, 30), name, facts) for name, facts in entry["inputs"].items()]
    return tag("section", tag("h2", "Heads that use the first token as a sink"), scaled(rows, entry["inputs"])) if any(rows) else Html("")


def scaled(rows: list[Html], inputs: Mapping[str, Entry]) -> Html:
    """Lines with their scale and key."""
    numbers = tag("div", tag("span", "0"), tag("span", "50"), tag("span", "100 %"), class_="scale")
    peers = any(paper.peers(base(name), facts["length"]) for name, facts in inputs.items())
    key = [tag("i", class_="own"), "measured, with its 95 % interval over sequences"]
    key += [" · ", tag("i", class_="peer"), f"models of the paper ({paper.CITATION})"] if peers else []
    return tag("div", *rows, tag("div", tag("span"), numbers, class_="strip", aria_hidden="true"), tag("p", *key, class_="note key"), class_="card")


def strip(label: str, name: str, facts: Entry) -> Html:
    """One line; nothing where the percentage is not known."""
    sink = headline(facts)
    if sink is None:
        return Html("")
    peers = paper.peers(base(name), facts["length"]) if sink["epsilon"] == paper.EPSILON else {}
    marks = [tag("i", class_="peer", style=f"left:{value:.2f}%", title=f"{peer}: {value:.1f} %") for peer, value in peers.items()]
    if sink["low"] is not None:
        marks.append(tag("i", class_="range", style=f"left:{sink['low']:.2f}%;width:{sink['high'] - sink['low']:.2f}%"))
    marks.append(tag("i", class_="own", style=f"left:{sink['percent']:.2f}%", title=f"{sink['percent']:.1f} %"))
    said = f"{label}: {percent(sink['percent'])}" + "".join(f"; {peer} {value:.1f} %" for peer, value in peers.items())
    number = [tag("b", prose(percent(sink["percent"]))), tag("small", _interval(sink))]
    track = tag("div", *marks, class_="track", role="img", aria_label=said)
    return tag("div", tag("span", label, class_="name"), track, tag("span", *number, class_="value"), class_="strip")


def numbers(entry: Entry) -> Html:
    """Every definition, position and threshold that was asked for, by input."""
    inputs = entry["inputs"]
    keys = dict.fromkeys((s["definition"], s["position"], s["epsilon"]) for facts in inputs.values() for s in facts["sinks"])
    rows: list[list[Any]] = [[_label(*key), *(_found(facts, key) for facts in inputs.values())] for key in keys]
    for name, key in (("sequences", "sequences"), ("tokens of each", "length"), ("loss (nats)", "loss")):
        cells = [facts[key] for facts in inputs.values()]
        rows.append([tag("span", name, class_="plain"), *("" if x is None else f"{x:.2f}" if key == "loss" else f"{x:,}" for x in cells)])
    caption = "Percentages, each with its 95 % interval over sequences"
    shown = table(["", *(plain(name, 30) for name in inputs)], rows, caption)
    return tag("section", tag("h2", "The numbers"), tag("div", shown, class_="card"))


def _label(definition: str, position: int, epsilon: float | None) -> Html:
    where = "virtual sink" if position == 0 else f"position {position}"
    how = "mean mass" if epsilon is None else f"above {epsilon:g}"
    return join([definition, tag("small", f" {where}, {how}")])


def _found(facts: Entry, key: tuple[str, int, float | None]) -> Html:
    sinks = [s for s in facts["sinks"] if (s["definition"], s["position"], s["epsilon"]) == key]
    return percentage(sinks[0]) if sinks else Html("")


def percentage(sink: Entry) -> Html:
    """67.8 66.1–69.5, or how many queries could see the position."""
    if sink["percent"] is None:
        few = f" seen by {sink['queries']} queries" if sink["queries"] < LEAST_QUERIES else ""
        return join(["–", tag("small", few)])
    boost = f" ×{sink['boost']:.1f}" if sink.get("boost") is not None else ""
    return join([f"{sink['percent']:.1f}{'*' if sink['proxy'] else ''}", tag("small", _interval(sink) + boost)])


def _interval(sink: Entry) -> str:
    return f" {sink['low']:.1f}–{sink['high']:.1f}" if sink["low"] is not None and sink["high"] > sink["low"] else ""
