"""The log of a process of a lab: which file it is, and its lines."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from isthmus_lab.layout import Lab

POLL_INTERVAL: Final = 0.2
"""Seconds between two looks for more."""


class NoSuchLog(Exception):  # noqa: N818
    """No process of the lab is called so; the message lists those with a log."""


def find(lab: Lab, process: str) -> Path:
    """The file of ``c1/operator``, ``c1/n2/agent``, ``supervisor``; ``c1/agent`` is that of the first node."""
    names = {path.stem.replace("-", "/"): path for path in sorted(lab.logs.glob("*.log"))}
    cluster, _, rest = process.strip("/").replace("/node/", "/n").partition("/")
    for candidate in (f"{cluster}/{rest}" if rest else cluster, f"{cluster}/n1/{rest}"):
        if candidate in names:
            return names[candidate]
    raise NoSuchLog(f"{process}: lab {lab.name} has no log of it; there are: {', '.join(names)}")


def read(path: Path, *, tail: int | None, follow: bool) -> Iterator[str]:
    """The lines there are, the last ``tail`` of them if that is given, and, to follow, all that come, for ever."""
    with path.open(errors="replace") as file:
        yield from file if tail is None else deque(file, maxlen=tail)
        while follow:
            if line := file.readline():
                yield line
            else:
                time.sleep(POLL_INTERVAL)
