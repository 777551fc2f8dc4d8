"""Nodes that no longer renew their Lease: not ready, nor are their pods, which go after a while, or with their node.

A node that reports again becomes ready, and so do the pods that were unready only because of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from isthmus.times import timestamp
from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api, Deletion
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.objects import (
    Object,
    condition,
    deleting,
    items,
    name_of,
    namespace_of,
    nested,
    parse_time,
)
from isthmus_lab.apiserver.storage import Change, Item
from isthmus_lab.controllers.loop import Controller, author

KIND = kinds.NODE
AUTHOR = author("node-controller")
LEASES: Final = "kube-node-lease"
UNKNOWN: Final = "NodeStatusUnknown"
AWAY: Final = "NodeNotReady"
TIMEOUT: Final = 300.0
"""Seconds after which the pods of an unreachable node are evicted."""


def controller(api: Api) -> Controller:
    """The controller of Nodes."""

    def keys(change: Change) -> Iterable[str]:
        if change.resource == kinds.LEASE.qualified:
            namespace, _, name = change.key.partition("/")
            return [name] if namespace == LEASES else []
        if change.resource == kinds.POD.qualified:
            return [node] if change.new is not None and (node := nested(change.new.body, "spec", "nodeName")) else []
        return [change.key]

    async def reconcile(key: str) -> float | None:
        node = api.store.get(KIND.qualified, key)
        if node is None:
            ran = [pod for pod in _pods(api, key) if nested(pod.body, "status", "phase") != "Pending"]
            await _delete(api, ran, grace=0)  # the node of the others may be yet to come
            return None
        return await _look_after(api, node.body)

    follows = [KIND, kinds.LEASE, kinds.POD]
    return Controller(api, name="nodes", follows=follows, keys=keys, reconcile=reconcile)


def silence(lease: Object, now: datetime) -> float:
    """Seconds by which a Lease is overdue; negative while it is not."""
    renewed = nested(lease, "spec", "renewTime")
    lasts = float(nested(lease, "spec", "leaseDurationSeconds", default=40))
    return (now - parse_time(renewed)).total_seconds() - lasts if renewed else 0.0


async def _look_after(api: Api, node: Object) -> float | None:
    """Judge a node by its Lease; one that has none is taken at its word."""
    name = name_of(node)
    lease = api.store.get(kinds.LEASE.qualified, f"{LEASES}/{name}")
    if lease is None:
        return None
    overdue = silence(lease.body, datetime.now(UTC))
    if overdue > 0 and condition(node, "Ready") == "True":
        reason = (UNKNOWN, "Kubelet stopped posting node status.")
        await _say(api, kinds.NODE, node, "Ready", "Unknown", reason)
    elif overdue <= 0 and _reason(node, "Ready") == UNKNOWN:
        await _say(api, kinds.NODE, node, "Ready", "True", ("KubeletReady", "the node is back"))
    for pod in _pods(api, name):
        if overdue > 0 and condition(pod.body, "Ready") == "True":
            await _say(api, kinds.POD, pod.body, "Ready", "False", (AWAY, "Node is not ready"))
        elif overdue <= 0 and _reason(pod.body, "Ready") == AWAY:
            await _say(api, kinds.POD, pod.body, "Ready", "True", ("", ""))
    if overdue > TIMEOUT:
        await _delete(api, _pods(api, name))
        return None
    return -overdue + 0.01 if overdue <= 0 else TIMEOUT - overdue + 0.01


def _pods(api: Api, node: str) -> list[Item]:
    pods = api.store.items(kinds.POD.qualified)
    return [pod for pod in pods if nested(pod.body, "spec", "nodeName") == node]


def _reason(obj: Object, kind: str) -> str:
    return next((str(c.get("reason", "")) for c in items(obj, "status", "conditions") if c.get("type") == kind), "")


async def _say(api: Api, kind: kinds.Kind, obj: Object, what: str, status: str, reason: tuple[str, str]) -> None:
    """Write one condition of an object."""
    new = {"type": what, "status": status, "lastTransitionTime": timestamp()}
    new |= {name: text for name, text in zip(("reason", "message"), reason, strict=True) if text}

    def edit(old: Object) -> Object:
        rest = [each for each in items(old, "status", "conditions") if each.get("type") != what]
        return old | {"status": nested(old, "status", default={}) | {"conditions": [*rest, new]}}

    try:
        await api.edit(kind, namespace_of(obj), name_of(obj), edit, author=AUTHOR, subresource="status")
    except ApiError as error:
        if error.reason != "NotFound":
            raise


async def _delete(api: Api, pods: list[Item], *, grace: int | None = None) -> None:
    for pod in pods:
        if grace == 0 or not deleting(pod.body):
            meta = pod.body["metadata"]
            try:
                how = Deletion(grace=grace, uid=meta["uid"])
                await api.delete(kinds.POD, meta["namespace"], meta["name"], how)
            except ApiError as error:
                if error.reason not in ("NotFound", "Conflict"):
                    raise
