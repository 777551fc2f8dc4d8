"""Chooses the backends that this node probes: those of other clusters, whose readiness it cannot observe.

A backend is probed if the policy in effect for its service has a health check, and by a plain connect while its cluster
is unattended, since its records may be outdated. Lapsed endpoints are probed too, because they are used only while a
probe passes. The own cluster's backends are left to kubelets, those of islands to Envoy's checks of gateways.

The operator probes by the same rules what statuses of policies depend on. It has no Envoy: it connects to gateways.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Final

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.loadbalancer import backends, gateways, plans, policies
from isthmus.loadbalancer.services import Which, names_for_import
from isthmus.model.balancing import Backend, BackendKey
from isthmus.model.clusters import UNATTENDED, Cluster, reachability, reachability_changed
from isthmus.model.hosts import endpoint
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Check, HealthCheck, Policy
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import (
    BACKENDS,
    CHECKS,
    CLUSTERS,
    ENDPOINT_SETS,
    ENVOY_CHECKS,
    GATEWAY_CHECKS,
    IMPORTS,
    ISLAND_LISTENERS,
    OWN_RANGES,
    POLICIES,
    PROBES,
    REFUSED_GATEWAYS,
    SERVICES,
    XDS_SERVED,
)
from isthmus.statedb import (
    Derived,
    DerivedTogether,
    Pairs,
    PendingWrites,
    Reader,
    WriteTxn,
    first_of,
    on_change,
    per_row,
    through,
)

GATEWAYS: Final = ServiceName("")
"""Service of the checks of islands' gateways in an operator: they are no service's."""
CONNECT: Final = HealthCheck()
"""Check of a backend whose cluster is unattended and whose policy has none."""


def derived(cluster: ClusterName, *, which: Which) -> DerivedTogether:
    """Declare the table for a node of a cluster."""
    return DerivedTogether(
        CHECKS,
        renew=partial(renew, cluster=cluster, which=which),
        reads={
            BACKENDS: by_backends,
            ENDPOINT_SETS: by_endpoint_sets,
            POLICIES: per_row(plans.by_policy),
            CLUSTERS: per_row(on_change(_attendance_changed, through(ENDPOINT_SETS, "service", index="cluster"))),
            SERVICES: by_services,
            IMPORTS: by_imports,
            OWN_RANGES: per_row(backends.by_own_ranges),
        },
    )


def renew(txn: WriteTxn, services: Collection[ServiceName], *, cluster: ClusterName, which: Which) -> None:  # hot:
    """Compute these services and write the checks that differ."""
    unattended = bool(txn.by(CLUSTERS, "unattended", True))
    backends_of, checks_of = txn.finder(BACKENDS, "service"), txn.finder(CHECKS, "service")
    policies_of = txn.finder(POLICIES, "target")
    writes = PendingWrites(txn, CHECKS)
    for service, current, answering in zip(services, map(checks_of, services), map(backends_of, services), strict=True):
        if (
            current is None
            and not unattended
            and (answering is None or policies_of(_target(service, first_of(answering).import_of)) is None)
        ):
            continue  # nearly every service: not checked, now or before
        writes.rewrite(current, list(compute(txn, service, cluster=cluster, which=which)))
    writes.flush()


def compute(reader: Reader, service: ServiceName, *, cluster: ClusterName, which: Which) -> Iterator[Check]:  # hot:
    """Yield the checks of a service's backends. Nearly every service has none, which is tested first."""
    unattended = reader.by(CLUSTERS, "unattended", True)
    first = first_of(reader.finder(BACKENDS, "service")(service))
    policy_check = None if first is None else _policy_check(reader, service, first.import_of)
    if policy_check is None and not unattended:
        return  # before listing the rows of what may be a large service
    rows = reader.by(BACKENDS, "service", service)
    if unattended and any(row.lapsed for row in reader.by(ENDPOINT_SETS, "service", service)):
        rows = list(backends.compute(reader, service, cluster=cluster, which=which, cache={}, lapsed=True))
        policy_check = _policy_check(reader, service, rows[0].import_of if rows else "")
    yield from _of_backends(rows, policy_check, {row.name for row in unattended}, cluster=cluster)


def _of_backends(
    rows: Iterable[Backend],
    policy_check: HealthCheck | None,
    unattended: Collection[ClusterName],
    *,
    cluster: ClusterName,
) -> Iterator[Check]:
    for row in rows:
        check = policy_check or (CONNECT if row.key.cluster in unattended else None)
        if row.key.cluster == cluster or row.stands_for:  # Envoy checks an island at its gateways
            continue
        if check is not None and (check.port or row.key.protocol == "TCP"):
            yield Check(row.key, check)


