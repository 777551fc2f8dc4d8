"""What is told in a status, as it stands and as it is wanted: alike whatever the order, and whoever else tells more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from isthmus.model.services import StatusCondition

OURS: Final = frozenset({"Valid", "Ready", "Conflict", "Stale"})
"""Types of conditions that are ours to tell; others may add theirs."""


class Told(NamedTuple):
    """The part of a status that is ours."""

    clusters: frozenset[str] = frozenset()
    conditions: frozenset[StatusCondition] = frozenset()


def found(clusters: Iterable[str], conditions: Iterable[StatusCondition]) -> Told:
    """As it stands."""
    return Told(frozenset(clusters), frozenset(each for each in conditions if each.type in OURS))


def wanted(status: bytes) -> Told:
    """As it is wanted."""
    said = msgspec.json.decode(status)
    conditions = (
        StatusCondition(
            type=each["type"],
            status=each["status"],
            reason=each["reason"],
            message=each["message"],
            generation=each.get("observedGeneration", 0),
        )
        for each in said.get("conditions", ())
    )
    return found((each["cluster"] for each in said.get("clusters", ())), conditions)
