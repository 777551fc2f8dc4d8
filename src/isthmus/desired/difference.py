"""What an object has to change to hold what is wanted of it: one comparison for every kind.

Maps are compared field by field, and fields that nothing wants are others', but for labels and annotations that the
object's ``managedFields`` give as ours: those we set once and want no more. Lists are ours whole, in any order where
their items are objects (a server may merge them in another), but for lists that are shared by key: conditions, owners.
Of an item, fields that nothing wants are the server's (a port's targetPort), but for those that no server sets of its
own accord. Empty and absent are the same. Times are the server's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from isthmus.desired import parents
from isthmus.desired.ownership import MANAGER, Ownership

Json = Any
Fields = Mapping[str, Json]

SHARED: Final = {"conditions": "type", "ownerReferences": "uid"}
"""Lists in which others have items too, by the key of an item."""
UNDEFAULTED: Final = {"ports": ("name", "appProtocol"), "endpoints": ("hostname", "nodeName", "zone", "hints")}
"""By list, the fields of an item that no server sets by itself: one that nothing wants is to go."""
NAMED: Final = frozenset({"apiVersion", "kind", "name", "namespace", "uid", "resourceVersion"})
"""Fields that say which object is meant, at its top and in ``metadata``."""
EMPTY: Final[tuple[Json, ...]] = (None, "", [], {})


def difference(desired: Fields, current: Fields, ownership: Ownership) -> dict[str, Json]:
    """The merge patch (RFC 7386) after which ``current`` holds what is wanted; empty where it does already.

    ``desired`` may be a whole object, or ``{"status": …}``.
    """
    patch: dict[str, Json] = {}
    for field, value in desired.items():
        if field in NAMED:
            continue
        there = current.get(field) or {}
        part: Json
        if field == "metadata":
            part = _metadata({key: each for key, each in value.items() if key not in NAMED}, there)
        elif field == "spec":
            extra = {key: None for key in ownership.absent if value.get(key) in EMPTY and there.get(key) not in EMPTY}
            part = {**_fields(value, there), **extra}
        elif field == "status":
            part = _status(value, there, ownership)
        else:
            part = _fields({field: value}, current).get(field)
        if part not in EMPTY:
            patch[field] = part
    return patch


def _metadata(desired: Fields, current: Fields) -> dict[str, Json]:
    patch = _fields(desired, current)
    for name in ("labels", "annotations"):
        unwanted = (current.get(name) or {}).keys() - (desired.get(name) or {}).keys()
        if unwanted and (removed := unwanted & _applied(current, name)):
            patch[name] = {**patch.get(name, {}), **dict.fromkeys(sorted(removed))}
    return patch


def _applied(metadata: Fields, name: str) -> set[str]:
    """Keys of a map of metadata that are ours by the server's record, which an earlier process' writes are in too."""
    return {
        key.removeprefix("f:")
        for entry in metadata.get("managedFields") or ()
        if entry.get("manager") == MANAGER
        for key in ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get(f"f:{name}") or ()
    }


def _fields(desired: Fields, current: Fields) -> dict[str, Json]:
    patch: dict[str, Json] = {}
    for field, value in desired.items():
        there = current.get(field)
        if isinstance(value, dict):
            if part := _fields(value, there if isinstance(there, dict) else {}):
                patch[field] = part
        elif isinstance(value, list):
            items = there if isinstance(there, list) else []
            gone = UNDEFAULTED.get(field, ())
            changed = _shared(value, items, SHARED[field]) if field in SHARED else _list(value, items, gone)
            if changed is not None:
                patch[field] = changed
        elif value != there and not (value in EMPTY and there in EMPTY):
            patch[field] = value
    return patch


def _list(desired: Sequence[Json], current: Sequence[Json], undefaulted: Sequence[str] = ()) -> list[Json] | None:
    """The wanted list; None where each of its items has a counterpart in the found one, and nothing else is there.

    ``undefaulted``: fields that an item has only where they are wanted.
    """
    if len(desired) != len(current):
        return list(desired)
    if all(_same(*pair, undefaulted) for pair in zip(desired, current, strict=True)):
        return None
    if not all(isinstance(item, dict) for item in desired):
        return list(desired)  # the order of plain values means something
    left = list(current)
    for item in desired:
        counterpart = next((place for place, there in enumerate(left) if _same(item, there, undefaulted)), None)
        if counterpart is None:
            return list(desired)
        del left[counterpart]
    return None


def _same(desired: Json, current: Json, undefaulted: Sequence[str] = ()) -> bool:
    if not isinstance(desired, dict):
        return bool(desired == current)
    if not isinstance(current, dict) or _fields(desired, current):
        return False
    return all(field in desired or current.get(field) in EMPTY for field in undefaulted)


def _status(desired: Fields, current: Fields, ownership: Ownership) -> dict[str, Json]:
    if ownership.controller:
        [(field, listed)] = desired.items()
        entries = parents.merged(listed, current.get(field) or [], ownership.controller)
        return {} if entries is None else {field: entries}
    owned = ownership.conditions
    conditions = desired.get("conditions", [])
    there = current.get("conditions") or []
    unwanted = owned - {each["type"] for each in conditions}
    patch = _fields({key: value for key, value in desired.items() if key != "conditions"}, current)
    kept = [each for each in there if each["type"] not in unwanted]
    changed = _shared(conditions, kept, "type")
    if changed is not None or len(kept) != len(there):
        patch["conditions"] = kept if changed is None else changed
    return patch


def _shared(desired: Sequence[Json], current: Sequence[Json], key: str) -> list[Json] | None:
    """The found list with the wanted items in it; None where they are."""
    known = {each.get(key): each for each in current}
    if all(each.get(key) in known and _same(each, known[each.get(key)]) for each in desired):
        return None
    return [*({**known, **{each[key]: {**known.get(each[key], {}), **each} for each in desired}}.values())]
