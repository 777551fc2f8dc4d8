"""The table ``objects``: what the own API server is wanted to hold for each name, computed together.

A name without an export has no import, no derived Service and no slices; a ServiceExport that exports nothing has the
reason in its status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from isthmus.desired import Draft, row
from isthmus.mcs import remote, slices, unpublished
from isthmus.mcs.conditions import export_status
from isthmus.mcs.derived_services import behind, derived_service
from isthmus.mcs.exports import takes_endpoints
from isthmus.mcs.imports import service_import
from isthmus.mcs.kinds import KINDS
from isthmus.mcs.merged import AWAITED
from isthmus.mcs.mirrored_slices import mirrored
from isthmus.mcs.unpublished import RecordStatus
from isthmus.mcs.view import Settings, View, read, takes_exports
from isthmus.mcs.words import exported_labels
from isthmus.model.clusters import Cluster, reachability_changed
from isthmus.model.mcs import Merged, OverQuota, OwnExport, PeerRefusal, RefusedRecord
from isthmus.model.names import ServiceName
from isthmus.model.objects import Object, Observed
from isthmus.model.services import EndpointSet, Export, ExportMark, Import, Namespace, Service
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import (
    CLUSTERS,
    ENDPOINT_SETS,
    EXPORT_MARKS,
    EXPORTS,
    IMPORTS,
    MERGED,
    NAMESPACES,
    OBJECTS,
    OBSERVED,
    OVER_QUOTA,
    OWN_EXPORTS,
    PEER_REFUSALS,
    RECORDS_STATUS,
    REFUSED_RECORDS,
    SERVICES,
)
from isthmus.statedb import Derived, Reader, on_change, unit_of


def derived(settings: Settings) -> Derived[Object]:
    """The declaration of ``objects`` for a cluster."""

    def compute(reader: Reader, name: ServiceName) -> Iterable[Object]:
        return wanted(reader, name, settings=settings)

    return Derived(
        OBJECTS,
        compute=compute,
        unit="service",
        reads={
            MERGED: unit_of("name"),
            EXPORTS: unit_of("name"),
            EXPORT_MARKS: unit_of("name"),
            OWN_EXPORTS: unit_of("name"),
            IMPORTS: unit_of("name"),
            SERVICES: _service,
            ENDPOINT_SETS: _endpoint_set,
            NAMESPACES: _namespace,
            CLUSTERS: partial(_cluster, list_importers=settings.list_importers),
            OBSERVED: _observed,
            OVER_QUOTA: unit_of("name"),
            PEER_REFUSALS: _refusal,
            REFUSED_RECORDS: _refusal,
            RECORDS_STATUS: on_change(unpublished.changed, _of_record),
        },
    )


def wanted(reader: Reader, name: ServiceName, *, settings: Settings) -> list[Object]:
    """All objects of one name, each held against what the API server has."""
    view = read(reader, name, settings=settings)
    return [
        row(each, reader.get(OBSERVED, (each.kind, each.name)), unit=name, ownership=KINDS[each.kind])
        for each in (drafts(view) if view is not None else ())
    ]


def drafts(view: View) -> Iterator[Draft]:
    """All objects of a name as they are wanted."""
    if view.merged is not None:
        # Of one that Karmada writes nothing is ours; its row stays, so that nothing of it is removed either.
        yield service_import(view, view.merged) if not view.karmadas else Draft("ServiceImport", view.name)
        if view.has_derived_service:
            yield derived_service(view, view.merged)
            parts = [*mirrored(view), *(remote.of_import(view) if view.behind_import else ())]
            yield from (slices.endpoint_slice(behind(view, view.merged), part) for part in parts)
    if view.service is not None and view.shared and view.behind_service:
        labels = exported_labels(view.service.labels)
        service = slices.Behind(view.name, view.service.uid, labels, view.service.headless)
        yield from (slices.endpoint_slice(service, part) for part in remote.of_global(view, view.service))
    if view.mark is not None:
        yield export_status(view, view.mark)


Named = Merged | Export | ExportMark | OverQuota | OwnExport | Import


def _service(reader: Reader, old: Service | None, new: Service | None) -> Iterable[ServiceName]:
    """The name itself, and the import whose derived Service is called so."""
    names = {row.name for row in (old, new) if row is not None}
    return names | {merged.name for name in names for merged in reader.by(MERGED, "derived", name)}


def _refusal(
    reader: Reader, old: PeerRefusal | RefusedRecord | None, new: PeerRefusal | RefusedRecord | None
) -> Iterable[ServiceName]:
    """The name itself, or the export whose endpoints are published under this name."""
    row = new or old
    return {row.name, *(each.name for each in reader.by(MERGED, "derived", row.name))} if row is not None else ()


def _of_record(reader: Reader, old: RecordStatus | None, new: RecordStatus | None) -> Iterable[ServiceName]:
    """The export's own name, and the one whose endpoints are published under this name."""
    row = new or old
    if row is None:
        return ()
    _, name = row.key
    return {name, *(each.name for each in reader.by(MERGED, "derived", name))}


