"""Whether Envoy takes a regular expression: RE2's syntax, its bound of repetition, and a bound of the size. Pure.

Envoy refuses all routes of a listener for one expression that it does not take, so this decides before. RE2 matches in
linear time (https://github.com/google/re2/wiki/Syntax); what can be large is its program, which repetition multiplies.
"""

from __future__ import annotations

import re
import warnings
from typing import Final

from msgspec import Struct

MAX_REPEAT: Final = 1_000
"""How often counted repetitions, nested ones multiplied, may repeat: RE2's kMaxRepeat."""
MAX_SIZE: Final = 1_000
"""Instructions of a program, as estimated here: a quarter of what an Envoy's bootstrap lets pass."""
WIDE: Final = 12
"""Instructions of a class that has characters beyond ASCII, as ``.`` and ``[^/]``."""
NOT_RE2: Final = re.compile(
    r"\\(?:[1-9ZNuU_]|[^\x00-\x7f])|\(\?(?:[=!#(>]|<[=!]|P[=>]|[a-z]*-?[a-z]*[aLux])|[*+?}]\+"
    r"|\(\?P<\w*[^\x00-\x7f]"
    r"|\[:(?!\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit):\])\^?\w+:\]"
    r"|\[[^\]]*\\b"
)
"""What Python's expressions have, and RE2's not; in a text whose escaped punctuation was taken out."""
LITERAL: Final = re.compile(r"\\[!-/:-@\[-^`{-~]")
TOKEN: Final = re.compile(
    r"\\.|\[(?P<negated>\^)?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|(?P<free>[*+?|]|\(\?[a-z-]+\))"
    r"|(?P<open>\((?:\?(?:P?<\w+>|[a-z-]*:))?)|(?P<close>\))|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|.",
    re.DOTALL,
)


def problem(text: str) -> str:
    """Why Envoy would not take an expression, as the end of a sentence; empty: it would."""
    if NOT_RE2.search(LITERAL.sub("~", text)) is not None:
        return "no expression of RE2"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # "[[" may mean something else in a later Python: not in RE2
            re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return "no expression of RE2"
    size, repeats = _measured(text)
    if repeats > MAX_REPEAT:
        return f"an expression that repeats more than {MAX_REPEAT} times"
    return f"too large an expression: about {size} instructions, more than {MAX_SIZE}" if size > MAX_SIZE else ""


class _Sequence(Struct):
    """What was read of a group that is open: instructions, and how often its counted repetitions repeat at most."""

    size: int = 0
    repeats: int = 1
    last_size: int = 0
    """Of the item that a repetition would be of."""
    last_repeats: int = 1

    def item(self, size: int, repeats: int = 1) -> None:
        """The next item; the one before is repeated no more."""
        self.size, self.repeats = self.size + self.last_size, max(self.repeats, self.last_repeats)
        self.last_size, self.last_repeats = size, repeats


def _measured(text: str) -> tuple[int, int]:
    """Instructions of an expression, and how often its counted repetitions repeat at most."""
    open_ones = [_Sequence()]
    for token in TOKEN.finditer(text):
        now = open_ones[-1]
        if token["open"]:
            open_ones.append(_Sequence())
        elif token["close"] and len(open_ones) > 1:
            now.item(0)
            open_ones.pop()
            open_ones[-1].item(now.size + 2, now.repeats)
        elif token["least"]:
            times = max(1, int(token["most"] or token["least"]))
            now.last_size, now.last_repeats = now.last_size * times, now.last_repeats * times
        elif token["free"]:
            now.size += 2
        else:
            now.item(_size(token[0], negated=bool(token["negated"])))
    [whole] = open_ones[:1]
    whole.item(0)
    return whole.size, whole.repeats


def _size(text: str, *, negated: bool) -> int:
    """Instructions of a character, an escape or a class."""
    if negated or text in (".", r"\D", r"\S", r"\W") or (text[0] == "[" and not text.isascii()):
        return WIDE + len(text)
    return len(text.encode()) if text[0] != "\\" else 4
