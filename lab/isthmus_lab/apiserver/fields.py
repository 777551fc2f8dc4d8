"""Field ownership: server-side apply and ``metadata.managedFields``.

A field is a path as ``fieldsV1`` writes it: ``f:name`` for a key, ``k:{…}`` for an element of a list that is a map,
``v:…`` for a value of a set. An object is flat when every leaf is a path with its value; an element of a map is a path
of its own too, whose value is a constant. A field that a manager stops applying is removed, unless another
manager also set it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Final, NamedTuple

import msgspec

from isthmus.times import timestamp
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.objects import Object, clone
from isthmus_lab.apiserver.schema import ATOMIC, ELEMENT, METADATA, SET, ListRule, Lists, Path

FieldPath = tuple[str, ...]
Flat = dict[FieldPath, Any]

MEMBER: Final = "."
UNTRACKED: Final = frozenset(
    {("f:apiVersion",), ("f:kind",)}
    | {
        ("f:metadata", f"f:{name}")
        for name in (
            *("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "generation"),
            *("deletionGracePeriodSeconds", "managedFields", "selfLink", "generateName"),
        )
    }
)


class Manager(NamedTuple):
    """Owner of fields: manager name, operation, and API version of the write."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""


Owned = dict[Manager, frozenset[FieldPath]]


def flatten(obj: Object, lists: Lists) -> Flat:
    """Every leaf with its value, except those without owner (names, the server's own fields)."""
    return {path: value for path, value in _flat(obj, {**METADATA, **lists}, (), ()) if path[:2] not in UNTRACKED
            and path not in UNTRACKED}  # fmt: skip


def owners(obj: Object) -> Owned:
    """The owners in ``metadata.managedFields``."""
    return {who: paths for who, paths, _ in _entries(obj)}


def updated(old: Object | None, new: Object, lists: Lists, manager: Manager) -> Object:
    """``new`` with ownership as an ordinary write leaves it: who changes a field takes it from all others."""
    before = flatten(old, lists) if old is not None else {}
    after = flatten(new, lists)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    removed = before.keys() - after.keys()
    if not changed and not removed:
        return _with(new, owners(old) if old is not None else {}, old)
    owned = {who: paths - changed - removed for who, paths in (owners(old) if old is not None else {}).items()}
    owned[manager] = (owned.get(manager, frozenset()) | changed) - removed
    return _with(new, owned, old)


def applied(live: Object | None, body: Object, lists: Lists, manager: Manager, *, force: bool) -> Object:
    """The live object with what a manager applies, and without what it applied before and does not any more."""
    desired = flatten(body, lists)
    owned = owners(live) if live is not None else {}
    if live is not None:
        owned = _settle(owned, flatten(live, lists), desired, manager, force=force)
    everybody_else = frozenset().union(*(paths for who, paths in owned.items() if who != manager))
    dropped = owned.get(manager, frozenset()) - desired.keys() - everybody_else
    base = clone(live) if live is not None else {}
    result = _overlay(base, body, {**METADATA, **lists}, ())
    kept = everybody_else | desired.keys()
    for path in sorted(dropped, key=len, reverse=True):
        if not any(other[: len(path)] == path for other in kept):
            _drop(result, path, kept)
    owned[manager] = frozenset(desired)
    return _with(result, owned, live)


def _settle(owned: Owned, live: Flat, desired: Flat, manager: Manager, *, force: bool) -> Owned:
    """Take the fields that differ from what others set away from them, if by force; else it is a conflict."""
    differing = {path for path, value in desired.items() if path in live and live[path] != value}
    disputed = {who: paths & differing for who, paths in owned.items() if who != manager and paths & differing}
    if disputed and not force:
        raise _conflict(disputed)
    return {who: paths - disputed.get(who, frozenset()) for who, paths in owned.items()}


def _with(obj: Object, owned: Owned, old: Object | None) -> Object:
    """The object with this ownership; an entry that stays the same keeps its time."""
    before = {(who, paths): entry for who, paths, entry in _entries(old or {})}
    entries = [before.get((who, paths)) or _entry(who, paths) for who, paths in owned.items() if paths]
    metadata = {name: value for name, value in obj.get("metadata", {}).items() if name != "managedFields"}
    return obj | {"metadata": metadata | ({"managedFields": entries} if entries else {})}


def _entries(obj: Object) -> Iterator[tuple[Manager, frozenset[FieldPath], Object]]:
    for entry in obj.get("metadata", {}).get("managedFields") or ():
        manager = Manager(
            str(entry.get("manager", "")),
            str(entry.get("operation", "Update")),
            str(entry.get("apiVersion", "")),
            str(entry.get("subresource", "")),
        )
        yield manager, frozenset(_paths(entry.get("fieldsV1") or {}, ())), entry


