"""The three ways to say a change: JSON patch (RFC 6902), merge patch (RFC 7396), strategic merge patch.

All are functions from an object and a patch to a new object; the object given is not changed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus_lab.apiserver.errors import ApiError, bad_request
from isthmus_lab.apiserver.objects import Object, clone
from isthmus_lab.apiserver.schema import ELEMENT, ListRule, Lists, Path

DIRECTIVE = "$patch"
ORDER = "$setElementOrder/"
DELETIONS = "$deleteFromPrimitiveList/"
RETAIN = "$retainKeys"


def merge(obj: Any, patch: Any) -> Any:
    """RFC 7396: null removes, objects merge, everything else replaces.

    >>> merge({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'b': {'c': 2, 'd': 3}}
    """
    if not isinstance(patch, dict):
        return patch
    result = dict(obj) if isinstance(obj, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def json_patch(obj: Object, operations: Any) -> Object:
    """Apply a JSON patch (RFC 6902). Raises ApiError if a test fails or a path does not exist."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    result: Any = clone(obj)
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise bad_request(f"not an operation of a JSON patch: {operation!r}")
        result = _operate(result, operation)
    if not isinstance(result, dict):
        raise bad_request("the JSON patch leaves no object")
    return result


def strategic(obj: Object, patch: Object, lists: Lists, path: Path = ()) -> Object:
    """Kubernetes' own: as a merge patch, but lists that are maps or sets merge element by element."""
    match patch.get(DIRECTIVE):
        case "replace":
            return {key: value for key, value in patch.items() if key != DIRECTIVE}
        case "delete":
            return {}
    result = dict(obj)
    if RETAIN in patch:
        result = {key: value for key, value in result.items() if key in patch[RETAIN]}
    for key, value in patch.items():
        if key.startswith(DELETIONS):
            field = key.removeprefix(DELETIONS)
            result[field] = [each for each in result.get(field) or () if each not in value]
        elif not key.startswith((DIRECTIVE, ORDER, RETAIN)):
            _merge_field(result, key, value, lists, path)
    for key in patch:
        field = key.removeprefix(ORDER)
        rule = lists.get((*path, field))
        if rule is not None and rule.merge and isinstance(result.get(field), list):
            order = patch.get(ORDER + field) or patch.get(field) or []
            result[field] = _ordered(result[field], order, obj.get(field) or [], rule)
    return result


def _merge_field(result: Object, key: str, value: Any, lists: Lists, path: Path) -> None:
    rule = lists.get((*path, key))
    if value is None:
        result.pop(key, None)
    elif isinstance(value, dict):
        have = result.get(key)
        result[key] = strategic(have if isinstance(have, dict) else {}, value, lists, (*path, key))
    elif isinstance(value, list) and rule is not None and rule.merge:
        result[key] = _merge_list(result.get(key) or [], value, rule, lists, (*path, key))
    else:
        result[key] = value


def _merge_list(have: list[Any], patch: list[Any], rule: ListRule, lists: Lists, path: Path) -> list[Any]:
    if rule.merge == "=":
        return [*have, *(value for value in patch if value not in have)]
    if any(isinstance(element, dict) and element.get(DIRECTIVE) == "replace" for element in patch):
        return [element for element in patch if DIRECTIVE not in element]
    result = list(have)
    for element in patch:
        if not isinstance(element, dict) or rule.merge not in element:
            raise bad_request(f"strategic merge patch: an element of {'.'.join(path)} has no {rule.merge!r}")
        position = next((i for i, old in enumerate(result) if old.get(rule.merge) == element[rule.merge]), None)
        if element.get(DIRECTIVE) == "delete":
            result = [old for old in result if old.get(rule.merge) != element[rule.merge]]
        elif position is None:
            result.append(strategic({}, element, lists, (*path, ELEMENT)))
        else:
            result[position] = strategic(result[position], element, lists, (*path, ELEMENT))
    return result


def _ordered(values: list[Any], order: list[Any], before: list[Any], rule: ListRule) -> list[Any]:
    """Sort patched elements in the patch's order; the others keep their positions relative to them."""
    ranks = {_identity(element, rule): rank for rank, element in enumerate(order)}
    place = {_identity(element, rule): rank for rank, element in enumerate(before)}
    named = sorted((v for v in values if _identity(v, rule) in ranks), key=lambda v: ranks[_identity(v, rule)])
    result = []
    for element in (value for value in values if _identity(value, rule) not in ranks):
        while named and place.get(_identity(named[0], rule), -1) < place.get(_identity(element, rule), len(place)):
            result.append(named.pop(0))
        result.append(element)
    return result + named


def _identity(value: Any, rule: ListRule) -> bytes:
    """The merge key of an element."""
    return msgspec.json.encode(value.get(rule.merge) if isinstance(value, dict) else value)


def _operate(doc: Any, operation: Object) -> Any:
    path = _pointer(operation["path"])
    match operation.get("op"):
        case "add":
            return _add(doc, path, clone(operation.get("value")))  # type: ignore[arg-type]
        case "replace":
            _find(doc, path)
            return _add(_remove(doc, path), path, operation.get("value")) if path else operation.get("value")
        case "remove":
            return _remove(doc, path)
        case "move":
            source = _pointer(operation.get("from", ""))
            value = _find(doc, source)
            return _add(_remove(doc, source), path, value)
        case "copy":
            return _add(doc, path, clone(_find(doc, _pointer(operation.get("from", "")))))
        case "test":
            if _find(doc, path) != operation.get("value"):
                raise _rejected()
            return doc
        case other:
            raise bad_request(f"JSON patch has no operation {other!r}")


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise bad_request(f"JSON pointer {text!r} does not begin with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _find(doc: Any, path: list[str]) -> Any:
    for step in path:
        if isinstance(doc, dict) and step in doc:
            doc = doc[step]
        elif isinstance(doc, list):
            doc = doc[_index(step, len(doc) - 1)]
        else:
            raise _rejected()
    return doc


def _index(step: str, most: int) -> int:
    """A position in a list."""
    try:
        return bounds.count(step, most=most)
    except OutOfBounds:
        raise _rejected() from None


def _add(doc: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent, last = _find(doc, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else _index(last, len(parent)), value)
    else:
        raise _rejected()
    return doc


def _remove(doc: Any, path: list[str]) -> Any:
    _find(doc, path)
    if not path:
        return None
    parent, last = _find(doc, path[:-1]), path[-1]
    if isinstance(parent, list):
        parent.pop(_index(last, len(parent) - 1))
    else:
        del parent[last]
    return doc


def _rejected() -> ApiError:
    return ApiError(422, "Invalid", "the server rejected our request due to an error in our request")
