"""What came of each TrafficPolicy, as the status wanted of its object: whether it counts, and where calls go now.

Shares are those of the planner, run as a node of this cluster would that is in no zone and reaches every island, for
the first port of the service; what a node has ejected, found dead or prefers because it is near is not in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import nsmallest
from typing import Final

from isthmus.desired import Condition, Draft, Ownership, condition, row
from isthmus.kube.objects.policies import TRAFFIC_POLICY
from isthmus.loadbalancer import backends, islands, policies, shares
from isthmus.loadbalancer.drains import Drained
from isthmus.loadbalancer.plans import plan
from isthmus.loadbalancer.selection import Clusters, Place
from isthmus.loadbalancer.services import ResolvedService, resolve
from isthmus.model.balancing import Plan, PlanKey
from isthmus.model.clusters import Cluster
from isthmus.model.drains import Draining
from isthmus.model.hosts import family
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import Object, Observed
from isthmus.model.policies import Policy
from isthmus.model.tables import (
    CLUSTERS,
    DRAINING,
    ENDPOINT_SETS,
    GATEWAY_CHECKS,
    IMPORTS,
    ISLAND_LISTENERS,
    OBSERVED,
    OWN_RANGES,
    POLICIES,
    POLICY_OBJECTS,
    PROBES,
    SERVICES,
    XDS_SERVED,
)
from isthmus.statedb import Derived, Reader

KINDS: Final = {"TrafficPolicy": Ownership(TRAFFIC_POLICY, conditions=frozenset({"Accepted"}))}

MAX_STATUSES: Final = 100
"""Policies of one service whose status is written, the first in precedence: they are all computed when one changes."""


def derived(cluster: ClusterName) -> Derived[Object]:
    """The declaration of the table, for the operator of a cluster."""
    return Derived(
        POLICY_OBJECTS,
        compute=partial(compute, cluster=cluster),
        reads={
            POLICIES: by_policy,
            OBSERVED: by_observed,
            ENDPOINT_SETS: backends.by_endpoints,
            SERVICES: backends.by_service,
            IMPORTS: backends.by_import,
            PROBES: backends.by_probe,
            CLUSTERS: by_cluster,
            OWN_RANGES: backends.by_own_ranges,
            DRAINING: by_draining,
            # Empty in an operator, which runs no Envoy; what backends are computed of has to be in its database.
            ISLAND_LISTENERS: islands.by_listener,
            XDS_SERVED: islands.by_served,
            GATEWAY_CHECKS: islands.by_check,
        },
        unit="service",
    )


def compute(reader: Reader, service: ServiceName, *, cluster: ClusterName) -> Iterator[Object]:
    """The status of every TrafficPolicy for a service."""
    rows = reader.by(POLICIES, "service", service)
    counting = policies.counting(rows)
    subject = resolve(reader, service, which="multicluster") if rows else None
    for policy in nsmallest(MAX_STATUSES, rows, key=policies.precedence):
        if policy.policy_kind == "TrafficPolicy":
            status = {"conditions": [_accepted(policy, counting, subject)], "shares": ""}
            if policy is counting and subject is not None:
                status["shares"] = by_family(planned(reader, subject, policy, cluster=cluster))
            draft = Draft("TrafficPolicy", policy.name, status=status)
            observed = reader.get(OBSERVED, ("TrafficPolicy", policy.name))
            yield row(draft, observed, unit=service, ownership=KINDS["TrafficPolicy"])


def planned(reader: Reader, subject: ResolvedService, policy: Policy, *, cluster: ClusterName) -> list[Plan]:
    """The plans of the service's first port, one for each family that it has backends of."""
    found = list(backends.compute(reader, subject.name, cluster=cluster, which="multicluster", cache={}))
    found += islands.expected(reader, subject, cluster)
    drained = Drained(reader.all(DRAINING))
    clusters = Clusters(cluster, {each.name: each for each in reader.all(CLUSTERS)})
    return [
        plan(
            PlanKey(subject.name, port.port, port.protocol, of),
            of=subject,
            frontends=(),
            port_name=port.name,
            backends=found,
            at=Place(cluster),
            policy=policy,
            clusters=clusters,
            drained=drained,
        )
        for port in subject.ports[:1]
        for of in sorted({family(each.key.address) for each in found})
    ]


def by_family(found: Sequence[Plan]) -> str:
    """The shares of plans of one port: once where all families agree, else ``IPv4: c1 90%, c2 10%; IPv6: c1 100%``."""
    texts = {each.key.family: shares.text(shares.by_cluster(each)) for each in found}
    if len(set(texts.values())) < 2:
        return next(iter(texts.values()), "none")
    return "; ".join(f"{of}: {text}" for of, text in texts.items())


def by_policy(reader: Reader, old: Policy | None, new: Policy | None) -> Iterable[ServiceName]:
    """A policy affects those for the service it is about, and was about."""
    return {each.service for each in (old, new) if each is not None}


def by_observed(reader: Reader, old: Observed | None, new: Observed | None) -> Iterator[ServiceName]:
    """What the server has of a policy is held against what is wanted of it."""
    found = new or old
    if found is not None and found.kind == "TrafficPolicy":
        policy = reader.get(POLICIES, ("TrafficPolicy", found.name))
        if policy is not None:
            yield policy.service


def by_draining(reader: Reader, old: Draining | None, new: Draining | None) -> Iterator[ServiceName]:
    """A drain may change the shares of every policy."""
    yield from {each.service for each in reader.all(POLICIES)}


def by_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[ServiceName]:
    """A cluster that comes, goes, or is elsewhere than before affects all policies."""
    if _where(old) != _where(new):
        yield from {each.service for each in reader.all(POLICIES)}


def _where(row: Cluster | None) -> tuple[object, ...]:
    """What of a cluster decides whether it is reached and which share means it."""
    return (row.region, row.zone, row.labels, row.network, row.gateways, row.own) if row is not None else ()


def _accepted(policy: Policy, counting: Policy | None, subject: ResolvedService | None) -> Condition:
    def refused(reason: str, message: str) -> Condition:
        return condition("Accepted", False, reason=reason, message=message, generation=policy.generation)

    if policy.invalid:
        return refused("Invalid", policy.invalid)
    if counting is not None and policy is not counting:
        return refused("Conflicted", f"{counting.policy_kind} {counting.name} comes first")
    if subject is None:
        is_global = ", or is not global" if policy.kind == "Service" else ""
        return refused("TargetNotFound", f"{policy.kind} {policy.target} does not exist in this cluster{is_global}")
    return condition("Accepted", True, reason="Accepted", generation=policy.generation)
