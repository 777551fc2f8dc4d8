"""Assigns an address on this node to each pod of an island behind a headless import, so that it has a DNS name. Pure.

A pod of an island is called through its gateway, by an SNI of its own. Here an address of a range that no network uses
represents it. The address depends on the pod's name and stays the same when another pod takes over that name. The pod's
own address is in no derived row.

Each island has an equal part of the range and of Envoy's listeners; pods beyond it, in order of names, get none.
Nothing that an island publishes changes an address of another island's pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from heapq import nsmallest
from ipaddress import IPv4Network, IPv6Network
from itertools import chain, count, groupby
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from isthmus.gateway.listeners import NodeSettings, islands
from isthmus.model.clusters import reachability_changed
from isthmus.model.hosts import family
from isthmus.model.islands import THROUGH_GATEWAYS, IslandPod
from isthmus.model.names import ClusterName, ServiceName, derived, host_label, pod_id
from isthmus.model.services import Condition, Endpoint, EndpointSet, Import, Port, Protocol
from isthmus.model.sources import CLUSTERSET
from isthmus.model.tables import CLUSTERS, ENDPOINT_SETS, IMPORTS, ISLAND_PODS
from isthmus.statedb import Derived, Reader, on_change, part, unit_of

Network = IPv4Network | IPv6Network
Name = TypeVar("Name", bound=str)
SPARE: Final = 2
"""Minimum number of addresses in a block for each assigned one, so that a free one is found soon."""


def pods_derived(node: NodeSettings) -> Derived[IslandPod]:
    """Declare ``island_pods``."""
    reads: dict[Any, Any] = {IMPORTS: _by_import, ENDPOINT_SETS: _by_endpoints}
    reads[CLUSTERS] = on_change(reachability_changed, unit_of(lambda row: True))
    return Derived(ISLAND_PODS, compute=partial(pods, node=node), reads=reads, unit="all")


def pods(reader: Reader, unit: bool, *, node: NodeSettings) -> Iterator[IslandPod]:
    """Yield the pods behind headless imports that islands export, up to each island's share."""
    reachable = islands(reader, node.cluster)
    headless = sorted((row for row in reader.all(IMPORTS) if row.type == "Headless"), key=lambda row: row.name)

    def fitting(cluster: ClusterName) -> list[IslandPod]:
        return list(_within(_of_island(reader, headless, cluster), node, reachable))

    rows_by_island = {
        cluster: part(cluster, partial(fitting, cluster), last=partial(reader.by, ISLAND_PODS, "cluster", cluster))
        for cluster in sorted(reachable)
    }
    names = {cluster: [row.name for row in rows] for cluster, rows in rows_by_island.items()}
    addresses: dict[ServiceName, tuple[str, ...]] = {}
    for network in node.pod_addresses:
        if any(family(address) == f"IPv{network.version}" for address in node.addresses):
            for name, address in assign_addresses(names, network).items():
                addresses[name] = (*addresses.get(name, ()), address)
    for row in chain.from_iterable(rows_by_island.values()):
        if row.name in addresses:
            yield replace(row, addresses=addresses[row.name])


def called_at(row: IslandPod) -> list[tuple[int, Protocol]]:
    """Return the distinct port numbers and protocols of a pod, each of which needs a listener."""
    return sorted({(port.port, port.protocol) for port in row.ports})


def assign_addresses(names: Mapping[ClusterName, Iterable[ServiceName]], network: Network) -> dict[ServiceName, str]:
    """Return an address for each name, by hashes of the cluster's name and its own: the same on every node.

    Each cluster has its own block of the range: a peer chooses its pods' names, which must not move other clusters'
    pods. The range has as many blocks as a block has addresses, or half as many.
    """
    bits = network.max_prefixlen - network.prefixlen
    blocks, size = 2 ** (bits // 2), 2 ** (bits - bits // 2)
    assigned: dict[ServiceName, str] = {}
    for cluster, block in numbered(names, blocks, most=blocks).items():
        for name, offset in numbered(names[cluster], size - 2, most=(size - 2) // SPARE).items():
            assigned[name] = str(network[block * size + 1 + offset])
    return assigned


def numbered(names: Iterable[Name], limit: int, *, most: int) -> dict[Name, int]:
    """Assign a distinct number below ``limit`` to each of the first ``most`` names in order, by a hash.

    If two names have the same hash, the later one in order uses its next hash.
    """
    names_by_number: dict[int, Name] = {}
    for name in nsmallest(max(most, 0), names):
        for attempt in count():
            digest = blake2b(f"{name} {attempt}".encode(), digest_size=16).digest()
            number = int.from_bytes(digest, "big") % limit
            if number not in names_by_number:
                names_by_number[number] = name
                break
    return {name: number for number, name in names_by_number.items()}


def _within(rows: Iterable[IslandPod], node: NodeSettings, reachable: set[ClusterName]) -> Iterator[IslandPod]:
    """Yield the first rows whose ports fit into the share of one island."""
    remaining = node.pod_ports // len(reachable)
    for row in rows:
        remaining -= len(called_at(row))
        if remaining < 0:
            return
        yield row


def _of_island(reader: Reader, headless: Iterable[Import], cluster: ClusterName) -> Iterator[IslandPod]:
    for imported in headless:
        if cluster not in imported.clusters:
            continue
        for row in reader.by(ENDPOINT_SETS, "service", derived(imported.name)):
            if row.cluster == cluster and _counts(row):
                yield from _of_endpoints(row, imported)


def _counts(row: EndpointSet) -> bool:
    return row.source == CLUSTERSET and row.shared and not row.lapsed


def _of_endpoints(row: EndpointSet, imported: Import) -> Iterator[IslandPod]:
    """Yield a pod for each hostname, and for each endpoint without one, if gateways forward one of its ports."""

    def named(endpoint: Endpoint) -> tuple[str, str]:
        label = host_label(endpoint.hostname)
        return label, pod_id(imported.name, label, endpoint.address)

    serving = [each for each in row.endpoints if each.condition <= Condition.TERMINATING]
    for (label, pod), group in groupby(sorted(serving, key=named), key=named):
        first, *more = group
        named_ports = (port for endpoint in (first, *more) for port in endpoint.ports)
        ports = {_plain(port) for port in named_ports if port.protocol in THROUGH_GATEWAYS and port.port}
        if ports:
            yield IslandPod(
                name=ServiceName(f"{row.service}.{row.cluster}.{label or pod}"),
                import_of=imported.name,
                cluster=row.cluster,
                pod=pod,
                addresses=(),
                ports=tuple(sorted(ports, key=lambda port: (port.port, port.name, port.protocol))),
                hostname=label,
                node=first.node,
                source=row.source,
            )


def _plain(port: Port) -> Port:
    return Port(port.name, port.port, port.protocol)


def _by_import(reader: Reader, old: Import | None, new: Import | None) -> Iterator[bool]:
    """A headless import affects the pods if it is added or deleted, or if its exporters change."""
    before, after = ((row.type, row.clusters) if row is not None else () for row in (old, new))
    if before != after and any(row is not None and row.type == "Headless" for row in (old, new)):
        yield True


def _by_endpoints(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterator[bool]:
    """A peer's endpoints affect the pods if their import is headless."""
    row = new or old
    imported = reader.by(IMPORTS, "service", row.service) if row is not None and row.source == CLUSTERSET else ()
    if any(each.type == "Headless" for each in imported):
        yield True
