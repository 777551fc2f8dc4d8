"""Events of exports and imports: notices, as tables change, to the recorder that carries them to the API server."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, Protocol

from isthmus import kube
from isthmus.mcs.kinds import KINDS
from isthmus.mcs.notices import (
    Notice,
    about_failure,
    about_import_row,
    about_merged,
    about_object,
    about_service_row,
    found_conditions,
    found_row,
)
from isthmus.mcs.takeovers import takeover
from isthmus.model.names import ClusterName, split
from isthmus.model.tables import IMPORTS, MERGED, OBJECTS, OBJECTS_STATUS, SERVICES
from isthmus.statedb import Database, Snapshot


class Recorder(Protocol):
    """Carries Events to the API server: ``kube.events.Recorder``."""

    def record(
        self,
        kind: kube.Kind[Any],
        *,
        namespace: str,
        name: str,
        uid: str,
        reason: str,
        message: str,
        type: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Record an Event about an object."""
        ...


async def record(db: Database, recorder: Recorder, takeovers: Counter[ClusterName] | None = None) -> None:
    """Record notices, for ever. One of an import that is only about to be written waits for it.

    Takeovers are counted by the cluster that decides now.
    """
    counter: Counter[ClusterName] = Counter() if takeovers is None else takeovers
    objects, failures, imports = db.changes(OBJECTS), db.changes(OBJECTS_STATUS), db.changes(IMPORTS)
    merges, services = db.changes(MERGED), db.changes(SERVICES)
    readers = (objects, failures, imports, merges, services)
    waiting: list[Notice] = []
    while True:
        await db.until(lambda _: any(reader.ready for reader in readers))
        snapshot, merged = merges.next()
        for _, old, new in merged:
            if (found := takeover(old, new)) is not None:
                counter[found[0]] += 1
            waiting += about_merged(old, new, snapshot)
        for _, before, after in imports.next()[1]:
            waiting += about_import_row(before, after)
        for _, was, now in services.next()[1]:
            waiting += about_service_row(was, now)
        for _, earlier, wanted in objects.next()[1]:
            waiting += about_object(earlier, wanted, found=found_conditions(snapshot, wanted))
        for _, failed, failing in failures.next()[1]:
            waiting += about_failure(snapshot, failed, failing)
        waiting = [notice for notice in waiting if not _record(recorder, snapshot, notice)]


def _record(recorder: Recorder, snapshot: Snapshot, notice: Notice) -> bool:
    """Whether it was recorded, or is about an object that nothing wants any more."""
    found = found_row(snapshot, notice.kind, notice.name)
    if found is None:
        return snapshot.get(OBJECTS, (notice.kind, notice.name)) is None
    namespace, name = split(notice.name)
    recorder.record(
        KINDS[notice.kind].kind,
        namespace=namespace,
        name=name,
        uid=found.uid,
        type=notice.type,
        reason=notice.reason,
        message=notice.message,
    )
    return True