def _endpoint_set(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterable[ServiceName]:
    """What is exported under the service's name, or stands behind it as a derived one; any other service is skipped."""
    row = new or old
    return _served_by(reader, row.service) if row is not None else set()


def _observed(reader: Reader, old: Observed | None, new: Observed | None) -> Iterable[ServiceName]:
    """The name that wants the object, and the one of an object that nothing wants yet."""
    row = new or old
    if row is None:
        return ()
    wanting = reader.get(OBJECTS, (row.kind, row.name))
    return (wanting.service,) if wanting is not None else ()


def _served_by(reader: Reader, service: ServiceName) -> set[ServiceName]:
    """The names whose slices follow from endpoints of a service."""
    names = {merged.name for merged in reader.by(MERGED, "derived", service)}
    own = reader.get(SERVICES, (service, KUBERNETES))
    if reader.get(MERGED, service) is not None or (own is not None and takes_endpoints(own)):
        names.add(service)
    return names


def _namespace(reader: Reader, old: Namespace | None, new: Namespace | None) -> Iterable[ServiceName]:
    row = new or old
    if row is None:
        return set()
    known: list[Merged | ExportMark | Import] = [
        *reader.by(MERGED, "namespace", row.name),
        *reader.by(EXPORT_MARKS, "namespace", row.name),
        *reader.by(IMPORTS, "namespace", row.name),
    ]
    services = [each for each in reader.by(SERVICES, "namespace", row.name) if takes_endpoints(each)]
    return {each.name for each in (*known, *services)}


def _own_ranges(cluster: Cluster | None) -> tuple[str, ...]:
    return cluster.own_ranges if cluster is not None else ()


def _cluster(
    reader: Reader, old: Cluster | None, new: Cluster | None, *, list_importers: bool
) -> Iterable[ServiceName]:
    """What a cluster exports, when its state or network changes; what it has endpoints of, when its network does.

    Where importers are listed, every own export when a peer comes or goes.
    """
    row = new or old
    if row is None:
        return set()
    names: set[ServiceName] = set()
    states = [each.state if each is not None else "" for each in (old, new)]
    if states[0] != states[1] and {"stale", "silent", *AWAITED} & {*states}:
        names.update(merged.name for merged in reader.by(MERGED, "cluster", row.name))
    if reachability_changed(old, new) or _own_ranges(old) != _own_ranges(new):
        peers = [each.name for each in reader.all(CLUSTERS)] if row.own else [row.name]
        names.update(merged.name for peer in peers for merged in reader.by(MERGED, "cluster", peer))
        sets = (each for peer in peers for each in reader.by(ENDPOINT_SETS, "cluster", peer))
        names.update(name for each in sets for name in _served_by(reader, each.service))
    if list_importers and takes_exports(old) != takes_exports(new):
        names.update(mark.name for mark in reader.all(EXPORT_MARKS))
    return names
