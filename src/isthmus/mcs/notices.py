"""Notices: what people are to know of exports and imports, from how rows change. Pure.

Of an export: it is exported, refused, or in conflict with others. Of an import: it cannot be used here, an object of it
cannot be written (its name is taken), another cluster's older export decides now, or Karmada writes it. What does not
change gives no notice, nor what an earlier process has written into the status already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from isthmus.desired.drafts import conditions
from isthmus.mcs.takeovers import takeover
from isthmus.model.mcs import Merged
from isthmus.model.names import ServiceName
from isthmus.model.objects import Object
from isthmus.model.services import ExportMark, Import, Service, StatusCondition, claimed_by, is_global
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import EXPORT_MARKS, IMPORTS, OBJECTS, SERVICES
from isthmus.sources import karmada
from isthmus.statedb import Snapshot, Status

ATTEMPTS: Final = 3
"""Failed writes of one object before there is a notice of it."""

About = Literal["ServiceExport", "ServiceImport", "Service"]


class Notice(NamedTuple):
    """An Event to be, about an object."""

    kind: About
    name: ServiceName
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def about_object(
    old: Object | None, new: Object | None, *, conditions: Iterable[StatusCondition] = ()
) -> Iterator[Notice]:
    """Notices of a change of a wanted object; one that is new here is compared with what its status was found to be."""
    if new is None or not new.status:
        return
    before, after = _by_type(conditions) if old is None else _conditions(old), _conditions(new)
    if new.kind == "ServiceExport":
        yield from _about_export(new.name, before, after)
    elif new.kind == "ServiceImport":
        yield from _about_import(new.name, before, after)


def about_merged(old: Merged | None, new: Merged | None, snapshot: Snapshot) -> Iterator[Notice]:
    """A takeover, at the import and at the own cluster's export."""
    change = takeover(old, new)
    if change is None or new is None:
        return
    yield Notice("ServiceImport", new.name, "Warning", "FieldsTakenOver", change[1])
    if snapshot.get(EXPORT_MARKS, new.name) is not None:
        yield Notice("ServiceExport", new.name, "Warning", "FieldsTakenOver", change[1])


def about_import_row(old: Import | None, new: Import | None) -> Iterator[Notice]:
    """An import that has become Karmada's to write."""
    if new is not None and (service := karmada.serves(new)) and (old is None or not karmada.writes(old.labels)):
        text = f"ServiceImport {new.name} is written by Karmada: it is served as it is, at the address of {service}"
        yield Notice("ServiceImport", new.name, "Normal", "LeftToKarmada", text)


def about_service_row(old: Service | None, new: Service | None) -> Iterator[Notice]:
    """A global Service that a MultiClusterService has come to claim."""
    if new is None or not is_global(new) or not (claim := claimed_by(new)):
        return
    if old is None or claimed_by(old) != claim or not is_global(old):
        text = f"MultiClusterService {claim} of Karmada spreads Service {new.name}: no slices are written beside it"
        yield Notice("Service", new.name, "Normal", "LeftToKarmada", text)


def about_failure(snapshot: Snapshot, old: Status[Any] | None, new: Status[Any] | None) -> Iterator[Notice]:
    """An object that could not be written again and again, at the import that it is part of."""
    if (
        new is None
        or new.attempts < ATTEMPTS
        or (old is not None and old.attempts >= ATTEMPTS and old.error == new.error)
    ):
        return
    row = snapshot.get(OBJECTS, new.key)
    if row is not None:
        about: About = "ServiceExport" if row.kind == "ServiceExport" else "ServiceImport"
        yield Notice(about, row.service, "Warning", "NotWritten", new.error)


Conditions = Mapping[str, StatusCondition]


def _conditions(row: Object) -> Conditions:
    return _by_type(conditions(row.status))


def _by_type(conditions: Iterable[StatusCondition]) -> Conditions:
    return {each.type: each for each in conditions}


def found_conditions(snapshot: Snapshot, row: Object | None) -> tuple[StatusCondition, ...]:
    """The conditions of the object in the API server."""
    found = found_row(snapshot, row.kind, row.name) if row is not None else None
    return found.conditions if isinstance(found, ExportMark | Import) else ()


def found_row(snapshot: Snapshot, kind: str, name: ServiceName) -> ExportMark | Import | Service | None:
    """The row of the object that a notice is about."""
    match kind:
        case "ServiceExport":
            return snapshot.get(EXPORT_MARKS, name)
        case "Service":
            return snapshot.get(SERVICES, (name, KUBERNETES))
        case _:
            return snapshot.get(IMPORTS, name)


def _became(before: Conditions, after: Conditions, kind: str, status: str) -> StatusCondition | None:
    """The condition, if it came to have this status just now, or has it for another reason."""
    was, now = before.get(kind), after.get(kind)
    if now is None or now.status != status or (was is not None and _content(was) == _content(now)):
        return None
    return now


def _content(condition: StatusCondition) -> tuple[str, ...]:
    return condition.status, condition.reason, condition.message


def _about_export(name: ServiceName, before: Conditions, after: Conditions) -> Iterator[Notice]:
    if (now := _became(before, after, "Valid", "False")) is not None:
        yield Notice("ServiceExport", name, "Warning", now.reason, now.message)
    if _became(before, after, "Ready", "True") is not None:
        yield Notice("ServiceExport", name, "Normal", "Exported", f"Service {name} is offered to the clusterset")
    if (now := _became(before, after, "Conflict", "True")) is not None:
        yield Notice("ServiceExport", name, "Warning", "Conflict", f"{now.reason}: {now.message}")
    if (
        (was := before.get("Conflict")) is not None
        and was.status == "True"
        and _became(before, after, "Conflict", "False")
    ):
        yield Notice("ServiceExport", name, "Normal", "NoConflicts", "all exporting clusters agree")
    if (now := _became(before, after, "MetadataOmitted", "True")) is not None:
        yield Notice("ServiceExport", name, "Warning", "MetadataOmitted", now.message)
    if (now := _became(before, after, "Unpublished", "True")) is not None:
        yield Notice("ServiceExport", name, "Warning", "Unpublished", f"{now.reason}: {now.message}")
    was, now = before.get("Refused"), after.get("Refused")
    if now is not None and (was is None or was.reason != now.reason):  # a peer may change its message at any time
        yield Notice("ServiceExport", name, "Warning", "Refused", f"{now.reason}: {now.message}")
    if was is not None and now is None:
        yield Notice("ServiceExport", name, "Normal", "Accepted", "no cluster refuses it any more")


def _about_import(name: ServiceName, before: Conditions, after: Conditions) -> Iterator[Notice]:
    now = _became(before, after, "Ready", "False")
    if now is not None and now.reason != "Pending":
        yield Notice("ServiceImport", name, "Warning", now.reason, now.message)
    for kind, status in (("Stale", "True"), ("EndpointsReady", "False")):
        if (now := _became(before, after, kind, status)) is not None:
            yield Notice("ServiceImport", name, "Warning", now.reason, now.message)
