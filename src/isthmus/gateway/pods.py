"""A node's part of names of pods: an address on this node for each pod of islands behind a headless import. Pure.

A pod of an island is called through its gateway, by an SNI of its own. So that it can be called by name, an address
stands for it here: of a range that no network has, the same as long as the pod's name is the same, whichever pod has
that name. The pod's own address is in no row that follows.

What an island can take of the range, and of Envoy's listeners, is bounded: an equal part for each, the first by name.
Nothing that it publishes changes an address of another island's pod.
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

from isthmus.gateway.islands import NodeOf, islands
from isthmus.model.clusters import Cluster, reachability_changed
from isthmus.model.hosts import family
from isthmus.model.islands import THROUGH_GATEWAYS, IslandPod
from isthmus.model.names import ClusterName, ServiceName, derived, host_label, pod_id
from isthmus.model.services import Condition, Endpoint, EndpointSet, Import, Port, Protocol
from isthmus.model.sources import CLUSTERSET
from isthmus.model.tables import CLUSTERS, ENDPOINT_SETS, IMPORTS, ISLAND_PODS
from isthmus.statedb import Derived, Reader

Network = IPv4Network | IPv6Network
Name = TypeVar("Name", bound=str)
SPARE: Final = 2
"""Addresses of a block for each that is given out, at least: so that a free one is soon found."""


def pods_derived(of: NodeOf) -> Derived[IslandPod]:
    """The declaration of ``island_pods``."""
    reads: dict[Any, Any] = {IMPORTS: _by_import, ENDPOINT_SETS: _by_endpoints, CLUSTERS: _by_cluster}
    return Derived(ISLAND_PODS, compute=partial(pods, of=of), reads=reads, unit="all")


def pods(reader: Reader, unit: bool, *, of: NodeOf) -> Iterator[IslandPod]:
    """The pods behind headless imports that each island exports, as far as there is room for it."""
    there = islands(reader, of.cluster)
    headless = sorted((row for row in reader.all(IMPORTS) if row.type == "Headless"), key=lambda row: row.name)
    found = {cluster: list(_within(_of_island(reader, headless, cluster), of, there)) for cluster in sorted(there)}
    wanted = {cluster: [row.name for row in rows] for cluster, rows in found.items()}
    given: dict[ServiceName, tuple[str, ...]] = {}
    for network in of.pod_addresses:
        if any(family(address) == f"IPv{network.version}" for address in of.addresses):
            for name, address in assign_addresses(wanted, network).items():
                given[name] = (*given.get(name, ()), address)
    for row in chain.from_iterable(found.values()):
        if row.name in given:
            yield replace(row, addresses=given[row.name])


def called_at(row: IslandPod) -> list[tuple[int, Protocol]]:
    """The numbers of a pod's ports with their protocols, each once: what listeners are for."""
    return sorted({(port.port, port.protocol) for port in row.ports})


def assign_addresses(wanted: Mapping[ClusterName, Iterable[ServiceName]], network: Network) -> dict[ServiceName, str]:
    """An address for each, by hashes of the cluster's name and its own, so that it is the same after a restart and on
    every node.

    Each cluster has a block of the range: names of pods are a peer's to choose, and move no pod of another one. The
    range has as many blocks as a block has addresses, or half as many.
    """
    bits = network.max_prefixlen - network.prefixlen
    blocks, size = 2 ** (bits // 2), 2 ** (bits - bits // 2)
    given: dict[ServiceName, str] = {}
    for cluster, block in numbered(wanted, blocks, most=blocks).items():
        for name, offset in numbered(wanted[cluster], size - 2, most=(size - 2) // SPARE).items():
            given[name] = str(network[block * size + 1 + offset])
    return given


def numbered(names: Iterable[Name], below: int, *, most: int) -> dict[Name, int]:
    """A number of its own for each of so many names, the first in order, by a hash.

    Where two come to one number, the later in order has the next of its hashes.
    """
    taken: dict[int, Name] = {}
    for name in nsmallest(max(most, 0), names):
        for attempt in count():
            digest = blake2b(f"{name} {attempt}".encode(), digest_size=16).digest()
            number = int.from_bytes(digest, "big") % below
            if number not in taken:
                taken[number] = name
                break
    return {name: number for number, name in taken.items()}


def _within(rows: Iterable[IslandPod], of: NodeOf, there: set[ClusterName]) -> Iterator[IslandPod]:
    """The first whose ports have room in the part of one island."""
    left = of.pod_ports // len(there)
    for row in rows:
        left -= len(called_at(row))
        if left < 0:
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
    """One for each hostname, and for each endpoint that has none, if it has a port that gateways pass on."""

    def named(each: Endpoint) -> tuple[str, str]:
        label = host_label(each.hostname)
        return label, pod_id(imported.name, label, each.address)

    serving = [each for each in row.endpoints if each.condition <= Condition.TERMINATING]
    for (label, pod), found in groupby(sorted(serving, key=named), key=named):
        each, *more = found
        named_ports = (port for one in (each, *more) for port in one.ports)
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
                node=each.node,
                source=row.source,
            )


def _plain(port: Port) -> Port:
    return Port(port.name, port.port, port.protocol)


def _by_import(reader: Reader, old: Import | None, new: Import | None) -> Iterator[bool]:
    """A headless import that comes, goes, or is exported by others."""
    before, after = ((row.type, row.clusters) if row is not None else () for row in (old, new))
    if before != after and any(row is not None and row.type == "Headless" for row in (old, new)):
        yield True


def _by_endpoints(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterator[bool]:
    """Endpoints that a peer publishes of what is headless here."""
    row = new or old
    imported = reader.by(IMPORTS, "service", row.service) if row is not None and row.source == CLUSTERSET else ()
    if any(each.type == "Headless" for each in imported):
        yield True


def _by_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[bool]:
    if reachability_changed(old, new):
        yield True
