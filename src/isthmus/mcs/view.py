"""All that is known of one name: what its objects are computed from, read once from one snapshot."""

from __future__ import annotations

from typing import NamedTuple

from isthmus.mcs.wire import MANAGED_BY
from isthmus.model.exports import KUBERNETES, exported, is_global
from isthmus.model.mcs import Merged
from isthmus.model.names import ClusterName, ServiceName, derived, split
from isthmus.model.services import EndpointSet, Export, ExportMark, Family, Import, Labels, Namespace, Service
from isthmus.model.tables import CLUSTERS, ENDPOINT_SETS, EXPORT_MARKS, IMPORTS, MERGED, NAMESPACES, SERVICES
from isthmus.statedb import Reader


class Settings(NamedTuple):
    """What the operator is told of its cluster. ``families`` are those that its Services can have, in order."""

    cluster: ClusterName
    families: tuple[Family, ...] = ("IPv4",)
    default_global: bool = True


class View(NamedTuple):
    """One name, in one snapshot."""

    settings: Settings
    name: ServiceName
    namespace: Namespace
    shared: bool
    """The namespace takes part in the clusterset."""
    merged: Merged | None
    mark: ExportMark | None
    service: Service | None
    """The own cluster's Service of that name."""
    own: Export | None
    """What the own cluster exports."""
    found_import: Import | None
    found_service: Service | None
    """What is called as the derived Service, ours or not."""
    sets: tuple[EndpointSet, ...]
    """The own cluster's endpoints of the Service, a slice each."""
    mirrored: dict[str, EndpointSet]
    """What the API server has of the derived Service's slices for the own cluster, by name."""
    stale: tuple[ClusterName, ...]
    """Exporting clusters that cannot be reached: what they last said still counts."""

    @property
    def derived(self) -> ServiceName:
        """The name of the derived Service."""
        return derived(self.name)

    @property
    def families(self) -> tuple[Family, ...]:
        """The clusterset's address families that this cluster can serve; where nobody says any, what it can."""
        common = self.merged.families if self.merged is not None else ()
        return tuple(f for f in common if f in self.settings.families) if common else self.settings.families

    @property
    def taken(self) -> bool:
        """Somebody else's Service is called as ours would be."""
        return self.found_service is not None and not ours(self.found_service.annotations)

    @property
    def derived_service(self) -> Service | None:
        """The derived Service as the API server has it."""
        return None if self.taken else self.found_service


def ours(annotations: Labels) -> bool:
    """Whether an object says of itself that Isthmus made it."""
    return any(key == MANAGED_BY for key, _ in annotations)


def read(reader: Reader, name: ServiceName, *, settings: Settings) -> View | None:
    """The view of a name; None where its namespace does not exist here, or ends: nothing is written then."""
    namespace = reader.get(NAMESPACES, split(name)[0])
    if namespace is None or namespace.terminating:
        return None
    merged = reader.get(MERGED, name)
    return View(
        settings=settings,
        name=name,
        namespace=namespace,
        shared=is_global(namespace, default=settings.default_global),
        merged=merged,
        mark=reader.get(EXPORT_MARKS, name),
        service=reader.get(SERVICES, (name, KUBERNETES)),
        own=exported(reader, name, cluster=settings.cluster, default=settings.default_global),
        found_import=reader.get(IMPORTS, name),
        found_service=reader.get(SERVICES, (derived(name), KUBERNETES)),
        sets=_own_sets(reader, name, settings),
        mirrored={each.part: each for each in _own_sets(reader, derived(name), settings)},
        stale=_stale(reader, merged),
    )


def _own_sets(reader: Reader, service: ServiceName, settings: Settings) -> tuple[EndpointSet, ...]:
    found = reader.by(ENDPOINT_SETS, "service", service)
    own = (each for each in found if each.cluster == settings.cluster and each.source == KUBERNETES)
    return tuple(sorted(own, key=lambda each: each.part))


def _stale(reader: Reader, merged: Merged | None) -> tuple[ClusterName, ...]:
    states = ((name, reader.get(CLUSTERS, name)) for name in merged.clusters) if merged is not None else ()
    return tuple(name for name, row in states if row is not None and row.state == "stale")
