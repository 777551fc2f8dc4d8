"""Backends of islands: calls of their endpoints go to this node's Envoy, and from there through the island's gateways.

For each port of a service there is one backend for each island that exports it. It has the address of Envoy's listener
and counts for as many backends as the island has endpoints that are usable. No address of an island's pod is in it.

It is there while Envoy serves the listener. To connect to Envoy succeeds also where no gateway answers; so what Envoy's
checks find of the gateways stands for a probe of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from isthmus.loadbalancer.services import ResolvedService
from isthmus.model.balancing import Backend, BackendKey
from isthmus.model.islands import GatewayCheck, IslandListener
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Condition, EndpointSet, Port
from isthmus.model.tables import GATEWAY_CHECKS, ISLAND_LISTENERS, XDS_SERVED
from isthmus.model.xds import ServedListener
from isthmus.statedb import Reader


def backends(
    reader: Reader, subject: ResolvedService, cluster: ClusterName, sets: Iterable[EndpointSet]
) -> Iterator[Backend]:
    """The backends of a service in an island, of which these are the endpoints."""
    sets = [each for each in sets if each.shared and not each.lapsed]
    ports = {port.port: port for port in subject.ports if port.protocol == "TCP"}
    for listener in reader.by(ISLAND_LISTENERS, "service", subject.name):
        port = ports.get(listener.port)
        if listener.cluster != cluster or port is None or reader.get(XDS_SERVED, listener.name) is None:
            continue
        condition, count = _best(sets, port)
        if count:
            for address in listener.addresses:
                yield Backend(
                    BackendKey(subject.name, cluster, address, listener.listen_port, "TCP"),
                    (port.name,),
                    condition,
                    next(each.source for each in sets),
                    healthy=reachable(reader, cluster),
                    import_of=subject.import_of,
                    stands_for=count,
                )


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
