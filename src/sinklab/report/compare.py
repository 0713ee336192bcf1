"""Several models on one page: the paper's Table 1 and Fig. 4 (left) for the models at hand. Made from summaries, without their rows."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from sinklab.report import canvas
from sinklab.report.markup import Html, join, prose, table, tag
from sinklab.report.page import NAME, document
from sinklab.report.page_numbers import percentage, scaled, strip
from sinklab.report.plain import plain
from sinklab.report.verdict import of_kind
from sinklab.report.words import Case, headline

Entry = Mapping[str, Any]


def write_comparison(folder: Path, entries: Sequence[Entry], pages: Sequence[Path]) -> Path:
    """Write report.html about several entries of summary.json, with links to the page of each."""
    path = Path(folder) / NAME
    links = ["./" + quote(Path(os.path.relpath(page, folder)).as_posix()) for page in pages]
    temporary = path.with_name(f".{NAME}.tmp")
    temporary.write_text(comparison(entries, links), encoding="utf-8")
    temporary.replace(path)
    return path


def comparison(entries: Sequence[Entry], links: Sequence[str]) -> Html:
    """The page."""
    title = f"Attention sinks of {len(entries)} models"
    header = tag("header", tag("p", "sinklab · attention sinks", class_="eyebrow"), tag("h1", title))
    body = [_by_input(entries, name) for name in _inputs(entries)]
    said = tag("section", tag("h2", "Model by model"), tag("div", *map(_said, entries, links), class_="grid wide"))
    return document(title, [header, tag("main", *body, _table(entries), _depth(entries), said), tag("footer")])


def depths(entries: Sequence[Entry]) -> Figure | None:
    """Where in depth the sinks of each model are: percent of the heads, over the layers from the first to the last."""
    known = [(entry["model"], Case.of(entry).facts["by_layer"]["sink_percent"]) for entry in entries]
    with mpl.rc_context(canvas.STYLE):
        figure, axes = canvas.panel("Heads that sink, from the first layer to the last", height=canvas.HEIGHT + 0.2)
        for i, (name, line) in enumerate(known):
            shares = np.array([np.nan if share is None else share for share in line], float)
            colour = (*canvas.KINDS.values(), *canvas.MORE)[i % 7]
            stroke = list(canvas.STROKES.values())[i // 7 % 3]
            axes.plot(np.linspace(0, 100, len(shares)), shares, color=colour, linestyle=stroke, label=canvas.drawable(name))
        axes.set(xlabel="depth (%)", ylabel="heads that sink (%)", ylim=(-3, 103))
        canvas.name_lines(axes)
    return figure


def _inputs(entries: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(name for entry in entries for name in entry["inputs"]))


def _by_input(entries: Sequence[Entry], name: str) -> Html:
    some = {i: entry["inputs"][name] for i, entry in enumerate(entries) if name in entry["inputs"]}
    rows = [strip(plain(entries[i]["model"], 60), name, facts) for i, facts in some.items()]
    return (
        tag("section", tag("h2", f"{plain(name, 40)} input"), scaled(rows, {name: next(iter(some.values()))}), class_="many")
        if any(rows)
        else Html("")
    )


def _table(entries: Sequence[Entry]) -> Html:
    names = _inputs(entries)
    rows = [[plain(entry["model"], 80), *(_cell(entry["inputs"].get(name)) for name in names)] for entry in entries]
    shown = table(["model", *(plain(name, 30) for name in names)], rows, "Percentage of the heads, each with its 95 % interval over sequences")
    return tag("section", tag("h2", "The numbers"), tag("div", shown, class_="card"))


def _cell(facts: Entry | None) -> Html:
    sink = None if facts is None else headline(facts)
    return Html("") if sink is None else percentage(sink)


def _depth(entries: Sequence[Entry]) -> Html:
    figure = depths(entries)
    if figure is None:
        return Html("")
    return tag(
        "section",
        tag("h2", "In depth"),
        tag("div", tag("figure", Html(canvas.inline(figure, depths.__doc__ or "")), class_="card"), class_="grid wide"),
    )


def _said(entry: Entry, link: str) -> Html:
    found = of_kind(entry["verdict"], "found")[:1]
    heading = tag("h3", tag("a", plain(entry["model"], 80), href=link))
    return tag("div", heading, *(tag("p", prose(one)) for one in found), class_="card") if found else join([heading])
