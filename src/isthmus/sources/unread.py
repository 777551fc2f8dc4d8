"""Names the fields of a JSON value that its struct does not read: what an object asks for and nothing follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, get_args

from msgspec import Struct, structs

Fields = Mapping[str, type[Struct] | None]

LONGEST_NAME: Final = 64
"""Characters of a field's name. Servers without a schema keep fields of any name."""


def unread(value: Any, struct: type[Struct], field: str) -> Iterator[str]:
    """Yield the path of each field with a value that a struct does not declare; ``field`` is the value's own path."""
    known = _fields(struct)
    for name, part in value.items():
        path = f"{field}.{_printable(name[:LONGEST_NAME])}"
        if name not in known:
            if part not in (None, "", [], {}):
                yield path
        elif (nested := known[name]) is not None:
            for place, element in enumerate(part) if isinstance(part, list) else ((None, part),):
                if isinstance(element, dict):
                    yield from unread(element, nested, path if place is None else f"{path}[{place}]")


def _printable(name: str) -> str:
    """Return a name without control characters: people read it in a terminal."""
    return name if name.isprintable() else "".join([each if each.isprintable() else "?" for each in name])


@cache
def _fields(struct: type[Struct]) -> Fields:
    """Return a struct's fields by their names in JSON, with the struct of the field or of its elements."""
    return {each.encode_name: _struct_in(each.type) for each in structs.fields(struct)}


def _struct_in(kind: Any) -> type[Struct] | None:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind
    return next((nested for each in get_args(kind) if (nested := _struct_in(each)) is not None), None)
