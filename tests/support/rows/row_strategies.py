"""Rows of any table with values of every kind that their types admit, for property tests of what displays rows."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect as types

from isthmus.statedb import Table

TEXTS = st.sampled_from(
    ("", "demo/echo", "c1", "c2", "10.2.0.1", "fd00::1", "derived-1", "a\x1b[31m", "\u202e", "x" * 300, "demo/")
)
"""Names that occur, so that rows refer to each other, and text that terminals and columns have to bear."""
TIMES = st.sampled_from(("", "2026-01-01T00:00:00Z", "2199-12-31T23:59:59Z"))


def rows(table: Table[Any, Any]) -> st.SearchStrategy[Any]:
    """Rows of a table."""
    return values(types.type_info(table.row))


def values(described: types.Type) -> st.SearchStrategy[Any]:
    """Values of a type as msgspec describes it. Lists have at most three items."""
    match described:
        case types.StructType(cls=cls, fields=fields):
            named = {field.name: _field(field.name, field.type) for field in fields}
            return st.builds(cls, **named)
        case types.Metadata(type=inner):
            return values(inner)
        case types.UnionType(types=several):
            return st.one_of(*map(values, several))
        case types.LiteralType(values=words):
            return st.sampled_from(words)
        case types.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case types.TupleType(item_types=items):
            return st.tuples(*map(values, items))
        case types.VarTupleType(item_type=item):
            return st.lists(values(item), max_size=3).map(tuple)
        case types.FrozenSetType(item_type=item) | types.SetType(item_type=item):
            return st.frozensets(values(item), max_size=3)
        case types.CollectionType(item_type=item):
            return st.lists(values(item), max_size=3).map(tuple)
        case types.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key), values(value), max_size=2)
        case types.BoolType():
            return st.booleans()
        case types.IntType():
            return st.sampled_from((0, 1, 3, 80, 65535))
        case types.FloatType():
            return st.sampled_from((0.0, 0.25, 1.0, 1e9))
        case types.NoneType():
            return st.none()
        case types.BytesType():
            return st.sampled_from((b"", b"\x00\xff"))
        case types.AnyType():
            return st.none()
        case _:
            return TEXTS


def _field(name: str, described: types.Type) -> st.SearchStrategy[Any]:
    if isinstance(described, types.StrType) and name in ("since", "created", "started", "ends", "certificate_ends"):
        return TIMES
    return values(described)


def every_table() -> list[Table[Any, Any]]:
    """Every table that model.tables declares."""
    from isthmus.model import tables

    return [table for table in vars(tables).values() if isinstance(table, Table)]


def json_of(row: Any) -> Any:
    """The plain objects that a row becomes on the admin socket."""
    from isthmus.admin.protocol import encode

    return msgspec.json.decode(encode(row))
