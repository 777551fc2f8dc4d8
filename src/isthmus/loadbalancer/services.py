"""Resolves a service over the rows of all sources: its Service from the best source, or else its import.

The better source decides the whole service, or a cluster's whole set of endpoints, never single addresses. The other
takes effect when the better one's rows are deleted (precedence: ``model/sources.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from isthmus.model.islands import IslandPod
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import (
    EXPORTERS,
    TOPOLOGY_MODE,
    Affinity,
    Import,
    Labels,
    Port,
    Service,
    claimed_by,
    is_global,
)
from isthmus.model.sources import rank
from isthmus.model.tables import IMPORTS, ISLAND_PODS, SERVICES
from isthmus.statedb import Reader

CLUSTER_AFFINITY: Final = "service.cilium.io/affinity"
CLUSTER_AFFINITY_ALIAS: Final = "io.cilium/service-affinity"
ALGORITHM: Final = "service.cilium.io/lb-algorithm"

LEFT_ALONE: Final = frozenset({"service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"})
"""Labels of Services that kube-proxy and other proxies ignore (Kubernetes: well-known labels)."""

UNKNOWN_AGE: Final = "~"
"""Sorts after every date, so an object of unknown age is the youngest."""

Which = Literal["multicluster", "all"]
Preference = Literal["none", "local", "remote"]
Locality = Literal["Cluster", "Local"]


class ResolvedService(Struct, frozen=True, gc=False):
    """A service with the settings in effect for its calls. ``multicluster``: endpoints of other clusters are used."""

    name: ServiceName
    import_of: ServiceName
    multicluster: bool
    ports: tuple[Port, ...]
    headless: bool
    exporters: tuple[ClusterName, ...] | None
    """Clusters that export the import; ``None`` if unknown, or if no export is needed (a global Service)."""
    affinity: Affinity
    affinity_timeout: int
    internal_policy: Locality
    external_policy: Locality
    distribution: str
    preference: Preference
    """Own or other clusters first (``service.cilium.io/affinity``)."""
    consistent: bool
    is_pod: bool = False
    """It is a single pod of an import: policies of the import do not apply."""
    claimed: bool = False
    """A MultiClusterService of Karmada claims it: endpoints of Karmada's provider clusters are used."""


class Requested(NamedTuple):
    """Settings requested by annotations."""

    distribution: str = ""
    preference: Preference = "none"
    consistent: bool = False


NOTHING_REQUESTED: Final = Requested()


def is_multicluster(service: Service) -> bool:
    """True if endpoints of other clusters are used: a global Service, or one that Karmada spreads over its members."""
    if not service.annotations:
        return False
    return is_global(service) or claimed_by(service) is not None


def best(reader: Reader, name: ServiceName) -> Service | None:
    """Return the row in effect for a service: that of the best source, then by the source's name."""
    rows = reader.by(SERVICES, "name", name)
    if len(rows) < 2:
        return rows[0] if rows else None
    return min(rows, key=lambda row: (rank(row.source), row.source))


def stands_alone(reader: Reader, row: Import) -> bool:
    """True if an import has no derived Service, so that it is called at its own addresses."""
    return not reader.by(SERVICES, "import", row.name)


def is_answered(service: Service, which: Which) -> bool:
    """True if Isthmus answers calls of a Service even if it is not redirected."""
    if service.labels and served_elsewhere(service):
        return False
    return which == "all" or bool(service.import_of) or is_multicluster(service)


def served_elsewhere(service: Service) -> bool:
    """True if a label tells every proxy but the one it names to ignore a Service, as kube-proxy does."""
    for name, _ in service.labels:  # noqa: SIM110  # hot: no generator for a label or two
        if name in LEFT_ALONE:
            return True
    return False


def external_policy(service: Service) -> Locality:
    """The traffic policy for external calls; the internal one if the Service is not exposed, where it cannot be set."""
    exposed = service.type in ("NodePort", "LoadBalancer") or bool(service.external_ips)
    return service.external_policy if exposed else service.internal_policy


def resolve(reader: Reader, name: ServiceName, *, which: Which) -> ResolvedService | None:
    """Return a service that Isthmus answers; ``None`` if there is none, or if it is left to another proxy."""
    service = best(reader, name)
    if service is not None:
        return resolved(reader, service) if is_answered(service, which) else None
    return resolved_import(reader, name)


def resolved_import(reader: Reader, name: ServiceName) -> ResolvedService | None:
    """Resolve an import without a derived Service, by the name that the Service would have."""
    for imported in reader.by(IMPORTS, "service", name):
        if stands_alone(reader, imported):
            return _of_import(name, imported)
    return None


