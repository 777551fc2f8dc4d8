"""CustomResourceDefinitions → kinds, with their schemas.

A definition of a kind that is built in gives that kind its schema and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec

from isthmus_lab.apiserver import columns, jsonpath, schema
from isthmus_lab.apiserver.columns import Cell, Column
from isthmus_lab.apiserver.kinds import BUILT_IN, Kind, Registry
from isthmus_lab.apiserver.objects import Object, items, nested, whole
from isthmus_lab.apiserver.schema import ELEMENT, ListRule, Path
from isthmus_lab.apiserver.stored_kinds import STORED_KINDS

_RESERVED: Final = {(kind.group, kind.resource) for kind in (*BUILT_IN, *STORED_KINDS)}


def serve(registry: Registry, definition: Object) -> Kind | None:
    """Serve the kind of a definition from now on. Returns the kind, ``None`` if it is built in."""
    kind = kind_of(definition)
    if built_in(kind):
        own = registry.resource(kind.group, kind.versions[0], kind.resource)
        if own is not None:
            registry.add(replace(own, schemas=kind.schemas))
        return None
    registry.add(kind)
    return kind


def built_in(kind: Kind) -> bool:
    """True if a kind is served without a CustomResourceDefinition."""
    return (kind.group, kind.resource) in _RESERVED


def kind_of(definition: Object) -> Kind:
    """The kind a definition defines."""
    spec = definition["spec"]
    names = spec["names"]
    versions = [version for version in items(spec, "versions") if version.get("served")]
    stored = next(version for version in items(spec, "versions") if version.get("storage"))
    ordered = [stored, *(version for version in versions if version is not stored)]
    properties = nested(stored, "schema", "openAPIV3Schema", default={})
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
        schemas={each["name"]: schema for each in versions if (schema := nested(each, "schema", "openAPIV3Schema"))},
    )


def _columns(version: Object) -> tuple[Column, ...]:
    declared = [_column(each) for each in items(version, "additionalPrinterColumns")]
    return (columns.NAME, *declared) if declared else columns.NAME_AGE


def _column(declared: Object) -> Column:
    kind = str(declared.get("type", "string"))
    wide = whole(declared.get("priority")) > 0
    return Column(str(declared.get("name", "")), _cell(str(declared.get("jsonPath", "")), kind), "string", wide)


def _cell(path: str, kind: str) -> Cell:
    try:
        find = jsonpath.parse(path)
    except ValueError:
        return lambda obj: "<unknown>"

    def cell(obj: Object) -> Any:
        values = find(obj)
        if kind == "date":
            return columns.age("at")({"at": values[0]}) if values else ""
        shown = [each if isinstance(each, str) else msgspec.json.encode(each).decode() for each in values]
        return " ".join(shown)

    return cell


def _lists(properties: Any, path: Path) -> Iterator[tuple[Path, ListRule]]:
    """The lists in a schema that are maps or sets; none where it is no schema."""
    inner = nested(properties, "items")
    match nested(properties, "x-kubernetes-list-type"):
        case "map" if isinstance(inner, dict):
            declared = nested(properties, "x-kubernetes-list-map-keys")
            keys = tuple(str(key) for key in declared) if isinstance(declared, list) else ()
            key_defaults = {key: nested(inner, "properties", key, "default") for key in keys}
            defaults = {key: str(value) for key, value in key_defaults.items() if value is not None}
            yield path, ListRule(keys, keys[0] if keys else "", defaults)
            yield from _lists(inner, (*path, ELEMENT))
        case "set":
            yield path, schema.SET
    deeper = nested(properties, "properties")
    for name, property_schema in deeper.items() if isinstance(deeper, dict) else ():
        yield from _lists(property_schema, (*path, name))
