"""Deployments: a ReplicaSet per pod template, and pods moved from the old ones to the new one a few at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api, Deletion
from isthmus_lab.apiserver.objects import Object, at, clone, deleting, labels_of, name_of, namespace_of
from isthmus_lab.apiserver.storage import Change, Item
from isthmus_lab.controllers import pods, rollouts
from isthmus_lab.controllers.events import record
from isthmus_lab.controllers.loop import Controller, by

KIND = kinds.DEPLOYMENT
BY = by("deployment-controller")
HASH: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"


class Size(NamedTuple):
    """How many pods a ReplicaSet has been asked for, and how many of them can be called."""

    wanted: int
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
    """What the new ReplicaSet and the old ones should have next, of what they have.

    Never more than ``replicas + surge`` pods in all, never fewer than ``replicas - unavailable`` that can be called;
    old pods that cannot be called go first.
    """
    total = new.wanted + sum(each.wanted for each in old)
    room = max(0, replicas + surge - total)
    grown = min(replicas, new.wanted + room)
    callable_now = new.available + sum(each.available for each in old)
    spare = max(0, callable_now - (replicas - unavailable))
    left = []
    for each in old:
        broken = each.wanted - each.available
        healthy = min(each.available, spare)
        spare -= healthy
        left.append(each.wanted - broken - healthy)
    return grown, left


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
    await pods.write_status(api, KIND, item, reached, by=BY)
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
    return await api.create(kinds.REPLICA_SET, namespace_of(deployment), {"metadata": meta, "spec": spec}, by=BY)


async def _number(api: Api, deployment: Object, new: Item, old: list[Item]) -> None:
    """The template in use has the highest revision, also when it was in use before (an undo)."""
    revision = _revision(new)
    highest = max((_revision(each) for each in old), default=0)
    if revision <= highest:
        revision = highest + 1
        await _annotate(api, kinds.REPLICA_SET, new.body, revision)
    if at(deployment, "metadata", "annotations", REVISION) != str(revision):
        await _annotate(api, KIND, deployment, revision)


async def _annotate(api: Api, kind: kinds.Kind, obj: Object, revision: int) -> None:
    def edit(old: Object) -> Object:
        annotations = at(old, "metadata", "annotations", default={}) | {REVISION: str(revision)}
        return old | {"metadata": old["metadata"] | {"annotations": annotations}}

    await api.edit(kind, namespace_of(obj), name_of(obj), edit, by=BY)


async def _roll(api: Api, deployment: Object, new: Item, old: list[Item]) -> None:
    spec = deployment["spec"]
    replicas = spec["replicas"]
    if at(spec, "strategy", "type") == "Recreate":
        all_gone = all(at(each.body, "status", "replicas", default=0) == 0 for each in old)
        grown, left = (replicas if all_gone else 0), [0] * len(old)
    else:
        surge, unavailable = bounds(spec)
        have = [_size(each) for each in old]
        grown, left = sizes(_size(new), have, replicas=replicas, surge=surge, unavailable=unavailable)
    for each, wanted in zip([new, *old], [grown, *left], strict=True):
        await _scale(api, deployment, each, wanted)


def bounds(spec: Object) -> tuple[int, int]:
    """How many pods more, and how many fewer than asked for there may be; not both 0."""
    rolling = at(spec, "strategy", "rollingUpdate", default={})
    surge = share(rolling.get("maxSurge", "25%"), spec["replicas"], up=True)
    unavailable = share(rolling.get("maxUnavailable", "25%"), spec["replicas"])
    return surge, unavailable if surge or unavailable else 1


def share(amount: Any, of: int, *, up: bool = False) -> int:
    """A number of pods, given as such or in per cent of all."""
    if isinstance(amount, str) and amount.endswith("%"):
        exact = int(amount[:-1]) * of / 100
        return math.ceil(exact) if up else math.floor(exact)
    return int(amount)


async def _scale(api: Api, deployment: Object, replica_set: Item, wanted: int) -> None:
    if replica_set.body["spec"]["replicas"] == wanted:
        return

    def edit(old: Object) -> Object:
        return old | {"spec": old["spec"] | {"replicas": wanted}}

    namespace, name = namespace_of(replica_set.body), name_of(replica_set.body)
    before = replica_set.body["spec"]["replicas"]
    await api.edit(kinds.REPLICA_SET, namespace, name, edit, by=BY)
    direction = "up" if wanted > before else "down"
    message = f"Scaled {direction} replica set {name} from {before} to {wanted}"
    await record(api, KIND, deployment, "ScalingReplicaSet", message, by=BY)


async def _clean_up(api: Api, deployment: Object, old: list[Item]) -> None:
    """Old templates are kept for an undo, but not all."""
    idle = [each for each in old if _size(each) == (0, 0) and not at(each.body, "status", "replicas", default=0)]
    for each in idle[: max(0, len(idle) - deployment["spec"]["revisionHistoryLimit"])]:
        how = Deletion(uid=each.body["metadata"]["uid"])
        await api.delete(kinds.REPLICA_SET, namespace_of(each.body), name_of(each.body), how)


def _size(replica_set: Item) -> Size:
    wanted = replica_set.body["spec"]["replicas"]
    return Size(wanted, min(wanted, at(replica_set.body, "status", "availableReplicas", default=0)))


def _revision(replica_set: Item) -> int:
    return int(at(replica_set.body, "metadata", "annotations", REVISION, default=0))
