"""Output formats: tables without boxes, JSON and YAML."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

import msgspec

from isthmus.cli import layout

WIDEST = 1 << 14
"""Columns where no terminal bounds them: what programs read is never folded."""
BAD = ("error", "failed", "refused", "stale", "missing", "not ready")


def plain(text: str) -> str:
    """A text without control characters: objects that users of a cluster write must not steer an admin's terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


def line(text: str = "", *, file: TextIO | None = None) -> None:
    """One line of text."""
    print(plain(text), file=file)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, least: Sequence[str] = ()) -> None:
    """Print columns three blanks apart, as kubectl does. ``least``: see :func:`isthmus.cli.layout.layout`."""
    for each in table_lines(heads, rows, least=least):
        print(each)


def table_lines(heads: Sequence[str], rows: Sequence[Sequence[str]], *, least: Sequence[str] = ()) -> list[str]:
    """Return the lines of a table, none wider than the terminal. The last column is wrapped, others are cut."""
    texts = [_texts(row) for row in rows]
    empty = [number for number, cells in enumerate(zip(*texts, strict=True)) if not any(cells)]
    columns = layout.layout(heads, layout.widths([heads, *texts]), width(), least=least, empty=empty)
    return [*columns.lines(heads), *(each for row in texts for each in columns.lines(row, style=_style()))]


def lines(
    rows: Sequence[Sequence[str]], *, widths: list[int], heads: Sequence[str] = (), least: Sequence[str] = ()
) -> None:
    """Write rows as they are followed, below their heads. A column that grows stays wide; earlier lines stay.

    ``widths`` begins empty and is kept by the caller.
    """
    if not rows:
        return
    texts = [_texts(row) for row in rows]
    above = [heads] if heads and not widths else []
    widths[:] = [max(pair) for pair in zip(widths or [0] * len(rows[0]), layout.widths([*above, *texts]), strict=True)]
    columns = layout.layout(heads or [""] * len(rows[0]), widths, width(), least=least)
    for each in [*map(columns.line, above), *(columns.line(row, style=_style()) for row in texts)]:
        print(each, flush=True)


def _texts(row: Sequence[str]) -> list[str]:
    return [plain(cell).replace("\n", " ") for cell in row]


def paragraph(first: str, text: str) -> None:
    """A text after a prefix; on a terminal it is wrapped at blanks and indented below its beginning."""
    wrap = textwrap.TextWrapper(
        width(), initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False, break_long_words=True
    )
    line(wrap.fill(text) if width() > 2 * len(first) else first + text)


def cut(text: str) -> str:
    """A line of text, cut where the terminal ends."""
    return layout.cut(plain(text), width())


def width() -> int:
    """Columns of the terminal that standard output is; WIDEST where it is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or WIDEST
    except (OSError, ValueError):
        return WIDEST


def json(value: Any, *, indent: int = 2) -> None:
    """JSON, in one line where the indent is 0."""
    text = msgspec.json.encode(value)
    print((msgspec.json.format(text, indent=indent) if indent else text).decode(), flush=True)


def yaml(value: Any) -> None:
    """A YAML document."""
    import yaml as library

    print(library.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True).rstrip(), flush=True)


def note(text: str) -> None:
    """Something a person should know, beside the result."""
    print(text, file=sys.stderr)


def coloured() -> bool:
    """True if standard output is a terminal that shows colours, and its user has not turned them off.

    See https://no-color.org: any value of NO_COLOR that is not empty turns them off.
    """
    return is_terminal() and not os.environ.get("NO_COLOR")


def is_terminal() -> bool:
    """True if standard output is a terminal that can be written anywhere, not only line by line."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _style() -> layout.Style:
    return _red if coloured() else layout.unstyled


def _red(cell: str) -> tuple[str, str]:
    return ("\x1b[31m", "\x1b[0m") if any(word in cell.lower() for word in BAD) else ("", "")


def sentences(*texts: str) -> str:
    """Join the non-empty texts, each once, in one line."""
    return "; ".join(dict.fromkeys(filter(None, texts)))
