"""Where a Service is called: by which kinds of address, from where, and at which numbers.

A Service's ports times its addresses are its keys. Whether an address is its own to have is not asked here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from msgspec import Struct

from isthmus.loadbalancer.services import external_policy
from isthmus.model.balancing import FrontendKey, FrontendType, Scope
from isthmus.model.services import Import, Port, Service

NODE_PORTS: Final = range(30000, 32768)
ON_NODE: Final = ("NodePort", "HostPort")
INSIDE, OUTSIDE = Scope.INTERNAL, Scope.EXTERNAL


class Exposure(Struct, frozen=True, gc=False):
    """One kind of address at which a Service is called, at its ports."""

    type: FrontendType
    addresses: Collection[str]
    at: Scope = Scope.EXTERNAL
    """From where it is called."""
    plan: Scope = Scope.EXTERNAL
    """Which of the two traffic policies applies."""

    def port_of(self, port: Port) -> int:
        """The number at which one of the service's ports is called there; 0: it is not."""
        if self.type == "HostPort" and port.node_port in NODE_PORTS:
            return 0
        return port.node_port if self.type in ON_NODE else port.port


def keys(where: Iterable[Exposure], ports: Iterable[Port]) -> list[FrontendKey]:
    """The keys of all ports at all addresses."""
    return [
        FrontendKey(address, number, port.protocol, exposure.at)
        for exposure in where
        for address in exposure.addresses
        for port in ports
        if (number := exposure.port_of(port))
    ]


def exposures(service: Service, *, node_addresses: Collection[str]) -> list[Exposure]:
    """Where a Service is called. A ClusterIP is called from inside the cluster, every other address from outside."""
    differ = external_policy(service) != service.internal_policy
    found: list[Exposure] = []
    if not service.headless:
        found.append(Exposure("ClusterIP", service.cluster_ips, plan=INSIDE if differ else OUTSIDE))
    if service.external_ips and service.type != "HostPort":
        found.append(Exposure("ExternalIP", service.external_ips))
    if service.type == "LoadBalancer":
        found.append(Exposure("LoadBalancer", service.load_balancer_ips))
        if differ:
            found.append(Exposure("LoadBalancer", service.load_balancer_ips, INSIDE, INSIDE))
    return found if service.type == "ClusterIP" else found + on_node(service, node_addresses=node_addresses)


def on_node(service: Service, *, node_addresses: Collection[str]) -> list[Exposure]:
    """What is called on the node: node ports, or a pod's host port at every address or at those it names."""
    if service.type == "HostPort":
        return [Exposure("HostPort", service.external_ips or node_addresses)]
    if service.type not in ("NodePort", "LoadBalancer"):
        return []
    if external_policy(service) == service.internal_policy:
        return [Exposure("NodePort", node_addresses)]
    return [Exposure("NodePort", node_addresses), Exposure("NodePort", node_addresses, INSIDE, INSIDE)]


def keys_of_import(row: Import) -> Iterator[FrontendKey]:
    """The keys of an import's own addresses."""
    for address in row.ips:
        for port in row.ports:
            yield FrontendKey(address, port.port, port.protocol)
