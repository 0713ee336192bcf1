"""HTML that cannot be broken out of: whatever is not markup made here is escaped, and what would hide in it is made visible."""

import html
import re
from typing import Any

from sinklab.report.plain import plain

VOID = {"meta", "link", "br", "hr"}


class Html(str):
    """Markup, as opposed to text."""

    __slots__ = ()


def text(value: Any) -> Html:
    """Anything as text."""
    return value if isinstance(value, Html) else Html(html.escape(plain(str(value), most=20_000)))


def prose(sentence: str) -> Html:
    """A sentence of ours: a number stays on one line with its percent sign."""
    return Html(re.sub(r"(?<=\d) (?=%)", "&nbsp;", text(sentence)))


def join(parts: Any) -> Html:
    """Pieces of markup one after another."""
    return Html("".join(text(part) for part in parts))


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element. `class_` stands for class, `aria_label` for aria-label; an attribute that is None is left out."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items() if value is not None)
    return Html(f"<{name}{written}>") if name in VOID else Html(f"<{name}{written}>{join(children)}</{name}>")


def table(head: list[Any], rows: list[list[Any]], caption: str) -> Html:
    """A table whose first column names the rows; it scrolls by itself where it is too wide."""
    heading = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    whole = tag("table", tag("caption", caption), tag("thead", heading), tag("tbody", *body))
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)
