"""Manifests of the stories: ``examples`` of the checkout, or their copy in an installed wheel."""

from __future__ import annotations

from pathlib import Path

import isthmus_lab
from isthmus.installation import shipped


def path(name: str) -> Path:
    """Return the path of ``examples/NAME``."""
    return shipped.directory("examples", isthmus_lab) / name


def label(manifests: Path) -> str:
    """Return a path as people know it: ``examples/NAME`` for one of these."""
    examples = shipped.directory("examples", isthmus_lab)
    return (
        str(Path("examples") / manifests.relative_to(examples))
        if manifests.is_relative_to(examples)
        else str(manifests)
    )
