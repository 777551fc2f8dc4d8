"""Objects as kubectl prints them: a Table, whose rows carry the object's metadata, or all of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from isthmus_lab.apiserver.columns import Column
from isthmus_lab.apiserver.kinds import Kind
from isthmus_lab.apiserver.objects import Object

Include = Literal["None", "Metadata", "Object"]


def table(kind: Kind, bodies: Iterable[Object], *, include: str, meta: Object, header: bool = True) -> Object:
    """Rows for some objects. A watch's later events need no header."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": [_definition(column) for column in kind.columns] if header else [],
        "rows": [_row(kind, body, include) for body in bodies],
    }


def _definition(column: Column) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.name,
        "priority": 1 if column.wide else 0,
    }


def _row(kind: Kind, body: Object, include: str) -> Object:
    row: dict[str, Any] = {"cells": [column.cell(body) for column in kind.columns]}
    if include == "Object":
        row["object"] = body
    elif include != "None":
        meta = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}
        row["object"] = meta
    return row
