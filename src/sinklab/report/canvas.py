"""How figures look, and how they are written: the same file, byte for byte, from the same rows.

The colours are those of Okabe and Ito, which colour-blind people can tell apart; lines differ in their strokes too.
"""

import io
import re
import textwrap
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from sinklab.report.plain import plain
from sinklab.report.words import base, unbroken

INK, MUTED, GRID = "#202124", "#6b6f76", "#d9dbdf"
FIRST, OTHERS = "#d55e00", "#0072b2"
KINDS = {"natural": "#d55e00", "random": "#0072b2", "repeat": "#009e73"}
MORE = ("#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1")
DEPTHS = ("#e69f00", "#d55e00", "#cc79a7", "#0072b2")  # early to late layers, low to high thresholds
STROKES = {"natural": "-", "random": (0, (5, 1.5)), "repeat": (0, (1.5, 1.5))}
WIDTH, HEIGHT = 4.2, 3.1  # inches: a column of a page, the width of a telephone
TITLE, LEGEND = 52, 56  # characters of a line
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left", "axes.spines.top": False,
    "axes.spines.right": False, "axes.edgecolor": MUTED, "axes.labelcolor": INK, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": GRID, "grid.linewidth": 0.6, "text.color": INK, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "lines.linewidth": 1.8, "legend.frameon": False, "legend.fontsize": 8.5, "legend.handlelength": 1.8,
    "svg.hashsalt": "sinklab", "svg.fonttype": "path", "text.parse_math": False, "savefig.dpi": 200, "figure.constrained_layout.use": True,
}  # fmt: skip
# Grey below the threshold, colour above it: what is coloured is a sink. Where there is no attention nothing is painted.
HEAT = LinearSegmentedColormap.from_list("sinks", [(0.0, "#e9ebee"), (0.4999, "#9aa3af"), (0.5, "#f8cf9c"), (0.75, "#d55e00"), (1.0, "#5e2000")])
THEMED = {INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--grid)"}  # on a page, which may be dark


def panel(title: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """One pair of axes under a title that says what is seen."""
    figure = entitled(title, height)
    return figure, figure.subplots()


def entitled(title: str, height: float = HEIGHT) -> Figure:
    """A figure with its title, in as many lines as it takes."""
    figure = Figure(figsize=(WIDTH, height))
    figure.suptitle(textwrap.fill(unbroken(title), TITLE), x=0.02, ha="left", fontsize=9.5, fontweight="bold")
    return figure


def drawable(name: str) -> str:
    """An input's name in letters that the figures' font has."""
    return "".join(c if ord(c) < 0x250 else "?" for c in plain(name, 24))


def look(name: str, names: Iterable[str]) -> dict[str, Any]:
    """Colour and stroke of an input's line: those of its kind for its first length, others for more."""
    same = [other for other in names if base(other) == base(name)]
    strangers = [other for other in names if base(other) not in KINDS or [o for o in names if base(o) == base(other)].index(other)]
    kind = base(name)
    if kind in KINDS and same[0] == name:
        return {"color": KINDS[kind], "linestyle": STROKES[kind]}
    return {"color": MORE[strangers.index(name) % len(MORE)], "linestyle": STROKES.get(kind, "-")}


def name_lines(axes: Axes) -> None:
    """A legend below the axes, where no line can be under it."""
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(len(labels), LEGEND // (max(map(len, labels)) + 6))))


def first_beside_others(axes: Axes, title: str, first: np.ndarray, others: np.ndarray) -> None:
    """Two lines by layer."""
    axes.plot(first, color=FIRST, label="first token")
    axes.plot(others, color=OTHERS, label="mean of the others", linestyle=(0, (4, 1.5)))
    axes.set_title(title)
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def whole_ticks(*axes: Any) -> None:
    """Layers and heads are whole numbers."""
    for axis in axes:
        axis.set_major_locator(MaxNLocator(8, integer=True))


def plain_ticks(*axes: Any) -> None:
    """Logarithmic axes in ordinary numbers, with at least two of them."""
    for axis in axes:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if axis.get_data_interval()[1] < 100 * axis.get_data_interval()[0] else (1,)))
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.set_minor_formatter(NullFormatter())


def write(figure: Figure, path: Path) -> list[Path]:
    """As SVG for the web and as PNG for everything else; returns both files."""
    files = [path.with_suffix(".svg"), path.with_suffix(".png")]
    for file in files:
        temporary = file.with_name(f".{file.name}.tmp")
        temporary.write_bytes(encoded(figure, file.suffix[1:]))
        temporary.replace(file)
    return files


def inline(figure: Figure, label: str) -> str:
    """As part of a page: text stays text, colours follow the page's, nothing is named that another figure names too."""
    svg = encoded(figure, "svg", {"svg.fonttype": "none", "svg.hashsalt": label}, transparent=True).decode()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<style.*?</style>|<defs>\s*</defs>|<metadata.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", svg)
    for colour, themed in THEMED.items():
        svg = svg.replace(colour, themed)
    box = re.search(r'viewBox="[^"]*"', svg)
    return re.sub(
        r"<svg.*?>", f'<svg {box[0] if box else ""} class="drawing" role="img" aria-label="{escape(label)}">', svg, count=1, flags=re.DOTALL
    )


def encoded(figure: Figure, kind: str, style: dict[str, Any] | None = None, transparent: bool = False) -> bytes:
    """A file's content, without dates and versions, so that it is the same tomorrow."""
    nothing = {"svg": dict.fromkeys(("Creator", "Date", "Format", "Type")), "png": {"Software": None}}[kind]
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE | (style or {})):
        figure.savefig(buffer, format=kind, metadata=nothing, transparent=transparent)
    return buffer.getvalue()