def _entry(manager: Manager, paths: frozenset[FieldPath]) -> Object:
    entry: Object = {
        "manager": manager.name,
        "operation": manager.operation,
        "apiVersion": manager.api_version,
        "time": timestamp(),
        "fieldsType": "FieldsV1",
        "fieldsV1": _nested(paths),
    }
    return entry | ({"subresource": manager.subresource} if manager.subresource else {})


def _flat(value: Any, lists: Lists, path: FieldPath, where: Path) -> Iterator[tuple[FieldPath, Any]]:
    rule = lists.get(where)
    if isinstance(value, dict) and (value or not path) and rule is not ATOMIC:
        for key, item in value.items():
            yield from _flat(item, lists, (*path, f"f:{key}"), (*where, key))
    elif isinstance(value, list) and rule is not None and rule.keys:
        for element in value:
            element_path = (*path, _key(element, rule))
            yield element_path, MEMBER
            yield from _flat(element, lists, element_path, (*where, ELEMENT)) if isinstance(element, dict) else ()
    elif isinstance(value, list) and rule is not None:
        for element in value:
            yield (*path, "v:" + _json(element)), MEMBER
    else:
        yield path, value


def _key(element: Any, rule: ListRule) -> str:
    fields = element if isinstance(element, dict) else {}
    return "k:" + _json({key: fields.get(key, rule.defaults.get(key)) for key in sorted(rule.keys)})


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _paths(nested: Mapping[str, Any], path: FieldPath) -> Iterator[FieldPath]:
    """The paths that ``fieldsV1`` means."""
    for key, inner in nested.items():
        if key == MEMBER:
            yield path
        elif inner:
            yield from _paths(inner, (*path, key))
        else:
            yield (*path, key)


def _nested(paths: Iterable[FieldPath]) -> Object:
    """Paths as ``fieldsV1``."""
    root: Object = {}
    for path in sorted(paths):
        node = root
        for step in path:
            node = node.setdefault(step, {})
    members = set(paths)

    def mark(node: Object, path: FieldPath) -> None:
        if node and path in members:
            node[MEMBER] = {}
        for key, inner in node.items():
            if key != MEMBER:
                mark(inner, (*path, key))

    mark(root, ())
    return root


def _overlay(live: Any, body: Any, lists: Lists, where: Path) -> Any:
    """Merge an applied body over the live value."""
    rule = lists.get(where)
    if rule is not ATOMIC and isinstance(live, dict) and isinstance(body, dict):
        result = dict(live)
        for key, value in body.items():
            result[key] = _overlay(live.get(key), value, lists, (*where, key))
        return result
    if not isinstance(live, list) or not isinstance(body, list) or rule is None:
        return body
    if rule == SET or not rule.keys:
        return [*live, *(value for value in body if value not in live)]
    desired = {_key(element, rule): element for element in body}
    have = {_key(element, rule): element for element in live}
    merged = {key: _overlay(old, desired.get(key, old), lists, (*where, ELEMENT)) for key, old in have.items()}
    return [*merged.values(), *(element for key, element in desired.items() if key not in have)]


def _drop(obj: Any, path: FieldPath, kept: Set[FieldPath], depth: int = 0) -> bool:
    """Take a field away, and what is empty then but for what is to be empty; whether the container is empty now."""
    step = path[depth]
    position = _position(obj, step)
    if position is None:
        return False
    last = depth + 1 == len(path)
    empty = not last and _drop(obj[position], path, kept, depth + 1)
    if last or (empty and step.startswith("f:") and path[: depth + 1] not in kept):
        del obj[position]
    return not obj


def _position(obj: Any, step: str) -> Any:
    """Key or index in a container that a path step selects; None if it is missing."""
    form, text = step[:2], step[2:]
    if form == "f:":
        return text if isinstance(obj, dict) and text in obj else None
    if not isinstance(obj, list):
        return None
    value = msgspec.json.decode(text)
    for index, element in enumerate(obj):
        if form == "v:" and element == value:
            return index
        if form == "k:" and isinstance(element, dict) and all(element.get(k, v) == v for k, v in value.items()):
            return index
    return None


def _conflict(disputed: Mapping[Manager, frozenset[FieldPath]]) -> ApiError:
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{who.name}"', "field": _readable(path)}
        for who, paths in disputed.items()
        for path in sorted(paths)
    ]
    listed = "; ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    plural = "s" if len(causes) > 1 else ""
    message = f"Apply failed with {len(causes)} conflict{plural}: {listed}"
    return ApiError(409, "Conflict", message, details={"causes": causes})


def _readable(path: FieldPath) -> str:
    """``.spec.ports[port=80,protocol="TCP"].targetPort``."""
    text = ""
    for step in path:
        if step.startswith("f:"):
            text += "." + step[2:]
        elif step.startswith("k:"):
            text += "[" + ",".join(f"{k}={_json(v)}" for k, v in msgspec.json.decode(step[2:]).items()) + "]"
        else:
            text += f"[={step[2:]}]"
    return text
