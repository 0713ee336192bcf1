"""The room of figures: functions of rows. Each draws one thing, for one input or across all of them, or nothing where it was not measured.

Titles say what is seen; what is drawn stands in the first line of each function.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from sinklab.probe.definitions import LEAST_QUERIES, mean
from sinklab.probe.result import Result, Texts
from sinklab.report import canvas, paper, profile
from sinklab.report.words import base, times

Results = Mapping[str, Result]


def draw(folder: Path, results: Results, epsilon: float = paper.EPSILON) -> list[Path]:
    """Write every figure that can be drawn, as SVG and PNG, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for drawing in drawings(results, epsilon):
        where = "" if drawing.input is None else f"-{safe(drawing.input, list(results).index(drawing.input))}"
        files += canvas.write(drawing.figure, folder / (drawing.name + where))
    return files


class Drawing(NamedTuple):
    """A figure, what is drawn in it, and the input that it is about; None: all of them."""

    name: str
    input: str | None
    says: str
    figure: Figure


def drawings(results: Results, epsilon: float = paper.EPSILON) -> Iterator[Drawing]:
    """All that can be drawn: across the inputs first, then input by input."""
    with mpl.rc_context(canvas.STYLE):
        for name, across in ACROSS.items():
            figure = across(results, epsilon)
            if figure is not None:
                yield Drawing(name, None, said(across), figure)
        for name, single in PER_INPUT.items():
            for input_name, result in results.items():
                figure = single(replace(result, input=input_name), epsilon)
                if figure is not None:
                    yield Drawing(name, input_name, said(single), figure)


def said(drawing: Callable[..., Any]) -> str:
    """What is drawn, from the drawing's own first line."""
    return (drawing.__doc__ or "").strip().splitlines()[0]


def safe(name: str, number: int) -> str:
    """An input's name in a file name; the number keeps names apart that only differ in what is left out."""
    letters = "".join(c if c.isascii() and (c.isalnum() or c in "-_@.") else "_" for c in name)[:40]
    return letters if letters == name and not name.startswith(".") else f"{letters.strip('.')}-{number}"


def layers(results: Results, epsilon: float) -> Figure | None:
    """Where in depth the sinks are: percent of the heads that give the first token more than the threshold, by layer."""
    lines = _known({name: profile.sinks_by_layer(Texts.of(result), 1, epsilon) for name, result in results.items()})
    if not lines:
        return None
    name, line = next(iter(lines.items()))
    some = np.flatnonzero(np.nan_to_num(line) >= 10).tolist()
    where = f"sinks in layers {profile.layer_ranges(some)}" if some else "hardly a sink in any layer"
    figure, axes = canvas.panel(f"{canvas.drawable(name)}: {where}")
    _plot_inputs(axes, lines)
    axes.set(xlabel="layer", ylabel=f"heads above {epsilon:g} (%)", ylim=(-3, 103))
    canvas.whole_ticks(axes.xaxis)
    return figure


def thresholds(results: Results, epsilon: float) -> Figure | None:
    """How the percentage depends on the threshold (as figure 3 of 2410.10781)."""
    grid = np.linspace(0.05, 0.95, 19)
    lines = _known({name: np.array([result.sink(1, float(e)).percent for e in grid]) for name, result in results.items()})
    if not lines:
        return None
    at = [f"{canvas.drawable(name)} {results[name].sink(1, epsilon).percent:.0f} %" for name in lines]
    figure, axes = canvas.panel(f"Above {epsilon:g}: {', '.join(at)}")
    _plot_inputs(axes, lines, grid)
    axes.axvline(epsilon, color=canvas.MUTED, linewidth=1, linestyle=(0, (2, 2)))
    axes.set(xlabel="threshold (ε)", ylabel="heads above it (%)", ylim=(-3, 103), xlim=(0, 1))
    return figure


