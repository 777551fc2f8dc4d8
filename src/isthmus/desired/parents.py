"""``status.parents`` of a route, ``status.ancestors`` of a policy (Gateway API): lists of every controller's entries.

To a server it is one field, so whoever writes it writes all of it: others' entries are written back as they were found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Json = Any


def merged(desired: Sequence[Json], current: Sequence[Json], controller: str) -> list[Json] | None:
    """The found list with a controller's entries as they are wanted; None where they are.

    A condition keeps its time while its status stays; one whose time is not known has none.
    """
    others = [each for each in current if each.get("controllerName") != controller]
    ours = [each for each in current if each.get("controllerName") == controller]
    if _comparable(ours) == _comparable(desired):
        return None
    since = {
        (_reference(each), condition["type"], condition["status"]): condition.get("lastTransitionTime", "")
        for each in ours
        for condition in each.get("conditions") or ()
    }

    def timed(of: str, condition: Mapping[str, Json]) -> dict[str, Json]:
        time = since.get((of, condition["type"], condition["status"]))
        return {**condition, **({"lastTransitionTime": time} if time else {})}

    now = [{**each, "conditions": [timed(_reference(each), one) for one in each["conditions"]]} for each in desired]
    return [*others, *now]


def complete(parents: Sequence[Json], *, now: str) -> list[Json]:
    """The list with a time for each condition that has none."""
    return [
        {**each, "conditions": [{"lastTransitionTime": now, **one} for one in each.get("conditions") or ()]}
        for each in parents
    ]


def _reference(entry: Mapping[str, Json]) -> str:
    return msgspec.json.encode(entry.get("parentRef") or entry.get("ancestorRef"), order="sorted").decode()


def _comparable(entries: Sequence[Json]) -> list[tuple[str, list[str]]]:
    """What of entries is compared: all but times, in any order."""

    def untimed(condition: Mapping[str, Json]) -> str:
        rest = {key: value for key, value in condition.items() if key != "lastTransitionTime"}
        return msgspec.json.encode(rest, order="sorted").decode()

    return sorted((_reference(each), sorted(map(untimed, each.get("conditions") or ()))) for each in entries)
