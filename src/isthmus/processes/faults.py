"""Reports of a process's faults: sentences and a problem for status, a metric, log lines, Events."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client.metrics_core import Metric

from isthmus import kube, logs, metrics
from isthmus.kube.events import Recorder
from isthmus.kube.objects.core import POD
from isthmus.model.tables import FAULTS
from isthmus.sources import kubernetes
from isthmus.statedb import Cause, Database, Fault, Reader

MAX_SENTENCES: Final = 5
"""Faults that status has a sentence about; of more it has the number."""
QUIET: Final = 30.0
"""Seconds in which an object has one Event, however often what is wrong with it changes."""

REASONS: Final[Mapping[Cause, str]] = {"bug": "InternalError", "malformed": "Malformed", "unreadable": "Unreadable"}

OF_PODS: Final = {name: kind for name, kind in kubernetes.kinds().items() if kind is POD}
"""Kinds that agents follow and the operator does not."""
OF_OPERATOR: Final = {name: kind for name, kind in kubernetes.kinds().items() if kind is not POD}

log = logs.get("faults")


class Seen(NamedTuple):
    """The last Event about an object: what was wrong with it, and when the Event was recorded, in seconds."""

    error: str
    when: float


def sentences(reader: Reader) -> tuple[str, ...]:
    """A sentence for each fault, bugs first, up to a few."""
    rows = sorted(reader.all(FAULTS), key=lambda row: (row.cause != "bug", FAULTS.key(row)))
    sentences = [sentence(row) for row in rows[:MAX_SENTENCES]]
    if more := sum(row.count for row in rows[MAX_SENTENCES:]):
        sentences.append(f"and {more} more: isthmus get faults")
    return tuple(sentences)


def sentence(row: Fault) -> str:
    """Describe a fault and its error."""
    where = f" ({row.where})" if row.where else ""
    return f"{' '.join(filter(None, (row.kind, row.name)))} of {row.part}: {row.error}{where}"


def problem(reader: Reader) -> str:
    """Problem of a process with bugs; empty if only tenants' objects are at fault."""
    bugs = reader.by(FAULTS, "cause", "bug")
    if not bugs:
        return ""
    first, number = min(bugs, key=FAULTS.key), sum(row.count for row in bugs)
    more = f", and {number - 1} more" if number > 1 else ""
    return f"what failed keeps its last state (isthmus get faults): {sentence(first)}{more}"


def family(prefix: str, reader: Reader) -> Metric:
    """Count failing units and objects by table. Labels are bounded: tables of this process, and three causes."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in reader.all(FAULTS):
        counts[row.part, row.cause] += row.count
    return metrics.FAULTS.family(prefix, sorted(counts.items()))


async def log_bugs(db: Database) -> None:
    """Write a line into the log about each unit that begins to fail, or fails otherwise than before, for ever."""
    changes = db.changes(FAULTS)
    while True:
        _, changed = changes.next()
        for _, old, new in changed:
            if new is not None and new.cause == "bug" and (old is None or old.error != new.error):
                log.error(
                    "a bug: please report it", table=new.part, kind=new.kind, name=new.name, why=new.error, at=new.where
                )
        await changes.wait()


async def record(
    db: Database, recorder: Recorder, kinds: Mapping[str, kube.Kind[Any]], *, quiet: float = QUIET
) -> None:
    """Write an Event about each object of some kinds that is a fault, of one table or of several, for ever."""
    changes = db.changes(FAULTS)
    seen: dict[tuple[str, str], Seen] = {}
    while True:
        snapshot, _ = changes.next()
        current = {(row.kind, row.name): row for row in objects(snapshot.all(FAULTS), kinds)}
        now = asyncio.get_running_loop().time()
        seen = {key: last for key, last in seen.items() if last.when + quiet > now or key in current}
        due: float | None = None
        for key, row in current.items():
            last = seen.get(key)
            if last is not None and last.error == row.error:
                continue
            if last is None or last.when + quiet <= now:
                seen[key] = Seen(row.error, now)
                _write(recorder, kinds[row.kind], row)
            else:
                due = min(due or last.when + quiet, last.when + quiet)
        del snapshot
        try:
            async with asyncio.timeout_at(due):
                await changes.wait()
        except TimeoutError:
            pass


def objects(rows: Iterable[Fault], kinds: Mapping[str, kube.Kind[Any]]) -> list[Fault]:
    """The faults that name an object of some kinds in some namespace, in order."""
    return sorted((row for row in rows if row.kind in kinds and "/" in row.name and row.count == 1), key=FAULTS.key)


def _write(recorder: Recorder, kind: kube.Kind[Any], row: Fault) -> None:
    namespace, _, name = row.name.partition("/")
    recorder.record(
        kind,
        namespace=namespace,
        name=name,
        uid=row.uid,
        type="Warning",
        reason=REASONS[row.cause],
        message=f"{row.error}; what it was before, if it was accepted then, stays in use",
    )
