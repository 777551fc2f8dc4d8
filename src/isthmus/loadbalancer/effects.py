"""Finds the fields of an accepted policy that have no effect, with the reason for the condition ``Effective``.

A field has no effect if it selects nothing, or if something else overrides it. Only what the clusterset's rows show is
reported: fields that each node decides by itself (zones, dead backends) are not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from isthmus.loadbalancer import tiers
from isthmus.loadbalancer.selection import Clusters
from isthmus.loadbalancer.services import ResolvedService, resolve
from isthmus.model.clusters import Cluster, reachability
from isthmus.model.names import ClusterName
from isthmus.model.policies import ANY_OTHER, THIS_CLUSTER, Policy, Share
from isthmus.model.tables import CLUSTERS, ENDPOINT_SETS
from isthmus.statedb import Reader

UNCONTACTED: Final = frozenset({"connecting", "listing"})
"""States in which a peer's region, zone and labels may not be known yet."""


class WithoutEffect(NamedTuple):
    """A field without effect: the reason of the condition, and the message."""

    reason: str
    message: str


class Subject(NamedTuple):
    """The service of a policy, with the clusters that have endpoints of it and the clusterset."""

    service: ResolvedService
    exporters: Collection[ClusterName]
    clusters: Clusters


def without_effect(reader: Reader, policy: Policy, service: ResolvedService, own: ClusterName) -> list[WithoutEffect]:
    """Return the fields of a policy in effect for a service that change nothing, the gravest first."""
    exporters = {row.cluster or own for row in reader.by(ENDPOINT_SETS, "service", service.name)}
    clusters = Clusters(own, {each.name: each for each in reader.all(CLUSTERS)})
    subject = Subject(service, exporters, clusters)
    return [each for rule in RULES for each in rule(policy, subject)]


def ignored_fields(reader: Reader, policy: Policy, own: ClusterName) -> list[WithoutEffect]:
    """Return the fields of the policy in effect that change nothing on a node; none if nothing answers its service."""
    service = resolve(reader, policy.service, which="all")
    return without_effect(reader, policy, service, own) if service is not None else []


def summary(fields: Collection[WithoutEffect]) -> str:
    """Join the messages, each once, to one sentence."""
    return "; ".join(dict.fromkeys(each.message for each in fields))


def _headless(policy: Policy, subject: Subject) -> Iterator[WithoutEffect]:
    if subject.service.headless:
        message = "the import is headless: callers choose among the addresses of its pods"
        yield WithoutEffect("Headless", message)


def _refused(policy: Policy, subject: Subject) -> Iterator[WithoutEffect]:
    exporters = sorted(subject.exporters)
    if policy.tiers and exporters and not tiers.tiers_called(exporters, policy.tiers, subject.clusters):
        message = f"every call is refused: no tier gives calls to a cluster with endpoints ({', '.join(exporters)})"
        yield WithoutEffect("CallsRefused", message)


def _selects_nothing(policy: Policy, subject: Subject) -> Iterator[WithoutEffect]:
    rows = subject.clusters.rows.values()
    names = {*subject.clusters.rows, *subject.exporters, subject.clusters.own, ANY_OTHER, THIS_CLUSTER}
    for share in (share for tier in policy.tiers for share in tier.shares):
        if share.cluster:
            if share.cluster not in names:
                yield WithoutEffect("NoClusterMatches", f"no cluster is called {share.cluster}")
        elif not any(map(_unlocated, rows)) and not any(tiers.selects(share, row) for row in rows):
            yield WithoutEffect("NoClusterMatches", f"no cluster has {_described(share)}")


def _unlocated(row: Cluster) -> bool:
    return row.state in UNCONTACTED and not row.own and not (row.region or row.zone or row.labels)


def _described(share: Share) -> str:
    parts = [f"{name} {value}" for name, value in (("region", share.region), ("zone", share.zone)) if value]
    return " and ".join([*parts, *(f"label {key}={value}" for key, value in share.labels)])


def _local_only(policy: Policy, subject: Subject) -> Iterator[WithoutEffect]:
    fields = " and ".join(name for name in ("tiers", "locality") if getattr(policy, name))
    if fields and subject.service.internal_policy == "Local":
        message = f"{fields}: internalTrafficPolicy Local leaves each caller the endpoints of its own node"
        yield WithoutEffect("InternalTrafficPolicy", message)


def _no_region(policy: Policy, subject: Subject) -> Iterator[WithoutEffect]:
    own = subject.clusters.rows.get(subject.clusters.own)
    if policy.locality == "Region" and own is not None and not own.region:
        message = "locality Region: this cluster has no region ([cluster] region), so that it acts as Cluster"
        yield WithoutEffect("NoRegion", message)


def _behind_gateways(policy: Policy, subject: Subject) -> Iterator[WithoutEffect]:
    """A gateway chooses the pod by the affinity of its own cluster's export, which an importer cannot change."""
    rows, own = subject.clusters.rows, subject.clusters.own
    peers = sorted(name for name in subject.exporters if name != own)
    behind = [name for name in peers if reachability(rows.get(own), rows.get(name)) == "gateway"]
    if not behind or subject.service.affinity == "ClientIP":
        return
    where = f"holds the cluster and not the pod in {', '.join(behind)}, whose gateways follow the export's"
    if policy.affinity == "ClientIP":
        yield WithoutEffect("BehindGateway", f"sessionAffinity {where} sessionAffinity")
    if policy.consistent:
        yield WithoutEffect("BehindGateway", f"loadBalancing ConsistentHash {where} sessionAffinity")


def _unprobed(policy: Policy, subject: Subject) -> Iterator[WithoutEffect]:
    check = policy.health
    if check is None:
        return
    if not check.port and all(port.protocol != "TCP" for port in subject.service.ports):
        yield WithoutEffect("NotProbed", "healthCheck: no port of the service is TCP, and healthCheck.port is missing")
    fields = {"path": check.path != "/", "host": bool(check.host), "service": bool(check.service)}
    used = {"HTTP": ("path", "host"), "GRPC": ("service",), "TCP": ()}[check.type]
    for name in (name for name, written in fields.items() if written and name not in used):
        yield WithoutEffect("UnusedField", f"healthCheck.{name}: type {check.type} does not use it")


RULES: Final[tuple[Callable[[Policy, Subject], Iterator[WithoutEffect]], ...]] = (
    _headless,
    _refused,
    _selects_nothing,
    _local_only,
    _no_region,
    _behind_gateways,
    _unprobed,
)
"""Rules in order of gravity: the reason of the condition is that of the first field found."""
