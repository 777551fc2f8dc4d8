"""Computes the status of each TrafficPolicy: its effect, fields without one, and each cluster's share of the calls.

Shares are those of the planner for the first port of the service, as on a node of this cluster that has no zone and
serves every island. The operator probes backends as nodes do, and connects to the gateways of islands (:mod:`.checks`).
Shares ignore what single nodes eject, or prefer because it is near.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from heapq import nsmallest
from typing import Final

from msgspec.structs import replace

from isthmus.desired import Condition, Draft, Ownership, condition, observed_generation, row
from isthmus.kube.objects.policies import TRAFFIC_POLICY
from isthmus.loadbalancer import backends, checks, effects, envoy, gateways, islands, policies, shares
from isthmus.loadbalancer.drains import Drained
from isthmus.loadbalancer.plans import plan
from isthmus.loadbalancer.selection import Clusters, Place
from isthmus.loadbalancer.services import ResolvedService, best, names_for_import, resolve
from isthmus.model.balancing import Backend, Plan, PlanKey, Probe
from isthmus.model.clusters import Cluster, reachability
from isthmus.model.hosts import family
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import Object, Observed
from isthmus.model.policies import Policy
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import (
    CLUSTERS,
    DRAINING,
    ENDPOINT_SETS,
    ENVOY_CHECKS,
    GATEWAY_CHECKS,
    IMPORTS,
    ISLAND_LISTENERS,
    OBSERVED,
    OWN_RANGES,
    POLICIES,
    POLICY_OBJECTS,
    PROBES,
    REFUSED_GATEWAYS,
    SERVICES,
    XDS_SERVED,
)
from isthmus.statedb import Derived, Reader, on_change, through, unit_of

KINDS: Final = {"TrafficPolicy": Ownership(TRAFFIC_POLICY, conditions=frozenset({"Ready", "Accepted", "Effective"}))}

MAX_STATUSES: Final = 100
"""Number of policies of one service with a status, first in precedence: a change of one recomputes all."""


def derived(cluster: ClusterName) -> Derived[Object]:
    """Declare the table for the operator of a cluster."""
    return Derived(
        POLICY_OBJECTS,
        compute=partial(compute, cluster=cluster),
        reads={
            POLICIES: unit_of("service"),
            OBSERVED: by_observed,
            ENDPOINT_SETS: backends.by_endpoints,
            SERVICES: backends.by_service,
            IMPORTS: names_for_import,
            PROBES: by_probe,
            CLUSTERS: on_change(lambda old, new: _where(old) != _where(new), through(POLICIES, "service")),
            OWN_RANGES: backends.by_own_ranges,
            DRAINING: through(POLICIES, "service"),
            # Empty in an operator, which runs no Envoy; its database needs every table that backends are computed from.
            ISLAND_LISTENERS: islands.by_listener,
            XDS_SERVED: islands.by_served,
            ENVOY_CHECKS: envoy.by_check,
            GATEWAY_CHECKS: islands.by_check,
            REFUSED_GATEWAYS: through(POLICIES, "service"),
        },
        unit="service",
    )


def compute(reader: Reader, service: ServiceName, *, cluster: ClusterName) -> Iterator[Object]:
    """Yield the status of every TrafficPolicy for a service."""
    rows = reader.by(POLICIES, "service", service)
    effective = policies.effective(rows)
    subject = resolve(reader, service, which="multicluster") if rows else None
    for policy in nsmallest(MAX_STATUSES, rows, key=policies.precedence):
        if policy.policy_kind == "TrafficPolicy":
            status = {
                **observed_generation(policy.generation),
                "conditions": _conditions(reader, policy, effective, subject, cluster=cluster),
                "shares": "",
            }
            if policy is effective and subject is not None:
                status["shares"] = by_family(planned(reader, subject, policy, cluster=cluster))
            draft = Draft("TrafficPolicy", policy.name, status=status)
            observed = reader.get(OBSERVED, ("TrafficPolicy", policy.name))
            yield row(draft, observed, unit=service, ownership=KINDS["TrafficPolicy"])


def planned(reader: Reader, subject: ResolvedService, policy: Policy, *, cluster: ClusterName) -> list[Plan]:
    """Return the plans of the service's first port, one for each family of the import with backends."""
    candidates = checks.backends_of_nodes(reader, subject.name, cluster=cluster)
    candidates += _of_islands(reader, subject, cluster)
    imported = reader.get(IMPORTS, subject.import_of) if subject.import_of else None
    families = {family(each.key.address) for each in candidates}
    if imported is not None and imported.families:
        families &= set(imported.families)  # nobody calls it by another
    drained = Drained(reader.all(DRAINING))
    clusters = Clusters(cluster, {each.name: each for each in reader.all(CLUSTERS)})
    return [
        plan(
            PlanKey(subject.name, port.port, port.protocol, ip_family),
            service=subject,
            frontends=(),
            port_name=port.name,
            backends=candidates,
            place=Place(cluster),
            policy=policy,
            clusters=clusters,
            drained=drained,
        )
        for port in subject.ports[:1]
        for ip_family in sorted(families)
    ]


