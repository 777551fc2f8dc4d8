"""What the API server, and the etcds of peers, send of services: the objects and records of bench_lb."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from isthmus.clusterset.records import endpoints as records
from isthmus.etcd import KeyValue
from isthmus.kube.objects import core, discovery, mcs
from isthmus.kube.objects.meta import ManagedMeta
from isthmus.model.names import ClusterName, ServiceName, derived, split
from isthmus.model.services import Endpoint, Port
from isthmus.reflector import Event
from isthmus.sources import services, slices

SLICE: Final = 100
"""Endpoints in an EndpointSlice, at most: Kubernetes' own limit."""
PEERS: Final = tuple(ClusterName(f"c{n}") for n in range(2, 7))
"""The clusters that export what is imported here."""
HTTP: Final = (Port("http", 8080),)


class Changed(NamedTuple):
    """What changes of one service in one go, by where it comes from."""

    services: Sequence[Event[core.Service]] = ()
    slices: Sequence[Event[discovery.EndpointSlice]] = ()
    imports: Sequence[Event[mcs.ServiceImport]] = ()
    records: Mapping[ClusterName, Sequence[Event[KeyValue]]] = {}


def address(first: int, n: int) -> str:
    """The n-th address of a range."""
    return f"10.{first + (n >> 16)}.{n >> 8 & 255}.{n & 255}"


def named(n: int) -> ServiceName:
    """The n-th service."""
    return ServiceName(f"ns-{n % 100}/service-{n}")


def service(n: int, name: ServiceName, labels: Mapping[str, str] | None = None) -> core.Service:
    """The n-th Service, as the client decodes it."""
    namespace, short = split(name)
    return core.Service(
        metadata=ManagedMeta(
            name=short,
            namespace=namespace,
            uid=f"uid-{n}",
            creation_timestamp="2025-11-21T12:00:00Z",
            labels=dict(labels) if labels else None,
        ),
        spec=core.ServiceSpec(
            type="ClusterIP",
            cluster_ip=address(96, n),
            cluster_ips=[address(96, n)],
            ip_families=["IPv4"],
            selector={"app": short},
            ports=[core.ServicePort(name="http", port=80, protocol="TCP")],
            session_affinity="None",
            internal_traffic_policy="Cluster",
        ),
    )


def slice_of(n: int, part: int, endpoints: Iterable[int]) -> discovery.EndpointSlice:
    """A slice of the n-th Service with these endpoints."""
    namespace, name = split(named(n))
    ready = discovery.EndpointConditions(ready=True, serving=True, terminating=False)
    return discovery.EndpointSlice(
        metadata=ManagedMeta(name=f"{name}-{part}", namespace=namespace, labels={slices.OF_SERVICE: name}),
        address_type="IPv4",
        ports=[discovery.EndpointPort(name="http", port=8080, protocol="TCP")],
        endpoints=[
            discovery.Endpoint(
                addresses=[address(128, each)],
                conditions=ready,
                node_name=f"n{each % 50}",
                target_ref=discovery.TargetRef(kind="Pod", name=f"pod-{each}", namespace=namespace),
            )
            for each in endpoints
        ],
    )


def small(n: int) -> Changed:
    """The n-th Service with one endpoint."""
    key = named(n)
    return Changed([Event(key, service(n, key))], [Event(f"{key}-0", slice_of(n, 0, [n]))])


def gone(n: int) -> Changed:
    """The n-th Service away."""
    return Changed([Event(named(n), None)], [Event(f"{named(n)}-0", None)])


def imported(n: int) -> Changed:
    """The n-th import: its object, its derived Service, and one endpoint in the record of the cluster that exports."""
    name, peer = named(n), PEERS[n % len(PEERS)]
    namespace, short = split(name)
    of = mcs.ServiceImport(
        metadata=ManagedMeta(name=short, namespace=namespace, uid=f"import-{n}"),
        spec=mcs.ServiceImportSpec(
            type="ClusterSetIP",
            ports=[core.ServicePort(name="http", port=80, protocol="TCP")],
            ips=[address(96, n)],
            ip_families=["IPv4"],
        ),
        status=mcs.ServiceImportStatus(clusters=[mcs.ClusterStatus(cluster=peer)]),
    )
    called = derived(name)
    stands = service(n, called, {services.OF_IMPORT: short})
    return Changed([Event(called, stands)], (), [Event(name, of)], {peer: [_record(called, peer, [n])]})


def withdrawn(n: int) -> Changed:
    """The n-th import away, with its derived Service and its record."""
    called = derived(named(n))
    return Changed([Event(called, None)], (), [Event(named(n), None)], {PEERS[n % len(PEERS)]: [Event(called, None)]})


def record_of(n: int, endpoints: Iterable[int]) -> Changed:
    """The record of the n-th import has these endpoints."""
    peer = PEERS[n % len(PEERS)]
    return Changed(records={peer: [_record(derived(named(n)), peer, endpoints)]})


def large(n: int, backends: int) -> Changed:
    """The n-th Service with many endpoints."""
    key, first = named(n), n * backends
    parts = {p: slice_of(n, p, range(first + p * SLICE, first + (p + 1) * SLICE)) for p in range(backends // SLICE)}
    return Changed([Event(key, service(n, key))], [Event(f"{key}-{part}", each) for part, each in parts.items()])


def other(turn: int, *, services: int, backends: int) -> Changed:
    """One endpoint of some large Service has given way to another."""
    n, part = turn % services, turn % (backends // SLICE)
    first = n * backends + part * SLICE
    endpoints = [*range(first + 1, first + SLICE), services * backends + turn]
    return Changed([], [Event(f"{named(n)}-{part}", slice_of(n, part, endpoints))])


def _record(name: ServiceName, peer: ClusterName, endpoints: Iterable[int]) -> Event[KeyValue]:
    ready = [Endpoint(address(128, each), HTTP, node=f"n{each % 50}") for each in endpoints]
    value = records.encode(name, cluster=peer, cluster_id=PEERS.index(peer) + 2, endpoints=ready, frontends={})
    return Event(name, KeyValue(name, value))
