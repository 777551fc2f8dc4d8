"""The scheduler: a pod without a node gets the ready node with the fewest pods, and in turn among equals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api
from isthmus_lab.apiserver.objects import Object, condition, deleting, items, labels_of, name_of, nested
from isthmus_lab.apiserver.storage import Change
from isthmus_lab.controllers.events import record
from isthmus_lab.controllers.loop import Controller, author

AUTHOR = author("default-scheduler")


def controller(api: Api) -> Controller:
    """The scheduler."""

    def keys(change: Change) -> Iterable[str]:
        if change.resource == kinds.POD.qualified:
            return [change.key] if change.new is not None and _waits(change.new.body) else []
        return [item.key for item in api.store.items(kinds.POD.qualified) if _waits(item.body)]

    async def reconcile(key: str) -> float | None:
        item = api.store.get(kinds.POD.qualified, key)
        if item is None or not _waits(item.body):
            return None
        nodes = [node.body for node in api.store.items(kinds.NODE.qualified)]
        load = Counter(nested(p.body, "spec", "nodeName", default="") for p in api.store.items(kinds.POD.qualified))
        node = choose(item.body, nodes, load=lambda name: load[name])
        if not node:
            reason = f"0/{len(nodes)} nodes are available: none is ready, is schedulable, and is what the pod asks for"
            await record(api, kinds.POD, item.body, "FailedScheduling", reason, author=AUTHOR, kind_of_event="Warning")
            return None
        namespace, _, name = key.partition("/")
        await api.edit(kinds.POD, namespace, name, lambda old: _bound(old, node), author=AUTHOR)
        return None

    return Controller(api, name="scheduler", follows=[kinds.POD, kinds.NODE], keys=keys, reconcile=reconcile)


def choose(pod: Object, nodes: Iterable[Object], *, load: Callable[[str], int]) -> str:
    """The name of the node for a pod, '' where none will do."""
    fit = [name_of(node) for node in nodes if _fits(pod, node)]
    return min(fit, key=lambda name: (load(name), name), default="")


def _waits(pod: Object) -> bool:
    return not nested(pod, "spec", "nodeName") and not deleting(pod)


def _fits(pod: Object, node: Object) -> bool:
    usable = condition(node, "Ready") == "True" and not nested(node, "spec", "unschedulable")
    return usable and admits(pod, node)


def admits(pod: Object, node: Object) -> bool:
    """True if a node matches a pod's selectors and tolerations; readiness is not considered."""
    if deleting(node):
        return False
    labels = nested(pod, "spec", "nodeSelector", default={}).items()
    return labels <= labels_of(node).items() and all(_tolerates(pod, taint) for taint in items(node, "spec", "taints"))


def _tolerates(pod: Object, taint: Object) -> bool:
    """True if the pod tolerates the taint."""
    if taint.get("effect") == "PreferNoSchedule":
        return True
    for toleration in items(pod, "spec", "tolerations"):
        if toleration.get("effect") not in (None, "", taint.get("effect")):
            continue
        exists = toleration.get("operator") == "Exists"
        if exists and toleration.get("key") in (None, "", taint.get("key")):
            return True
        if toleration.get("key") == taint.get("key") and toleration.get("value") == taint.get("value"):
            return True
    return False


def _bound(pod: Object, node: str) -> Object:
    return pod if nested(pod, "spec", "nodeName") else pod | {"spec": pod["spec"] | {"nodeName": node}}
