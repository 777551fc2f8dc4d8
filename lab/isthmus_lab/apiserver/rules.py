"""Transformations before an object is stored: functions of the kind, the new and the old object."""

from __future__ import annotations

import random
import uuid
from typing import Any, Final

from isthmus.times import timestamp
from isthmus_lab.apiserver import errors, shapes, validation
from isthmus_lab.apiserver.kinds import Kind
from isthmus_lab.apiserver.objects import Object, clone, metadata, name_of, namespace_of, nested, whole
from isthmus_lab.apiserver.openapi import broken_rules, defaulted, problems, pruned
from isthmus_lab.apiserver.schema import ATOMIC, ELEMENT

SUFFIX: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Alphabet of generated name suffixes: no vowels and no look-alikes."""

_SERVERS: Final = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
_OURS: Final = frozenset({"apiVersion", "kind", "metadata", "status"})


def addressed(kind: Kind, namespace: str, name: str, body: Any) -> Object:
    """The body of a request as an object at the path's name and namespace; an ApiError where they differ."""
    if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict | None):
        raise errors.bad_request("the body is not an object with metadata")
    obj: Object = _without_nulls(body)
    said_version, said_kind = obj.get("apiVersion"), obj.get("kind")
    if said_kind not in (None, kind.kind) or said_version not in (None, *(kind.api_version(v) for v in kind.versions)):
        expected = f"{kind.api_version()}, Kind={kind.kind}"
        raise errors.bad_request(f"the object provided ({said_version}, Kind={said_kind}) is not {expected}")
    obj["apiVersion"], obj["kind"] = kind.api_version(), kind.kind
    meta = obj.setdefault("metadata", {})
    if kind.namespaced:
        if namespace_of(obj) not in ("", namespace):
            reason = "the namespace of the provided object does not match the namespace sent on the request"
            raise errors.bad_request(reason)
        meta["namespace"] = namespace
    else:
        meta.pop("namespace", None)
    if name and name_of(obj) not in ("", name):
        raise errors.bad_request(f"the name of the object ({name_of(obj)}) does not match the name on the URL ({name})")
    if name:
        meta["name"] = name
    _check_shape(kind, obj)
    return pruned(kind.schema(), obj) if kind.schemas else obj


def born(kind: Kind, obj: Object) -> Object:
    """A new object: its identity, its defaults. What only the server may say is dropped."""
    meta = obj["metadata"]
    if meta.get("resourceVersion"):
        raise errors.bad_request("resourceVersion should not be set on objects to be created")
    for name in (*_SERVERS, "resourceVersion", "selfLink", "managedFields"):
        meta.pop(name, None)
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = meta["generateName"][:58] + suffix()
    meta["uid"] = str(uuid.uuid4())
    meta["creationTimestamp"] = timestamp()
    if kind.counted:
        meta["generation"] = 1
    if kind.has_status:
        obj.pop("status", None)
    obj = _defaulted(kind, obj)
    _check(kind, obj, None)
    return obj


def renewed(kind: Kind, old: Object, new: Object, *, subresource: str = "") -> Object:
    """An object as a write to it, or to its status, leaves it."""
    _precondition(kind, old, new)
    if subresource == "status":
        result = old | ({"status": new["status"]} if "status" in new else {})
        schema = kind.schema().get("properties", {}).get("status", {})
        if wrong := [*problems(schema, new.get("status", {}), "status")]:
            raise errors.invalid(kind.kind, kind.group, name_of(old), wrong)
        return result | {"metadata": metadata(old) | {"managedFields": metadata(new).get("managedFields", [])}}
    if kind.has_status:
        new = {key: value for key, value in new.items() if key != "status"}
        new |= {"status": old["status"]} if "status" in old else {}
    meta = {key: value for key, value in metadata(new).items() if key not in _SERVERS and key != "selfLink"}
    meta |= {key: metadata(old)[key] for key in _SERVERS if key in metadata(old)}
    new = clone(new | {"metadata": meta})
    meta = new["metadata"]
    kind.inherit(old, new)
    new = _defaulted(kind, new)
    meta = new["metadata"]
    if kind.counted and _desired_state(new) != _desired_state(old):
        meta["generation"] = whole(metadata(old).get("generation")) + 1
    _check(kind, new, old)
    return new


def _check_shape(kind: Kind, obj: Object) -> None:
    """Check the types of fields; everything after this relies on them."""
    wrong = shapes.misfit(kind.shape, obj)
    for path, rule in kind.lists.items() if not wrong else ():
        elements = nested(obj, *path, default=[]) if ELEMENT not in path and rule is not ATOMIC else []
        if not isinstance(elements, list) or (rule.keys and not all(isinstance(each, dict) for each in elements)):
            wrong = f"{'.'.join(path)} is not what it should be a list of"
    if wrong:
        version = obj["apiVersion"].rpartition("/")[2]
        reason = f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: {wrong}'
        raise errors.bad_request(reason)


def _without_nulls(value: Any) -> Any:
    """Remove null values: null means absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value if each is not None]
    return value


def suffix(length: int = 5) -> str:
    """The end of a generated name."""
    return "".join(random.choices(SUFFIX, k=length))


def same(old: Object, new: Object) -> bool:
    """True if a write would change nothing."""
    return _content(old) == _content(new)


def _content(obj: Object) -> Object:
    return obj | {"metadata": {k: v for k, v in metadata(obj).items() if k != "resourceVersion"}}


def _desired_state(obj: Object) -> Object:
    """Desired state that the generation covers: all but metadata and status."""
    return {key: value for key, value in obj.items() if key not in _OURS}


def _precondition(kind: Kind, old: Object, new: Object) -> None:
    meta, before = metadata(new), metadata(old)
    if meta.get("uid") not in (None, "", before["uid"]):
        reason = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {before['uid']}"
        raise errors.conflict(kind.qualified, name_of(old), reason)
    if meta.get("resourceVersion") not in (None, "", before["resourceVersion"]):
        raise errors.conflict(kind.qualified, name_of(old))


def _defaulted(kind: Kind, obj: Object) -> Object:
    kind.default(obj)
    filled: Object = defaulted(kind.schema(), obj)
    return filled


def _check(kind: Kind, obj: Object, old: Object | None) -> None:
    wrong = [*validation.metadata(obj, kind.names)]
    schema = kind.schema()
    wrong += [*problems(schema, obj)] or [*broken_rules(schema, obj, old), *kind.validate(obj, old)]  # rely on types
    if wrong:
        raise errors.invalid(kind.kind, kind.group, name_of(obj), wrong)
