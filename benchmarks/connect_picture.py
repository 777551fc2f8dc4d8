"""The picture of bench-connect: a bar for each way and kind of call, as long as what it costs more than a direct one.

python benchmarks/connect_picture.py docs/bench-connect.json >docs/bench-connect.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, TypedDict

NAMES: Final = 230
"""Pixels for the names of ways; the columns stand beside them."""
COLUMN: Final = 210
ROW: Final = 22
TOP: Final = 44
LONGEST: Final = 0.5
"""What a bar as long as a column stands for: 50 % more than a direct call. Longer ones are cut off there, and open."""
OURS: Final = ("hit", "the same", "miss")
"""What the names of ways through our programs begin with."""


class Measured(TypedDict):
    """A way's calls of one kind: p10 in µs, the rest as ratios to the direct way."""

    name: str
    us: float
    p10: float
    p50: float
    p99: float
    processor: float


Found = Mapping[str, Sequence[Measured]]


def picture(found: Found) -> str:
    """An SVG of the ratios of p10, by kind of call."""
    names = list(dict.fromkeys(row["name"] for rows in found.values() for row in rows))
    width, height = NAMES + COLUMN * len(found) + 10, TOP + ROW * len(names) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        text(8, 18, "p10, direct is 1"),
    ]
    lines += [text(8, middle(n), name) for n, name in enumerate(names)]
    for column, (kind, rows) in enumerate(found.items()):
        left = NAMES + COLUMN * column
        lines += [text(left, 18, kind), f'<path d="M{left} {TOP - 16}V{height - 8}" stroke="black"/>']
        by_name = {row["name"]: row["p10"] for row in rows}
        lines += [bar(left, n, name, by_name[name]) for n, name in enumerate(names) if name in by_name]
    return "\n".join([*lines, "</svg>", ""])


def bar(left: int, row: int, name: str, ratio: float) -> str:
    """One bar, with its number; as long as the difference to 1, to the right alone."""
    room = COLUMN - 60
    length = max(0.0, min(ratio - 1, LONGEST)) / LONGEST * room
    color = "#1f6f8b" if name.startswith(OURS) else "#999999"
    dashes = ' stroke="white" stroke-dasharray="6 6"' if ratio - 1 > LONGEST else ""
    shape = f'<rect x="{left}" y="{middle(row) - 11}" width="{length:.1f}" height="14" fill="{color}"{dashes}/>'
    return shape + text(left + length + 5, middle(row), f"{ratio:.2f}")


def middle(row: int) -> int:
    """The base line of a row's text."""
    return TOP + ROW * row + 4


def text(x: float, y: int, what: str) -> str:
    """A line of text."""
    return f'<text x="{x:.0f}" y="{y}">{escape(what)}</text>'


if __name__ == "__main__":
    print(picture(json.loads(Path(sys.argv[1]).read_text())), end="")
