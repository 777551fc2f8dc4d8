"""ReplicaSets: as many pods as are asked for."""

from __future__ import annotations

from collections.abc import Iterable

from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api
from isthmus_lab.apiserver.objects import Object, deleting, labels_of, namespace_of, nested
from isthmus_lab.apiserver.storage import Change, Item
from isthmus_lab.controllers import pods
from isthmus_lab.controllers.loop import Controller, author

KIND = kinds.REPLICA_SET
AUTHOR = author("replicaset-controller")
BURST = 50
"""Pods made or deleted in one look."""


def controller(api: Api) -> Controller:
    """The controller of ReplicaSets."""

    async def reconcile(key: str) -> float | None:
        item = api.store.get(KIND.qualified, key)
        return await _reconcile(api, item) if item is not None else None

    return Controller(api, name="replicasets", follows=[KIND, kinds.POD], keys=_keys, reconcile=reconcile)


def _keys(change: Change) -> Iterable[str]:
    return [change.key] if change.resource == KIND.qualified else pods.owner_keys(change, KIND)


async def _reconcile(api: Api, item: Item) -> float | None:
    replica_set, namespace = item.body, namespace_of(item.body)
    mine = pods.owned(api, kinds.POD, replica_set)
    running = [pod for pod in mine if pods.active(pod.body)]
    missing = replica_set["spec"]["replicas"] - len(running)
    if not deleting(replica_set) and missing > 0:
        template = replica_set["spec"]["template"]
        new = (pods.from_template(template, KIND, replica_set) for _ in range(min(missing, BURST)))
        await pods.create(api, namespace, new, author=AUTHOR)
    elif not deleting(replica_set) and missing < 0:
        surplus = sorted(running, key=pods.dispensable_first)[: min(-missing, BURST)]
        await pods.delete(api, surplus)
    min_ready = nested(replica_set, "spec", "minReadySeconds", default=0)
    running = [pod for pod in pods.owned(api, kinds.POD, replica_set) if pods.active(pod.body)]
    await pods.write_status(api, KIND, item, _status(replica_set, running, min_ready), author=AUTHOR)
    waits = any(pods.ready(p.body) and not pods.available(p.body, min_ready=min_ready) for p in running)
    return 1.0 if waits else None


def _status(replica_set: Object, running: list[Item], min_ready: float) -> pods.Status:
    labels = nested(replica_set, "spec", "template", "metadata", "labels", default={}).items()
    counts = {
        "fullyLabeledReplicas": sum(labels <= labels_of(pod.body).items() for pod in running),
        "readyReplicas": sum(pods.ready(pod.body) for pod in running),
        "availableReplicas": sum(pods.available(pod.body, min_ready=min_ready) for pod in running),
    }
    shown = {name: count for name, count in counts.items() if count}
    observed = nested(replica_set, "metadata", "generation", default=0)
    return {"replicas": len(running), **shown, "observedGeneration": observed}
