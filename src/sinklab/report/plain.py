"""Text from strangers made safe to look at: what does not show, or changes what stands beside it, is shown as its code point."""

import unicodedata

PICTURES = {"\n": "⏎", "\r": "␍", "\t": "⇥", "\x7f": "␡"} | {chr(i): chr(0x2400 + i) for i in range(32) if chr(i) not in "\n\r\t"}
# Other: control, format (bidirectional overrides, zero width), surrogate, private, unassigned; line and paragraph separators
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
STACK = 3  # combining marks on one letter; more of them climb over other lines


def plain(text: str, most: int = 80) -> str:
    """The text with nothing hidden in it, shortened in the middle of nowhere rather than flooding a page."""
    shown, marks = [], 0
    for character in text[: most + 1]:
        marks = marks + 1 if unicodedata.category(character) in {"Mn", "Me"} else 0
        shown.append(_shown(character) if marks <= STACK else code_point(character))
    return "".join(shown[:most]) + ("…" if len(text) > most else "")


def quoted(text: str, most: int = 24) -> str:
    """A token inside of a sentence."""
    return f"“{plain(text, most)}”"


def code_point(character: str) -> str:
    """Such as ⟨U+202E⟩."""
    return f"⟨U+{ord(character):04X}⟩"


def _shown(character: str) -> str:
    if character in PICTURES:
        return PICTURES[character]
    space = unicodedata.category(character) == "Zs" and character != " "
    return code_point(character) if space or unicodedata.category(character) in HIDDEN else character
