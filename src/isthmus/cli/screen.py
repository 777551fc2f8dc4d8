"""A terminal whose lines are redrawn in place, as by ``watch`` and ``top``; its former content returns at the end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

PERIOD: Final = 0.25
"""Seconds between two drawings of what changes: faster is not readable."""

BEGIN: Final = "\x1b[?1049h\x1b[?25l"
END: Final = "\x1b[?25h\x1b[?1049l"
"""Control sequences of xterm, which every terminal in use has: another screen without a cursor, and back."""

Draw = Callable[[Sequence[str]], None]


@contextmanager
def screen() -> Iterator[Draw]:
    """Yield a function that draws lines; their width is the caller's. At the end the last ones are printed to stay."""
    last: list[str] = []

    def draw(lines: Sequence[str]) -> None:
        last[:] = lines
        text = "".join(f"{line}\x1b[K\r\n" for line in fitting(lines, os.get_terminal_size(sys.stdout.fileno()).lines))
        _write(f"\x1b[H{text}\x1b[J")

    before = signal.signal(signal.SIGTERM, _terminated)
    _write(BEGIN)
    try:
        yield draw
    finally:
        _write(END + "".join(f"{line}\n" for line in last))
        signal.signal(signal.SIGTERM, before)


def fitting(lines: Sequence[str], rows: int) -> list[str]:
    """Return as many lines as there are rows above the cursor's; the last one counts what is left out."""
    room = max(rows - 1, 1)
    if len(lines) <= room:
        return [*lines]
    return [*lines[: room - 1], f"and {len(lines) - room + 1} more lines"]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _terminated(number: int, frame: FrameType | None) -> None:
    """End as after an interrupt, so that the terminal is left as it was."""
    sys.exit(128 + number)
