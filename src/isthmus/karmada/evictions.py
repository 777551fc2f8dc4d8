"""What Karmada moves away → drains in the members that it leaves. Pure.

Karmada moves a workload with a task in its ResourceBinding (``gracefulEvictionTasks``): it runs in both members until
it is healthy in the new one, or a grace period is over. Meanwhile the old one takes no new call for the Services that
select its pods. A task can be stuck for good, so the drain has an end, that of the grace period.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.karmada.members import Member
from isthmus.karmada.works import Work, manifest
from isthmus.kube.objects.core import Service
from isthmus.kube.objects.karmada import EvictionTask, ObjectReference, ResourceBinding, Workload
from isthmus.model.names import ClusterName
from isthmus.times import timestamp

GRACE: Final = 600
"""Seconds that Karmada waits where a task names none (its flag ``--graceful-eviction-timeout``)."""


class Eviction(NamedTuple):
    """A workload, or a Service, that leaves a member."""

    member: ClusterName
    resource: ObjectReference
    began: datetime
    ends: datetime


def evictions(bindings: Iterable[ResourceBinding], members: Iterable[Member], *, now: datetime) -> list[Eviction]:
    """Tasks whose grace period is not over, of members of the clusterset."""
    joined = {member.name for member in members if member.joins}
    evictions = []
    for binding in bindings:
        for task in binding.spec.graceful_eviction_tasks or ():
            began, ends = _period(task, now)
            if (member := ClusterName(task.from_cluster)) in joined and ends > now:
                evictions.append(Eviction(member, binding.spec.resource, began, ends))
    return evictions


def drains(
    evictions: Iterable[Eviction],
    *,
    services: Mapping[str, Iterable[Service]],
    workloads: Mapping[tuple[str, str, str], Workload],
) -> list[Work]:
    """A Drain for each Service that loses its pods in a member, for as long as the last of these tasks."""
    last: dict[tuple[ClusterName, str, str], Eviction] = {}
    for eviction in evictions:
        for name in _services(eviction.resource, services=services, workloads=workloads):
            key = (eviction.member, eviction.resource.namespace, name)
            if key not in last or eviction.ends > last[key].ends:
                last[key] = eviction
    return [_work(*key, eviction) for key, eviction in sorted(last.items())]


def _services(
    resource: ObjectReference,
    *,
    services: Mapping[str, Iterable[Service]],
    workloads: Mapping[tuple[str, str, str], Workload],
) -> Iterable[str]:
    if resource.kind == "Service":
        return [resource.name]
    workload = workloads.get((resource.kind, resource.namespace, resource.name))
    labels = (workload.spec.template.metadata.labels or {}).items() if workload is not None else {}.items()
    selecting = [each for each in services.get(resource.namespace, ()) if each.spec.selector]
    return [each.metadata.name for each in selecting if (each.spec.selector or {}).items() <= labels]


def _work(member: ClusterName, namespace: str, service: str, eviction: Eviction) -> Work:
    spec = {
        "targetRef": {"kind": "Service", "name": service},
        "startTime": timestamp(eviction.began),
        "endTime": timestamp(eviction.ends),
    }
    drain = manifest("isthmus.io/v1alpha1", "Drain", f"karmada-service-{service}", {"spec": spec}, namespace=namespace)
    return Work(member, f"isthmus-drain-{namespace}-{service}", "drain", (drain,))


def _period(task: EvictionTask, now: datetime) -> tuple[datetime, datetime]:
    """When a task began (now where it has no time) and when its grace period ends.

    A period that is negative, or longer than 68 years, is taken for one of GRACE from now.
    """
    try:
        began = bounds.timestamp(task.creation_timestamp) if task.creation_timestamp else now
    except OutOfBounds:
        began = now
    try:
        seconds = GRACE if task.grace_period_seconds is None else task.grace_period_seconds
        return began, bounds.after(began, bounds.count(seconds, most=bounds.MAX_INT32))
    except OutOfBounds:
        return now, bounds.after(now, GRACE)
