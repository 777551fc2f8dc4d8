"""Names, addresses and paths of a lab: the one place that defines them. Pure.

Cluster i of a lab has its control plane on 172.30.i.2, node n on 172.30.i.(10+n) and that node's pods in 10.i.n.0/24.
Services are in 10.96.0.0/16 in every cluster: ClusterIPs are local to a cluster. ``families`` has the IPv6 of it.

Machines (control planes, nodes) have an address of every family that some cluster of the lab has, so that all reach
each other; Services, pods and the addresses in a Node object have those of their own cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from isthmus.host_user import LABS
from isthmus.model.hosts import joined
from isthmus_lab.families import SCHEMES, Families, Scheme, on_loopback

STATE_ROOT: Final = LABS
CLUSTER_DOMAIN: Final = "cluster.local"

ETCD: Final = 2379
"""The port."""
GATEWAY: Final = 15_443
"""The port of a gateway of an island."""
MAX_CLUSTERS: Final = 64
MAX_ON_LOOPBACK: Final = 50
"""Clusters of a lab on loopback addresses."""
PRIVILEGED: Final = 1024
"""Ports below are root's (default of ``net.ipv4.ip_unprivileged_port_start``)."""
MOVED: Final = 10_000
"""Offset of such ports in a lab on loopback addresses."""
MAX_NODES: Final = 40
LONGEST_REQUEST_LINE: Final = 1 << 20
"""Bytes in the first line of a request, as kube-apiserver allows: `kubectl exec` writes its command into the URL."""
Network = Literal["flat", "island"]
"""``flat`` clusters reach each other's pods; an ``island`` reaches only gateway nodes of others."""

NAME: Final = re.compile(r"[a-z][a-z0-9]{0,11}\Z")


@dataclass(frozen=True)
class Node:
    """A node of a cluster."""

    cluster: Cluster
    number: int

    @property
    def name(self) -> str:
        """Node name in the API server; unique in the lab, to ease reading."""
        return f"{self.cluster.name}-n{self.number}"

    @property
    def short(self) -> str:
        """Its name within the cluster, used in paths and namespaces."""
        return f"n{self.number}"

    @property
    def address(self) -> str:
        """Primary address."""
        return self.addresses[0]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses in its Node object: one of each family of its cluster."""
        return tuple(self.machine(scheme) for scheme in self.cluster.schemes)

    def machine(self, scheme: Scheme) -> str:
        """Its address of a family."""
        return scheme.machine.format(self.cluster.index, 10 + self.number)

    @property
    def pod_cidrs(self) -> tuple[str, ...]:
        """The ranges of its pods."""
        return tuple(scheme.node_pods.format(self.cluster.pod_net, self.number) for scheme in self.cluster.schemes)

    def pod(self, number: int) -> tuple[str, ...]:
        """The addresses of one of its pods."""
        schemes = self.cluster.schemes
        return tuple(scheme.pod.format(self.cluster.pod_net, self.number, number) for scheme in schemes)

    @property
    def gateway(self) -> bool:
        """True for a gateway node: one of the first nodes of a cluster, which other networks reach."""
        return self.number <= self.cluster.lab.gateways

    @property
    def namespace(self) -> str:
        """Its network namespace."""
        return f"{self.cluster.namespace}-{self.short}"

    @property
    def wire(self) -> str:
        """The fabric's end of its cable."""
        return f"{self.cluster.name}-{self.short}"

    @property
    def cgroup(self) -> str:
        """Below the lab's cgroup."""
        return f"{self.cluster.name}/{self.short}"

    @property
    def pods_cgroup(self) -> str:
        """All pods of the node: where the agent attaches."""
        return f"{self.cgroup}/pods"

    @property
    def envoy_cgroup(self) -> str:
        """Its Envoys and what runs them."""
        return f"{self.cgroup}/envoy"

    @property
    def gateway_cgroup(self) -> str:
        """Its gateway's Envoys and what runs them."""
        return f"{self.cgroup}/gateway"

    @property
    def directory(self) -> Path:
        """Its state: pods, their logs and volumes."""
        return self.cluster.directory / self.short


