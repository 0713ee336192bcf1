"""The tokens of a few sequences, coloured by how many heads use them as a sink."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sinklab.probe.definitions import LEAST_QUERIES
from sinklab.probe.result import Result, SinkToken
from sinklab.report.markup import Html, join, tag
from sinklab.report.plain import plain
from sinklab.report.words import base, span

SEQUENCES, FEWER, TOKENS = 3, {"random": 2, "repeat": 1}, 160  # shown of each input
LEVELS = (5, 15, 30, 50, 70)  # percent of the heads at which a token's colour deepens


def tokens(entry: Mapping[str, Any], results: Mapping[str, Result]) -> Html:
    """Every input's first sequences."""
    shown = [_input_tokens(name, result, entry["inputs"][name]["detail"]["epsilon"]) for name, result in results.items() if name in entry["inputs"]]
    key = [tag("span", f"{least} %", class_=f"k{i + 1}") for i, least in enumerate(LEVELS)]
    note = "The number behind a token is the percentage of the heads that use it as a sink. "
    note += f"Pale tokens are seen by fewer than {LEAST_QUERIES} queries and are not called one."
    legend = tag("p", "Heads, at least: ", *(join([one, " "]) for one in key), class_="note scale-key")
    return tag("section", tag("h2", "Which tokens are sinks"), tag("p", note, class_="note"), legend, *shown)


def _input_tokens(name: str, result: Result, epsilon: float) -> Html:
    some = result.select(slice(0, FEWER.get(base(name), SEQUENCES)))
    shares = {(token.sequence, token.index): token for token in some.sink_tokens(epsilon, least=1.0)}
    queries = some.number("queries")
    with np.errstate(all="ignore"):
        seen = np.nan_to_num(queries).max((1, 2))
    lines = []
    for n, row in enumerate(some.tokens):
        known = np.flatnonzero(row >= 0)
        parts = [_token(some, n, int(place), shares.get((n, int(place) + int(some.padding[n]))), seen[n, place]) for place in known[:TOKENS]]
        more = f" … and {len(known) - TOKENS:,} more tokens" if len(known) > TOKENS else ""
        lines.append(tag("p", *parts, tag("span", more, class_="few") if more else "", class_="tokens"))
    return tag("div", tag("h3", f"{plain(name, 40)} input, {len(lines)} of {len(result.tokens)} sequences"), *lines)


def _token(result: Result, n: int, place: int, sink: SinkToken | None, seen: float) -> Html:
    word = f"[{result.tokens[n, place]}]" if result.texts is None else plain(result.texts[n][place], 40) or "∅"
    if sink is None:
        return tag("span", word, class_="few" if seen < LEAST_QUERIES else None)
    level = sum(sink.percent >= least for least in LEVELS)
    said = f"position {sink.position}: {sink.percent:.0f} % of the heads, {span(sink.first_layer, sink.last_layer)}"
    share = tag("small", f"{sink.percent:.0f}") if level else ""
    return join([tag("span", word, class_=f"k{level}" if level else None, title=said), share])
