"""Deployments: a ReplicaSet per pod template, and pods moved from the old ones to the new one a few at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api, Deletion
from isthmus_lab.apiserver.objects import Object, clone, deleting, labels_of, name_of, namespace_of, nested
from isthmus_lab.apiserver.storage import Change, Item
from isthmus_lab.controllers import pods, rollouts
from isthmus_lab.controllers.events import record
from isthmus_lab.controllers.loop import Controller, author

KIND = kinds.DEPLOYMENT
AUTHOR = author("deployment-controller")
HASH: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"


class Size(NamedTuple):
    """Desired and available pods of a ReplicaSet."""

    desired: int
    available: int


def controller(api: Api) -> Controller:
    """The controller of Deployments."""

    async def reconcile(key: str) -> float | None:
        item = api.store.get(KIND.qualified, key)
        if item is None or deleting(item.body):
            return None
        return await _reconcile(api, item)

    return Controller(api, name="deployments", follows=[KIND, kinds.REPLICA_SET], keys=_keys, reconcile=reconcile)


def sizes(new: Size, old: list[Size], *, replicas: int, surge: int, unavailable: int) -> tuple[int, list[int]]:
    """Next sizes of the new ReplicaSet and the old ones.

    Never more than ``replicas + surge`` pods in all, never fewer than ``replicas - unavailable`` that can be called;
    old pods that cannot be called go first.
    """
    total = new.desired + sum(size.desired for size in old)
    room = max(0, replicas + surge - total)
    grown = min(replicas, new.desired + room)
    callable_now = new.available + sum(size.available for size in old)
    spare = max(0, callable_now - (replicas - unavailable))
    kept = []
    for size in old:
        broken = size.desired - size.available
        healthy = min(size.available, spare)
        spare -= healthy
        kept.append(size.desired - broken - healthy)
    return grown, kept


def _keys(change: Change) -> Iterable[str]:
    return [change.key] if change.resource == KIND.qualified else pods.owner_keys(change, KIND)


async def _reconcile(api: Api, item: Item) -> float | None:
    deployment = item.body
    sets = sorted(pods.owned(api, kinds.REPLICA_SET, deployment), key=_revision)
    want = pods.template_hash(deployment["spec"]["template"])
    new = next((each for each in sets if each.body["metadata"]["labels"].get(HASH) == want), None)
    old = [each for each in sets if each is not new]
    if not deployment["spec"].get("paused"):
        if new is None:
            new = await _create(api, deployment, want, old)
        await _number(api, deployment, new, old)
        await _roll(api, deployment, new, old)
    await _clean_up(api, deployment, old)
    return await _report(api, item, want)


async def _report(api: Api, item: Item, want: str) -> float | None:
    """Write the status; seconds after which a Deployment that stands still is looked at again."""
    deployment, now = item.body, datetime.now(UTC)
    sets = [each.body for each in pods.owned(api, kinds.REPLICA_SET, deployment)]
    new = [each for each in sets if labels_of(each).get(HASH) == want]
    _, missing = bounds(deployment["spec"])
    current = rollouts.named(deployment, want)
    reached = rollouts.status(deployment, sets, new, missing=missing, current=current, now=now)
    await pods.write_status(api, KIND, item, reached, author=AUTHOR)
    return rollouts.look_again(deployment, reached, now)


async def _create(api: Api, deployment: Object, want: str, old: list[Item]) -> Item:
    """The ReplicaSet of the template as it is now; how many pods it gets is for the roll to say."""
    template = clone(deployment["spec"]["template"])
    labels = template["metadata"]["labels"] | {HASH: want}
    template["metadata"]["labels"] = labels
    selector = clone(deployment["spec"]["selector"])
    selector["matchLabels"] = (selector.get("matchLabels") or {}) | {HASH: want}
    first = deployment["spec"]["replicas"] if not old else 0
    spec: Object = {"replicas": first, "selector": selector, "template": template}
    if "minReadySeconds" in deployment["spec"]:
        spec["minReadySeconds"] = deployment["spec"]["minReadySeconds"]
    revision = str(max((_revision(each) for each in old), default=0) + 1)
    meta = {
        "name": rollouts.named(deployment, want),
        "labels": labels,
        "annotations": {REVISION: revision},
        "ownerReferences": [pods.reference(KIND, deployment)],
    }
    return await api.create(
        kinds.REPLICA_SET, namespace_of(deployment), {"metadata": meta, "spec": spec}, author=AUTHOR
    )


async def _number(api: Api, deployment: Object, new: Item, old: list[Item]) -> None:
    """The template in use has the highest revision, also when it was in use before (an undo)."""
    revision = _revision(new)
    highest = max((_revision(each) for each in old), default=0)
    if revision <= highest:
        revision = highest + 1
        await _annotate(api, kinds.REPLICA_SET, new.body, revision)
    if nested(deployment, "metadata", "annotations", REVISION) != str(revision):
        await _annotate(api, KIND, deployment, revision)


async def _annotate(api: Api, kind: kinds.Kind, obj: Object, revision: int) -> None:
    def edit(old: Object) -> Object:
        annotations = nested(old, "metadata", "annotations", default={}) | {REVISION: str(revision)}
        return old | {"metadata": old["metadata"] | {"annotations": annotations}}

    await api.edit(kind, namespace_of(obj), name_of(obj), edit, author=AUTHOR)


async def _roll(api: Api, deployment: Object, new: Item, old: list[Item]) -> None:
    spec = deployment["spec"]
    replicas = spec["replicas"]
    if nested(spec, "strategy", "type") == "Recreate":
        all_gone = all(nested(replica_set.body, "status", "replicas", default=0) == 0 for replica_set in old)
        grown, kept = (replicas if all_gone else 0), [0] * len(old)
    else:
        surge, unavailable = bounds(spec)
        have = [_size(replica_set) for replica_set in old]
        grown, kept = sizes(_size(new), have, replicas=replicas, surge=surge, unavailable=unavailable)
    for replica_set, count in zip([new, *old], [grown, *kept], strict=True):
        await _scale(api, deployment, replica_set, count)


def bounds(spec: Object) -> tuple[int, int]:
    """maxSurge and maxUnavailable as counts; not both 0."""
    rolling = nested(spec, "strategy", "rollingUpdate", default={})
    surge = share(rolling.get("maxSurge", "25%"), spec["replicas"], up=True)
    unavailable = share(rolling.get("maxUnavailable", "25%"), spec["replicas"])
    return surge, unavailable if surge or unavailable else 1


def share(amount: Any, total: int, *, up: bool = False) -> int:
    """A number of pods, given as such or in per cent of all."""
    if isinstance(amount, str) and amount.endswith("%"):
        exact = int(amount[:-1]) * total / 100
        return math.ceil(exact) if up else math.floor(exact)
    return int(amount)


async def _scale(api: Api, deployment: Object, replica_set: Item, count: int) -> None:
    if replica_set.body["spec"]["replicas"] == count:
        return

    def edit(old: Object) -> Object:
        return old | {"spec": old["spec"] | {"replicas": count}}

    namespace, name = namespace_of(replica_set.body), name_of(replica_set.body)
    before = replica_set.body["spec"]["replicas"]
    await api.edit(kinds.REPLICA_SET, namespace, name, edit, author=AUTHOR)
    direction = "up" if count > before else "down"
    message = f"Scaled {direction} replica set {name} from {before} to {count}"
    await record(api, KIND, deployment, "ScalingReplicaSet", message, author=AUTHOR)


async def _clean_up(api: Api, deployment: Object, old: list[Item]) -> None:
    """Old templates are kept for an undo, but not all."""
    idle = [
        replica_set
        for replica_set in old
        if _size(replica_set) == (0, 0) and not nested(replica_set.body, "status", "replicas", default=0)
    ]
    for replica_set in idle[: max(0, len(idle) - deployment["spec"]["revisionHistoryLimit"])]:
        how = Deletion(uid=replica_set.body["metadata"]["uid"])
        await api.delete(kinds.REPLICA_SET, namespace_of(replica_set.body), name_of(replica_set.body), how)


def _size(replica_set: Item) -> Size:
    desired = replica_set.body["spec"]["replicas"]
    return Size(desired, min(desired, nested(replica_set.body, "status", "availableReplicas", default=0)))


def _revision(replica_set: Item) -> int:
    return int(nested(replica_set.body, "metadata", "annotations", REVISION, default=0))
