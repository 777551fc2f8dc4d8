"""DaemonSets: one pod on every node it fits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api
from isthmus_lab.apiserver.objects import Object, deleting, labels_of, name_of, namespace_of, nested
from isthmus_lab.apiserver.storage import Change, Item
from isthmus_lab.controllers import pods, scheduler
from isthmus_lab.controllers.deployments import share
from isthmus_lab.controllers.loop import Controller, author

KIND = kinds.DAEMON_SET
AUTHOR = author("daemon-set-controller")
REVISION: Final = "controller-revision-hash"
EVERYWHERE: Final = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists"}
    for what in ("not-ready", "unreachable", "unschedulable")
]
"""Tolerations that every pod of a DaemonSet gets."""


def controller(api: Api) -> Controller:
    """The controller of DaemonSets."""

    def keys(change: Change) -> Iterable[str]:
        if change.resource == kinds.NODE.qualified:
            return [item.key for item in api.store.items(KIND.qualified)]
        return [change.key] if change.resource == KIND.qualified else pods.owner_keys(change, KIND)

    async def reconcile(key: str) -> float | None:
        item = api.store.get(KIND.qualified, key)
        if item is not None:
            await _reconcile(api, item)
        return None

    return Controller(api, name="daemonsets", follows=[KIND, kinds.POD, kinds.NODE], keys=keys, reconcile=reconcile)


async def _reconcile(api: Api, item: Item) -> None:
    daemon_set, namespace = item.body, namespace_of(item.body)
    revision = pods.template_hash(daemon_set["spec"]["template"])
    desired = _nodes(api, daemon_set)
    have = pods.owned(api, kinds.POD, daemon_set)
    if not deleting(daemon_set):
        occupied = {_node(pod) for pod in have if pods.active(pod.body) or deleting(pod.body)}
        new = (_pod(daemon_set, node, revision) for node in sorted(desired - occupied))
        await pods.create(api, namespace, new, author=AUTHOR)
        await pods.delete(api, _unwanted(daemon_set, have, desired, revision))
    have = [pod for pod in pods.owned(api, kinds.POD, daemon_set) if pods.active(pod.body)]
    await pods.write_status(
        api, KIND, item, _status(daemon_set, [pod.body for pod in have], desired, revision), author=AUTHOR
    )


def _nodes(api: Api, daemon_set: Object) -> set[str]:
    """The nodes that should have a pod."""
    template = nested(daemon_set, "spec", "template", "spec", default={})
    pod = {"spec": template | {"tolerations": [*template.get("tolerations", ()), *EVERYWHERE]}}
    return {name_of(n.body) for n in api.store.items(kinds.NODE.qualified) if scheduler.admits(pod, n.body)}


def _unwanted(daemon_set: Object, have: list[Item], desired: set[str], revision: str) -> list[Item]:
    """Pods that ended or are where none should be, and as many old ones as may be missing at once."""
    alive = [pod for pod in have if not deleting(pod.body)]
    misplaced = [p for p in alive if nested(p.body, "spec", "nodeName") not in desired or not pods.active(p.body)]
    if nested(daemon_set, "spec", "updateStrategy", "type") != "RollingUpdate":
        return misplaced
    rest = [pod for pod in alive if pod not in misplaced]
    most = share(
        nested(daemon_set, "spec", "updateStrategy", "rollingUpdate", "maxUnavailable", default=1), len(desired)
    )
    missing = len(desired) - sum(pods.ready(pod.body) for pod in rest)
    old = [pod for pod in rest if labels_of(pod.body).get(REVISION) != revision]
    broken = [pod for pod in old if not pods.ready(pod.body)]
    healthy = [pod for pod in old if pods.ready(pod.body)][: max(0, max(most, 1) - missing)]
    return [*misplaced, *broken, *healthy]


def _node(pod: Item) -> str:
    return str(nested(pod.body, "spec", "nodeName"))


def _pod(daemon_set: Object, node: str, revision: str) -> Object:
    pod = pods.from_template(daemon_set["spec"]["template"], KIND, daemon_set)
    pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), REVISION: revision}
    tolerations = [*pod["spec"].get("tolerations", ()), *EVERYWHERE]
    pod["spec"] |= {"nodeName": node, "tolerations": tolerations}
    return pod


def _status(daemon_set: Object, have: list[Object], desired: set[str], revision: str) -> pods.Status:
    min_ready = nested(daemon_set, "spec", "minReadySeconds", default=0)
    placed = [pod for pod in have if nested(pod, "spec", "nodeName") in desired]
    available = sum(pods.available(pod, min_ready=min_ready) for pod in placed)
    counts = {
        "updatedNumberScheduled": sum(labels_of(pod).get(REVISION) == revision for pod in placed),
        "numberAvailable": available,
        "numberUnavailable": len(desired) - available,
    }
    return {
        "observedGeneration": daemon_set["metadata"]["generation"],
        "desiredNumberScheduled": len(desired),
        "currentNumberScheduled": len(placed),
        "numberMisscheduled": len(have) - len(placed),
        "numberReady": sum(pods.ready(pod) for pod in placed),
        **{name: count for name, count in counts.items() if count},
    }
