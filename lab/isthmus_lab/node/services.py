"""Plain Services as kube-proxy programs them: the endpoints of each address on this node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from isthmus.kube.objects.core import Service, ServicePort
from isthmus.kube.objects.discovery import Endpoint, EndpointSlice
from isthmus.model.hosts import family
from isthmus_lab.families import Scheme

SERVICE_OF: Final = "kubernetes.io/service-name"
LOCAL: Final = "Local"
THREE_HOURS: Final = 10_800

Destination = tuple[str, int]


class Vip(Struct, frozen=True, order=True):
    """An address of a Service and where calls to it go, sorted. Without address: this node's port."""

    address: str
    protocol: str
    port: int
    targets: tuple[Destination, ...]
    outside: bool = False
    """Called from outside the cluster: answers have to come back through this node."""
    sticky: int = 0
    """Seconds for which a client stays where it is."""
    owner: str = ""
    """The Service and its port, which share where clients stay."""
    weights: tuple[int, ...] = ()
    """Weight of each target; empty if all are equal."""
    hashed: bool = False
    """The client's address decides, not chance."""


def vips(services: Iterable[Service], slices: Iterable[EndpointSlice], scheme: Scheme, *, node: str = "") -> list[Vip]:
    """Virtual IPs to program on a node: Services with a ClusterIP and endpoints of the family."""
    by_service: dict[str, list[EndpointSlice]] = {}
    for endpoint_slice in slices:
        if endpoint_slice.address_type == scheme.family and (
            name := (endpoint_slice.metadata.labels or {}).get(SERVICE_OF)
        ):
            by_service.setdefault(f"{endpoint_slice.metadata.namespace}/{name}", []).append(endpoint_slice)
    result: list[Vip] = []
    for service in services:
        mine = by_service.get(f"{service.metadata.namespace}/{service.metadata.name}", [])
        for port in service.spec.ports or ():
            result += [vip for vip in _of_port(service, port, mine, scheme, node) if vip.targets]
    return sorted(result)


def _of_port(
    service: Service, port: ServicePort, slices: list[EndpointSlice], scheme: Scheme, node: str
) -> Iterator[Vip]:
    spec, meta = service.spec, service.metadata
    publish = bool(spec.publish_not_ready_addresses)
    everywhere = _targets(port, slices, publish=publish)
    here = _targets(port, slices, publish=publish, node=node)
    protocol, sticky = (port.protocol or "TCP").lower(), _sticky(service)
    owner = f"{meta.namespace}/{meta.name}:{port.name or ''}" if sticky else ""
    own, assigned = ([ip for ip in ips if family(ip) == scheme.family] for ips in _addresses(service))
    inside = here if spec.internal_traffic_policy == LOCAL else everywhere
    yield from (Vip(ip, protocol, port.port, inside, sticky=sticky, owner=owner) for ip in own)
    yield from (Vip(ip, protocol, port.port, everywhere, True, sticky, owner) for ip in assigned)
    if port.node_port and own:
        local = spec.external_traffic_policy == LOCAL
        yield Vip("", protocol, port.node_port, here if local else everywhere, not local, sticky, owner)


def _sticky(service: Service) -> int:
    if service.spec.session_affinity != "ClientIP":
        return 0
    config = service.spec.session_affinity_config
    client = config.client_ip if config else None
    return (client.timeout_seconds if client else None) or THREE_HOURS


def _addresses(service: Service) -> tuple[list[str], list[str]]:
    """Its own, and those by which it is called from outside."""
    spec = service.spec
    own = [ip for ip in spec.cluster_ips or [spec.cluster_ip] if ip]
    if spec.type == "ExternalName" or not own or "None" in own:
        return [], []
    balancer = service.status.load_balancer
    ingress_ips = [each.ip for each in (balancer.ingress if balancer else None) or () if each.ip]
    return own, [*(spec.external_ips or ()), *ingress_ips]


def _targets(
    port: ServicePort, slices: Iterable[EndpointSlice], *, publish: bool, node: str | None = None
) -> tuple[Destination, ...]:
    """Ready endpoints, everywhere or of a node; those that serve while they end, where nothing is ready (KEP-1669)."""
    by_rank: Mapping[bool, set[Destination]] = {True: set(), False: set()}
    for endpoint_slice in slices:
        for exposed in endpoint_slice.ports or ():
            if (exposed.name or "") != (port.name or "") or exposed.port is None:
                continue
            if (exposed.protocol or "TCP") != (port.protocol or "TCP"):
                continue
            for endpoint in endpoint_slice.endpoints or ():
                if node is not None and endpoint.node_name != node:
                    continue
                if (ready := _ready(endpoint)) or publish or _draining(endpoint):
                    by_rank[ready or publish].update((ip, exposed.port) for ip in endpoint.addresses or ())
    return tuple(sorted(by_rank[True] or by_rank[False]))


def _ready(endpoint: Endpoint) -> bool:
    return endpoint.conditions is None or endpoint.conditions.ready is not False


def _draining(endpoint: Endpoint) -> bool:
    conditions = endpoint.conditions
    return conditions is not None and bool(conditions.terminating) and conditions.serving is not False