@dataclass(frozen=True)
class Cluster:
    """A cluster of a lab."""

    lab: Lab
    index: int

    @property
    def name(self) -> str:
        """``c1``, ``c2``, …: also the kubeconfig's context and the cluster's name in the clusterset."""
        return f"c{self.index}"

    @property
    def namespace(self) -> str:
        """Prefix of its network namespaces' names."""
        return f"{self.lab.prefix}-{self.name}"

    @property
    def control_plane(self) -> str:
        """The network namespace of etcd, API server and cluster DNS."""
        return f"{self.namespace}-cp"

    @property
    def wire(self) -> str:
        """The fabric's end of the control plane's cable."""
        return f"{self.name}-cp"

    @cached_property
    def families(self) -> Families:
        """Address families of its Services and pods, the primary one first."""
        return self.lab.families[min(self.index, len(self.lab.families)) - 1]

    @property
    def place(self) -> tuple[str, str]:
        """Its region and zone, as it publishes them to the others; empty where it has none."""
        return self.lab.places[self.index - 1] if self.index <= len(self.lab.places) else ("", "")

    @cached_property
    def schemes(self) -> tuple[Scheme, ...]:
        """Its address families with their ranges."""
        if self.lab.loopback:
            return (on_loopback(self.lab.loopback, self.index),)
        return tuple(SCHEMES[family] for family in self.families)

    @cached_property
    def network(self) -> str:
        """Published network: an island's own name, empty for a flat cluster."""
        return self.name if self.lab.networks[min(self.index, len(self.lab.networks)) - 1] == "island" else ""

    @property
    def island(self) -> bool:
        """True if only its own nodes reach its pods."""
        return bool(self.network)

    @property
    def address(self) -> str:
        """The control plane's first address."""
        return self.addresses[0]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The control plane's, one of each family of the cluster."""
        return tuple(self.machine(scheme) for scheme in self.schemes)

    def machine(self, scheme: Scheme) -> str:
        """The control plane's address of a family."""
        return scheme.machine.format(self.index, 2)

    def gateway(self, scheme: Scheme) -> str:
        """The fabric's address towards this cluster."""
        return scheme.machine.format(self.index, 1)

    @property
    def etcd(self) -> str:
        """Address of its etcd."""
        return f"https://{joined(self.address, ETCD)}"

    @property
    def gateway_endpoints(self) -> tuple[str, ...]:
        """Gateways as address:port, the only endpoints that other networks reach."""
        return tuple(joined(node.address, GATEWAY) for node in self.nodes if node.gateway)

    def etcd_seen_from(self, other: Cluster) -> tuple[str, ...]:
        """Endpoints of its etcd for another cluster: its gateways if the networks differ."""
        if self.network == other.network:
            return (self.etcd,)
        return tuple(f"https://{each}" for each in self.gateway_endpoints)

    @property
    def apiserver(self) -> str:
        """URL of its API server inside the lab."""
        return f"https://{joined(self.address, 6443)}"

    @property
    def pod_cidrs(self) -> tuple[str, ...]:
        """The ranges of its pods, on whichever node."""
        return tuple(scheme.cluster_pods.format(self.pod_net) for scheme in self.schemes)

    @property
    def balancers(self) -> tuple[str, ...]:
        """The ranges of its load balancers, which its first node answers for."""
        return tuple(scheme.balancers.format(self.index) for scheme in self.schemes)

    @property
    def pod_net(self) -> int:
        """The second byte of its pods' addresses: that of c1 in every island, as islands do not coordinate ranges."""
        return 1 if self.island else self.index

    @property
    def wires(self) -> tuple[str, ...]:
        """All its cables to the fabric."""
        return (self.wire, *(node.wire for node in self.nodes))

    @property
    def cgroup(self) -> str:
        """Its processes that are no pods, below the lab's cgroup."""
        return f"{self.name}/system"

    @property
    def directory(self) -> Path:
        """Its state: configurations, sockets, etcd's data."""
        return self.lab.directory / self.name

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Its nodes, from 1."""
        return tuple(Node(self, n) for n in range(1, self.lab.nodes + 1))


@dataclass(frozen=True)
class Lab:
    """A lab: its name and its size; everything else follows."""

    name: str = "demo"
    size: int = 3
    nodes: int = 1
    networks: tuple[Network, ...] = ("flat",)
    """Networks by cluster; the last applies to all that follow."""
    families: tuple[Families, ...] = (("IPv4",),)
    """Address families by cluster; the last applies to all that follow."""
    places: tuple[tuple[str, str], ...] = ()
    """Region and zone by cluster; those that follow have none."""
    gateways: int = 1
    """Gateway nodes of each cluster, where some are islands."""
    loopback: int = 0
    """Second octet of the lab's range 127.x.0.0/16 on a host without namespaces; 0 if there are namespaces."""
    identity: bool = False
    """True if callers prove their identity."""

    def port(self, number: int) -> int:
        """Map a port to the one used in this lab; differs only on loopback addresses."""
        return number + MOVED if self.loopback and number < PRIVILEGED else number

    @cached_property
    def schemes(self) -> tuple[Scheme, ...]:
        """All families that some cluster has."""
        used = {family for each in self.families for family in each}
        return tuple(scheme for family, scheme in SCHEMES.items() if family in used)

    @property
    def islands(self) -> bool:
        """True if any cluster is an island; then all clusters have gateways."""
        return any(cluster.island for cluster in self.clusters)

    @property
    def prefix(self) -> str:
        """Prefix of the names of everything of the lab."""
        return f"isthmus-{self.name}"

    @property
    def fabric(self) -> str:
        """The network namespace that joins all others."""
        return f"{self.prefix}-fabric"

    @property
    def directory(self) -> Path:
        """All files of the lab."""
        return STATE_ROOT / self.name

    @property
    def bpffs(self) -> Path:
        """Directory of the lab's pinned BPF objects."""
        return self.directory / "bpf"

    @property
    def socket(self) -> Path:
        """The supervisor's."""
        return self.directory / "supervisor.sock"

    @property
    def kubeconfig(self) -> Path:
        """For people, on the host."""
        return self.directory / "kubeconfig"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.directory / "logs"

    @cached_property
    def clusters(self) -> tuple[Cluster, ...]:
        """Its clusters, from 1."""
        return tuple(Cluster(self, i) for i in range(1, self.size + 1))

    def cluster(self, name: str) -> Cluster | None:
        """The cluster of a name."""
        return next((cluster for cluster in self.clusters if cluster.name == name), None)

    def owns(self, namespace: str) -> bool:
        """True if a network namespace is this lab's, however large the lab is or was."""
        return re.fullmatch(rf"{re.escape(self.prefix)}-(fabric|c\d+-(cp|n\d+|p[a-z0-9]+))", namespace) is not None
