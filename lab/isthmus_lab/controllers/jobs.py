"""Jobs: pods until enough of them have succeeded, or too many have failed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from isthmus.times import timestamp
from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api, Deletion
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
from isthmus_lab.controllers import pods
from isthmus_lab.controllers.loop import Controller, author

KIND = kinds.JOB
AUTHOR = author("job-controller")
INITIAL_RETRY_DELAY: Final = 1.0
MAX_RETRY_DELAY: Final = 60.0
"""Seconds before a pod that failed is tried again; doubling."""


def controller(api: Api) -> Controller:
    """The controller of Jobs."""

    async def reconcile(key: str) -> float | None:
        item = api.store.get(KIND.qualified, key)
        if item is None or deleting(item.body):
            return None
        return await (_expire(api, item) if finished(item.body) else _reconcile(api, item))

    return Controller(api, name="jobs", follows=[KIND, kinds.POD], keys=_keys, reconcile=reconcile)


def finished(job: Object) -> bool:
    """True if the Job is complete or has failed."""
    return "True" in (condition(job, "Complete"), condition(job, "Failed"))


def desired_pods(job: Object, *, succeeded: int) -> int:
    """Number of pods that should be running."""
    spec = job["spec"]
    if spec.get("suspend"):
        return 0
    if spec.get("completions") is None:  # a work queue: the first success ends it
        return 0 if succeeded else int(spec["parallelism"])
    return min(int(spec["parallelism"]), max(0, int(spec["completions"]) - succeeded))


def _keys(change: Change) -> Iterable[str]:
    return [change.key] if change.resource == KIND.qualified else pods.owner_keys(change, KIND)


async def _reconcile(api: Api, item: Item) -> float | None:
    job = item.body
    mine = pods.owned(api, kinds.POD, job)
    succeeded, failed = ([p for p in mine if nested(p.body, "status", "phase") == e] for e in ("Succeeded", "Failed"))
    running = [pod for pod in mine if pods.active(pod.body)]
    given_up = _given_up(job, failed=len(failed), running=running)
    want = 0 if given_up else desired_pods(job, succeeded=len(succeeded))
    delay = _delay([pod.body for pod in failed]) if want > len(running) else 0.0
    if want < len(running):
        await pods.delete(api, sorted(running, key=pods.dispensable_first)[: len(running) - want])
    elif not delay:
        new = (pods.from_template(job["spec"]["template"], KIND, job) for _ in range(want - len(running)))
        await pods.create(api, namespace_of(job), new, author=AUTHOR)
    ended = len(running) if given_up else 0
    running = [pod for pod in pods.owned(api, kinds.POD, job) if pods.active(pod.body)]
    status = _status(job, running=running, succeeded=len(succeeded), failed=len(failed) + ended, given_up=given_up)
    await pods.write_status(api, KIND, item, status, author=AUTHOR)
    return delay or _time_left(job)


def _given_up(job: Object, *, failed: int, running: list[Item]) -> tuple[str, str] | None:
    """Reason and message of a failure (backoff limit or deadline); None while the job may go on."""
    spec, limit = job["spec"], int(job["spec"]["backoffLimit"])
    restarts = 0
    if nested(spec, "template", "spec", "restartPolicy") == "OnFailure":
        states = (each for pod in running for each in items(pod.body, "status", "containerStatuses"))
        restarts = sum(int(each.get("restartCount", 0)) for each in states)
    if failed > limit or (restarts and restarts >= limit):
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    remaining = _time_left(job)
    return ("DeadlineExceeded", "Job was active longer than specified deadline") if remaining == 0.0 else None


def _time_left(job: Object) -> float | None:
    """Seconds until its deadline; None where it has none, or has not begun."""
    seconds, begun = nested(job, "spec", "activeDeadlineSeconds"), nested(job, "status", "startTime")
    if seconds is None or not begun:
        return None
    return max(0.0, float(seconds) - (datetime.now(UTC) - parse_time(begun)).total_seconds())


def _delay(failed: list[Object]) -> float:
    """Seconds until the next try."""
    if not failed:
        return 0.0
    last = max(_ended(pod) for pod in failed)
    pause = min(MAX_RETRY_DELAY, INITIAL_RETRY_DELAY * 2.0 ** min(len(failed) - 1, 10))
    return max(0.0, pause - (datetime.now(UTC) - last).total_seconds())


def _ended(pod: Object) -> datetime:
    ends = [nested(status, "state", "terminated", "finishedAt") for status in items(pod, "status", "containerStatuses")]
    times = [parse_time(end) for end in ends if end]
    return max(times, default=parse_time(pod["metadata"]["creationTimestamp"]))


def _status(
    job: Object, *, running: list[Item], succeeded: int, failed: int, given_up: tuple[str, str] | None
) -> pods.Status:
    spec, before = job["spec"], job.get("status") or {}
    status: pods.Status = {"startTime": before.get("startTime") or timestamp()}
    counts = {"active": len(running), "succeeded": succeeded, "failed": failed}
    counts["ready"] = sum(pods.ready(pod.body) for pod in running)
    status |= {name: count for name, count in counts.items() if count or name == "ready"}
    done = succeeded >= spec["completions"] if spec.get("completions") is not None else succeeded and not running
    if given_up:
        complete = (True, *given_up)
        status["conditions"] = pods.conditions(job, FailureTarget=complete, Failed=complete)
    elif done:
        complete = (True, "CompletionsReached", "Reached expected number of succeeded pods")
        status["conditions"] = pods.conditions(job, SuccessCriteriaMet=complete, Complete=complete)
        status["completionTime"] = timestamp()
    elif spec.get("suspend"):
        status["conditions"] = pods.conditions(job, Suspended=(True, "JobSuspended", "Job suspended"))
    return status


async def _expire(api: Api, item: Item) -> float | None:
    """Delete a job ``ttlSecondsAfterFinished`` after its end."""
    lifetime = nested(item.body, "spec", "ttlSecondsAfterFinished")
    if lifetime is None:
        return None
    ends = [each["lastTransitionTime"] for each in items(item.body, "status", "conditions")]
    remaining = float(lifetime) - (datetime.now(UTC) - parse_time(max(ends))).total_seconds()
    if remaining > 0:
        return remaining
    how = Deletion(uid=item.body["metadata"]["uid"])
    await api.delete(KIND, namespace_of(item.body), name_of(item.body), how)
    return None
