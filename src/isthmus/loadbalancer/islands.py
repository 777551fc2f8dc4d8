"""Backends of islands: calls of their endpoints go to this node's Envoy, and from there through the island's gateways.

Each port of a service has one backend for each island that exports it: the address of Envoy's listener, weighted by the
number of usable endpoints in the island. Addresses of an island's pods are never used.

A pod of a headless import is a service of its own here, whose one backend is the listener for that pod.

The backend exists while Envoy serves the listener and answers. A connect to Envoy succeeds even if no gateway answers,
so the results of Envoy's gateway checks replace a probe of the backend.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from isthmus.loadbalancer import envoy, gateways
from isthmus.loadbalancer.services import ResolvedService
from isthmus.model.balancing import Backend, BackendKey
from isthmus.model.hosts import family
from isthmus.model.islands import THROUGH_GATEWAYS, IslandListener, IslandPod
from isthmus.model.names import ClusterName
from isthmus.model.services import Condition, EndpointSet, Family, Port
from isthmus.model.tables import GATEWAY_CHECKS, ISLAND_LISTENERS
from isthmus.statedb import Reader, on_change, through, unit_of

NOWHERE: Final[Mapping[Family, str]] = {"IPv4": "0.0.0.0", "IPv6": "::"}


def backends(
    reader: Reader, subject: ResolvedService, cluster: ClusterName, sets: Iterable[EndpointSet]
) -> Iterator[Backend]:
    """Yield a service's backends for an island with these endpoint sets."""
    sets = [each for each in sets if each.shared and not each.lapsed]
    ports = {(port.port, port.protocol): port for port in subject.ports}
    for listener in reader.by(ISLAND_LISTENERS, "service", subject.name):
        port = ports.get((listener.port, listener.protocol))
        if listener.cluster != cluster or port is None or not _is_callable(reader, listener):
            continue
        condition, count = _best(sets, port)
        if count:
            for address in listener.addresses:
                yield Backend(
                    BackendKey(subject.name, cluster, address, listener.listen_port, listener.protocol),
                    (port.name,),
                    condition,
                    next(each.source for each in sets),
                    healthy=reachable(reader, cluster),
                    import_of=subject.import_of,
                    stands_for=count,
                )


def of_pod(reader: Reader, pod: IslandPod) -> Iterator[Backend]:
    """Yield the backends of a pod as a service: one listener for each of its port numbers and protocols."""
    for listener in reader.by(ISLAND_LISTENERS, "service", pod.name):
        key = listener.port, listener.protocol
        port_names = tuple(sorted({port.name for port in pod.ports if (port.port, port.protocol) == key}))
        if port_names and _is_callable(reader, listener):
            for address in listener.addresses:
                yield Backend(
                    BackendKey(pod.name, pod.cluster, address, listener.listen_port, listener.protocol),
                    port_names,
                    Condition.READY,
                    pod.source,
                    pod.hostname,
                    pod.node,
                    healthy=reachable(reader, pod.cluster),
                    import_of=pod.import_of,
                    stands_for=1,
                )


def named(pod: IslandPod) -> Iterator[Backend]:
    """Yield the backends by which DNS publishes a pod: at the addresses that represent it here, with its own ports."""
    for address in pod.addresses:
        for port in pod.ports:
            yield Backend(
                BackendKey(pod.name, pod.cluster, address, port.port, port.protocol),
                (port.name,),
                Condition.READY,
                pod.source,
                pod.hostname,
                pod.node,
                import_of=pod.import_of,
            )


def expected(
    subject: ResolvedService, cluster: ClusterName, sets: Iterable[EndpointSet], families: Collection[Family]
) -> Iterator[Backend]:
    """Yield an island's backends for a status that is of no node, at a placeholder address of each family."""
    sets = [each for each in sets if each.shared and not each.lapsed]
    for port in subject.ports:
        condition, count = _best(sets, port)
        if port.protocol in THROUGH_GATEWAYS and count:
            for ip_family in families:
                key = BackendKey(subject.name, cluster, NOWHERE[ip_family], port.port, port.protocol)
                yield Backend(key, (port.name,), condition, sets[0].source, stands_for=count)


def _best(sets: Iterable[EndpointSet], port: Port) -> tuple[Condition, int]:
    """Return the best condition among a port's endpoints, and the number of endpoints in it.

    A pod of a dual-stack cluster has an address of each family, which a record does not join: the family with more
    addresses counts.
    """
    by_condition: dict[Condition, dict[Family, set[str]]] = {}
    for row in sets:
        for endpoint in row.endpoints:
            if any((own.name, own.protocol) == (port.name, port.protocol) for own in endpoint.ports):
                addresses = by_condition.setdefault(endpoint.condition, {})
                addresses.setdefault(family(endpoint.address), set()).add(endpoint.address)
    best = min(by_condition, default=Condition.GONE)
    return best, max(map(len, by_condition.get(best, {}).values()), default=0)


def _is_callable(reader: Reader, listener: IslandListener) -> bool:
    """True if Envoy serves a listener and the island has a gateway that is not refused."""
    return envoy.serves(reader, listener.name) and not gateways.all_refused(reader, listener.cluster)


def reachable(reader: Reader, cluster: ClusterName) -> bool:
    """False if Envoy's checks of an island's gateways all fail."""
    checks = reader.by(GATEWAY_CHECKS, "cluster", cluster)
    return not checks or any(row.healthy for row in checks)


by_listener = unit_of("service")
"""A listener affects its service."""


by_served = through(ISLAND_LISTENERS, "service", index="name")
"""A listener that Envoy starts or stops serving affects its service."""


by_check = on_change(("healthy",), through(ISLAND_LISTENERS, "service", index="cluster", key="cluster"))
"""A gateway whose check changes its result affects every service of its island."""
