"""Output formats: tables without boxes, JSON and YAML."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

import msgspec

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


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns three blanks apart, as kubectl prints them. On a terminal long cells are folded within their column."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, width=width(), height=100)
    found = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="")
    for name in heads:
        found.add_column(name, no_wrap=width() == WIDEST, overflow="fold")
    for row in rows:
        found.add_row(*(Text(plain(cell), style=_style(cell)) for cell in row))
    with console.capture() as capture:
        console.print(found)
    for line in capture.get().splitlines():
        print(line.rstrip())


def lines(rows: Sequence[Sequence[str]], *, widths: list[int]) -> None:
    """The same columns for what is followed: one grows when it must, for good, and earlier lines stay as they are.

    ``widths`` begins empty and is kept by the caller.
    """
    rows = [[plain(cell) for cell in row] for row in rows]
    widths += [0] * (max(map(len, rows), default=0) - len(widths))
    for row in rows:
        widths[:] = [max(size, len(cell)) for size, cell in zip(widths, row, strict=True)]
    for row in rows:
        print(_cut("   ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()), flush=True)


def paragraph(first: str, text: str) -> None:
    """A text after its beginning; on a terminal it is folded at blanks, and goes on below where it began."""
    wrap = textwrap.TextWrapper(
        width(), initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False, break_long_words=True
    )
    line(wrap.fill(text) if width() > 2 * len(first) else first + text)


def width() -> int:
    """Columns of the terminal that standard output is; WIDEST where it is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or WIDEST
    except (OSError, ValueError):
        return WIDEST


def _cut(line: str) -> str:
    return line if len(line) <= width() else f"{line[: width() - 1]}…"


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


def _style(cell: str) -> str:
    return "red" if any(word in cell.lower() for word in BAD) else ""


def sentences(*texts: str) -> str:
    """Those that are not empty, each once, in one line."""
    return "; ".join(dict.fromkeys(filter(None, texts)))
