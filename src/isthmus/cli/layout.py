"""Rows of cells → lines that fit a terminal. Pure.

Where a terminal is too narrow, the widest columns are cut first, down to a width in which they can still be read; then
columns are left out, the least important first. The last column is often a sentence on what is wrong: it is wrapped at
blanks, below its beginning. A name stays whole for as long as anything else can give way.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

GAP: Final = 3
NARROW_GAP: Final = 2
"""Blanks between columns where three have no room."""
READABLE: Final = 8
"""Columns below which no cell is cut."""
NAMES: Final = {"NAMESPACE": 16, "NAME": 24, "SERVICE": 24}
"""Heads of columns that identify a row, and the columns below which they are not cut."""
SENTENCE: Final = 20
"""Columns in which a sentence can still be read."""

Style = Callable[[str], tuple[str, str]]
"""Function from a cell's text to what stands before and after it."""


def unstyled(cell: str) -> tuple[str, str]:
    """Nothing around a cell."""
    return "", ""


class Layout(NamedTuple):
    """Columns that are shown, by their index, and the width of each."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    gap: int
    wrapped: bool
    """True if the last column that is shown is the table's last one, and wide enough for a sentence."""

    def line(self, row: Sequence[str], *, style: Style = unstyled) -> str:
        """Return a row as one line; every cell that does not fit is cut."""
        return self._joined([cut(row[index], size) for index, size in self._columns()], row, style)

    def lines(self, row: Sequence[str], *, style: Style = unstyled) -> list[str]:
        """Return a row as lines: the last cell is wrapped at blanks, every other one that does not fit is cut."""
        if not self.wrapped:
            return [self.line(row, style=style)]
        *front, (last, size) = self._columns()
        cells = [cut(row[index], each) for index, each in front]
        parts = [cut(part, size) for part in _wrapped(row[last], size)]
        blank = [""] * len(cells)
        return [self._joined([*(blank if below else cells), part], row, style) for below, part in enumerate(parts)]

    def _columns(self) -> list[tuple[int, int]]:
        return list(zip(self.shown, self.widths, strict=True))

    def _joined(self, cells: Sequence[str], row: Sequence[str], style: Style) -> str:
        """Join cells; those before the last one that is not empty are filled up with blanks."""
        end = max((number for number, cell in enumerate(cells) if cell), default=-1)
        texts = []
        for number, (cell, size) in enumerate(zip(cells[: end + 1], self.widths, strict=False)):
            before, after = style(row[self.shown[number]]) if cell else ("", "")
            texts.append(before + cell + after + (" " * (size - columns(cell)) if number < end else ""))
        return (" " * self.gap).join(texts)


def _wrapped(text: str, size: int) -> list[str]:
    if columns(text) <= size:
        return [text]
    wide = 1 if text.isascii() else 2
    return textwrap.wrap(text, max(1, size // wide), break_on_hyphens=False)


def layout(
    heads: Sequence[str], widths: Sequence[int], room: int, *, least: Sequence[str] = (), empty: Sequence[int] = ()
) -> Layout:
    """Return the columns of a table for a terminal of ``room`` columns.

    ``empty``: indices of columns without text, which are left out before anything is cut. ``least``: heads of the
    columns that are left out next, in this order; after them the others, from the right, and at the end the last one.
    """
    last = len(heads) - 1
    others = [number for number, head in enumerate(heads[:last]) if head not in least]
    order = [*(heads.index(head) for head in least), *reversed(others[1:]), last, *others[:1]]
    shown = [*range(len(heads))]
    if sum(widths) + GAP * last > room:
        shown = [number for number in shown if number not in empty]
        order = [number for number in order if number not in empty]
    floors = [_floor(heads[number], size, last=number == last) for number, size in enumerate(widths)]
    while len(shown) > 1 and sum(floors[n] for n in shown) + NARROW_GAP * (len(shown) - 1) > room:
        shown.remove(order.pop(0))
    gap = GAP if sum(floors[n] for n in shown) + GAP * (len(shown) - 1) <= room else NARROW_GAP
    available = room - gap * (len(shown) - 1)
    whole = [size if heads[n] in NAMES else floors[n] for n, size in enumerate(widths)]
    if sum(whole[n] for n in shown) <= available:
        floors = whole
    widest = max((widths[n] for n in shown), default=0)
    while widest > 1 and sum(_bounded(widths[n], floors[n], widest) for n in shown) > available:
        widest -= 1
    fitting = tuple(min(room, _bounded(widths[n], floors[n], widest)) for n in shown)
    wrapped = shown[-1:] == [last] and fitting[-1] >= min(SENTENCE, widths[last])
    return Layout(tuple(shown), fitting, gap, wrapped)


def _floor(head: str, size: int, *, last: bool) -> int:
    return min(size, max(NAMES.get(head, SENTENCE if last else READABLE), columns(head)))


def _bounded(size: int, floor: int, widest: int) -> int:
    return min(size, max(floor, widest))


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns that the widest cell of each column takes."""
    return [max(map(columns, cells)) for cells in zip(*rows, strict=True)]


def columns(text: str) -> int:
    """Return the columns that a text takes on a terminal: wide characters take two, combining ones none."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, size: int) -> str:
    """Return a text of at most ``size`` columns, with an ellipsis where it is cut."""
    if columns(text) <= size:
        return text
    while text and columns(text) > size - 1:
        text = text[:-1]
    return f"{text}…"[:size]
