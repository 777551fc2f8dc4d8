"""Status of a Deployment: counts and conditions for `kubectl rollout status` and `kubectl wait`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from isthmus.times import timestamp
from isthmus_lab.apiserver.objects import Object, items, name_of, nested, parse_time
from isthmus_lab.controllers import pods

COMPLETE: Final = "NewReplicaSetAvailable"
EXCEEDED: Final = "ProgressDeadlineExceeded"
COUNTS: Final = ("updatedReplicas", "readyReplicas", "availableReplicas")


def status(
    deployment: Object,
    sets: Sequence[Object],
    new: Sequence[Object],
    *,
    missing: int,
    current: str,
    now: datetime,
) -> pods.Status:
    """The status of a Deployment with these ReplicaSets, of which ``new`` are of the present template.

    ``missing`` is how many pods may be, ``current`` the name of the ReplicaSet that pods are moved to.
    """
    desired = deployment["spec"]["replicas"]
    counts = {
        "replicas": _total("replicas", sets),
        "updatedReplicas": _total("replicas", new),
        "readyReplicas": _total("readyReplicas", sets),
        "availableReplicas": _total("availableReplicas", sets),
    }
    done = counts["updatedReplicas"] == counts["replicas"] == desired == _total("availableReplicas", new)
    counts["unavailableReplicas"] = max(0, max(desired, counts["replicas"]) - counts["availableReplicas"])
    available = (False, "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    if counts["availableReplicas"] >= desired - missing:
        available = (True, "MinimumReplicasAvailable", "Deployment has minimum availability.")
    moved = any(counts[name] != nested(deployment, "status", name, default=0) for name in COUNTS)
    progress = _progress(deployment, f'ReplicaSet "{current}"', done=done, moved=moved, now=now)
    conditions = pods.conditions(deployment, Available=available, Progressing=progress)
    if moved and progress[0]:
        conditions[-1] = conditions[-1] | {"lastUpdateTime": timestamp(now)}
    shown = {name: count for name, count in counts.items() if count}
    return {"observedGeneration": deployment["metadata"]["generation"], **shown, "conditions": conditions}


def look_again(deployment: Object, reached: pods.Status, now: datetime) -> float | None:
    """Seconds after which a Deployment that does not move has failed; None where nothing is waited for."""
    progressing = reached["conditions"][-1]
    if progressing["reason"] in (COMPLETE, EXCEEDED) or deployment["spec"].get("paused"):
        return None
    return max(0.0, _time_left(deployment, progressing, now)) + 0.1


def _progress(deployment: Object, replica_set: str, *, done: bool, moved: bool, now: datetime) -> tuple[bool, str, str]:
    before = next((c for c in items(deployment, "status", "conditions") if c.get("type") == "Progressing"), {})
    same = replica_set in before.get("message", "")
    if done or (same and before.get("reason") == COMPLETE):  # what was complete does not fail later
        return True, COMPLETE, f"{replica_set} has successfully progressed."
    if same and not moved and (before.get("reason") == EXCEEDED or _time_left(deployment, before, now) <= 0):
        return False, EXCEEDED, f"{replica_set} has timed out progressing."
    return True, "ReplicaSetUpdated", f"{replica_set} is progressing."


def _time_left(deployment: Object, progressing: Object, now: datetime) -> float:
    """Seconds until the deadline."""
    progressed = parse_time(progressing["lastUpdateTime"]) if progressing.get("lastUpdateTime") else now
    return float(deployment["spec"]["progressDeadlineSeconds"]) - (now - progressed).total_seconds()


def _total(field: str, among: Sequence[Object]) -> int:
    return sum(nested(each, "status", field, default=0) for each in among)


def named(deployment: Object, template_hash: str) -> str:
    """Name of the ReplicaSet of a template."""
    return f"{name_of(deployment)}-{template_hash}"
