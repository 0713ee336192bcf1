"""The page in a real browser: it renders on a desk and on a telephone, by day and by night, runs nothing and asks for nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
from browser import binary, browser
from synthetic import entry, three, with_everything
from test_page import HOSTILE, NAME

from sinklab.report.compare import write_comparison
from sinklab.report.page import write_page
from sinklab.report.summary import Asked

pytestmark = pytest.mark.skipif(binary() is None, reason="there is no Chromium here")

SIZES = [(1280, False), (1280, True), (390, False), (320, True)]
# Contrast of every piece of text with what is painted behind it, as WCAG counts it.
CONTRAST = """
(() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = c => { const v = c / 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; };
  const luminance = rgb => .2126 * light(rgb[0]) + .7152 * light(rgb[1]) + .0722 * light(rgb[2]);
  const over = (top, under) => { const a = top[3] ?? 1; return under.map((u, i) => top[i] * a + u * (1 - a)); };
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(parts(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const found = [];
  for (const element of document.body.querySelectorAll('*')) {
    if (![...element.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const style = getComputedStyle(element), svg = element instanceof SVGElement;
    const back = behind(element), ink = over(parts(svg ? style.fill : style.color), back);
    const [a, b] = [luminance(ink), luminance(back)].sort((x, y) => y - x);
    found.push([(a + .05) / (b + .05), element.tagName + ': ' + element.textContent.trim().slice(0, 30)]);
  }
  return found.sort((x, y) => x[0] - y[0]).slice(0, 3);
})()
"""
OVERLAPS = "[document.documentElement.scrollWidth, window.innerWidth]"


@pytest.fixture(scope="module")
def tab():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    results = {name: with_everything(result) if name == "natural" else result for name, result in three().items()}
    asked = Asked(("gu2024", "tail_window", "output_share"), (0.2, 0.3), (1, 2, 60))
    return write_page(tmp_path_factory.mktemp("page"), entry(results, asked), results)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    result = three()["natural"]
    words = tuple((HOSTILE * 3)[n % len(HOSTILE) :][:64] for n in range(len(result.tokens)))
    results = {NAME: replace(result, texts=words, input=NAME), "natural": replace(result, texts=words)}
    folder = tmp_path_factory.mktemp("hostile")
    found = entry(results, model=NAME, settings={NAME: NAME})
    write_comparison(folder, [found, entry()], [folder / NAME.replace("/", "_") / "report.html", folder / "b"]).rename(folder / "comparison.html")
    return write_page(folder, found, results)


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_it_renders_without_a_complaint_or_a_request(tab, ordinary, width, dark):
    tab.open(ordinary.as_uri(), width=width, dark=dark)
    assert tab.complaints() == []
    assert [url for url in tab.requests() if not url.startswith("data:image/png;base64,")] == [ordinary.as_uri()]
    content, window = tab.evaluate(OVERLAPS)
    assert content <= window == width
    assert tab.evaluate("document.querySelector('h1').textContent") == "small"
    assert tab.evaluate("[...document.querySelectorAll('main svg')].filter(s => s.getBoundingClientRect().height > 100).length") >= 6
    assert tab.evaluate("document.querySelectorAll('svg image').length") >= 1
    worst, where = tab.evaluate(CONTRAST)[0]
    assert worst >= 4.5, where


def test_day_and_night_differ(tab, ordinary, tmp_path):
    shots = []
    for dark in (False, True):
        tab.open(ordinary.as_uri(), dark=dark)
        shots.append(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert tab.screenshot(tmp_path / f"{dark}.png").stat().st_size > 50_000
    assert shots == ["rgb(250, 250, 248)", "rgb(19, 21, 25)"]


@pytest.mark.parametrize("name", ["report.html", "comparison.html"])
def test_nothing_from_strangers_runs_or_is_asked_for(tab, hostile, name):
    page = hostile.with_name(name)
    tab.open(page.as_uri(), width=390)
    tab.evaluate("for (const e of document.querySelectorAll('*')) for (const kind of ['mouseover', 'click', 'error', 'load', 'focus'])"
                 " if (e.tagName != 'A' && e.tagName != 'SUMMARY') e.dispatchEvent(new Event(kind))")  # fmt: skip
    assert tab.evaluate("typeof window.pwned") == "undefined"
    assert tab.evaluate("document.querySelectorAll('script, iframe, img, form, object, [onload], [onerror], [onmouseover]').length") == 0
    assert "<script>window.pwned=1</script>" in tab.evaluate("document.body.innerText")
    assert [url for url in tab.requests() if not url.startswith("data:image/png;base64,")] == [page.as_uri()]
    assert tab.complaints() == []
    content, window = tab.evaluate(OVERLAPS)
    assert content <= window


def test_the_policy_would_stop_a_script(tab, ordinary, tmp_path):
    """What is not there cannot run; and if it were, it would not."""
    torn = tmp_path / "torn.html"
    smuggled = "<script>window.pwned=1</script><img src=x onerror=window.pwned=2><img src='https://example.org/x.png'>"
    torn.write_text(Path(ordinary).read_text("utf-8").replace("<main>", f"<main>{smuggled}"), "utf-8")
    tab.open(torn.as_uri())
    assert tab.evaluate("typeof window.pwned") == "undefined"
    assert any("Content Security Policy" in complaint for complaint in tab.complaints())
    assert not any(event["response"]["url"].startswith("https:") for event in tab.heard("Network.responseReceived"))
