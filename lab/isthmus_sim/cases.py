"""Stories in files: a seed, and an event on each line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from isthmus_sim import events
from isthmus_sim.events import Event


class Case(NamedTuple):
    """A story to repeat."""

    seed: int
    events: Sequence[Event]


def read(path: Path) -> Case:
    """The story of a file."""
    first, _, rest = path.read_text().partition("\nseed ")
    if first.startswith("seed "):
        rest, first = f"{first.removeprefix('seed ')}\n{rest}", ""
    seed, _, lines = rest.partition("\n")
    return Case(int(seed), events.parse(lines))


def text(case: Case, *, comments: Sequence[str] = ()) -> str:
    """A file of a story, with what it showed as comments."""
    head = [f"# {comment}" for comment in comments]
    return "\n".join([*head, f"seed {case.seed}", *map(str, case.events), ""])
