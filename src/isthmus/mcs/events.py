"""What people are told of exports and imports as it happens: Events, from how wanted objects change.

An export is told when it is offered, refused or disagrees with others; an import when it cannot be used here, and when
an object of it cannot be written, as where its name is taken. What does not change is not said again, nor what an
earlier process has written into the status.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol

from isthmus import kube
from isthmus.desired.drafts import conditions
from isthmus.loadbalancer.services import is_global
from isthmus.mcs.kinds import KINDS
from isthmus.mcs.takeovers import takeover
from isthmus.model.mcs import Merged
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.objects import Object
from isthmus.model.services import ExportMark, Import, Service, StatusCondition
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import EXPORT_MARKS, IMPORTS, MERGED, OBJECTS, OBJECTS_STATUS, SERVICES
from isthmus.sources import karmada
from isthmus.statedb import Database, Snapshot, Status

TRIES: Final = 3
"""How often a write must have failed before people hear of it."""


About = Literal["ServiceExport", "ServiceImport", "Service"]


class Said(NamedTuple):
    """An Event about an object."""

    kind: About
    name: ServiceName
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class Recorder(Protocol):
    """Who carries Events to the API server: ``kube.events.Recorder``."""

    def say(
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
        """Say something about an object."""
        ...


async def tell(db: Database, recorder: Recorder, takeovers: Counter[ClusterName] | None = None) -> None:
    """Say what happens, for ever. What is said of an import that is only about to be written waits for it.

    Takeovers are counted by the cluster that decides now.
    """
    counter: Counter[ClusterName] = Counter() if takeovers is None else takeovers
    objects, failures, imports = db.changes(OBJECTS), db.changes(OBJECTS_STATUS), db.changes(IMPORTS)
    merges, services = db.changes(MERGED), db.changes(SERVICES)
    waiting: list[Said] = []
    while True:
        await db.until(lambda _: objects.ready or failures.ready or imports.ready or merges.ready or services.ready)
        snapshot, merged = merges.next()
        for merge in merged:
            if (found := takeover(merge.old, merge.new)) is not None:
                counter[found[0]] += 1
            waiting += about_merged(merge.old, merge.new, snapshot)
        snapshot, changes = objects.next()
        _, failing = failures.next()
        waiting += [each for change in imports.next()[1] for each in about_import_row(change.old, change.new)]
        waiting += [each for change in services.next()[1] for each in about_service_row(change.old, change.new)]
        for _, old, new in changes:
            waiting += about_object(old, new, found=_found(snapshot, new))
        waiting += [each for change in failing for each in about_failure(snapshot, change.old, change.new)]
        waiting = [each for each in waiting if not _say(recorder, snapshot, each)]


def about_object(old: Object | None, new: Object | None, *, found: Iterable[StatusCondition] = ()) -> Iterator[Said]:
    """What a change of a wanted object means for people. One that is seen first is held against what was found."""
    if new is None or not new.status:
        return
    before, after = _by_type(found) if old is None else _conditions(old), _conditions(new)
    if new.kind == "ServiceExport":
        yield from _about_export(new.name, before, after)
    elif new.kind == "ServiceImport":
        yield from _about_import(new.name, before, after)


def about_merged(old: Merged | None, new: Merged | None, snapshot: Snapshot) -> Iterator[Said]:
    """A takeover, at the import and at the own cluster's export."""
    found = takeover(old, new)
    if found is None or new is None:
        return
    yield Said("ServiceImport", new.name, "Warning", "FieldsTakenOver", found[1])
    if snapshot.get(EXPORT_MARKS, new.name) is not None:
        yield Said("ServiceExport", new.name, "Warning", "FieldsTakenOver", found[1])


def about_import_row(old: Import | None, new: Import | None) -> Iterator[Said]:
    """An import that has become Karmada's to write."""
    if new is not None and (service := karmada.serves(new)) and (old is None or not karmada.writes(old.labels)):
        text = f"ServiceImport {new.name} is written by Karmada: it is served as it is, at the address of {service}"
        yield Said("ServiceImport", new.name, "Normal", "LeftToKarmada", text)


