"""Detect that the code on disk differs from the code that was imported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import isthmus
import isthmus_lab

ROOTS: Final = (Path(isthmus.__file__).parent, Path(isthmus_lab.__file__).parent)


class Stamp(NamedTuple):
    """State of all source files; another one means that some have changed, come or gone."""

    files: int
    newest: int
    """Newest modification time, in ns since 1970."""
    size: int
    """Bytes of all."""


def stamp(roots: Iterable[Path] = ROOTS) -> Stamp:
    """Stamp of the files as they are now; takes some milliseconds."""
    files = [path.stat() for root in roots for path in root.rglob("*.py")]
    return Stamp(len(files), max((each.st_mtime_ns for each in files), default=0), sum(each.st_size for each in files))
