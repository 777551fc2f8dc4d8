"""Rules of bench_connect.py, as kube-proxy's modes nftables and iptables write them for ClusterIPs; proxies' files.

Read in Kubernetes' pkg/proxy/nftables/proxier.go and pkg/proxy/iptables/proxier.go: what a packet to a ClusterIP meets,
in the same order, without what is for node ports, load balancers and affinity.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

PORT = 8080
FIRST = int(ipaddress.IPv4Address("10.96.0.0"))
PODS = "10.7.0.0/24"


def vip(number: int) -> str:
    """The ClusterIP of a service."""
    return str(ipaddress.IPv4Address(FIRST + 1 + number))


def nftables(services: int, backends: Sequence[str]) -> str:
    """One map of all ClusterIPs; a chain for each service and for each endpoint of it."""
    lines = [
        "table ip kube-proxy {",
        "chain mark-for-masquerade { mark set mark or 0x4000; }",
        "chain masquerading { mark and 0x4000 == 0 return; mark set mark xor 0x4000; masquerade fully-random; }",
    ]
    elements = []
    for number in range(services):
        for protocol in ("tcp", "udp"):
            picks = []
            for n, backend in enumerate(backends):
                chain = f"endpoint-{number}-{protocol}-{n}"
                lines.append(
                    f"chain {chain} {{ ip saddr {backend} jump mark-for-masquerade; "
                    f"meta l4proto {protocol} dnat to {backend}:{PORT}; }}"
                )
                picks.append(f"{n} : goto {chain}")
            address = vip(number)
            lines.append(
                f"chain service-{number}-{protocol} {{ "
                f"ip daddr {address} {protocol} dport 80 ip saddr != {PODS} jump mark-for-masquerade; "
                f"numgen random mod {len(backends)} vmap {{ {', '.join(picks)} }}; }}"
            )
            elements.append(f"{address} . {protocol} . 80 : goto service-{number}-{protocol}")
    return "\n".join(
        [
            *lines,
            "map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = {",
            ",\n".join(elements),
            "} }",
            "map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }",
            "set cluster-ips { type ipv4_addr; elements = {",
            ", ".join(vip(number) for number in range(services)),
            "} }",
            "chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }",
            "chain cluster-ips-check { ip daddr @cluster-ips reject; }",
            "chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }",
            "chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }",
            "chain nat-output { type nat hook output priority -100; jump services; }",
            "chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }",
            "chain filter-prerouting-pre-dnat { type filter hook prerouting priority -110; "
            "ct state new jump service-endpoints-check; }",
            "chain filter-forward { type filter hook forward priority -110; "
            "ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }",
            "}",
        ]
    )


def iptables(services: int, backends: Sequence[str]) -> str:
    """A chain with a rule for each service, passed in order."""
    chains = [":KUBE-SERVICES - [0:0]", ":KUBE-MARK-MASQ - [0:0]", ":KUBE-POSTROUTING - [0:0]"]
    found = [
        "-A PREROUTING -j KUBE-SERVICES",
        "-A OUTPUT -j KUBE-SERVICES",
        "-A POSTROUTING -j KUBE-POSTROUTING",
        "-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000",
        "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
        "-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000",
        "-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
    ]
    for number in range(services):
        for protocol in ("tcp", "udp"):
            service = f"KUBE-SVC-{number}-{protocol}"
            chains.append(f":{service} - [0:0]")
            address = vip(number)
            found.append(f"-A KUBE-SERVICES -d {address}/32 -p {protocol} -m {protocol} --dport 80 -j {service}")
            found.append(
                f"-A {service} ! -s {PODS} -d {address}/32 -p {protocol} -m {protocol} --dport 80 -j KUBE-MARK-MASQ"
            )
            for n, backend in enumerate(backends):
                endpoint = f"KUBE-SEP-{number}-{protocol}-{n}"
                chains.append(f":{endpoint} - [0:0]")
                left = len(backends) - n
                chance = f"-m statistic --mode random --probability {1 / left:.10f} " if left > 1 else ""
                found.append(f"-A {service} {chance}-j {endpoint}")
                found.append(f"-A {endpoint} -s {backend}/32 -j KUBE-MARK-MASQ")
                found.append(f"-A {endpoint} -p {protocol} -m {protocol} -j DNAT --to-destination {backend}:{PORT}")
    forward = [
        "*filter",
        ":KUBE-FORWARD - [0:0]",
        "-A FORWARD -j KUBE-FORWARD",
        "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
        "-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT",
        "-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "COMMIT",
    ]
    return "\n".join(["*nat", *chains, *found, "COMMIT", *forward, ""])


HAPROXY: Final = """\
global
  nbthread 1
  maxconn 4000
defaults
  mode tcp
  timeout connect 5s
  timeout client 30s
  timeout server 30s
"""


def haproxy(address: str, backends: Sequence[str]) -> str:
    """A listener that forwards TCP."""
    servers = "\n".join(f"  server s{n} {backend}:{PORT}" for n, backend in enumerate(backends))
    return f"""\
{HAPROXY}listen echo
  bind {address}:80
  balance random
{servers}
"""


def envoy(address: str, backends: Sequence[str]) -> str:
    """The same."""
    endpoints = "\n".join(
        f"        - endpoint: {{address: {{socket_address: {{address: {backend}, port_value: {PORT}}}}}}}"
        for backend in backends
    )
    return f"""\
static_resources:
  listeners:
  - name: echo
    address: {{socket_address: {{address: {address}, port_value: 80}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: echo
          cluster: echo
  clusters:
  - name: echo
    type: STATIC
    lb_policy: RANDOM
    load_assignment:
      cluster_name: echo
      endpoints:
      - lb_endpoints:
{endpoints}
"""
