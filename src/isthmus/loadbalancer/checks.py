"""Which backends this node probes, and how: those of other clusters, whose readiness this one cannot observe.

A backend is probed where the policy that counts for its service has a health check, and by a plain connect while its
cluster is unattended: then the records that name it may be older than the truth. Endpoints that have lapsed are
probed too, since they count only while a probe passes. The own cluster's are left to its kubelets, and those of islands
to Envoy's checks of gateways.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Final

from isthmus.loadbalancer import backends, plans, policies
from isthmus.loadbalancer.services import Which
from isthmus.model.clusters import UNATTENDED, Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Check, HealthCheck
from isthmus.model.tables import BACKENDS, CHECKS, CLUSTERS, ENDPOINT_SETS, IMPORTS, OWN_RANGES, POLICIES, SERVICES
from isthmus.statedb import DerivedTogether, Pairs, PendingWrites, Reader, WriteTxn, each, first_of

CONNECT: Final = HealthCheck()
"""Of a backend whose cluster is unattended and that no policy has a check for."""


def derived(cluster: ClusterName, *, which: Which) -> DerivedTogether:
    """The declaration of the table, for a node of this cluster."""
    return DerivedTogether(
        CHECKS,
        renew=partial(renew, cluster=cluster, which=which),
        reads={
            BACKENDS: by_backends,
            ENDPOINT_SETS: by_endpoint_sets,
            POLICIES: each(plans.by_policy),
            CLUSTERS: each(by_cluster),
            SERVICES: by_services,
            IMPORTS: by_imports,
            OWN_RANGES: each(backends.by_own_ranges),
        },
    )


def renew(txn: WriteTxn, services: Collection[ServiceName], *, cluster: ClusterName, which: Which) -> None:  # hot:
    """Make the checks of these services what they are computed to be."""
    unattended = bool(txn.by(CLUSTERS, "unattended", True))
    answering, present = txn.finder(BACKENDS, "service"), txn.finder(CHECKS, "service")
    policies_of = txn.finder(POLICIES, "target")
    writes = PendingWrites(txn, CHECKS)
    for service, there, found in zip(services, map(present, services), map(answering, services), strict=True):
        if (
            there is None
            and not unattended
            and (found is None or policies_of(_target(service, first_of(found).import_of)) is None)
        ):
            continue  # nearly every service: neither is checked nor was
        writes.rewrite(there, list(compute(txn, service, cluster=cluster, which=which)))
    writes.flush()


def compute(reader: Reader, service: ServiceName, *, cluster: ClusterName, which: Which) -> Iterator[Check]:  # hot:
    """The checks of a service's backends: of nearly every service none, which is quick to see."""
    unattended = reader.by(CLUSTERS, "unattended", True)
    first = first_of(reader.finder(BACKENDS, "service")(service))
    wanted = None if first is None else _wanted(reader, service, first.import_of)
    if wanted is None and not unattended:
        return  # before the rows of what may be a large service are listed
    rows = reader.by(BACKENDS, "service", service)
    if unattended and any(row.lapsed for row in reader.by(ENDPOINT_SETS, "service", service)):
        rows = list(backends.compute(reader, service, cluster=cluster, which=which, cache={}, lapsed=True))
        wanted = _wanted(reader, service, rows[0].import_of if rows else "")
    away = {row.name for row in unattended}
    for row in rows:
        check = wanted or (CONNECT if row.key.cluster in away else None)
        if row.key.cluster == cluster or row.stands_for:  # what an island has, Envoy checks at its gateways
            continue
        if check is not None and (check.port or row.key.protocol == "TCP"):
            yield Check(row.key, check)


def _wanted(reader: Reader, service: ServiceName, imported: str) -> HealthCheck | None:
    """The check that the policy of a service, or of the import that it stands for, has."""
    policy = policies.counting(reader.by(POLICIES, "target", _target(service, imported)))
    return policy.health if policy is not None else None


def _target(service: ServiceName, imported: str) -> tuple[str, str]:
    """What policies of a service are for."""
    return ("ServiceImport", imported) if imported else ("Service", service)


def by_backends(reader: Reader, changed: Pairs) -> Iterable[ServiceName]:  # hot:
    """A backend that comes or goes affects its service; what becomes of one that stays is nothing to its check."""
    return [
        (new or old).key.service for old, new in changed if old is None or new is None or old.import_of != new.import_of
    ]


def by_services(reader: Reader, changed: Pairs) -> Iterable[ServiceName]:
    """A Service affects itself, and what stood for its import while it was not there: by endpoints that have lapsed
    only, which are of unattended clusters. What becomes of other endpoints comes by their backends."""
    if not reader.by(CLUSTERS, "unattended", True):
        return ()
    return [name for old, new in changed for name in backends.by_service(reader, old, new)]


def by_imports(reader: Reader, changed: Pairs) -> Iterable[ServiceName]:
    """An import affects what stands for it, in the same way."""
    if not reader.by(CLUSTERS, "unattended", True):
        return ()
    return [name for old, new in changed for name in backends.by_import(reader, old, new)]


def by_endpoint_sets(reader: Reader, changed: Pairs) -> Iterable[ServiceName]:  # hot:
    """Endpoints that have lapsed, or no longer have, are not all backends and yet affect their service."""
    return [row.service for pair in changed for row in pair if row is not None and row.lapsed]


def by_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[ServiceName]:
    """A cluster that comes to be unattended, or attended again, affects every service that it has endpoints of."""
    row = new or old
    before, after = (each is not None and each.state in UNATTENDED for each in (old, new))
    if row is not None and before != after:
        yield from (each.service for each in reader.by(ENDPOINT_SETS, "cluster", row.name))
