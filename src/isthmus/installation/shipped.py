"""Directories of the repository that wheels have copies of."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import isthmus


def directory(name: str, package: ModuleType = isthmus) -> Path:
    """Return the copy of a directory in the wheel of a package, or the checkout's own where no wheel is installed.

    ``directory("deploy")``, for example.
    """
    folder = Path(str(package.__file__)).resolve().parent
    copy = folder / name
    return copy if copy.is_dir() else folder.parents[1] / name
