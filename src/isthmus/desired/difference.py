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


def difference(wanted: Fields, found: Fields, ownership: Ownership) -> dict[str, Json]:
    """The merge patch (RFC 7386) after which ``found`` holds what is wanted; empty where it does already.

    ``wanted`` may be a whole object, or ``{"status": …}``.
    """
    patch: dict[str, Json] = {}
    for field, value in wanted.items():
        if field in NAMED:
            continue
        there = found.get(field) or {}
        part: Json
        if field == "metadata":
            part = _metadata({key: each for key, each in value.items() if key not in NAMED}, there)
        elif field == "spec":
            extra = {key: None for key in ownership.absent if value.get(key) in EMPTY and there.get(key) not in EMPTY}
            part = {**_fields(value, there), **extra}
        elif field == "status":
            part = _status(value, there, ownership)
        else:
            part = _fields({field: value}, found).get(field)
        if part not in EMPTY:
            patch[field] = part
    return patch


def _metadata(wanted: Fields, found: Fields) -> dict[str, Json]:
    patch = _fields(wanted, found)
    for name in ("labels", "annotations"):
        unwanted = (found.get(name) or {}).keys() - (wanted.get(name) or {}).keys()
        if unwanted and (removed := unwanted & _applied(found, name)):
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


def _fields(wanted: Fields, found: Fields) -> dict[str, Json]:
    patch: dict[str, Json] = {}
    for field, value in wanted.items():
        there = found.get(field)
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


def _list(wanted: Sequence[Json], found: Sequence[Json], undefaulted: Sequence[str] = ()) -> list[Json] | None:
    """The wanted list; None where each of its items has a counterpart in the found one, and nothing else is there.

    ``undefaulted``: fields that an item has only where they are wanted.
    """
    if len(wanted) != len(found):
        return list(wanted)
    if all(_same(*pair, undefaulted) for pair in zip(wanted, found, strict=True)):
        return None
    if not all(isinstance(each, dict) for each in wanted):
        return list(wanted)  # the order of plain values means something
    left = list(found)
    for each in wanted:
        counterpart = next((place for place, there in enumerate(left) if _same(each, there, undefaulted)), None)
        if counterpart is None:
            return list(wanted)
        del left[counterpart]
    return None


def _same(wanted: Json, found: Json, undefaulted: Sequence[str] = ()) -> bool:
    if not isinstance(wanted, dict):
        return bool(wanted == found)
    if not isinstance(found, dict) or _fields(wanted, found):
        return False
    return all(field in wanted or found.get(field) in EMPTY for field in undefaulted)


def _status(wanted: Fields, found: Fields, ownership: Ownership) -> dict[str, Json]:
    if ownership.controller:
        entries = parents.merged(wanted["parents"], found.get("parents") or [], ownership.controller)
        return {} if entries is None else {"parents": entries}
    owned = ownership.conditions
    conditions = wanted.get("conditions", [])
    there = found.get("conditions") or []
    unwanted = owned - {each["type"] for each in conditions}
    patch = _fields({key: value for key, value in wanted.items() if key != "conditions"}, found)
    kept = [each for each in there if each["type"] not in unwanted]
    changed = _shared(conditions, kept, "type")
    if changed is not None or len(kept) != len(there):
        patch["conditions"] = kept if changed is None else changed
    return patch


def _shared(wanted: Sequence[Json], found: Sequence[Json], key: str) -> list[Json] | None:
    """The found list with the wanted items in it; None where they are."""
    known = {each.get(key): each for each in found}
    if all(each.get(key) in known and _same(each, known[each.get(key)]) for each in wanted):
        return None
    return [*({**known, **{each[key]: {**known.get(each[key], {}), **each} for each in wanted}}.values())]
