"""Figures: each where its numbers are, the same bytes each time, and nothing of a stranger's name but letters."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from synthetic import made, three, with_everything, with_norms

from sinklab.report import canvas
from sinklab.report.figures import ACROSS, PER_INPUT, draw, drawings, safe

HOSTILE = "../$x^{2$\\frac<script>alert(1)</script>-->\u202e日"
NEEDS = {
    "lengths": lambda: {"natural": made(sequences=2), "natural@128": made(0.4, sequences=2, length=128)},
    "valley": lambda: {"natural": with_everything(made(sequences=2))},
    "norms": lambda: {"natural": with_norms(made(sequences=2))},
    "decomposition": lambda: {"natural": with_everything(made(sequences=2))},
}


def names(results):
    return {drawing.name for drawing in drawings(results)}


def titles(results):
    return {drawing.name: " ".join(drawing.figure.get_suptitle().split()) for drawing in drawings(results) if drawing.input in {None, "natural"}}


@pytest.mark.parametrize("name", [*ACROSS, *PER_INPUT])
def test_every_figure_is_drawn_where_its_numbers_are_and_only_there(name):
    bare = {"natural": made(sequences=2)}
    assert name in names(NEEDS.get(name, lambda: bare)())
    assert (name in names(bare)) == (name not in NEEDS)


def test_nothing_is_drawn_of_nothing():
    short = {"natural": made(sequences=2, length=4)}  # no key is seen by as many queries as a sink needs
    assert names(short) == set()
    gone = made(sequences=2)
    gone.numbers["alpha"][:] = np.nan
    assert names({"natural": gone}) == set()


def test_files_are_svg_and_png_and_the_same_each_time(tmp_path):
    results = {"natural": with_everything(made(sequences=2))}
    once, again = (draw(tmp_path / str(i), results) for i in range(2))
    assert {file.name for file in once} >= {"layers.svg", "layers.png", "heads-natural.svg", "heads-natural.png"}
    assert [file.suffix for file in once] == [".svg", ".png"] * (len(once) // 2)
    for a, b in zip(once, again, strict=True):
        assert a.read_bytes() == b.read_bytes(), a.name
        assert a.read_bytes().startswith({".svg": b"<?xml", ".png": b"\x89PNG"}[a.suffix])
        assert not any(date in a.read_bytes() for date in (b"dc:date", b"2025-", b"2026-", b"tIME", b"matplotlib.org"))
    assert sorted(once) == sorted((tmp_path / "0").iterdir())


def test_names_from_outside_are_text_and_stay_in_their_folder(tmp_path):
    results = {
        HOSTILE: replace(made(sequences=2), input=HOSTILE),
        "../a": replace(made(sequences=2), input="../a"),
        "_./a": made(sequences=2),
    }
    files = draw(tmp_path / "figures", results)
    assert all(file.parent == tmp_path / "figures" and file.exists() for file in files)
    assert len({file.name.lower() for file in files}) == len(files)
    for file in files[::2]:
        tree = ET.fromstring(file.read_text("utf-8"))
        assert {element.tag.split("}")[1] for element in tree.iter()} <= SHAPES
    texts = [canvas.inline(drawing.figure, HOSTILE) for drawing in drawings(results)]
    assert all("<script" not in text and "\u202e" not in text.split(">", 1)[1] for text in texts)
    assert any("../$x^{2$\\frac&lt;script&gt;" in text for text in texts)


SHAPES = {"svg", "g", "path", "defs", "style", "use", "clipPath", "rect", "image", "text", "tspan"}


@pytest.mark.parametrize(("name", "expected"), [("natural@512", "natural@512"), ("a/b", "a_b-3"), ("..", "-3"), ("é", "_-3"), (".a", "a-3")])
def test_file_names(name, expected):
    assert safe(name, 3) == expected


def test_titles_say_what_is_seen():
    said = titles(three() | {"natural": with_everything(made())})
    assert said["layers"] == "natural: sinks in layers 0–3"
    assert said["thresholds"].replace("\u00a0", " ") == "Above 0.3: natural 50 %, random 50 %, repeat 0 %"
    assert said["heads"] == "natural: 8 of 16 heads give the first token more than 0.3"
    assert "the first token gets 34 % of the attention" in said["places"].replace("\u00a0", " ")
    assert said["norms"] == "natural: the first hidden state is up to 200 times as long as the others (entering layer 2)"
    assert said["decomposition"] == "natural: the first key points more towards the queries than others, norms larger"
    assert said["valley"] == "natural: states are most alike entering layer 4"
    none = titles({"natural": with_norms(made(0.05), long=1.0)})
    assert none["layers"] == "natural: hardly a sink in any layer"
    assert none["places"].startswith("natural: no place stands out")
    assert none["norms"].endswith("as long as the others")
    assert titles(NEEDS["lengths"]())["lengths"].replace("\u00a0", " ") == "natural: 50 % at 64 tokens, 50 % at 128"


def test_lines_are_the_numbers():
    results = {"natural": made(sequences=2), "random": made(0.05, sequences=2)}
    axes = ACROSS["layers"](results, 0.3).axes[0]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[50.0] * 4, [0.0] * 4]
    image = PER_INPUT["heads"](results["natural"], 0.3).axes[0].images[0].get_array()
    np.testing.assert_allclose(image, results["natural"].numbers["alpha"][..., 0].mean(0).T, rtol=1e-5)
    norms = PER_INPUT["norms"](with_norms(made(sequences=2)), 0.3)
    assert [line.get_ydata().tolist() for line in norms.axes[0].lines] == [[1, 1, 200, 200, 200], [1] * 5]


def test_inputs_have_colours_of_their_own_and_their_kind():
    several = ["natural", "random", "repeat", "natural@256", "prompt", "mine"]
    looks = {name: canvas.look(name, several) for name in several}
    assert len({look["color"] for look in looks.values()}) == 6
    assert looks["natural"]["color"] == canvas.KINDS["natural"]
    assert looks["random"]["linestyle"] != looks["natural"]["linestyle"] == looks["natural@256"]["linestyle"]


def test_inline_figures_follow_the_page():
    svg = canvas.inline(next(drawings(three())).figure, 'a "label"')
    assert svg.startswith("<svg viewBox=")
    assert 'aria-label="a &quot;label&quot;"' in svg
    assert "currentColor" in svg
    assert "var(--muted)" in svg
    assert not any(word in svg for word in (canvas.INK, "<style", "<!--", "<metadata", "http:", "https:", "<?xml", 'id="axes_1"'))
    ET.fromstring(svg.replace("xlink:href", "href"))