def resolved_pod(reader: Reader, name: ServiceName) -> ResolvedService | None:
    """Resolve a pod of an island, which is a service of its own. Only an agent's database has these rows."""
    pod = reader.get(ISLAND_PODS, name)
    return _of_pod(pod) if pod is not None else None


def resolved(reader: Reader, service: Service) -> ResolvedService:  # hot:
    """Resolve a Service together with the import that it represents."""
    import_of, annotations = service.import_of, service.annotations
    imported = reader.get(IMPORTS, import_of) if import_of else None
    requested = _requested(annotations) if annotations else NOTHING_REQUESTED
    affinity, timeout = service.affinity, service.affinity_timeout
    if imported is not None and affinity == "None" and imported.affinity != "None":
        affinity, timeout = imported.affinity, _timeout(imported)
    return ResolvedService(  # positional: it takes a tenth of the time
        service.name,
        import_of,
        bool(import_of) or (bool(annotations) and is_multicluster(service)),
        service.ports,
        service.headless,
        _exporters(service, imported) if import_of else None,
        affinity,
        timeout if affinity != "None" else 0,
        service.internal_policy,
        external_policy(service),
        _distribution(service.distribution or requested.distribution),
        requested.preference,
        requested.consistent,
        claimed=bool(annotations) and claimed_by(service) is not None and not is_global(service),
    )


def no_service(name: ServiceName) -> ResolvedService:
    """An empty service for a redirected address that no service has."""
    return _plain(name, import_of=ServiceName(""))


def _of_pod(row: IslandPod) -> ResolvedService:
    return _plain(row.name, import_of=row.import_of, multicluster=True, ports=row.ports, is_pod=True)


def _plain(
    name: ServiceName,
    *,
    import_of: ServiceName,
    multicluster: bool = False,
    ports: tuple[Port, ...] = (),
    is_pod: bool = False,
) -> ResolvedService:
    """A service with default settings."""
    return ResolvedService(
        name=name,
        import_of=import_of,
        multicluster=multicluster,
        ports=ports,
        headless=False,
        exporters=None,
        affinity="None",
        affinity_timeout=0,
        internal_policy="Cluster",
        external_policy="Cluster",
        distribution="",
        preference="none",
        consistent=False,
        is_pod=is_pod,
    )


def names_for_import(reader: Reader, *rows: Import | None) -> Iterator[ServiceName]:
    """Yield the services that represent an import: the one with its derived name, and any labelled with it."""
    for row in rows:
        if row is not None:
            yield row.derived_service
            for service in reader.by(SERVICES, "import", row.name):
                yield service.name


def _exporters(service: Service, imported: Import | None) -> tuple[ClusterName, ...] | None:
    """Return the clusters that export a derived Service's import, from the import or else the Service's annotation.

    A deleted import is written again before its status is, and names no cluster until then. A derived Service without
    the annotation is another implementation's, or an earlier version's.
    """
    if imported is not None and imported.clusters:
        return imported.clusters
    named = next((text for key, text in service.annotations if key == EXPORTERS), "") if service.import_of else ""
    if named:
        return tuple(ClusterName(each) for each in named.split(","))
    return imported.clusters if imported is not None else None


def _of_import(name: ServiceName, row: Import) -> ResolvedService:
    requested = _requested(row.annotations)
    return ResolvedService(
        name=name,
        import_of=row.name,
        multicluster=True,
        ports=row.ports,
        headless=row.type == "Headless",
        exporters=row.clusters,
        affinity=row.affinity,
        affinity_timeout=_timeout(row) if row.affinity != "None" else 0,
        internal_policy=row.internal_policy or "Cluster",
        external_policy=row.internal_policy or "Cluster",
        distribution=_distribution(row.distribution or requested.distribution),
        preference=requested.preference,
        consistent=requested.consistent,
    )


def _timeout(row: Import) -> int:
    return 10800 if row.affinity_timeout is None else row.affinity_timeout


def _distribution(value: str) -> str:
    """Return the current name of a distribution: PreferClose is the old name of PreferSameZone."""
    return "PreferSameZone" if value == "PreferClose" else value


def _requested(annotations: Labels) -> Requested:
    """Parse annotations. Topology mode Auto uses the same hints as the distribution PreferSameZone."""
    values = dict(annotations)
    preference = values.get(CLUSTER_AFFINITY, values.get(CLUSTER_AFFINITY_ALIAS, ""))
    return Requested(
        distribution="PreferSameZone" if values.get(TOPOLOGY_MODE, "").lower() == "auto" else "",
        preference="local" if preference == "local" else "remote" if preference == "remote" else "none",
        consistent=values.get(ALGORITHM) == "maglev",
    )
