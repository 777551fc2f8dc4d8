"""Events of controllers about an object. A repeated event is counted, not written again."""

from __future__ import annotations

import hashlib
from typing import Literal

from isthmus.times import timestamp
from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api, Author
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.kinds import Kind
from isthmus_lab.apiserver.objects import Object, metadata, name_of, namespace_of


async def record(
    api: Api,
    kind: Kind,
    obj: Object,
    reason: str,
    message: str,
    *,
    author: Author,
    kind_of_event: Literal["Normal", "Warning"] = "Normal",
) -> None:
    """Record an event of an object; dropped where it cannot be written (its namespace is being deleted)."""
    namespace, event_time = namespace_of(obj) or "default", timestamp()
    digest = hashlib.sha256(f"{metadata(obj).get('uid')}/{reason}/{message}".encode()).hexdigest()
    name = f"{name_of(obj)}.{digest[:16]}"
    try:
        if api.store.get(kinds.EVENT.qualified, f"{namespace}/{name}") is not None:
            await api.edit(kinds.EVENT, namespace, name, lambda old: _counted(old, event_time), author=author)
            return
        event: Object = {
            "metadata": {"name": name},
            "involvedObject": _reference(kind, obj),
            "reason": reason,
            "message": message,
            "type": kind_of_event,
            "count": 1,
            "firstTimestamp": event_time,
            "lastTimestamp": event_time,
            "source": {"component": author.manager},
        }
        await api.create(kinds.EVENT, namespace, event, author=author)
    except ApiError as error:
        if error.reason not in ("AlreadyExists", "NotFound", "Forbidden"):
            raise


def _counted(old: Object, event_time: str) -> Object:
    return old | {"count": int(old.get("count", 1)) + 1, "lastTimestamp": event_time}


def _reference(kind: Kind, obj: Object) -> Object:
    meta = metadata(obj)
    reference = {"kind": kind.kind, "apiVersion": kind.api_version(), "name": meta.get("name"), "uid": meta.get("uid")}
    return reference | ({"namespace": meta["namespace"]} if "namespace" in meta else {})
