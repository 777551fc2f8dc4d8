"""Declares which units a changed row affects, for ``reads`` of derived tables whose rule is a look-up.

    POLICIES: unit_of("service")                                      the row's own unit, before and after
    NODES: on_change(("zone",), unit_of("name"))                      only if a field differs
    CLUSTERS: through(LISTENERS, "service", index="cluster")          the units of rows that refer to the changed row

An attribute is given by its name, which may be dotted, or as a function of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from isthmus.statedb.derived import Affected
from isthmus.statedb.reading import Reader
from isthmus.statedb.table import AnyTable

Attribute = str | Callable[[Any], Hashable]


def unit_of(unit: Attribute) -> Affected:
    """The unit of the row, before and after the change."""
    get = _getter(unit)

    def affected(reader: Reader, old: Any, new: Any) -> Iterable[Hashable]:
        if old is None or new is None:
            return (get(new if new is not None else old),)
        return (get(old), get(new))

    return affected


def on_change(fields: Sequence[str] | Callable[[Any, Any], bool], then: Affected) -> Affected:
    """The units of ``then`` if a row is inserted or deleted, or if one of its fields differs.

    ``fields`` may be a function of both rows, ``None`` for a missing one, that decides all of these cases.
    """
    if callable(fields):
        differs = fields
    else:
        getters = [attrgetter(name) for name in fields]

        def differs(old: Any, new: Any) -> bool:
            return old is None or new is None or any(get(old) != get(new) for get in getters)

    return lambda reader, old, new: then(reader, old, new) if differs(old, new) else ()


def through(table: AnyTable, unit: Attribute, *, index: str = "", key: str = "name") -> Affected:
    """The units of the rows of another table whose ``index`` has the changed row's ``key``; without index, of all."""
    get, key_of = _getter(unit), attrgetter(key)

    def affected(reader: Reader, old: Any, new: Any) -> Iterable[Hashable]:
        rows = reader.by(table, index, key_of(new if new is not None else old)) if index else reader.all(table)
        return dict.fromkeys([get(row) for row in rows])

    return affected


def _getter(attribute: Attribute) -> Callable[[Any], Hashable]:
    return attrgetter(attribute) if isinstance(attribute, str) else attribute
