"""StatefulSets: pods with a name and a place in an order, made one after the other and replaced from the last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api
from isthmus_lab.apiserver.objects import Object, deleting, items, labels_of, name_of, namespace_of, nested
from isthmus_lab.apiserver.storage import Change, Item
from isthmus_lab.controllers import pods
from isthmus_lab.controllers.loop import Controller, author

KIND = kinds.STATEFUL_SET
AUTHOR = author("statefulset-controller")
REVISION: Final = "controller-revision-hash"


class Step(NamedTuple):
    """Next actions: ordinals to fill, pods to delete."""

    create: list[int]
    delete: list[Item]


def controller(api: Api) -> Controller:
    """The controller of StatefulSets."""

    async def reconcile(key: str) -> float | None:
        item = api.store.get(KIND.qualified, key)
        return await _reconcile(api, item) if item is not None else None

    return Controller(api, name="statefulsets", follows=[KIND, kinds.POD], keys=_keys, reconcile=reconcile)


def step(spec: Object, have: dict[int, Item], revision: str) -> Step:
    """Compute the next step from the existing pods, which are keyed by ordinal.

    In order (the default) nothing is done while a pod before is not ready; in parallel only updates wait.
    """
    ordered = spec.get("podManagementPolicy") != "Parallel"
    first = nested(spec, "ordinals", "start", default=0)
    places = range(first, first + spec["replicas"])
    missing, ended = [place for place in places if place not in have], []
    for place in places:
        pod = have.get(place)
        if (
            pod is not None
            and nested(pod.body, "status", "phase") in ("Failed", "Succeeded")
            and not deleting(pod.body)
        ):
            ended.append(pod)
        if ordered and (pod is None or ended or deleting(pod.body) or not pods.ready(pod.body)):
            return Step([place] if pod is None else [], ended)
    surplus = [have[place] for place in sorted(have, reverse=True) if place not in places]
    if surplus or missing or ended:
        deleted = [pod for pod in (surplus[:1] if ordered else surplus) if not deleting(pod.body)]
        return Step(missing, [*ended, *deleted])
    return Step([], _outdated(spec, [have[place] for place in places], revision))


def _outdated(spec: Object, in_order: list[Item], revision: str) -> list[Item]:
    """The pod to replace by a newer one: the last of those that are old, once all after it are ready."""
    if nested(spec, "updateStrategy", "type") != "RollingUpdate":
        return []
    for pod in reversed(in_order):
        if labels_of(pod.body).get(REVISION) != revision:
            return [] if deleting(pod.body) else [pod]
        if deleting(pod.body) or not pods.ready(pod.body):
            return []
    return []


def _keys(change: Change) -> Iterable[str]:
    return [change.key] if change.resource == KIND.qualified else pods.owner_keys(change, KIND)


async def _reconcile(api: Api, item: Item) -> float | None:
    stateful_set, namespace = item.body, namespace_of(item.body)
    revision = pods.template_hash(stateful_set["spec"]["template"])
    if not deleting(stateful_set):
        todo = step(stateful_set["spec"], _by_place(api, stateful_set), revision)
        await _claim(api, stateful_set, todo.create)
        await pods.create(api, namespace, (_pod(stateful_set, place) for place in todo.create), author=AUTHOR)
        await pods.delete(api, todo.delete)
    have = list(_by_place(api, stateful_set).values())
    status = _status(stateful_set, [each.body for each in have], f"{name_of(stateful_set)}-{revision}")
    await pods.write_status(api, KIND, item, status, author=AUTHOR)
    waits = any(pods.ready(each.body) for each in have) and nested(stateful_set, "spec", "minReadySeconds", default=0)
    return 1.0 if waits and status.get("availableReplicas", 0) < status["replicas"] else None


def _by_place(api: Api, stateful_set: Object) -> dict[int, Item]:
    pods_by_place = {}
    for pod in pods.owned(api, kinds.POD, stateful_set):
        place = name_of(pod.body).removeprefix(f"{name_of(stateful_set)}-")
        if place.isdigit():
            pods_by_place[int(place)] = pod
    return pods_by_place


async def _claim(api: Api, stateful_set: Object, places: list[int]) -> None:
    """Create missing volume claims of some ordinals. Claims outlive their pods."""
    namespace, chosen = namespace_of(stateful_set), nested(stateful_set, "spec", "selector", "matchLabels", default={})
    for place in places:
        for template in items(stateful_set, "spec", "volumeClaimTemplates"):
            name = f"{name_of(template)}-{name_of(stateful_set)}-{place}"
            labels = {**nested(template, "metadata", "labels", default={}), **chosen}
            claim = {"metadata": {"name": name, "labels": labels}, "spec": template.get("spec", {})}
            if api.store.get(kinds.PERSISTENT_VOLUME_CLAIM.qualified, f"{namespace}/{name}") is None:
                await api.create(kinds.PERSISTENT_VOLUME_CLAIM, namespace, claim, author=AUTHOR)


def _pod(stateful_set: Object, place: int) -> Object:
    revision = pods.template_hash(stateful_set["spec"]["template"])
    pod = pods.from_template(stateful_set["spec"]["template"], KIND, stateful_set)
    name = f"{name_of(stateful_set)}-{place}"
    meta = pod["metadata"]
    del meta["generateName"]
    meta["name"] = name
    own = {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": str(place)}
    meta["labels"] = {**(meta.get("labels") or {}), **own, REVISION: revision}
    pod["spec"]["hostname"] = name
    if service := nested(stateful_set, "spec", "serviceName"):
        pod["spec"]["subdomain"] = service
    claims = [
        {"name": name_of(claim), "persistentVolumeClaim": {"claimName": f"{name_of(claim)}-{name}"}}
        for claim in items(stateful_set, "spec", "volumeClaimTemplates")
    ]
    if claims:
        pod["spec"]["volumes"] = [*pod["spec"].get("volumes", ()), *claims]
    return pod


def _status(stateful_set: Object, have: list[Object], revision: str) -> pods.Status:
    min_ready = nested(stateful_set, "spec", "minReadySeconds", default=0)
    name = f"{name_of(stateful_set)}-"
    alive = [pod for pod in have if pods.active(pod)]
    new = [pod for pod in alive if name + labels_of(pod).get(REVISION, "") == revision]
    ready = sum(pods.ready(pod) for pod in alive)
    current = revision if len(new) == ready == stateful_set["spec"]["replicas"] else None
    current = current or nested(stateful_set, "status", "currentRevision", default=revision)
    return {
        "observedGeneration": stateful_set["metadata"]["generation"],
        "replicas": len(alive),
        "readyReplicas": ready,
        "availableReplicas": sum(pods.available(pod, min_ready=min_ready) for pod in alive),
        "updatedReplicas": len(new),
        "currentReplicas": sum(name + labels_of(pod).get(REVISION, "") == current for pod in alive),
        "currentRevision": current,
        "updateRevision": revision,
        "collisionCount": 0,
    }
