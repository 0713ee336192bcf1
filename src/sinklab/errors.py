"""What goes wrong outside of us, in one sentence for people."""

import difflib
import re
from collections.abc import Iterable


class SinklabError(Exception):
    """Bad input or a limit, said in one sentence; the command prints it and exits with 2."""


class NotMeasurable(SinklabError):  # noqa: N818 - a property of the model, not a mistake
    """A model whose attention cannot be measured as it stands, and why."""


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean `x`?', or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean `{close[0]}`?" if close else ""


def one_line(error: BaseException) -> str:
    """The first sentence of an error of someone else, without its end mark."""
    text = str(error).strip() or type(error).__name__
    return re.split(r"(?<=[.!?])\s|\n", text)[0].rstrip(".")