def lengths(results: Results, epsilon: float) -> Figure | None:  # noqa: ARG001 - one signature for all
    """How the percentage depends on the length of the text, for four thresholds (as figure 3 of 2410.10781)."""
    kind = base(next(iter(results)))
    some = sorted(((result.tokens.shape[1], result) for name, result in results.items() if base(name) == kind), key=lambda pair: pair[0])
    sizes = [length for length, _ in some]
    if len(set(sizes)) < 2:
        return None
    lines = {e: [result.sink(1, e).percent for _, result in some] for e in (0.2, 0.3, 0.4, 0.5)}
    ends = lines[0.3][0], lines[0.3][-1]
    figure, axes = canvas.panel(f"{canvas.drawable(kind)}: {ends[0]:.0f} % at {sizes[0]} tokens, {ends[1]:.0f} % at {sizes[-1]}")
    for (e, line), colour in zip(lines.items(), canvas.DEPTHS, strict=True):
        axes.plot(sizes, line, color=colour, marker="o", markersize=4, label=f"ε = {e:g}")
    axes.set(xlabel="tokens", ylabel="heads above ε (%)", xscale="log", ylim=(-3, 103))
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    canvas.name_lines(axes)
    return figure


def valley(results: Results, epsilon: float) -> Figure | None:  # noqa: ARG001
    """Entropy of the hidden states' matrix, by layer: low where the first token drowns all others (2510.06477)."""
    lines = _known({name: mean(r.number("matrix-entropy"), (0, 2, 3)) for name, r in results.items() if "matrix-entropy" in r.numbers})
    if not lines:
        return None
    name, line = next(iter(lines.items()))
    figure, axes = canvas.panel(f"{canvas.drawable(name)}: states are most alike entering layer {int(np.nanargmin(line))}")
    _plot_inputs(axes, lines)
    axes.set(xlabel="layer", ylabel="matrix entropy (nats)", ylim=(0, None))
    canvas.whole_ticks(axes.xaxis)
    return figure


def heads(result: Result, epsilon: float) -> Figure | None:
    """Mean attention to the first token, by layer and head: grey below the threshold, coloured above (figures 19 to 24 of 2410.10781)."""
    texts = Texts.of(result)
    alpha = mean(np.where(texts.queries[..., 0] >= LEAST_QUERIES, texts.alpha[..., 0], np.nan), 0)
    if np.isnan(alpha).all():
        return None
    many, above = int((~np.isnan(alpha)).sum()), int((np.nan_to_num(alpha) > epsilon).sum())
    figure, axes = canvas.panel(f"{canvas.drawable(result.input)}: {above} of {many} heads give the first token more than {epsilon:g}")
    cells = np.ma.masked_invalid(alpha.T)
    middle = min(max(epsilon, 1e-3), 1 - 1e-3)
    image = axes.imshow(cells, cmap=canvas.HEAT, norm=TwoSlopeNorm(middle, 0, 1), aspect="auto", interpolation="none", origin="lower")
    axes.grid(visible=False)
    axes.set(xlabel="layer", ylabel="head")
    canvas.whole_ticks(axes.xaxis, axes.yaxis)
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=30, ticks=[0, middle, 1])
    bar.ax.set_yticklabels(["0", f"{epsilon:g}", "1"])
    bar.set_label("mean attention (α₁)")
    bar.outline.set_visible(False)
    return figure


def places(result: Result, epsilon: float) -> Figure | None:  # noqa: ARG001
    """Mean attention to each position, for four bands of layers, beside what uniform attention would give."""
    texts = Texts.of(result)
    seen = mean(texts.queries, (0, 1, 2)) >= LEAST_QUERIES
    by_layer = np.where(seen, profile.alpha_by_layer(texts), np.nan)
    there, attending = (np.flatnonzero(~np.isnan(by_layer).all(axis)) for axis in (0, 1))
    if len(there) < 2:
        return None
    overall = mean(by_layer, 0)
    uniform = np.array([np.mean(1 / np.arange(k, len(overall) + 1)) for k in np.arange(1, len(overall) + 1)])
    figure, axes = canvas.panel(f"{canvas.drawable(result.input)}: {_places_title(overall, uniform, there)}")
    for band, colour in zip(np.array_split(attending, min(4, len(attending))), canvas.DEPTHS, strict=False):
        axes.plot(there + 1, mean(by_layer[band], 0)[there], color=colour, label=f"layers {band[0]}–{band[-1]}")
    axes.plot(there + 1, uniform[there], color=canvas.MUTED, linestyle=(0, (2, 2)), linewidth=1.2, label="uniform")
    axes.set(xscale="log", yscale="log", xlabel="position (from 1)", ylabel="mean attention (α)")
    canvas.plain_ticks(axes.xaxis, axes.yaxis)
    canvas.name_lines(axes)
    return figure


