"""What is printed: several models beside each other, one model in detail, and the verdict. Colours only where a terminal has them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sinklab.probe.definitions import LEAST_QUERIES
from sinklab.report.plain import plain
from sinklab.report.verdict import CODES
from sinklab.report.words import CLEAR, STRONG, headline, unbroken

if TYPE_CHECKING:
    from sinklab.probe.doctor import Line

Entry = Mapping[str, Any]
KINDS = {"found": "", "so-what": "So what", "caution": "Keep in mind"}


def tables(entries: Sequence[Entry]) -> Iterator[RenderableType]:
    """The table of all models, then each model's own where more was asked than that shows."""
    yield across(entries)
    for entry in entries:
        if any(len(facts["sinks"]) > 1 or headline(facts) is None for facts in entry["inputs"].values()):
            yield in_detail(entry)


def across(entries: Sequence[Entry]) -> RenderableType:
    """The paper's Table 1: models down, inputs across, the headline percentage and its interval in each cell."""
    inputs = list(dict.fromkeys(name for entry in entries for name in entry["inputs"]))
    epsilons = {sink["epsilon"] for entry in entries for facts in entry["inputs"].values() if (sink := headline(facts))}
    above = f"alpha above {epsilons.pop():g}" if len(epsilons) == 1 else "alpha above its threshold"
    table = _table()
    table.add_column("model", overflow="fold")
    table.add_column("layers", justify="right")
    for name in inputs:
        table.add_column(_head(name), justify="right", overflow="fold")
    for entry in entries:
        facts = next(iter(entry["inputs"].values()))
        layers = (
            f"{facts['attending_layers']}" if facts["attending_layers"] == facts["layers"] else f"{facts['attending_layers']} of {facts['layers']}"
        )
        cells = [_headline_cell(entry["inputs"].get(name)) for name in inputs]
        table.add_row(Text(plain(entry["model"], 60)), layers, *cells)
    title = f"Sinks on the first token: % of heads with {above} (gu2024)"
    return _titled(title, table, _sizes([facts for entry in entries for facts in entry["inputs"].values()]))


def in_detail(entry: Entry) -> RenderableType:
    """One model: every definition, position and threshold that was asked for, by input."""
    rows: dict[tuple[str, int, float | None], dict[str, Entry]] = {}
    for name, facts in entry["inputs"].items():
        for sink in facts["sinks"]:
            rows.setdefault((sink["definition"], sink["position"], sink["epsilon"]), {})[name] = sink
    table = _table()
    table.add_column("definition", no_wrap=True)
    table.add_column("pos.", justify="right", no_wrap=True)
    table.add_column("above", justify="right", no_wrap=True)
    for name in entry["inputs"]:
        table.add_column(_head(name), justify="right", overflow="fold")
    before = None
    for (definition, position, epsilon), by_input in rows.items():
        if before not in {None, definition}:
            table.add_section()
        cells = [_cell(by_input.get(name)) for name in entry["inputs"]]
        table.add_row(definition, "virtual" if position == 0 else str(position), "mean" if epsilon is None else f"{epsilon:g}", *cells)
        before = definition
    return _titled(f"{plain(entry['model'], 60)}: % by definition", table)


def spoken(said: Sequence[Mapping[str, str]]) -> RenderableType:
    """The verdict, the headline first, then what to do and what to mind."""
    parts: list[RenderableType] = []
    for kind, title in KINDS.items():
        sentences = [unbroken(plain(one["text"], 2000)) for one in said if CODES[one["code"]].kind == kind]
        if sentences and title:
            parts.append(Text(title, style="bold"))
        for i, sentence in enumerate(sentences):
            first = kind == "found" and i == 0
            parts.append(Text(sentence, style="bold") if first else _bullet(sentence))
    return Group(*parts)


def _bullet(sentence: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(overflow="fold")
    grid.add_row("·", Text(sentence))
    return Padding(grid, (0, 0, 0, 1))


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def _head(name: str) -> Text:
    """An input's name, its length on a line of its own."""
    kind, at, length = plain(name, 30).partition("@")
    return Text(f"{kind}\n@{length}" if at else kind)


def _titled(title: str, table: Table, caption: str = "") -> RenderableType:
    """A title and a caption as wide as the terminal: a table's own are as narrow as the table."""
    return Group(Text(title, style="bold"), table, Text(caption, style="dim"))


def _headline_cell(facts: Entry | None) -> Text:
    if facts is None:
        return Text("")
    sink = headline(facts)
    if sink is not None:
        return _cell(sink)
    unknown = [s for s in facts["sinks"] if (s["definition"], s["position"]) == ("gu2024", 1)]
    return _cell(unknown[0]) if unknown else Text("not asked", style="dim")


def _cell(sink: Entry | None) -> Text:
    """67.8 66.1–69.5, or `-` and how many queries could see the position."""
    if sink is None:
        return Text("")
    if sink["percent"] is None:
        few = sink["queries"] < LEAST_QUERIES
        return Text.assemble("-", (f" seen by {sink['queries']} queries" if few else "", "dim"))
    star = "*" if sink["proxy"] else ""
    cell = Text(f"{sink['percent']:.1f}{star}", style="bold" if sink["percent"] >= CLEAR else "")
    if sink["percent"] >= STRONG:
        cell.stylize("magenta")
    if sink["low"] is not None and sink["high"] > sink["low"]:
        cell.append(f" {sink['low']:.1f}\N{EN DASH}{sink['high']:.1f}", style="not bold dim")
    if sink.get("boost") is not None:
        cell.append(f" ×{sink['boost']:.1f}", style="not bold dim")
    return cell


def _sizes(facts: Sequence[Entry]) -> str:
    sizes = sorted({(one["sequences"], one["length"]) for one in facts})
    parts = [f"{many} sequences of {length} tokens" for many, length in sizes]
    return f"{', '.join(parts)}; beside a number stands its 95\N{NO-BREAK SPACE}% interval over sequences.\n"


def checks(model: str, lines: "Sequence[Line]") -> RenderableType:
    """`sinklab doctor`: pass or fail per line, with its figure."""
    table = _table()
    table.add_column("", no_wrap=True)
    table.add_column("check")
    table.add_column("figure", justify="right", no_wrap=True)
    table.add_column("at most", justify="right", no_wrap=True)
    for line in lines:
        word = {True: Text("pass", "green"), False: Text("FAIL", "bold red"), None: Text("skip", "dim")}[line.passed]
        figures = ["" if x is None else f"{x:.1e}" for x in (line.figure, line.limit)]
        table.add_row(word, Text(plain(line.name + (f": {line.note}" if line.note else ""), 400)), *figures)
    return _titled(plain(model, 60), table)
