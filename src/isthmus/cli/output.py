"""Output formats: tables without boxes, JSON and YAML."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

WIDEST = 1 << 14
BAD = ("error", "failed", "refused", "stale", "missing", "not ready")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns three blanks apart, as kubectl prints them; long lines are the terminal's to fold."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, width=WIDEST)
    found = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="")
    for name in heads:
        found.add_column(name, no_wrap=True)
    for row in rows:
        found.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    with console.capture() as capture:
        console.print(found)
    for line in capture.get().splitlines():
        print(line.rstrip())


def lines(rows: Sequence[Sequence[str]], *, widths: list[int]) -> None:
    """The same columns for what is followed: one grows when it must, for good, and earlier lines stay as they are.

    ``widths`` begins empty and is kept by the caller.
    """
    widths += [0] * (max(map(len, rows), default=0) - len(widths))
    for row in rows:
        widths[:] = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]
    for row in rows:
        print("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), flush=True)


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
