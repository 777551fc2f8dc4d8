"""Plain Services in nftables, as kube-proxy has them: what the rules are. Pure.

One table, written whole and atomically. A VIP is one look-up in a map; its chain spreads calls uniformly at random.
What is still addressed to a Service when the packet filter sees it has nowhere to go, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from isthmus.kube.objects.core import Service, ServicePort
from isthmus.kube.objects.discovery import Endpoint, EndpointSlice
from isthmus.lab.families import Scheme, of

SERVICE_OF: Final = "kubernetes.io/service-name"

OUTSIDE: Final = 0x4000
"""Mark of calls to a node's port: their answers have to come back through this node."""

BASE: Final = """\
  chain prerouting {{ type nat hook prerouting priority dstnat; policy accept; jump dispatch; }}
  chain output {{ type nat hook output priority -100; policy accept; jump dispatch; }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ct status dnat {ip} saddr . {ip} daddr @hairpin masquerade
    meta mark {mark} masquerade
  }}
  chain refuse {{
    {ip} daddr {services} meta l4proto tcp reject with tcp reset
    {ip} daddr {services} reject
  }}
  chain forward {{ type filter hook forward priority filter; policy accept; jump refuse; }}
  chain local {{ type filter hook output priority filter; policy accept; jump refuse; }}
"""


class Vip(Struct, frozen=True, order=True):
    """An address of a Service and where calls to it go, sorted. Without address: this node's port."""

    address: str
    protocol: str
    port: int
    targets: tuple[tuple[str, int], ...]


def vips(services: Iterable[Service], slices: Iterable[EndpointSlice], scheme: Scheme) -> list[Vip]:
    """What is to be programmed: Services with a ClusterIP of the family that have endpoints of it."""
    by_service: dict[str, list[EndpointSlice]] = {}
    for each in slices:
        if each.address_type == scheme.family and (name := (each.metadata.labels or {}).get(SERVICE_OF)):
            by_service.setdefault(f"{each.metadata.namespace}/{name}", []).append(each)
    found = []
    for service in services:
        mine = by_service.get(f"{service.metadata.namespace}/{service.metadata.name}", [])
        addresses = [ip for ip in _addresses(service) if of(ip) is scheme]
        for port in service.spec.ports or ():
            protocol = (port.protocol or "TCP").lower()
            if targets := _targets(port, mine, publish=bool(service.spec.publish_not_ready_addresses)):
                found += [Vip(address, protocol, port.port, targets) for address in addresses]
                found += [Vip("", protocol, port.node_port, targets)] if port.node_port and addresses else []
    return sorted(found)


def ruleset(found: Iterable[Vip], scheme: Scheme) -> str:
    """The whole table of a family as ``nft -f`` takes it; the old one goes in the same transaction."""
    ip, kind = scheme.nft, scheme.nft_address
    chains, elements, ports = [], [], []
    backends: set[str] = set()
    for number, vip in enumerate(found):
        spread = ", ".join(f"{n} : {address} . {port}" for n, (address, port) in enumerate(vip.targets))
        to = f"dnat {ip} to numgen random mod {len(vip.targets)} map {{ {spread} }}"
        mark = "" if vip.address else f"meta mark set {OUTSIDE} "
        chains.append(f"  chain s{number} {{ meta l4proto {vip.protocol} {mark}{to}; }}\n")
        if vip.address:
            elements.append(f"{vip.address} . {vip.protocol} . {vip.port} : goto s{number}")
        else:
            ports.append(f"{vip.protocol} . {vip.port} : goto s{number}")
        backends.update(address for address, _ in vip.targets)
    return "".join(
        [
            f"add table {ip} services\ndelete table {ip} services\ntable {ip} services {{\n",
            *chains,
            f"  map vips {{ type {kind} . inet_proto . inet_service : verdict; ",
            _elements(elements),
            " }\n  map ports { type inet_proto . inet_service : verdict; ",
            _elements(ports),
            f" }}\n  set hairpin {{ type {kind} . {kind}; ",
            _elements([f"{ip} . {ip}" for ip in sorted(backends)]),
            f" }}\n  chain dispatch {{\n    {ip} daddr . meta l4proto . th dport vmap @vips\n",
            f"    {ip} daddr != {scheme.node_local} fib daddr type local meta l4proto . th dport vmap @ports\n  }}\n",
            BASE.format(ip=ip, services=scheme.service_cidr, mark=OUTSIDE),
            "}\n",
        ]
    )


def _elements(entries: list[str]) -> str:
    return f"elements = {{ {', '.join(entries)} }};" if entries else ""


def _addresses(service: Service) -> list[str]:
    spec = service.spec
    if spec.type == "ExternalName":
        return []
    own = spec.cluster_ips or ([spec.cluster_ip] if spec.cluster_ip else [])
    if "None" in own:
        return []
    balancer = service.status.load_balancer
    given = [each.ip for each in (balancer.ingress if balancer else None) or () if each.ip]
    return [ip for ip in (*own, *(spec.external_ips or ()), *given) if ip]


def _targets(port: ServicePort, slices: Iterable[EndpointSlice], *, publish: bool) -> tuple[tuple[str, int], ...]:
    """Ready endpoints; those that serve while they end, where nothing is ready (KEP-1669)."""
    by_rank: Mapping[bool, set[tuple[str, int]]] = {True: set(), False: set()}
    for each in slices:
        for exposed in each.ports or ():
            if (exposed.name or "") != (port.name or "") or exposed.port is None:
                continue
            if (exposed.protocol or "TCP") != (port.protocol or "TCP"):
                continue
            for endpoint in each.endpoints or ():
                if (ready := _ready(endpoint)) or publish or _draining(endpoint):
                    by_rank[ready or publish].update((ip, exposed.port) for ip in endpoint.addresses or ())
    return tuple(sorted(by_rank[True] or by_rank[False]))


def _ready(endpoint: Endpoint) -> bool:
    return endpoint.conditions is None or endpoint.conditions.ready is not False


def _draining(endpoint: Endpoint) -> bool:
    conditions = endpoint.conditions
    return conditions is not None and bool(conditions.terminating) and conditions.serving is not False