def about_service_row(old: Service | None, new: Service | None) -> Iterator[Said]:
    """A global Service that a MultiClusterService has come to claim."""
    if new is None or not is_global(new) or not (claim := karmada.claim(new)):
        return
    if old is None or karmada.claim(old) != claim or not is_global(old):
        text = f"MultiClusterService {claim} of Karmada spreads Service {new.name}: no slices are written beside it"
        yield Said("Service", new.name, "Normal", "LeftToKarmada", text)


def about_failure(snapshot: Snapshot, old: Status | None, new: Status | None) -> Iterator[Said]:
    """An object that could not be written again and again, told at the import that it is part of."""
    if new is None or new.attempts < TRIES or (old is not None and old.attempts >= TRIES and old.error == new.error):
        return
    row = snapshot.get(OBJECTS, new.key)
    if row is not None:
        about: About = "ServiceExport" if row.kind == "ServiceExport" else "ServiceImport"
        yield Said(about, row.service, "Warning", "NotWritten", new.error)


Conditions = Mapping[str, StatusCondition]


def _conditions(row: Object) -> Conditions:
    return _by_type(conditions(row.status))


def _by_type(found: Iterable[StatusCondition]) -> Conditions:
    return {each.type: each for each in found}


def _found(snapshot: Snapshot, row: Object | None) -> tuple[StatusCondition, ...]:
    """What the status of the object says in the API server."""
    there = _there(snapshot, row.kind, row.name) if row is not None else None
    return there.conditions if isinstance(there, ExportMark | Import) else ()


def _there(snapshot: Snapshot, kind: str, name: ServiceName) -> ExportMark | Import | Service | None:
    match kind:
        case "ServiceExport":
            return snapshot.get(EXPORT_MARKS, name)
        case "Service":
            return snapshot.get(SERVICES, (name, KUBERNETES))
        case _:
            return snapshot.get(IMPORTS, name)


def _news(before: Conditions, after: Conditions, kind: str, status: str) -> StatusCondition | None:
    """The condition, if it came to have this status just now, or has it for another reason."""
    was, now = before.get(kind), after.get(kind)
    if now is None or now.status != status or (was is not None and _gist(was) == _gist(now)):
        return None
    return now


def _gist(condition: StatusCondition) -> tuple[str, ...]:
    return condition.status, condition.reason, condition.message


def _about_export(name: ServiceName, before: Conditions, after: Conditions) -> Iterator[Said]:
    if (now := _news(before, after, "Valid", "False")) is not None:
        yield Said("ServiceExport", name, "Warning", now.reason, now.message)
    if _news(before, after, "Ready", "True") is not None:
        yield Said("ServiceExport", name, "Normal", "Exported", f"Service {name} is offered to the clusterset")
    if (now := _news(before, after, "Conflict", "True")) is not None:
        yield Said("ServiceExport", name, "Warning", "Conflict", f"{now.reason}: {now.message}")
    if (
        (was := before.get("Conflict")) is not None
        and was.status == "True"
        and _news(before, after, "Conflict", "False")
    ):
        yield Said("ServiceExport", name, "Normal", "NoConflicts", "all exporting clusters agree")


def _about_import(name: ServiceName, before: Conditions, after: Conditions) -> Iterator[Said]:
    now = _news(before, after, "Ready", "False")
    if now is not None and now.reason != "Pending":
        yield Said("ServiceImport", name, "Warning", now.reason, now.message)
    for kind, status in (("Stale", "True"), ("EndpointsReady", "False")):
        if (now := _news(before, after, kind, status)) is not None:
            yield Said("ServiceImport", name, "Warning", now.reason, now.message)


def _say(recorder: Recorder, snapshot: Snapshot, said: Said) -> bool:
    """Whether it was said, or is of something nobody wants any more."""
    there = _there(snapshot, said.kind, said.name)
    if there is None:
        return snapshot.get(OBJECTS, (said.kind, said.name)) is None
    namespace, name = split(said.name)
    recorder.say(
        KINDS[said.kind].kind,
        namespace=namespace,
        name=name,
        uid=there.uid,
        type=said.type,
        reason=said.reason,
        message=said.message,
    )
    return True
