"""Refuses gateways of peers. Every node dials them, at addresses that the peer chooses.

A gateway is refused at a reserved address and at an address of the own cluster: of its pods, Services, nodes, API
servers and gateways. Ranges of nodes are allowed: a peer's gateway may be on the network of our nodes without being one
of them. A gateway that is published as a DNS name is neither judged nor dialed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.loadbalancer import own_ranges
from isthmus.model.addresses import range_of, reserved
from isthmus.model.clusters import Cluster, OwnRanges
from isthmus.model.hosts import endpoint
from isthmus.model.islands import RefusedGateway
from isthmus.model.names import ClusterName
from isthmus.model.tables import CLUSTERS, ISLAND_LISTENERS, OWN_RANGES, REFUSED_GATEWAYS, SERVICES
from isthmus.statedb import DerivedTogether, Pairs, PendingWrites, Reader, WriteTxn, per_row, through


def derived() -> DerivedTogether:
    """Declare ``refused_gateways``; a unit is a cluster."""
    return DerivedTogether(
        REFUSED_GATEWAYS,
        renew=renew,
        reads={CLUSTERS: per_row(_by_cluster), OWN_RANGES: per_row(_by_own_ranges), SERVICES: _by_services},
    )


def renew(txn: WriteTxn, clusters: Iterable[ClusterName]) -> None:
    """Compute these clusters and write the rows that differ."""
    writes = PendingWrites(txn, REFUSED_GATEWAYS)
    for cluster in clusters:
        writes.exchange(txn.by(REFUSED_GATEWAYS, "cluster", cluster), list(compute(txn, cluster)))
    writes.flush()


def compute(reader: Reader, cluster: ClusterName) -> Iterator[RefusedGateway]:
    """Yield the refused gateways of a peer."""
    row = reader.get(CLUSTERS, cluster)
    if row is None or row.own or not row.gateways:
        return
    own = reader.get(OWN_RANGES, "own") or own_ranges.NONE
    own_gateways = {_host(gateway) for peer in reader.all(CLUSTERS) if peer.own for gateway in peer.gateways}
    judged = {gateway: _refusal(reader, _host(gateway), own, own_gateways) for gateway in row.gateways}
    for gateway, message in judged.items():
        if message:
            yield RefusedGateway(cluster=cluster, address=gateway, message=message, all_refused=all(judged.values()))


def dialed(reader: Reader, row: Cluster) -> list[str]:
    """Return the gateways of a peer that are not refused, as it publishes them."""
    refused = {refusal.address for refusal in reader.by(REFUSED_GATEWAYS, "cluster", row.name)}
    return [gateway for gateway in row.gateways if gateway not in refused]


def all_refused(reader: Reader, cluster: ClusterName) -> bool:
    """True if a peer has gateways and all of them are refused."""
    return any(row.all_refused for row in reader.by(REFUSED_GATEWAYS, "cluster", cluster))


def _refusal(reader: Reader, host: str, own: OwnRanges, own_gateways: set[str]) -> str:
    """Reason why an address must not be dialed; empty if it may be, or for a name."""
    if not host:
        return ""
    if kind := reserved(host):
        return f"{host} is reserved ({kind})"
    if host in own.addresses:
        return f"{host} is an address of {own_ranges.holder(host, own)}"
    if host in own_gateways:
        return f"{host} is an address of a gateway of this cluster"
    if own_range := range_of(host, tuple(each for each in own.ranges if each not in own.nodes)):
        return f"{host} is in {own_range}, a range of this cluster"
    return service_at(reader, host)


def service_at(reader: Reader, address: str) -> str:
    """Return a sentence that names the Service with this cluster IP; empty if there is none."""
    for service in reader.by(SERVICES, "address", address):
        if address in service.cluster_ips:
            return f"{address} is the address of Service {service.name}"
    return ""


def _host(gateway: str) -> str:
    """Return the canonical address of a gateway; empty if it is published as a name."""
    try:
        return bounds.address(endpoint(gateway, port=0).host)
    except (OutOfBounds, ValueError):
        return ""


by_refused = through(ISLAND_LISTENERS, "service", index="cluster", key="cluster")
"""A refusal of a gateway, or its end, affects the services of its island."""


def _by_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterable[ClusterName]:
    row, before, after = new or old, old.gateways if old else (), new.gateways if new else ()
    if row is None or before == after:
        return ()
    return [peer.name for peer in reader.all(CLUSTERS)] if row.own else (row.name,)


def _by_own_ranges(reader: Reader, old: OwnRanges | None, new: OwnRanges | None) -> Iterator[ClusterName]:
    yield from (peer.name for peer in reader.all(CLUSTERS) if peer.gateways and not peer.own)


def _by_services(reader: Reader, changed: Pairs) -> Iterable[ClusterName]:
    """A Service whose address is that of a gateway affects the gateway's cluster."""
    hosts: dict[str, set[ClusterName]] = {}
    for peer in reader.all(CLUSTERS):
        for gateway in peer.gateways if not peer.own else ():
            hosts.setdefault(_host(gateway), set()).add(peer.name)
    rows = [row for pair in changed for row in pair if row is not None] if hosts else ()
    return [name for row in rows for address in row.cluster_ips for name in hosts.get(address, ())]
