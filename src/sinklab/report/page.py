"""One page about one model: verdict first, then numbers, figures, tokens, settings. One file, no script, nothing from any network.

Tokens, names and notes are text from strangers; see `markup` for how they are kept from being anything else.
"""

from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from matplotlib.figure import Figure

from sinklab import __version__
from sinklab.probe.result import Result
from sinklab.report import canvas
from sinklab.report.figures import drawings
from sinklab.report.markup import Html, join, prose, table, tag
from sinklab.report.page_numbers import numbers, strips
from sinklab.report.page_tokens import tokens
from sinklab.report.plain import plain, quoted
from sinklab.report.profile import layer_ranges
from sinklab.report.verdict import of_kind
from sinklab.report.words import Case, times

Entry = Mapping[str, Any]
Results = Mapping[str, Result]

NAME = "report.html"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
FILES = {
    "summary.json": "every number of this page", "rows": "alpha and all else, as parquet", "tokens": "the tokens, as parquet",
    "figures": "the figures, as SVG and PNG", "run.json": "how it was measured", "settings.json": "the settings in full",
}  # fmt: skip


def write_page(folder: Path, entry: Entry, results: Results) -> Path:
    """Write report.html about one entry of summary.json and the rows that it was made from."""
    path = Path(folder) / NAME
    temporary = path.with_name(f".{NAME}.tmp")
    temporary.write_text(page(entry, results, [name for name in FILES if (Path(folder) / name).exists()]), encoding="utf-8")
    temporary.replace(path)
    return path


def page(entry: Entry, results: Results, there: list[str]) -> Html:
    """The whole page; `there` names the files beside it."""
    body = [
        tag("header", *_title(entry)),
        tag(
            "main",
            _headline(entry),
            strips(entry),
            _verdict(entry),
            numbers(entry),
            _figures(entry, results),
            tokens(entry, results),
            _details(entry),
        ),
        tag("footer", *_settings(entry, there)),
    ]
    return document(f"Attention sinks of {entry['model']}", body)


