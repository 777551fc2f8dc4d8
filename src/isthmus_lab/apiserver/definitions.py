"""CustomResourceDefinitions → kinds. Their schemas say which lists are maps; nothing else in them is acted on.

A definition of a kind that is built in is taken and changes nothing: what is built in is that kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from isthmus_lab.apiserver import columns, jsonpath, schema
from isthmus_lab.apiserver.columns import Cell, Column
from isthmus_lab.apiserver.kinds import BUILT_IN, Kind, Registry
from isthmus_lab.apiserver.objects import Object, at, items
from isthmus_lab.apiserver.schema import ELEMENT, ListRule, Path
from isthmus_lab.apiserver.stored_kinds import STORED_KINDS

_RESERVED: Final = {(kind.group, kind.resource) for kind in (*BUILT_IN, *STORED_KINDS)}


def serve(registry: Registry, definition: Object) -> Kind | None:
    """Serve what a definition defines, from now on; the kind, None where it is built in."""
    kind = kind_of(definition)
    if built_in(kind):
        return None
    registry.add(kind)
    return kind


def built_in(kind: Kind) -> bool:
    """Whether a kind is here without a definition."""
    return (kind.group, kind.resource) in _RESERVED


def kind_of(definition: Object) -> Kind:
    """The kind a definition defines."""
    spec = definition["spec"]
    names = spec["names"]
    versions = [version for version in items(spec, "versions") if version.get("served")]
    stored = next(version for version in items(spec, "versions") if version.get("storage"))
    ordered = [stored, *(version for version in versions if version is not stored)]
    properties = at(stored, "schema", "openAPIV3Schema", default={})
    return Kind(
        group=spec["group"],
        versions=tuple(version["name"] for version in ordered),
        kind=names["kind"],
        resource=names["plural"],
        singular_name=names.get("singular", ""),
        short=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        namespaced=spec["scope"] == "Namespaced",
        subresources=frozenset(name for name in ("status", "scale") if name in (stored.get("subresources") or {})),
        columns=_columns(stored),
        lists=dict(_lists(properties, ())),
        counted=True,
        strategic=False,
    )


def _columns(version: Object) -> tuple[Column, ...]:
    wanted = [_column(each) for each in items(version, "additionalPrinterColumns")]
    return (columns.NAME, *wanted) if wanted else columns.NAME_AGE


def _column(wanted: Object) -> Column:
    kind = str(wanted.get("type", "string"))
    wide = int(wanted.get("priority", 0)) > 0
    return Column(str(wanted.get("name", "")), _cell(str(wanted.get("jsonPath", "")), kind), "string", wide)


def _cell(path: str, kind: str) -> Cell:
    try:
        find = jsonpath.parse(path)
    except ValueError:
        return lambda obj: "<unknown>"

    def cell(obj: Object) -> Any:
        found = find(obj)
        if kind == "date":
            return columns.age("at")({"at": found[0]}) if found else ""
        shown = [each if isinstance(each, str) else msgspec.json.encode(each).decode() for each in found]
        return " ".join(shown)

    return cell


def _lists(properties: Any, path: Path) -> Iterator[tuple[Path, ListRule]]:
    """The lists in a schema that are maps or sets; none where it is no schema."""
    inner = at(properties, "items")
    match at(properties, "x-kubernetes-list-type"):
        case "map" if isinstance(inner, dict):
            declared = at(properties, "x-kubernetes-list-map-keys")
            keys = tuple(str(key) for key in declared) if isinstance(declared, list) else ()
            found = {key: at(inner, "properties", key, "default") for key in keys}
            defaults = {key: str(value) for key, value in found.items() if value is not None}
            yield path, ListRule(keys, keys[0] if keys else "", defaults)
            yield from _lists(inner, (*path, ELEMENT))
        case "set":
            yield path, schema.SET
    deeper = at(properties, "properties")
    for name, each in deeper.items() if isinstance(deeper, dict) else ():
        yield from _lists(each, (*path, name))