def norms(result: Result, epsilon: float) -> Figure | None:  # noqa: ARG001
    """Norms of the first token's hidden states, keys and values beside the others', by layer (as figure 2 of 2410.10781)."""
    texts, names = Texts.of(result), {"norm.hidden": "hidden states", "norm.key": "keys", "norm.value": "values"}
    shown = {name: title for name, title in names.items() if name in texts.numbers and texts.numbers[name].shape[-1] > 1}
    ratios = profile.hidden_norms(texts)
    if ratios is None or np.isnan(ratios[2]).all():
        return None
    peak = int(np.nanargmax(ratios[2]))
    what = f"up to {times(ratios[2, peak])} times as long as the others (entering layer {peak})" if ratios[2, peak] > 1.5 else "as long as the others"
    figure = canvas.entitled(f"{canvas.drawable(result.input)}: the first hidden state is {what}")
    for axes, (name, title) in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown.items(), strict=True):
        first, others = (mean(x, (0, 2)) for x in profile.first_and_others(texts.number(name)))
        canvas.first_beside_others(axes, title, first, others)
        if name == "norm.hidden":
            axes.set_yscale("log")
            canvas.plain_ticks(axes.yaxis)
        else:
            axes.set_ylim(bottom=0)
    canvas.name_lines(figure.axes[0])
    return figure


def decomposition(result: Result, epsilon: float) -> Figure | None:  # noqa: ARG001
    """Scores taken apart into cosine and norms: what lifts the first key's, by layer (as figures 2 and 15 to 18 of 2410.10781)."""
    texts = Texts.of(result)
    if "qk.cosine" not in texts.numbers or texts.numbers["qk.cosine"].shape[-1] < 2:
        return None
    cosine, product = ([mean(x, (0, 2)) for x in profile.first_and_others(texts.number(name))] for name in ("qk.cosine", "qk.norms"))
    turned, longer = (float(mean(first - others)) > 0 for first, others in (cosine, product))
    what = f"{'more' if turned else 'no more'} towards the queries than others, norms {'larger' if longer else 'smaller'}"
    figure = canvas.entitled(f"{canvas.drawable(result.input)}: the first key points {what}")
    left, right = figure.subplots(1, 2)
    canvas.first_beside_others(left, "mean cos(q, k)", *cosine)
    canvas.first_beside_others(right, "mean |q| |k|", *product)
    left.axhline(0, color=canvas.MUTED, linewidth=0.8)
    right.set_ylim(bottom=0)
    canvas.name_lines(left)
    return figure


ACROSS: dict[str, Callable[[Results, float], Figure | None]] = {
    "layers": layers, "thresholds": thresholds, "lengths": lengths, "valley": valley,
}  # fmt: skip
PER_INPUT: dict[str, Callable[[Result, float], Figure | None]] = {
    "heads": heads, "places": places, "norms": norms, "decomposition": decomposition,
}  # fmt: skip


def _known(lines: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: line for name, line in lines.items() if not np.isnan(line).all()}


def _plot_inputs(axes: Axes, lines: dict[str, np.ndarray], x: np.ndarray | None = None) -> None:
    for name, line in lines.items():
        axes.plot(np.arange(len(line)) if x is None else x, line, label=canvas.drawable(name), **canvas.look(name, list(lines)))
    canvas.name_lines(axes)


def _places_title(overall: np.ndarray, uniform: np.ndarray, there: np.ndarray) -> str:
    order = there[np.argsort(-overall[there], kind="stable")]
    best, second = int(order[0]), int(order[1])
    who = "the first token" if best == 0 else f"position {best + 1}"
    if overall[best] < 1.5 * uniform[best]:
        return f"no place stands out; {who} gets {100 * overall[best]:.0f} %"
    share = f"{who} gets {100 * overall[best]:.0f} % of the attention of those that see it"
    return f"{share}, no other place more than {100 * overall[second]:.0f} %"
