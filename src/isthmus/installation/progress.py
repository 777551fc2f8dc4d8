"""Reasons why installed workloads are not ready, from their status, their pods and Events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from isthmus.installation.facts import ApiObject


class Event(Struct, frozen=True):
    """An Event's object, reason and message."""

    name: str
    reason: str
    message: str


class Lack(Struct, frozen=True):
    """Reason why an object is not ready."""

    object: str
    reason: str


def ready(workload: ApiObject) -> tuple[int, int]:
    """Numbers of ready and of desired pods; (-1, 0) until a controller has seen the object."""
    spec, status = workload.spec or {}, workload.status or {}
    if int(status.get("observedGeneration") or 0) < workload.metadata.generation:
        return -1, 0
    if "desiredNumberScheduled" in status:
        updated = min(int(status.get("numberReady") or 0), int(status.get("updatedNumberScheduled") or 0))
        return updated, int(status["desiredNumberScheduled"])
    replicas = spec.get("replicas")
    updated = min(int(status.get("readyReplicas") or 0), int(status.get("updatedReplicas") or 0))
    return updated, 1 if replicas is None else int(replicas)


def is_ready(workload: ApiObject) -> bool:
    """``True`` if every pod of the current template is ready."""
    have, desired = ready(workload)
    return have >= desired and have >= 0


def lacks(workloads: Iterable[ApiObject], pods: Iterable[ApiObject], events: Iterable[Event]) -> list[Lack]:
    """Return a reason for each pod that is not ready, and for each workload that has too few pods."""
    by_name: dict[str, list[Event]] = {}
    for event in events:
        by_name.setdefault(event.name, []).append(event)
    reasons = [Lack(f"pod {pod.metadata.name}", reason) for pod in pods if (reason := _pod(pod, by_name))]
    for workload in workloads:
        name = workload.metadata.name
        if not is_ready(workload) and not any(each.object.startswith(f"pod {name}-") for each in reasons):
            have, desired = ready(workload)
            made = [each.message for owner, all_ in by_name.items() if owner.startswith(name) for each in all_]
            count = f"{have} of {desired} ready" if have >= 0 else "no controller has seen it yet"
            reasons.append(Lack(name, f"{count}: {made[-1]}" if made else count))
    return reasons


def _pod(pod: ApiObject, events: Mapping[str, list[Event]]) -> str:
    """Reason why a pod is not ready; empty if it is, or if it has ended."""
    status = pod.status or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    if (conditions.get("Ready") or {}).get("status") == "True" or status.get("phase") == "Succeeded":
        return ""
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return f"not scheduled: {scheduled.get('message') or scheduled.get('reason')}"
    own = events.get(pod.metadata.name, [])
    mounts = [each.message for each in own if each.reason == "FailedMount"]
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    reasons = [reason for each in containers if (reason := _container(each, bool(mounts)))]
    if mounts and not any(each.get("ready") or _last(each) for each in containers):
        return mounts[-1]
    unready = [each.message for each in own if each.reason in ("Unhealthy", "BackOff", "Failed")]
    return "; ".join(dict.fromkeys(reasons)) or (
        unready[-1] if unready else f"phase {status.get('phase') or 'Pending'}"
    )


def _container(status: Mapping[str, Any], waits_for_mount: bool) -> str:
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    name = status.get("name")
    if reason and not (waits_for_mount and reason in ("ContainerCreating", "PodInitializing")):
        last = _last(status)
        ended = f" (ended with {last.get('exitCode')}: {last.get('message') or last.get('reason')})" if last else ""
        return f"{name}: {reason}" + (f": {message}" if message else "") + ended
    if (status.get("state") or {}).get("running") and not status.get("ready"):
        return f"{name}: runs and is not ready (isthmus status --context has the reason)"
    return ""


def _last(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return (status.get("lastState") or {}).get("terminated") or {}


def waiting(workloads: Iterable[ApiObject]) -> Iterator[str]:
    """Yield a workload's name with its numbers of pods, for each that is not ready."""
    for workload in workloads:
        have, desired = ready(workload)
        if not is_ready(workload):
            yield f"{workload.metadata.name} {max(have, 0)}/{desired}"
