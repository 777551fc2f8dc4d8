"""The table ``objects``: what the own API server is wanted to hold for each name, computed together.

Nobody exports it: no import, no derived Service, no slices; a ServiceExport that exports nothing is told why.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.mcs import remote
from isthmus.mcs.conditions import export_status
from isthmus.mcs.derived_services import derived_service
from isthmus.mcs.exports import takes_endpoints
from isthmus.mcs.imports import service_import
from isthmus.mcs.mirror import mirrored
from isthmus.mcs.view import Settings, read
from isthmus.model.clusters import Cluster, flat
from isthmus.model.mcs import Merged, Object, OwnExport
from isthmus.model.names import ServiceName
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
    OWN_EXPORTS,
    SERVICES,
)
from isthmus.statedb import Derived, Reader


def derived(settings: Settings) -> Derived[Object]:
    """The declaration of ``objects`` for a cluster."""

    def compute(reader: Reader, name: ServiceName) -> Iterable[Object]:
        return wanted(reader, name, settings=settings)

    return Derived(
        OBJECTS,
        compute=compute,
        unit="service",
        reads={
            MERGED: _name,
            EXPORTS: _name,
            EXPORT_MARKS: _name,
            OWN_EXPORTS: _name,
            IMPORTS: _name,
            SERVICES: _service,
            ENDPOINT_SETS: _endpoint_set,
            NAMESPACES: _namespace,
            CLUSTERS: _cluster,
        },
    )


def wanted(reader: Reader, name: ServiceName, *, settings: Settings) -> list[Object]:
    """All objects of one name. They are written in this order: each controls those after it."""
    view = read(reader, name, settings=settings)
    if view is None:
        return []
    objects = []
    if view.merged is not None:
        objects.append(service_import(view, view.merged))
        if view.shared and view.families and not (view.import_taken or view.taken):
            objects.append(derived_service(view, view.merged))
            objects += [*mirrored(view, view.merged), *remote.of_import(view, view.merged)]
    if view.service is not None and view.shared:
        objects += remote.of_global(view, view.service)
    if view.mark is not None:
        objects.append(export_status(view, view.mark))
    return objects


Named = Merged | Export | ExportMark | OwnExport | Import


def _name(_: Reader, old: Named | None, new: Named | None) -> Iterable[ServiceName]:
    return {row.name for row in (old, new) if row is not None}


def _service(reader: Reader, old: Service | None, new: Service | None) -> Iterable[ServiceName]:
    """The name itself, and the import whose derived Service is called so."""
    names = {row.name for row in (old, new) if row is not None}
    return names | {merged.name for name in names for merged in reader.by(MERGED, "derived", name)}


def _endpoint_set(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterable[ServiceName]:
    """What is exported under the service's name, or stands behind it as a derived one; any other service is skipped."""
    row = new or old
    return _served_by(reader, row.service) if row is not None else set()


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


def _cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterable[ServiceName]:
    """What a cluster exports, when it becomes stale or is back; what it has endpoints of, when its network changes."""
    row = new or old
    if row is None:
        return set()
    names: set[ServiceName] = set()
    states = [each.state if each is not None else "" for each in (old, new)]
    if states[0] != states[1] and "stale" in states:
        names.update(merged.name for merged in reader.by(MERGED, "cluster", row.name))
    if not flat(old, new):
        peers = [each.name for each in reader.all(CLUSTERS)] if row.own else [row.name]
        sets = (each for peer in peers for each in reader.by(ENDPOINT_SETS, "cluster", peer))
        names.update(name for each in sets for name in _served_by(reader, each.service))
    return names
