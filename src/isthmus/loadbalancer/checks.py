"""Which backends this node probes, and how: those of other clusters, whose readiness nobody here can see for itself.

A backend is probed where the policy that counts for its service has a health check, and by a plain connect while its
cluster is unattended: then the records that name it may be older than the truth. Endpoints that have lapsed are
probed too, since they count only while a probe passes. The own cluster's are left to its kubelets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from isthmus.loadbalancer import backends, plans, policies
from isthmus.loadbalancer.services import Which
from isthmus.model.balancing import Backend
from isthmus.model.clusters import UNATTENDED, Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Check, HealthCheck
from isthmus.model.services import EndpointSet
from isthmus.model.tables import BACKENDS, CHECKS, CLUSTERS, ENDPOINT_SETS, IMPORTS, OWN_RANGES, POLICIES, SERVICES
from isthmus.statedb import Derived, Reader, first_of

CONNECT: Final = HealthCheck()
"""Of a backend whose cluster is unattended and that no policy has a check for."""


def derived(cluster: ClusterName, *, which: Which) -> Derived[Check]:
    """The declaration of the table, for a node of this cluster."""
    return Derived(
        CHECKS,
        compute=partial(compute, cluster=cluster, which=which),
        reads={
            BACKENDS: by_backend,
            ENDPOINT_SETS: by_endpoints,
            POLICIES: plans.by_policy,
            CLUSTERS: by_cluster,
            SERVICES: backends.by_service,
            IMPORTS: backends.by_import,
            OWN_RANGES: backends.by_own_ranges,
        },
        unit="service",
    )


def compute(reader: Reader, service: ServiceName, *, cluster: ClusterName, which: Which) -> Iterator[Check]:  # hot:
    """The checks of a service's backends: of nearly every service none, which is quick to see."""
    unattended = reader.by(CLUSTERS, "unattended", True)
    first = first_of(reader.finder(BACKENDS, "service")(service))
    imported = first.import_of if first is not None else ""
    wanted = _wanted(reader, service, imported)
    if wanted is None and not unattended:
        return  # before the rows of what may be a large service are listed
    rows = reader.by(BACKENDS, "service", service)
    if unattended and any(row.lapsed for row in reader.by(ENDPOINT_SETS, "service", service)):
        rows = list(backends.compute(reader, service, cluster=cluster, which=which, cache={}, lapsed=True))
        wanted = _wanted(reader, service, rows[0].import_of if rows else "")
    away = {row.name for row in unattended}
    for row in rows:
        check = wanted or (CONNECT if row.key.cluster in away else None)
        if check is not None and row.key.cluster != cluster and (check.port or row.key.protocol == "TCP"):
            yield Check(row.key, check)


def _wanted(reader: Reader, service: ServiceName, imported: str) -> HealthCheck | None:
    """The check that the policy of a service, or of the import that it stands for, has."""
    target = ("ServiceImport", imported) if imported else ("Service", service)
    policy = policies.counting(reader.by(POLICIES, "target", target))
    return policy.health if policy is not None else None


def by_backend(reader: Reader, old: Backend | None, new: Backend | None) -> Iterable[ServiceName]:  # hot:
    """A backend that comes or goes affects its service; what becomes of one that stays is nothing to its check."""
    if old is not None and new is not None and old.import_of == new.import_of:
        return ()
    row = new or old
    return (row.key.service,) if row is not None else ()


def by_endpoints(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterable[ServiceName]:  # hot:
    """Endpoints that have lapsed, or no longer have, are not all backends and yet affect their service."""
    return {row.service for row in (old, new) if row is not None and row.lapsed}


def by_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[ServiceName]:
    """A cluster that comes to be unattended, or attended again, affects every service that it has endpoints of."""
    row = new or old
    before, after = (each is not None and each.state in UNATTENDED for each in (old, new))
    if row is not None and before != after:
        yield from (each.service for each in reader.by(ENDPOINT_SETS, "cluster", row.name))
