"""What a service is, over the rows of all sources: its Service from the best source, or else its import.

The better source decides the whole service, or a cluster's whole set of endpoints, never single addresses; the other
surfaces when the better one's rows go (precedence: ``model/sources.py``).
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
"""Sorts after every date: an object of unknown age counts as the youngest."""

Which = Literal["multicluster", "all"]
Preference = Literal["none", "local", "remote"]
Locality = Literal["Cluster", "Local"]


class ResolvedService(Struct, frozen=True, gc=False):
    """A service as its calls see it. ``multicluster``: endpoints of other clusters count."""

    name: ServiceName
    import_of: ServiceName
    multicluster: bool
    ports: tuple[Port, ...]
    headless: bool
    exporters: tuple[ClusterName, ...] | None
    """Of an import: the clusters that export it. None: they do not have to (a global Service), or it is not known."""
    affinity: Affinity
    affinity_timeout: int
    internal_policy: Locality
    external_policy: Locality
    distribution: str
    preference: Preference
    """Own or other clusters first (``service.cilium.io/affinity``)."""
    consistent: bool
    alone: bool = False
    """It is one pod of an import: no policy of the import's shares out its calls."""
    claimed: bool = False
    """A MultiClusterService of Karmada claims it: endpoints count of the clusters that Karmada has as its providers."""


class Requested(NamedTuple):
    """What annotations request."""

    distribution: str = ""
    preference: Preference = "none"
    consistent: bool = False


NOTHING_REQUESTED: Final = Requested()


def is_multicluster(service: Service) -> bool:
    """Whether endpoints of other clusters count: a global Service, or one that Karmada spreads over its members."""
    if not service.annotations:
        return False
    return is_global(service) or claimed_by(service) is not None


def best(reader: Reader, name: ServiceName) -> Service | None:
    """The row that counts for a service: that of the best source, then by the source's name."""
    rows = reader.by(SERVICES, "name", name)
    if len(rows) < 2:
        return rows[0] if rows else None
    return min(rows, key=lambda row: (rank(row.source), row.source))


def stands_alone(reader: Reader, row: Import) -> bool:
    """Whether an import has no derived Service, so that it has to be called by its own addresses."""
    return not reader.by(SERVICES, "import", row.name)


def wanted(service: Service, which: Which) -> bool:
    """Whether Isthmus answers calls of a Service, redirected or not."""
    if service.labels and served_elsewhere(service):
        return False
    return which == "all" or bool(service.import_of) or is_multicluster(service)


def served_elsewhere(service: Service) -> bool:
    """Whether a Service has a label by which every proxy but the one it names leaves it alone, as kube-proxy does."""
    for name, _ in service.labels:  # noqa: SIM110  # hot: no generator for a label or two
        if name in LEFT_ALONE:
            return True
    return False


def external_policy(service: Service) -> Locality:
    """The policy for calls from outside; that for inside where a Service is not exposed, where it cannot be set."""
    exposed = service.type in ("NodePort", "LoadBalancer") or bool(service.external_ips)
    return service.external_policy if exposed else service.internal_policy


def resolve(reader: Reader, name: ServiceName, *, which: Which) -> ResolvedService | None:
    """A service whose calls Isthmus answers; None where there is none, or its calls are left to others."""
    service = best(reader, name)
    if service is not None:
        return resolved(reader, service) if wanted(service, which) else None
    return resolved_import(reader, name)


def resolved_import(reader: Reader, name: ServiceName) -> ResolvedService | None:
    """What an import is that no Service stands for, by the name that its derived one would have."""
    for imported in reader.by(IMPORTS, "service", name):
        if stands_alone(reader, imported):
            return _of_import(name, imported)
    return None


def resolved_pod(reader: Reader, name: ServiceName) -> ResolvedService | None:
    """A pod of an island, which is a service of its own. Only an agent's database has such."""
    pod = reader.get(ISLAND_PODS, name)
    return _of_pod(pod) if pod is not None else None


def resolved(reader: Reader, service: Service) -> ResolvedService:  # hot:
    """What a Service is with the import that it stands for."""
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
    """What stands behind an address that is redirected and no service's."""
    return _plain(name, import_of=ServiceName(""))


def _of_pod(row: IslandPod) -> ResolvedService:
    return _plain(row.name, import_of=row.import_of, multicluster=True, ports=row.ports, alone=True)


def _plain(
    name: ServiceName,
    *,
    import_of: ServiceName,
    multicluster: bool = False,
    ports: tuple[Port, ...] = (),
    alone: bool = False,
) -> ResolvedService:
    """What nothing is requested for."""
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
        alone=alone,
    )


def names_for_import(reader: Reader, *rows: Import | None) -> Iterator[ServiceName]:
    """The services that stand for an import: the one named by its hash, and any that is labelled so."""
    for row in rows:
        if row is not None:
            yield row.derived_service
            for service in reader.by(SERVICES, "import", row.name):
                yield service.name


def _exporters(service: Service, imported: Import | None) -> tuple[ClusterName, ...] | None:
    """The clusters that export what a derived Service stands for: by its import, else by its own annotation.

    An import that is deleted is written again, its status after it: until then it names no cluster. A derived Service
    without the annotation is another implementation's, or an earlier version's.
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
    """PreferClose is PreferSameZone's old name."""
    return "PreferSameZone" if value == "PreferClose" else value


def _requested(annotations: Labels) -> Requested:
    """Topology mode Auto means the same hints as a distribution that prefers its zone."""
    found = dict(annotations)
    preference = found.get(CLUSTER_AFFINITY, found.get(CLUSTER_AFFINITY_ALIAS, ""))
    return Requested(
        distribution="PreferSameZone" if found.get(TOPOLOGY_MODE, "").lower() == "auto" else "",
        preference="local" if preference == "local" else "remote" if preference == "remote" else "none",
        consistent=found.get(ALGORITHM) == "maglev",
    )