def of_policies(cluster: ClusterName) -> Derived[Check]:
    """Declare the table for the operator of a cluster: checks of services with a policy, and of gateways of islands."""
    return Derived(
        CHECKS,
        compute=partial(compute_of_policies, cluster=cluster),
        reads={
            ENDPOINT_SETS: backends.by_endpoints,
            POLICIES: _by_policy,
            CLUSTERS: _by_peer,
            SERVICES: backends.by_service,
            IMPORTS: names_for_import,
            OWN_RANGES: backends.by_own_ranges,
            REFUSED_GATEWAYS: lambda reader, old, new: (GATEWAYS,),
            # Empty in an operator; its database needs every table that backends are computed from.
            **dict.fromkeys((ISLAND_LISTENERS, XDS_SERVED, ENVOY_CHECKS, GATEWAY_CHECKS, PROBES), lambda *_: ()),
        },
        unit="service",
    )


def compute_of_policies(reader: Reader, service: ServiceName, *, cluster: ClusterName) -> Iterator[Check]:
    """Yield the checks of a service with a policy; of the service :data:`GATEWAYS` those of islands' gateways."""
    if service == GATEWAYS:
        if reader.count(POLICIES):
            yield from _of_gateways(reader, cluster)
        return
    if not reader.by(POLICIES, "service", service):
        return
    rows = backends_of_nodes(reader, service, cluster=cluster, lapsed=True)
    policy_check = _policy_check(reader, service, rows[0].import_of) if rows else None
    unattended = {row.name for row in reader.by(CLUSTERS, "unattended", True)}
    yield from _of_backends(rows, policy_check, unattended, cluster=cluster)


def backends_of_nodes(
    reader: Reader, service: ServiceName, *, cluster: ClusterName, lapsed: bool = False
) -> list[Backend]:
    """Return a service's backends as nodes compute them, from an operator's tables.

    An operator also reads slices of the API server that name another cluster. Nodes do not, and any tenant may write
    one with any address.
    """
    rows = backends.compute(reader, service, cluster=cluster, which="multicluster", cache={}, lapsed=lapsed)
    return [each for each in rows if each.source != KUBERNETES or each.key.cluster == cluster]


def _of_gateways(reader: Reader, cluster: ClusterName) -> Iterator[Check]:
    own = reader.get(CLUSTERS, cluster)
    for row in reader.all(CLUSTERS):
        if row.own or reachability(own, row) != "gateway":
            continue
        for gateway in gateways.dialed(reader, row):
            if key := gateway_key(row.name, gateway):
                yield Check(key, CONNECT)


def gateway_key(cluster: ClusterName, gateway: str) -> BackendKey | None:
    """Key by which a gateway is probed as a backend; ``None`` if it is published as a name."""
    try:
        where = endpoint(gateway, port=0)
        return BackendKey(GATEWAYS, cluster, bounds.address(where.host), where.port, "TCP")
    except (OutOfBounds, ValueError):
        return None


def _by_policy(reader: Reader, old: Policy | None, new: Policy | None) -> Iterator[ServiceName]:
    """A policy affects its service, and the gateways if it is the first or the last."""
    yield GATEWAYS
    yield from {each.service for each in (old, new) if each is not None}


def _by_peer(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[ServiceName]:
    """A peer affects its gateways, and the services with a policy if it can be called otherwise than before."""
    if reachability_changed(old, new) or _attendance_changed(old, new):
        yield from {each.service for each in reader.all(POLICIES)}
    yield GATEWAYS


def _policy_check(reader: Reader, service: ServiceName, imported: str) -> HealthCheck | None:
    """Return the health check of the policy in effect for a service or its import."""
    policy = policies.effective(reader.by(POLICIES, "target", _target(service, imported)))
    return policy.health if policy is not None else None


def _target(service: ServiceName, imported: str) -> tuple[str, str]:
    """Target of the policies that apply to a service."""
    return ("ServiceImport", imported) if imported else ("Service", service)


def by_backends(reader: Reader, changed: Pairs) -> Iterable[ServiceName]:  # hot:
    """An added or deleted backend affects its service. Other changes of a backend do not change its check."""
    return [
        (new or old).key.service for old, new in changed if old is None or new is None or old.import_of != new.import_of
    ]


def by_services(reader: Reader, changed: Pairs) -> Iterable[ServiceName]:
    """A Service affects itself and the placeholder that served its import before it existed.

    Only through lapsed endpoints, which exist in unattended clusters; other endpoints act through their backends.
    """
    if not reader.by(CLUSTERS, "unattended", True):
        return ()
    return [name for old, new in changed for name in backends.by_service(reader, old, new)]


def by_imports(reader: Reader, changed: Pairs) -> Iterable[ServiceName]:
    """An import affects the services that represent it, through lapsed endpoints as well."""
    if not reader.by(CLUSTERS, "unattended", True):
        return ()
    return [name for old, new in changed for name in names_for_import(reader, old, new)]


def by_endpoint_sets(reader: Reader, changed: Pairs) -> Iterable[ServiceName]:  # hot:
    """Sets that lapse, or recover, affect their service even if their endpoints are no backends."""
    return [row.service for pair in changed for row in pair if row is not None and row.lapsed]


def _attendance_changed(old: Cluster | None, new: Cluster | None) -> bool:
    """True if a cluster becomes unattended, or attended again."""
    before, after = (row is not None and row.state in UNATTENDED for row in (old, new))
    return before != after