def document(title: str, body: list[Html]) -> Html:
    """A page around a body."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html(files("sinklab.report").joinpath("page.css").read_text("utf-8"))),
    ]
    return Html(f"<!doctype html>\n{tag('html', tag('head', *head), tag('body', *body), lang='en')}\n")


def _title(entry: Entry) -> Iterator[Html]:
    facts = Case.of(entry).facts
    attending, layers = facts["attending_layers"], facts["layers"]
    depth = f"{layers} layers" if attending == layers else f"{attending} of {layers} layers attend"
    settings = entry["settings"]
    known = [depth, f"{facts['heads']:,} heads", settings.get("dtype"), settings.get("revision")]
    yield tag("p", "sinklab · attention sinks", class_="eyebrow")
    yield tag("h1", plain(entry["model"], 200))
    yield tag("p", " · ".join(str(one) for one in [*known, *entry["notes"]] if one), class_="facts")


def _headline(entry: Entry) -> Html:
    """The answer in one line, and the number that it rests on."""
    found = of_kind(entry["verdict"], "found")
    first, _, rest = (found[0] if found else "Nothing could be said.").partition(". ")
    return join([tag("p", prose(first.rstrip(".") + "."), class_="lede"), tag("p", prose(rest), class_="basis")])


def _verdict(entry: Entry) -> Html:
    kinds = {"found": "What was found", "so-what": "So what", "caution": "Keep in mind"}
    said = {kind: of_kind(entry["verdict"], kind)[kind == "found" :] for kind in kinds}
    cards = {kind: tag("section", tag("h3", kinds[kind]), _list(said[kind]), class_=f"card {kind}") for kind in kinds if said[kind]}
    found = [cards.pop("found")] if "found" in cards else []
    return tag("section", tag("h2", "Verdict"), tag("div", *found, tag("div", *cards.values(), class_="stack"), class_="columns"))


def _list(sentences: list[str]) -> Html:
    return tag("ul", *(tag("li", prose(one)) for one in sentences), class_="said")


def _figures(entry: Entry, results: Results) -> Html:
    """Across the inputs first; then the main input's, the others' behind a click."""
    shared: list[Html] = []
    by_input: dict[str, list[Html]] = {name: [] for name in results}
    for drawing in drawings(results, Case.of(entry).facts["detail"]["epsilon"]):
        (shared if drawing.input is None else by_input[drawing.input]).append(_figure(drawing.figure, drawing.says))
    main = Case.of(entry).main
    folded = [
        tag("details", tag("summary", f"The same for {plain(name, 40)} input"), tag("div", *drawn, class_="grid"))
        for name, drawn in by_input.items()
        if drawn and name != main
    ]
    return tag("section", tag("h2", "Figures"), tag("div", *shared, *by_input.get(main, []), class_="grid"), *folded)


def _figure(figure: Figure, said: str) -> Html:
    title = " ".join(figure.get_suptitle().split())
    return tag("figure", Html(canvas.inline(figure, f"{title}. {said}")), tag("figcaption", prose(said)), class_="card")


def _details(entry: Entry) -> Html:
    case = Case.of(entry)
    cards = [tag("div", one, class_="card") for one in _detail_tables(case.facts)]
    return tag("section", tag("h2", f"Details of {plain(case.main, 40)} input"), tag("div", *cards, class_="grid wide")) if cards else join([])


def _detail_tables(facts: Entry) -> Iterator[Html]:
    if facts["top_heads"]:
        rows = [[f"layer {h['layer']}, head {h['head']}", f"{h['alpha']:.3f}"] for h in facts["top_heads"]]
        yield table(["head", "attention"], rows, f"The strongest of {facts['sink_heads']} heads that sink on position {facts['detail']['position']}")
    if facts["massive_activations"]:
        rows = [_massive_row(one) for one in facts["massive_activations"]]
        yield table(
            ["dimension", "position", "layers", "value", "× median", "sequences"],
            rows,
            "Massive activations, and the layers whose input has them",
        )
    if facts["other_tokens"]:
        rows = [[_examples(t) or f"[{t['token']}]", *_found(t)] for t in facts["other_tokens"]]
        yield table(["token", "sequences", "heads", "layers"], rows, "Tokens that are sinks elsewhere")
    if facts["sink_tokens"]:
        rows = [[str(p["position"]), _examples(p), *_found(p)] for p in facts["sink_tokens"]]
        yield table(["position", "for example", "sequences", "heads", "layers"], rows, "Positions on which sinks are found")


def _massive_row(one: Entry) -> list[Any]:
    return [str(one["dimension"]), one["position"], _depth(one), times(one["value"]), times(one["ratio"]), f"{one['percent']:.0f} %"]


def _found(place: Entry) -> list[str]:
    return [f"{place['percent']:.0f} %", f"{place['heads_percent']:.0f} %", _depth(place)]


def _depth(place: Entry) -> str:
    return layer_ranges(range(place["first_layer"], place["last_layer"] + 1))


def _examples(place: Entry) -> str:
    return " ".join(quoted(example, 16) for example in place["examples"])


def _settings(entry: Entry, there: list[str]) -> Iterator[Html]:
    yield tag("h2", "Settings and versions")
    pairs = [part for key, value in _flat(dict(entry["settings"])) for part in (tag("dt", plain(key, 80)), tag("dd", plain(value, 400)))]
    yield tag("dl", *pairs, class_="settings")
    yield tag("p", f"How attention was summed: {'; '.join(dict.fromkeys(_ways(facts) for facts in entry['inputs'].values()))}.")
    links = [join([tag("a", name, href="./" + quote(name)), f" ({FILES[name]})"]) for name in there]
    if links:
        yield tag("p", "Beside this page: ", *(join([", " if i else "", link]) for i, link in enumerate(links)), ".")
    source = "Gu et al., “When Attention Sink Emerges in Language Models”, arXiv 2410.10781"
    yield tag("p", f"Written by sinklab {__version__} from the rows. The definition gu2024 and its setting are those of {source}.")


def _ways(facts: Entry) -> str:
    return ", ".join(f"{count} layers by {way}" for way, count in facts["ways"].items())


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as lines; what was left open is left out."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        elif value not in (None, [], ""):
            yield before + key, ", ".join(map(_worded, value)) if isinstance(value, list) else _worded(value)


def _worded(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)
