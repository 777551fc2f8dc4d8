"""Lists the addresses, scopes and port numbers at which a Service is called.

A Service's keys are its ports times its addresses. Claims of addresses are judged elsewhere (:mod:`.claims`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from isthmus.loadbalancer.services import external_policy
from isthmus.model.balancing import FrontendKey, FrontendType, Scope
from isthmus.model.services import Import, Port, Protocol, Service

NODE_PORTS: Final = range(30000, 32768)
ON_NODE: Final = ("NodePort", "HostPort")
FEW_PORTS: Final = 16
"""Number of ports up to which they are searched linearly."""
MAX_INDEXES: Final = 64
"""Number of port indexes kept at a time."""
PortIndex = dict[tuple[bool, int, Protocol], list[Port]]
_indexes: dict[int, tuple[Sequence[Port], PortIndex]] = {}
"""Keyed by the ``id`` of a sequence of ports, which is kept with its index so that the ``id`` is not reused."""
INSIDE, OUTSIDE = Scope.INTERNAL, Scope.EXTERNAL


class Exposure(Struct, frozen=True, gc=False):
    """One kind of address at which a Service is called, at its ports."""

    type: FrontendType
    addresses: Collection[str]
    scope: Scope = Scope.EXTERNAL
    """Callers: inside or outside the cluster."""
    plan_scope: Scope = Scope.EXTERNAL
    """Scope of the plan, which selects one of the two traffic policies."""

    def port_of(self, port: Port) -> int:
        """Number at which a service port is called at these addresses; 0 if it is not called there."""
        if self.type == "HostPort" and port.node_port in NODE_PORTS:
            return 0
        return port.node_port if self.type in ON_NODE else port.port


def ports_called(ports: Sequence[Port], number: int, protocol: Protocol, *, on_node: bool = False) -> Sequence[Port]:
    """Return the ports with this number (``on_node``: node port) and protocol, in their order.

    It is called once for each port of a service, so the look-up of many ports uses an index that is kept.
    """
    if len(ports) <= FEW_PORTS:
        return [
            port for port in ports if (port.node_port if on_node else port.port) == number and port.protocol == protocol
        ]
    indexed = _indexes.get(id(ports))
    if indexed is None or indexed[0] is not ports:
        if len(_indexes) >= MAX_INDEXES:
            _indexes.clear()
        indexed = _indexes[id(ports)] = (ports, _index(ports))
    return indexed[1].get((on_node, number, protocol), ())


def _index(ports: Sequence[Port]) -> PortIndex:
    by_number: PortIndex = {}
    for port in ports:
        by_number.setdefault((False, port.port, port.protocol), []).append(port)
        by_number.setdefault((True, port.node_port, port.protocol), []).append(port)
    return by_number


def keys(exposures: Iterable[Exposure], ports: Iterable[Port]) -> list[FrontendKey]:
    """Return the keys of all ports at all addresses."""
    return [
        FrontendKey(address, number, port.protocol, exposure.scope)
        for exposure in exposures
        for address in exposure.addresses
        for port in ports
        if (number := exposure.port_of(port))
    ]


def exposures(service: Service, *, node_addresses: Collection[str]) -> list[Exposure]:
    """List a Service's addresses. A ClusterIP is called from inside the cluster, every other address from outside."""
    differ = external_policy(service) != service.internal_policy
    exposed: list[Exposure] = []
    if not service.headless:
        exposed.append(Exposure("ClusterIP", service.cluster_ips, plan_scope=INSIDE if differ else OUTSIDE))
    if service.external_ips and service.type != "HostPort":
        exposed.append(Exposure("ExternalIP", service.external_ips))
    if service.type == "LoadBalancer":
        exposed.append(Exposure("LoadBalancer", service.load_balancer_ips))
        if differ:
            exposed.append(Exposure("LoadBalancer", service.load_balancer_ips, INSIDE, INSIDE))
    return exposed if service.type == "ClusterIP" else exposed + on_node(service, node_addresses=node_addresses)


def on_node(service: Service, *, node_addresses: Collection[str]) -> list[Exposure]:
    """List a Service's addresses on the node: node ports, or a pod's host port at all or the named addresses."""
    if service.type == "HostPort":
        return [Exposure("HostPort", service.external_ips or node_addresses)]
    if service.type not in ("NodePort", "LoadBalancer"):
        return []
    if external_policy(service) == service.internal_policy:
        return [Exposure("NodePort", node_addresses)]
    return [Exposure("NodePort", node_addresses), Exposure("NodePort", node_addresses, INSIDE, INSIDE)]


def keys_of_import(row: Import) -> Iterator[FrontendKey]:
    """Yield the keys of an import's own addresses."""
    for address in row.ips:
        for port in row.ports:
            yield FrontendKey(address, port.port, port.protocol)
