"""Address families of a lab: which ranges each has, and how nftables calls it. Pure.

The IPv6 ranges are unique local ones and read like those of IPv4: where a pod has 10.1.2.7, it has fd00:10:1:2::7.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from isthmus.model.hosts import family
from isthmus.model.services import Family

Families = tuple[Family, ...]
"""One or both; the first is the primary one, as in Kubernetes."""


class Scheme(NamedTuple):
    """Address ranges of one family."""

    family: Family
    socket: socket.AddressFamily
    length: int
    """Bits of an address."""
    nft: str
    nft_address: str
    service_cidr: str
    api_service: str
    cluster_dns: str
    node_local: str
    machine: str
    """Template of a machine's address: cluster, number."""
    pod: str
    """Template of a pod's address: pod net of the cluster, node, number."""
    node_pods: str
    cluster_pods: str
    balancers: str
    """Addresses of Services of type LoadBalancer, of a cluster."""
    nowhere: str
    """The unspecified address."""

    def host(self, address: str) -> str:
        """An address as a range of one."""
        return f"{address}/{self.length}"


SCHEMES: Final[dict[Family, Scheme]] = {
    "IPv4": Scheme(
        family="IPv4",
        socket=socket.AF_INET,
        length=32,
        nft="ip",
        nft_address="ipv4_addr",
        service_cidr="10.96.0.0/16",
        api_service="10.96.0.1",
        cluster_dns="10.96.0.10",
        node_local="169.254.7.1",
        machine="172.30.{}.{}",
        pod="10.{}.{}.{}",
        node_pods="10.{}.{}.0/24",
        cluster_pods="10.{}.0.0/16",
        balancers="172.31.{}.0/24",
        nowhere="0.0.0.0",
    ),
    "IPv6": Scheme(
        family="IPv6",
        socket=socket.AF_INET6,
        length=128,
        nft="ip6",
        nft_address="ipv6_addr",
        service_cidr="fd00:10:96::/112",
        api_service="fd00:10:96::1",
        cluster_dns="fd00:10:96::10",
        node_local="fd00:169:254:7::1",
        machine="fd00:172:30:{}::{}",
        pod="fd00:10:{}:{}::{}",
        node_pods="fd00:10:{}:{}::/64",
        cluster_pods="fd00:10:{}::/48",
        balancers="fd00:172:31:{}::/120",
        nowhere="::",
    ),
}


def on_loopback(net: int, cluster: int) -> Scheme:
    """Scheme of a cluster in a lab within 127.NET.0.0/16. Clusters of one network get distinct ranges."""
    own = f"127.{net}.{cluster}"
    services = f"127.{net}.{200 + cluster}"
    return SCHEMES["IPv4"]._replace(
        service_cidr=f"{services}.0/24",
        api_service=f"{services}.1",
        cluster_dns=f"{services}.10",
        node_local=f"{own}.53",
        machine=f"127.{net}.{{}}.{{}}",
        pod=f"127.{net}.1{{0:02}}.{{2}}",
        node_pods=f"127.{net}.1{{0:02}}.0/24",
        cluster_pods=f"127.{net}.1{{0:02}}.0/24",
        balancers=f"127.{net}.{{}}.128/25",
    )


class BadFamilies(ValueError):  # noqa: N818
    """``--ip-families`` does not parse; the message has the word at fault."""


def parse(text: str) -> Families:
    """``IPv4,IPv6`` as Kubernetes spells it."""
    families: list[Family] = []
    for word in text.split(","):
        family = next((candidate for candidate in SCHEMES if candidate == word.strip()), None)
        if family is None or family in families:
            raise BadFamilies(f"--ip-families {text}: want IPv4, IPv6, IPv4,IPv6 or IPv6,IPv4")
        families.append(family)
    return tuple(families)


def parse_all(words: Iterable[str], clusters: int) -> tuple[Families, ...]:
    """The families of each cluster: ``IPv4,IPv6`` applies to all, ``c2=IPv4`` to one; the later wins."""
    result: list[Families] = [("IPv4",)] * clusters
    names = {f"c{number}": number - 1 for number in range(1, clusters + 1)}
    for word in words:
        name, equals, families = word.rpartition("=")
        if equals and name not in names:
            raise BadFamilies(f"--ip-families {word}: there is no cluster {name}: c1 to c{clusters}")
        for number in [names[name]] if equals else range(clusters):
            result[number] = parse(families)
    return tuple(result)


def usable(family: Family, *, make: Callable[[socket.AddressFamily], socket.socket] = socket.socket) -> bool:
    """True if this kernel supports the family."""
    try:
        make(SCHEMES[family].socket).close()
    except OSError:
        return False
    return True


def scheme_of(address: str) -> Scheme:
    """The family of an address."""
    return SCHEMES[family(address)]
