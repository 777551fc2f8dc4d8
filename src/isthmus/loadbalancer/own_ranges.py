"""Collects the addresses of the own cluster, at which a peer's endpoints and gateways are refused: otherwise a peer's
record could direct calls to any pod, node, Service or API server here.

They are the configured ranges, addresses of nodes, endpoints of the Service ``default/kubernetes`` and, if no range is
configured, the nodes' pod CIDRs. (Some networks ignore pod CIDRs and use others, so these may be another cluster's.)

The table has one row, so that an initial list of a thousand nodes makes one change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from isthmus.model.addresses import range_of
from isthmus.model.clusters import Cluster, OwnRanges
from isthmus.model.hosts import joined
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Node
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import CLUSTERS, ENDPOINT_SETS, NODES, OWN_RANGES
from isthmus.statedb import DerivedTogether, Pairs, Reader, WriteTxn, per_row, rewrite

NONE = OwnRanges()
API_SERVER: Final = ServiceName("default/kubernetes")
"""Service whose endpoints are the API servers. They write it themselves."""


def derived(cluster: ClusterName) -> DerivedTogether:
    """Declare the table."""
    return DerivedTogether(
        OWN_RANGES,
        renew=partial(renew, cluster=cluster),
        reads={CLUSTERS: per_row(_of_cluster), NODES: per_row(_of_node), ENDPOINT_SETS: _of_endpoint_sets},
    )


def renew(txn: WriteTxn, units: Iterable[str], *, cluster: ClusterName) -> None:
    """Replace the table's single row by :func:`compute`."""
    rewrite(txn, OWN_RANGES, list(txn.all(OWN_RANGES)), [compute(txn, cluster)])


def compute(reader: Reader, cluster: ClusterName) -> OwnRanges:
    """Return the addresses of the own cluster."""
    own, nodes = reader.get(CLUSTERS, cluster), list(reader.all(NODES))
    configured = own.own_ranges if own is not None else ()
    node_ranges = set() if configured else {each for node in nodes for each in node.pod_ranges}
    # A peer may publish endpoints of that Service too: they are the peer's API servers.
    sets = [row for row in reader.by(ENDPOINT_SETS, "service", API_SERVER) if _is_own(row, cluster)]
    servers = [(end.address, port.port) for row in sets for end in row.endpoints for port in end.ports]
    addresses = {address for node in nodes for address in node.addresses} | {host for host, _ in servers}
    return OwnRanges(
        ranges=(*configured, *sorted(node_ranges)),
        addresses=frozenset(addresses),
        services=own.service_ranges if own is not None else (),
        nodes=own.node_ranges if own is not None else (),
        api_servers=frozenset(joined(*server) for server in servers),
    )


def _is_own(row: EndpointSet, cluster: ClusterName) -> bool:
    return row.source == KUBERNETES and row.cluster == cluster


def inside(address: str, own: OwnRanges) -> str:
    """Return a phrase why an address belongs to the own cluster; empty if it is not known to."""
    if address in own.addresses:
        return f"{holder(address, own)} has it"
    own_range = range_of(address, own.ranges)
    return f"it is in {own_range}, a range of this cluster" if own_range else ""


def holder(address: str, own: OwnRanges) -> str:
    """Name the kind of machine that has one of ``own.addresses``."""
    servers = {server.rpartition(":")[0].strip("[]") for server in own.api_servers}
    return "an API server of this cluster" if address in servers else "a node of this cluster"


def without_own(endpoints: Sequence[Endpoint], own: OwnRanges) -> Sequence[Endpoint]:  # hot:
    """Return the endpoints outside the own cluster's addresses: nearly always all, then the same object."""
    for endpoint in endpoints:
        if inside(endpoint.address, own):
            return [other for other in endpoints if not inside(other.address, own)]
    return endpoints


def _of_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterable[str]:
    row = new or old
    if row is not None and row.own:
        yield OWN_RANGES.name


def _of_node(reader: Reader, old: Node | None, new: Node | None) -> Iterable[str]:
    if _addresses(old) != _addresses(new):
        yield OWN_RANGES.name


def _of_endpoint_sets(reader: Reader, changed: Pairs) -> Iterable[str]:  # hot:
    return (OWN_RANGES.name,) if API_SERVER in [(new or old).service for old, new in changed] else ()


def _addresses(node: Node | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (node.addresses, node.pod_ranges) if node is not None else ((), ())
