"""Backends of islands: calls of their endpoints go to this node's Envoy, and from there through the island's gateways.

For each port of a service there is one backend for each island that exports it. It has the address of Envoy's listener
and counts for as many backends as the island has endpoints that are usable. No address of an island's pod is in it.

A pod of a headless import is a service of its own here, whose one backend is the listener for that pod.

It is there while Envoy serves the listener. To connect to Envoy succeeds also where no gateway answers; so what Envoy's
checks find of the gateways stands for a probe of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from isthmus.loadbalancer.services import ResolvedService
from isthmus.model.balancing import Backend, BackendKey
from isthmus.model.clusters import reachability
from isthmus.model.hosts import family
from isthmus.model.islands import THROUGH_GATEWAYS, GatewayCheck, IslandListener, IslandPod
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Condition, EndpointSet, Family, Port
from isthmus.model.tables import CLUSTERS, ENDPOINT_SETS, GATEWAY_CHECKS, ISLAND_LISTENERS, XDS_SERVED
from isthmus.model.xds import ServedListener
from isthmus.statedb import Reader

NOWHERE: Final[Mapping[Family, str]] = {"IPv4": "0.0.0.0", "IPv6": "::"}


def backends(
    reader: Reader, subject: ResolvedService, cluster: ClusterName, sets: Iterable[EndpointSet]
) -> Iterator[Backend]:
    """The backends of a service in an island, of which these are the endpoints."""
    sets = [each for each in sets if each.shared and not each.lapsed]
    ports = {(port.port, port.protocol): port for port in subject.ports}
    for listener in reader.by(ISLAND_LISTENERS, "service", subject.name):
        port = ports.get((listener.port, listener.protocol))
        if listener.cluster != cluster or port is None or reader.get(XDS_SERVED, listener.name) is None:
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
    """The backends of a pod as a service: a listener for each number of its ports, and protocol."""
    for listener in reader.by(ISLAND_LISTENERS, "service", pod.name):
        called = listener.port, listener.protocol
        named = tuple(sorted({port.name for port in pod.ports if (port.port, port.protocol) == called}))
        if named and reader.get(XDS_SERVED, listener.name) is not None:
            for address in listener.addresses:
                yield Backend(
                    BackendKey(pod.name, pod.cluster, address, listener.listen_port, listener.protocol),
                    named,
                    Condition.READY,
                    pod.source,
                    pod.hostname,
                    pod.node,
                    healthy=reachable(reader, pod.cluster),
                    import_of=pod.import_of,
                    stands_for=1,
                )


def named(pod: IslandPod) -> Iterator[Backend]:
    """A pod as names show it: at the addresses that stand for it here, and its own ports."""
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


def expected(reader: Reader, subject: ResolvedService, own: ClusterName) -> Iterator[Backend]:
    """What stands for islands on a node whose Envoy serves all of them, where it is not known of any node (a status).

    Such a backend has no address that could be called: one for each family that the island's endpoints have.
    """
    here = reader.get(CLUSTERS, own)
    if subject.headless or not subject.import_of:
        return
    for row in reader.all(CLUSTERS):
        if row.own or reachability(here, row) != "gateway" or row.name not in (subject.exporters or ()):
            continue
        there = [each for each in reader.by(ENDPOINT_SETS, "service", subject.name) if each.cluster == row.name]
        sets = [each for each in there if each.shared and not each.lapsed]
        for port in subject.ports:
            condition, count = _best(sets, port)
            if port.protocol in THROUGH_GATEWAYS and count:
                for of in {family(endpoint.address) for each in sets for endpoint in each.endpoints}:
                    key = BackendKey(subject.name, row.name, NOWHERE[of], port.port, port.protocol)
                    yield Backend(key, (port.name,), condition, sets[0].source, stands_for=count)


def _best(sets: Iterable[EndpointSet], port: Port) -> tuple[Condition, int]:
    """The best condition that endpoints of a port have, and how many of them have it."""
    found: dict[Condition, set[str]] = {}
    for row in sets:
        for each in row.endpoints:
            if any((own.name, own.protocol) == (port.name, port.protocol) for own in each.ports):
                found.setdefault(each.condition, set()).add(each.address)
    best = min(found, default=Condition.GONE)
    return best, len(found.get(best, ()))


def reachable(reader: Reader, cluster: ClusterName) -> bool:
    """Whether a gateway of an island answers, as far as Envoy has found out."""
    checks = reader.by(GATEWAY_CHECKS, "cluster", cluster)
    return not checks or any(row.healthy for row in checks)


def by_listener(reader: Reader, old: IslandListener | None, new: IslandListener | None) -> Iterator[ServiceName]:
    """A listener affects its service."""
    row = new or old
    if row is not None:
        yield row.service


def by_served(reader: Reader, old: ServedListener | None, new: ServedListener | None) -> Iterator[ServiceName]:
    """A listener that Envoy serves now, or no longer, affects its service."""
    row = new or old
    if row is not None:
        yield from (each.service for each in reader.by(ISLAND_LISTENERS, "name", row.name))


def by_check(reader: Reader, old: GatewayCheck | None, new: GatewayCheck | None) -> Iterator[ServiceName]:
    """A gateway that is found dead or alive affects all that its island has."""
    row = new or old
    if row is not None and (old is None or new is None or old.healthy != new.healthy):
        yield from {each.service for each in reader.by(ISLAND_LISTENERS, "cluster", row.cluster)}
