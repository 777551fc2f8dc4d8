"""Pods of workload controllers: create them from a template, and classify them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from isthmus.times import timestamp
from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api, Author, Deletion
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.kinds import Kind
from isthmus_lab.apiserver.objects import (
    Object,
    clone,
    condition,
    controller_of,
    deleting,
    items,
    name_of,
    namespace_of,
    nested,
    parse_time,
)
from isthmus_lab.apiserver.rules import SUFFIX
from isthmus_lab.apiserver.storage import Change, Item

Status = dict[str, Any]


def reference(kind: Kind, owner: Object) -> Object:
    """An owner reference that makes the owner the controller."""
    return {
        "apiVersion": kind.api_version(),
        "kind": kind.kind,
        "name": name_of(owner),
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owned(api: Api, kind: Kind, owner: Object) -> list[Item]:
    """The objects of a kind that an owner controls."""
    uid = owner["metadata"]["uid"]
    items = api.store.items(kind.qualified, namespace_of(owner))
    return [item for item in items if (controller_of(item.body) or {}).get("uid") == uid]


def owner_keys(change: Change, kind: Kind) -> Iterable[str]:
    """The key of the owner, of a kind, of what changed."""
    for item in (change.old, change.new):
        owner = controller_of(item.body) if item is not None else None
        if item is not None and owner is not None and owner.get("kind") == kind.kind:
            yield f"{namespace_of(item.body)}/{owner['name']}"


def from_template(template: Object, kind: Kind, owner: Object) -> Object:
    """Build a pod from a template, named after its owner."""
    meta = {
        key: value
        for key, value in nested(template, "metadata", default={}).items()
        if key in ("labels", "annotations")
    }
    meta["generateName"] = f"{name_of(owner)}-"
    meta["ownerReferences"] = [reference(kind, owner)]
    return {"metadata": meta, "spec": clone(template["spec"])}


def active(pod: Object) -> bool:
    """True if a pod runs or is going to run."""
    return not deleting(pod) and nested(pod, "status", "phase") not in ("Succeeded", "Failed")


def ready(pod: Object) -> bool:
    """True if a pod's condition Ready is true."""
    return condition(pod, "Ready") == "True"


def ready_since(pod: Object) -> float:
    """For how many seconds a pod has been ready."""
    changed_at = next(
        (c.get("lastTransitionTime") for c in items(pod, "status", "conditions") if c.get("type") == "Ready"), ""
    )
    return (datetime.now(UTC) - parse_time(changed_at)).total_seconds() if changed_at else float("inf")


def available(pod: Object, *, min_ready: float) -> bool:
    """True if a pod has been ready for ``min_ready`` seconds."""
    return ready(pod) and (not min_ready or ready_since(pod) >= min_ready)


def dispensable_first(pod: Item) -> tuple[bool, bool, bool, float]:
    """Sort key for deletion: pods without a node, not running, not ready, and young ones first."""
    body = pod.body
    born = parse_time(body["metadata"]["creationTimestamp"]).timestamp()
    running = nested(body, "status", "phase") == "Running"
    return bool(nested(body, "spec", "nodeName")), running, ready(body), -born


def template_hash(template: Object) -> str:
    """A hash of the template, in the letters of generated names."""
    digest = hashlib.sha256(msgspec.json.encode(template, order="deterministic")).digest()
    return "".join(SUFFIX[byte % len(SUFFIX)] for byte in digest[:10])


async def create(api: Api, namespace: str, pods: Iterable[Object], *, author: Author) -> None:
    """Create pods, all at once; the first failure is raised after all were tried."""
    tried = await asyncio.gather(
        *(api.create(kinds.POD, namespace, pod, author=author) for pod in pods), return_exceptions=True
    )
    _raise_first(tried)


async def delete(api: Api, pods: Iterable[Item]) -> None:
    """Delete pods, all at once; those already gone are as wanted."""
    tried = await asyncio.gather(*(_delete(api, pod) for pod in pods), return_exceptions=True)
    _raise_first(tried)


async def _delete(api: Api, pod: Item) -> None:
    meta = pod.body["metadata"]
    try:
        await api.delete(kinds.POD, meta["namespace"], meta["name"], Deletion(uid=meta["uid"]))
    except ApiError as error:
        if error.reason not in ("NotFound", "Conflict"):
            raise


def _raise_first(tried: Iterable[object]) -> None:
    failed = next((each for each in tried if isinstance(each, BaseException)), None)
    if failed is not None:
        raise failed


async def write_status(api: Api, kind: Kind, item: Item, status: Status, *, author: Author) -> None:
    """Write a status, where it differs."""
    if (item.body.get("status") or {}) == status:
        return
    namespace, name = namespace_of(item.body), name_of(item.body)

    def edit(old: Object) -> Object:
        return old | {"status": status} if old["metadata"]["uid"] == item.body["metadata"]["uid"] else old

    await api.edit(kind, namespace, name, edit, author=author, subresource="status")


def conditions(old: Object, **desired: tuple[bool, str, str]) -> list[Object]:
    """Conditions by type as (whether, reason, message); one that stays as it was keeps its times."""
    previous = {each.get("type"): each for each in items(old, "status", "conditions")}
    result = []
    for kind, (true, reason, message) in desired.items():
        new = {"type": kind, "status": str(true), "reason": reason, "message": message}
        before = previous.get(kind) or {}
        if {key: before.get(key) for key in new} == new:
            result.append(before)
            continue
        changed_at = before.get("lastTransitionTime") if before.get("status") == new["status"] else None
        result.append(new | {"lastUpdateTime": timestamp(), "lastTransitionTime": changed_at or timestamp()})
    return result
