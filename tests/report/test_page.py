"""The page: whatever strangers write stays text, nothing is asked of any network, and what was measured is there."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import entry, made, three, with_everything

from sinklab.report.compare import comparison, write_comparison
from sinklab.report.markup import Html, join, prose, table, tag, text
from sinklab.report.page import POLICY, page, write_page
from sinklab.report.page_tokens import tokens
from sinklab.report.plain import HIDDEN, plain, quoted
from sinklab.report.summary import Asked

HOSTILE = (
    "<script>window.pwned=1</script>", "</style><img src=x onerror=window.pwned=2>", '"><svg onload=window.pwned=3>',
    "' onmouseover='window.pwned=4", "&lt;b&gt;&amp;", "\u202egnp.exe", "\x1b[31m\x00\x07", "]]><!-- -->", "javascript:window.pwned=5",
    "{{7*7}}${7*7}", "a\u200b\u2066\ufeff", "e" + "\u0301" * 30, "https://example.org/x.png", "\ud800", "\U000e0041", "\u2028\u0085",
    "שלום", "日本語", "🙂", "", " ", "\n", "x" * 5000,
)  # fmt: skip
NAME = HOSTILE[0] + HOSTILE[1] + HOSTILE[2]
VOID = {"meta", "link", "path", "rect", "use", "image"}


class Reader(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, markup):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open, self.broken = [], [], [], []
        self.feed(markup)
        self.close()

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.elements.append((name, dict(attributes)))

    def handle_endtag(self, name):
        if not self.open or self.open.pop() != name:
            self.broken.append(name)

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self):
        return "".join(self.texts)


def checked(markup):
    """The page as a browser reads it, with nothing in it that runs, loads or hides."""
    reader = Reader(markup)
    assert not reader.open
    assert not reader.broken
    for name, attributes in reader.elements:
        assert name not in {"script", "iframe", "object", "embed", "form", "base", "img", "foreignobject", "a:href", "animate", "set"}
        for key, value in attributes.items():
            assert not key.startswith("on")
            assert key not in {"src", "srcset", "action", "formaction"}
            if key.endswith("href"):
                assert re.match(r"#|data:image/png;base64,|data:,$|\./", value), value
    assert not re.search(r"url\((?!#)|@import|https?:", re.sub(r"xmlns[:a-z]*=\"[^\"]*\"", "", markup).replace(*_shown_link()))
    assert not hidden(reader.text)
    return reader


def _shown_link():
    return "https://example.org/x.png", ""


def hidden(shown):
    import unicodedata

    return [c for c in shown if unicodedata.category(c) in HIDDEN and c != "\n"]


def hostile_results():
    result = with_everything(made(sequences=len(HOSTILE)))
    words = tuple((HOSTILE * 3)[n : n + 64] for n in range(len(HOSTILE)))
    return {NAME: replace(result, texts=words, input=NAME, notes=(NAME,)), "natural": replace(result, texts=words, ways=(NAME,) * 4)}


def test_a_page_of_hostile_names_and_tokens_is_only_text(tmp_path):
    results = hostile_results()
    found = entry(results, model=NAME, settings={NAME: NAME, "nested": {"a": [NAME]}, "dtype": HOSTILE[1]})
    path = write_page(tmp_path, found, results)
    reader = checked(path.read_text("utf-8"))
    assert reader.text.count("<script>window.pwned=1</script>") > 20
    assert "⟨U+202E⟩gnp.exe" in reader.text
    assert "⟨U+D800⟩" in reader.text
    assert "␛[31m␀␇" in reader.text
    assert "&lt;b&gt;&amp;" in reader.text
    titles = [value for _, attributes in reader.elements for key, value in attributes.items() if key in {"aria-label", "title"}]
    assert any("<script>" in value for value in titles)


def test_a_comparison_of_hostile_names_is_only_text(tmp_path):
    found = [entry({NAME: made(sequences=2), "natural": made(sequences=2)}, model=NAME), entry(model="other")]
    path = write_comparison(tmp_path, found, [tmp_path / 'a"b' / "report.html", Path("/else/javascript:x/report.html")])
    reader = checked(path.read_text("utf-8").replace("./../", "./"))
    assert "Attention sinks of 2 models" in reader.text
    assert next(attributes["href"] for name, attributes in reader.elements if name == "a") == "./a%22b/report.html"


ANYTHING = st.text(st.characters(), max_size=60)


@settings(deadline=None, max_examples=60)
@given(st.lists(ANYTHING, min_size=64, max_size=64), ANYTHING)
def test_any_token_is_shown_as_text(words, name):
    result = replace(made(sequences=1, length=64), texts=(tuple(words),), input=name)
    shown = tokens({"inputs": {name: {"detail": {"epsilon": 0.3}}}}, {name: result})
    reader = Reader(shown)
    assert not reader.open
    assert {element for element, _ in reader.elements} <= {"section", "h2", "h3", "p", "span", "small", "div"}
    assert {key for _, attributes in reader.elements for key in attributes} <= {"class", "title"}
    assert not hidden(reader.text)
    assert all((plain(word, 40) or "∅") in reader.text for word in words)


@given(ANYTHING)
def test_text_and_attributes_give_back_what_is_shown(value):
    reader = Reader(tag("p", value, title=value))
    assert reader.text == plain(value)
    assert reader.elements == [("p", {"title": plain(value)})]


@given(ANYTHING)
def test_plain_text_hides_nothing_and_is_plain_already(value):
    shown = plain(value)
    assert not hidden(shown)
    assert "\n" not in shown
    assert plain(shown, 10_000) == shown
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("cat", "cat"), (" the", " the"), ("a\nb\t", "a⏎b⇥"), ("\x00\x1b\x7f", "␀␛␡"),
        ("\u202e", "⟨U+202E⟩"), ("\xa0", "⟨U+00A0⟩"), ("\ud83d", "⟨U+D83D⟩"),
        ("a" * 90, "a" * 80 + "…"), ("🙂é", "🙂é"), ("e" + "\u0301" * 5, "e" + "\u0301" * 3 + "⟨U+0301⟩" * 2),
    ],
)  # fmt: skip
def test_plain(value, expected):
    assert plain(value) == expected
    assert quoted("x" * 30) == "“" + "x" * 24 + "…”"


def test_markup_is_not_escaped_twice_and_text_always_is():
    assert text("<") == "&lt;"
    assert text(Html("<b>")) == "<b>"
    assert join(["<", tag("br")]) == "&lt;<br>"
    assert tag("p", 3, class_="x", hidden=None, aria_label='"') == '<p class="x" aria-label="&quot;">3</p>'
    assert prose("under 3 % of <it>") == "under 3&nbsp;% of &lt;it&gt;"
    assert '<th scope="row">&lt;</th><td>1</td>' in table(["a", "b"], [["<", 1]], "c")


def test_the_page_says_what_was_found(tmp_path):
    results = three()
    found = entry(
        results,
        Asked(("gu2024", "bos_score"), (0.3,), (1, 60)),
        settings={"dtype": "float32", "lengths": [64], "packages": {"numpy": "2"}, "parameters": 134515008, "chat": False, "none": None},
    )
    (tmp_path / "rows").mkdir()
    (tmp_path / "summary.json").write_text("{}")
    reader = checked(write_page(tmp_path, found, results).read_text("utf-8"))
    said = reader.text.replace("\u00a0", " ")
    for one in found["verdict"]:
        assert all(part.rstrip(".") in said for part in one["text"].split(". ")), one["code"]
    assert said.index("The first token is a strong attention sink.") < said.index("The numbers") < said.index("Figures") < said.index("Settings")
    for wanted in (
        "bos_score",
        "seen by 5 queries",
        "packages.numpy",
        "layer 0, head",
        "-6,000",
        "3.50",
        "random input, 2 of 40 sequences",
    ):
        assert wanted in said, wanted
    assert "none" not in [attributes.get("class") for _, attributes in reader.elements]
    assert [attributes["href"] for name, attributes in reader.elements if name == "a"] == ["./summary.json", "./rows"]
    assert list(tmp_path.glob(".*")) == []


def test_the_page_is_closed_to_scripts_and_networks_by_its_own_policy():
    reader = Reader(page(entry(), {"natural": made()}, []))
    policy = next(attributes["content"] for name, attributes in reader.elements if attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy == POLICY
    assert policy.startswith("default-src 'none'")
    assert "script" not in policy
    first = [name for name, _ in reader.elements[:4]]
    assert first == ["html", "head", "meta", "meta"]
    assert reader.elements[3][1]["http-equiv"] == "Content-Security-Policy"


def test_the_page_is_the_same_each_time_and_replaces_the_last_one(tmp_path):
    results = {"natural": made(sequences=3)}
    (tmp_path / "report.html").write_text("old")
    once = write_page(tmp_path, entry(results), results).read_bytes()
    assert once == write_page(tmp_path, entry(results), results).read_bytes()
    assert b"old" not in once[:4]


def test_figures_and_tokens_are_there_for_every_input():
    results = three()
    reader = Reader(page(entry(results), results, []))
    drawings = [attributes["aria-label"] for name, attributes in reader.elements if name == "svg"]
    assert len(drawings) == 2 + 3 * 3
    assert len(set(drawings)) == len(drawings)
    assert sum(name == "details" for name, _ in reader.elements) == 2
    shares = [attributes for name, attributes in reader.elements if attributes.get("class") == "k4"]
    assert [attributes.get("title") for attributes in shares] == [None] + ["position 1: 50 % of the heads, layers 0 to 3"] * (3 + 2)


def test_pages_without_tokens_without_sinks_and_of_one_sequence():
    bare = made(0.05, sequences=1)
    for result in (bare, replace(bare, texts=None), replace(bare, starts=None, loss=None)):
        reader = checked(page(entry({"natural": result}), {"natural": result}, []))
        assert "The first token is no attention sink." in reader.text
    assert "[3]" in Reader(page(entry({"natural": replace(bare, texts=None)}), {"natural": replace(bare, texts=None)}, [])).text
    assert "Nothing could be said." not in reader.text
    only = entry({"natural": made()}, Asked(("bos_score",)))
    assert "As asked" in Reader(page(only, {"natural": made()}, [])).text
    assert "Percentage of the heads" in Reader(comparison([only, only], ["./a", "./b"])).text


def test_long_texts_are_cut_and_say_so():
    long = made(sequences=2, length=400)
    shown = Reader(tokens(entry({"natural": long}), {"natural": long})).text
    assert "… and 240 more tokens" in shown
