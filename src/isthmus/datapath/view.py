"""The content of the maps, for people and for tests: decoded, with names beside numbers, sorted.

``masked`` omits numbers and generations, so that two kernels with the same behaviour have equal dumps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from isthmus.datapath.core.manifest import Row
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.manifest import MAPS
from isthmus.datapath.services.manifest import ORDER
from isthmus.datapath.services.views import PlanNames

_SHOWN = (*reversed(ORDER), *(name for name, row in MAPS.items() if row.show and name not in ORDER))
"""Maps in the order of a dump: an entry precedes the entries that it refers to."""
_NUMBERS = frozenset({"id", "plan_id", "policy_id", "backend_id", "service_id", "generation", "used", "cookie"})


def dump(maps: Maps, *, masked: bool = False) -> dict[str, list[Row]]:
    """Every map's entries as rows."""
    return {name: _sorted(rows, masked=masked) for name, rows in _shown(maps, _SHOWN).items()}


def rows(maps: Maps, name: str) -> list[Row]:
    """One map's entries as rows, in no order."""
    return _shown(maps, [name])[name]


def render(dumped: Mapping[str, Iterable[Row]]) -> str:
    """A dump as text: a heading for each map that holds something, and a line for each entry."""
    lines: list[str] = []
    for name, rows in dumped.items():
        entries = [" ".join(f"{field}={_plain(value)}" for field, value in row.items()) for row in rows]
        if entries:
            lines += [f"{name}:", *(f"  {entry}" for entry in entries)]
    return "\n".join(lines)


def _shown(maps: Maps, selected: Iterable[str]) -> dict[str, list[Row]]:
    names = PlanNames(*(maps.items(name) for name in ("services", "clusters", "plans", "backends")))
    return {name: show(names, list(maps.items(name))) for name in selected if (show := MAPS[name].show) is not None}


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "[" + "; ".join(" ".join(f"{k}={v}" for k, v in each.items()) for each in value) + "]"
    return str(value)


def _sorted(rows: list[Row], *, masked: bool) -> list[Row]:
    if masked:
        rows = [{field: value for field, value in row.items() if field not in _NUMBERS} for row in rows]
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])
