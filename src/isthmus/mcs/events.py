"""Events of exports and imports: notices, as tables change, to the recorder that carries them to the API server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol

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
from isthmus.model.tables import FAULTS, IMPORTS, MERGED, OBJECTS, OBJECTS_STATUS, SERVICES
from isthmus.statedb import AnyTable, Change, Database, Faults, Snapshot


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


NOTICES: Final[Mapping[AnyTable, Callable[[Snapshot, Change[Any]], Iterable[Notice]]]] = {
    MERGED: lambda snapshot, row: about_merged(row.old, row.new, snapshot),
    IMPORTS: lambda snapshot, row: about_import_row(row.old, row.new),
    SERVICES: lambda snapshot, row: about_service_row(row.old, row.new),
    OBJECTS: lambda snapshot, row: about_object(row.old, row.new, conditions=found_conditions(snapshot, row.new)),
    OBJECTS_STATUS: lambda snapshot, row: about_failure(snapshot, row.old, row.new),
}
"""The notices of a changed row, by table."""


class Notifier:
    """Records notices as tables change. One of an import that is only about to be written waits for it.

    ``takeovers`` are counted by the cluster that decides now. A row whose notices raise is a fault until it changes.
    Restarted after a failure, it goes on after what failed.
    """

    def __init__(self, db: Database, recorder: Recorder, takeovers: Counter[ClusterName]) -> None:
        self._db = db
        self._recorder = recorder
        self._takeovers = takeovers
        self._readers = {table: db.changes(table) for table in NOTICES}
        self._faults = Faults(db, FAULTS, OBJECTS.name, kind="events")
        self._waiting: list[Notice] = []

    def __repr__(self) -> str:
        return f"<Notifier: {len(self._waiting)} waiting>"

    async def run(self) -> None:
        """Record, for ever."""
        while True:
            await self._db.until(lambda _: any(reader.ready for reader in self._readers.values()))
            self._step()

    def _step(self) -> None:
        snapshot, waiting = self._db.snapshot(), self._waiting
        for table, reader in self._readers.items():
            for change in reader.next()[1]:
                with self._faults.attempt((table.name, change.key)):
                    if table is MERGED and (found := takeover(change.old, change.new)) is not None:
                        self._takeovers[found[0]] += 1
                    waiting += NOTICES[table](snapshot, change)
        self._waiting = [notice for notice in waiting if not _record(self._recorder, snapshot, notice)]
        self._faults.publish()


def _record(recorder: Recorder, snapshot: Snapshot, notice: Notice) -> bool:
    """Whether it was recorded, or is about an object that nothing wants any more."""
    row = found_row(snapshot, notice.kind, notice.name)
    if row is None:
        return snapshot.get(OBJECTS, (notice.kind, notice.name)) is None
    namespace, name = split(notice.name)
    recorder.record(
        KINDS[notice.kind].kind,
        namespace=namespace,
        name=name,
        uid=row.uid,
        type=notice.type,
        reason=notice.reason,
        message=notice.message,
    )
    return True
