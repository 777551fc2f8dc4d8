"""Derives the pods whose calls this node signs, and the addresses towards which it does.

``sources`` are pods with an interface of their own, ``host_sources`` those in the network of their node, which are
known by their cgroups; ``signed_to`` are the addresses. Calls to an island end at its gateway, which knows the caller's
cluster by its certificate.

An address belongs to a cluster if the cluster's own record has it. A slice in Karmada's form can name any cluster, and
any tenant can write one: if it counted, other callers of that address would sign for the wrong cluster, and be refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import partial
from typing import Any

from isthmus.model.clusters import Cluster
from isthmus.model.identities import Identity
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import ENDED, EndpointSet, Pod
from isthmus.model.signing import HostSource, SignedTo, Source
from isthmus.model.sources import CLUSTERSET, KARMADA
from isthmus.model.tables import BACKENDS, CLUSTERS, ENDPOINT_SETS, HOST_SOURCES, IDENTITIES, PODS, SIGNED_TO, SOURCES
from isthmus.statedb import Derived, Reader, on_change, unit_of


def derived(cluster: ClusterName, node: str) -> list[Derived[Any]]:
    """Declare the tables for a node of a cluster."""
    of_pods: dict[Any, Any] = {PODS: unit_of("name"), IDENTITIES: partial(_pods_of, cluster=cluster)}
    return [
        Derived(SOURCES, compute=partial(source, cluster=cluster, node=node), reads=of_pods),
        Derived(HOST_SOURCES, compute=partial(host_source, cluster=cluster, node=node), reads=of_pods),
        Derived(
            SIGNED_TO,
            compute=signed_to,
            unit="service",
            reads={
                BACKENDS: unit_of("key.service"),
                ENDPOINT_SETS: _of_record,
                CLUSTERS: on_change(("id", "own", "verifies"), _services_of),
            },
        ),
    ]


def source(reader: Reader, name: str, *, cluster: ClusterName, node: str) -> Iterator[Source]:
    """Yield the row of a pod of the node if its account has a number, of several the smallest."""
    pod = reader.get(PODS, name)
    if pod is not None and not pod.host_network and pod.addresses and (number := _number(reader, pod, cluster, node)):
        yield Source(pod.name, pod.addresses, number, pod.uid)


def host_source(reader: Reader, name: str, *, cluster: ClusterName, node: str) -> Iterator[HostSource]:
    """Yield the row of a pod in the network of the node if its account has a number."""
    pod = reader.get(PODS, name)
    if pod is not None and pod.host_network and pod.uid and (number := _number(reader, pod, cluster, node)):
        yield HostSource(pod.name, pod.uid, number)


def _number(reader: Reader, pod: Pod, cluster: ClusterName, node: str) -> int:
    """The number of the account of a pod of the node, of several the smallest; 0 if it has none."""
    if pod.node != node or pod.phase in ENDED:
        return 0
    account = (cluster, pod.name.partition("/")[0], pod.service_account)
    return min((row.number for row in reader.by(IDENTITIES, "account", account)), default=0)


def signed_to(reader: Reader, service: ServiceName) -> Iterator[SignedTo]:
    """Yield the addresses of a service's backends in clusters that verify."""
    found: dict[str, Cluster] = {}
    backends = reader.by(BACKENDS, "service", service)
    recorded = _recorded(reader, service) if any(each.source == KARMADA for each in backends) else ()
    for backend in backends:
        cluster = reader.get(CLUSTERS, backend.key.cluster)
        if cluster is None or not (cluster.verifies and cluster.id) or cluster.own or backend.stands_for:
            continue
        if backend.source != KARMADA or (cluster.name, backend.key.address) in recorded:
            found[backend.key.address] = cluster
    yield from (SignedTo(service, address, cluster.name, cluster.id) for address, cluster in found.items())


def _recorded(reader: Reader, service: ServiceName) -> set[tuple[ClusterName, str]]:
    """The addresses of a service in its clusters' own records, each with the cluster."""
    rows = (row for row in reader.by(ENDPOINT_SETS, "service", service) if row.source == CLUSTERSET)
    return {(row.cluster, each.address) for row in rows for each in row.endpoints}


def _of_record(_: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterable[Hashable]:
    """The service of a cluster's own record."""
    row = new or old
    return (row.service,) if row is not None and row.source == CLUSTERSET else ()


def _pods_of(reader: Reader, old: Identity | None, new: Identity | None, *, cluster: ClusterName) -> Iterator[Hashable]:
    """The pods that have the account of a row, before and after the change."""
    for row in (old, new):
        if row is not None and row.cluster == cluster:
            yield from (pod.name for pod in reader.by(PODS, "account", (row.namespace, row.service_account)))


def _services_of(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterable[Hashable]:
    """The services that a cluster has endpoints of."""
    row = new or old
    return {each.service for each in reader.by(ENDPOINT_SETS, "cluster", row.name)} if row is not None else ()