def _of_islands(reader: Reader, subject: ResolvedService, own: ClusterName) -> Iterator[Backend]:
    """Yield islands' backends as on a node whose Envoy serves all islands, at placeholder addresses.

    They have every family that the service is called by, since gateways bridge families.
    """
    here, service = reader.get(CLUSTERS, own), best(reader, subject.name)
    called = {family(address) for address in service.cluster_ips} if service is not None else set()
    if subject.headless or not subject.import_of:
        return
    rows = reader.by(ENDPOINT_SETS, "service", subject.name)
    for peer in reader.all(CLUSTERS):
        if peer.own or reachability(here, peer) != "gateway" or peer.name not in (subject.exporters or ()):
            continue
        healthy = _answers(reader, peer)
        sets = [each for each in rows if each.cluster == peer.name and each.source != KUBERNETES]
        if not gateways.all_refused(reader, peer.name):
            for backend in islands.expected(subject, peer.name, sets, called):
                yield backend if healthy else replace(backend, healthy=False)


def _answers(reader: Reader, island: Cluster) -> bool:
    """False if probes find every gateway of an island dead."""
    keys = [checks.gateway_key(island.name, gateway) for gateway in gateways.dialed(reader, island)]
    probes = [reader.get(PROBES, key) if key is not None else None for key in keys]
    return not probes or any(probe is None or probe.healthy for probe in probes)


def by_family(plans: Sequence[Plan]) -> str:
    """Format the shares of one port, once if all families agree, else ``IPv4: c1 90%, c2 10%; IPv6: c1 100%``."""
    texts = {each.key.family: shares.text(shares.by_cluster(each)) for each in plans}
    if len(set(texts.values())) < 2:
        return next(iter(texts.values()), "none")
    return "; ".join(f"{ip_family}: {text}" for ip_family, text in texts.items())


def by_observed(reader: Reader, old: Observed | None, new: Observed | None) -> Iterator[ServiceName]:
    """An observed status of a policy affects it: the two are compared."""
    observed = new or old
    if observed is not None and observed.kind == "TrafficPolicy":
        policy = reader.get(POLICIES, ("TrafficPolicy", observed.name))
        if policy is not None:
            yield policy.service


def by_probe(reader: Reader, old: Probe | None, new: Probe | None) -> Iterator[ServiceName]:
    """A probe's result affects the service of its backend; that of a gateway all policies."""
    row = new or old
    if row is not None and row.key.service == checks.GATEWAYS:
        yield from {each.service for each in reader.all(POLICIES)}
    else:
        yield from backends.by_probe(reader, old, new)


def _where(row: Cluster | None) -> tuple[object, ...]:
    """Fields of a cluster that decide its reachability and the share that it matches."""
    if row is None:
        return ()
    uncontacted = row.state in effects.UNCONTACTED
    return (row.region, row.zone, row.labels, row.network, row.gateways, row.own, uncontacted)


def _conditions(
    reader: Reader, policy: Policy, effective: Policy | None, subject: ResolvedService | None, *, cluster: ClusterName
) -> list[Condition]:
    accepted = _accepted(policy, effective, subject)
    ready = {**accepted, "type": "Ready"}
    if policy is not effective or subject is None:
        because = condition("Effective", False, reason="NotAccepted", generation=policy.generation)
        return [accepted, because, ready]
    return [accepted, _effective(policy, effects.without_effect(reader, policy, subject, cluster)), ready]


def _effective(policy: Policy, ignored: Sequence[effects.WithoutEffect]) -> Condition:
    """True if every field of an accepted policy has an effect."""
    if not ignored:
        return condition("Effective", True, reason="Effective", generation=policy.generation)
    message = effects.summary(ignored)
    return condition("Effective", False, reason=ignored[0].reason, message=message, generation=policy.generation)


def _accepted(policy: Policy, effective: Policy | None, subject: ResolvedService | None) -> Condition:
    def refused(reason: str, message: str) -> Condition:
        return condition("Accepted", False, reason=reason, message=message, generation=policy.generation)

    if policy.invalid:
        return refused("Invalid", policy.invalid)
    if effective is not None and policy is not effective:
        return refused("Conflicted", f"{effective.policy_kind} {effective.name} comes first")
    if subject is None:
        is_global = ", or is not global" if policy.kind == "Service" else ""
        return refused("TargetNotFound", f"{policy.kind} {policy.target} does not exist in this cluster{is_global}")
    return condition("Accepted", True, reason="Accepted", generation=policy.generation)
