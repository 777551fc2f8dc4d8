"""What other rooms use of this one: the names of its ``__init__``, and nothing beyond."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import isthmus
from isthmus import clusterset

SOURCES = Path(isthmus.__file__).resolve().parent.parent
ROOM = "isthmus.clusterset"


def used() -> Iterator[tuple[Path, str]]:
    """Every name of the room that a module outside of it imports."""
    for path in SOURCES.rglob("*.py"):
        if path.is_relative_to(SOURCES / "isthmus" / "clusterset"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ROOM):
                inner = (node.module or "").removeprefix(ROOM).lstrip(".")
                yield from ((path, f"{inner}.{each.name}" if inner else each.name) for each in node.names)
            elif isinstance(node, ast.Import):
                yield from ((path, each.name) for each in node.names if each.name.startswith(ROOM))


def test_nothing_is_imported_from_outside_but_what_the_room_offers() -> None:
    found = list(used())
    assert [(str(path.relative_to(SOURCES)), name) for path, name in found if name not in clusterset.__all__] == []
    assert {name for _, name in found} == set(clusterset.__all__), "and it offers nothing that nobody uses"
