"""Reading untyped objects: a Kubernetes object here is the dict its JSON decodes to.

What is stored is shared and never changed in place; who wants to change an object takes a copy first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from isthmus import bounds
from isthmus.bounds import OutOfBounds

Object = dict[str, Any]


def metadata(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The object's metadata, {} where it has none."""
    value = obj.get("metadata")
    return value if isinstance(value, dict) else {}


def name_of(obj: Mapping[str, Any]) -> str:
    """Its name, or ''."""
    return str(metadata(obj).get("name") or "")


def namespace_of(obj: Mapping[str, Any]) -> str:
    """Its namespace, or ''."""
    return str(metadata(obj).get("namespace") or "")


def labels_of(obj: Mapping[str, Any]) -> dict[str, str]:
    """Its labels, {} where it has none."""
    return metadata(obj).get("labels") or {}


def deleting(obj: Mapping[str, Any]) -> bool:
    """True if its deletion has been requested."""
    return "deletionTimestamp" in metadata(obj)


def nested(obj: Any, *path: str | int, default: Any = None) -> Any:
    """The value at a path of keys and list positions, or the default where the path ends early or at null."""
    for step in path:
        if isinstance(step, int):
            obj = obj[step] if isinstance(obj, list) and -len(obj) <= step < len(obj) else None
        else:
            obj = obj.get(step) if isinstance(obj, dict) else None
    return default if obj is None else obj


def items(obj: Any, *path: str | int) -> Iterator[dict[str, Any]]:
    """The objects in the list at a path; whatever else is in it is passed over."""
    value = nested(obj, *path, default=())
    return (item for item in (value if isinstance(value, list) else ()) if isinstance(item, dict))


def condition(obj: Any, kind: str) -> str:
    """The status of a condition of the object: 'True', 'False', 'Unknown', or '' where it has none."""
    return next((str(c.get("status", "")) for c in items(obj, "status", "conditions") if c.get("type") == kind), "")


def controller_of(obj: Mapping[str, Any]) -> dict[str, Any] | None:
    """The owner reference of the one that manages this object."""
    return next((owner for owner in items(obj, "metadata", "ownerReferences") if owner.get("controller")), None)


def clone(obj: Object) -> Object:
    """A copy that may be changed."""
    copied: Object = msgspec.to_builtins(obj)
    return copied


def parse_time(text: str) -> datetime:
    """The time of an RFC 3339 string; OutOfBounds, a ValueError, if it is none or beyond 1970 to 2200."""
    return bounds.timestamp(text)


def whole(value: Any) -> int:
    """A whole number of 64 bits, whatever an object has where one should be; 0 for anything else."""
    try:
        return bounds.count(value, least=-bounds.MAX_INT64, most=bounds.MAX_INT64)
    except OutOfBounds:
        return 0
