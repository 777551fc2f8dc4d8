"""Addresses of the own cluster, which no peer's endpoint may have: otherwise a record of another cluster would draw the
calls of a service to any pod, node or Service here.

Configured ranges, and what the API server knows: nodes' addresses and, where nothing is configured, the ranges that it
gives to nodes for their pods. (Some networks ignore those and use others: then they may be another cluster's.)

One row: a node that joins or leaves changes it as a whole, so that a thousand nodes that are listed at once make one
change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from isthmus.model.addresses import range_of
from isthmus.model.clusters import Cluster, OwnRanges
from isthmus.model.names import ClusterName
from isthmus.model.services import Endpoint, Node
from isthmus.model.tables import CLUSTERS, NODES, OWN_RANGES
from isthmus.statedb import Derived, Reader

NONE = OwnRanges()


def derived(cluster: ClusterName) -> Derived[OwnRanges]:
    """The declaration of the table."""
    return Derived(
        OWN_RANGES, compute=partial(compute, cluster=cluster), reads={CLUSTERS: _of_cluster, NODES: _of_node}
    )


def compute(reader: Reader, unit: str, *, cluster: ClusterName) -> Iterable[OwnRanges]:
    """The one row."""
    own, nodes = reader.get(CLUSTERS, cluster), list(reader.all(NODES))
    configured = own.own_ranges if own is not None else ()
    given = set() if configured else {each for node in nodes for each in node.pod_ranges}
    addresses = frozenset(each for node in nodes for each in node.addresses)
    return (OwnRanges(ranges=(*configured, *sorted(given)), addresses=addresses),)


def inside(address: str, own: OwnRanges) -> str:
    """Why an address is one of the own cluster's, as a phrase; empty where it is not known to be."""
    if address in own.addresses:
        return "a node of this cluster has it"
    found = range_of(address, own.ranges)
    return f"it is in {found}, a range of this cluster" if found else ""


def without_own(endpoints: Sequence[Endpoint], own: OwnRanges) -> Sequence[Endpoint]:  # hot:
    """Those at addresses that are not the own cluster's: nearly always all."""
    for each in endpoints:
        if inside(each.address, own):
            return [each for each in endpoints if not inside(each.address, own)]
    return endpoints


def _of_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterable[str]:
    row = new or old
    if row is not None and row.own:
        yield OWN_RANGES.name


def _of_node(reader: Reader, old: Node | None, new: Node | None) -> Iterable[str]:
    if _named(old) != _named(new):
        yield OWN_RANGES.name


def _named(node: Node | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (node.addresses, node.pod_ranges) if node is not None else ((), ())
