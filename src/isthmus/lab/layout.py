"""Names, addresses and paths of a lab: one place that says where everything is. Pure.

Cluster i of a lab has its control plane on 172.30.i.2, node n on 172.30.i.(10+n) and that node's pods in 10.i.n.0/24.
Services are in 10.96.0.0/16 in every cluster: ClusterIPs are local to a cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

STATE_ROOT: Final = Path("/run/isthmus/labs")
SERVICE_CIDR: Final = "10.96.0.0/16"
API_SERVICE: Final = "10.96.0.1"
CLUSTER_DNS: Final = "10.96.0.10"
CLUSTER_DOMAIN: Final = "cluster.local"
NODE_LOCAL: Final = "169.254.7.1"
"""On every node's ``lo``, scope host: the pods' gateway and the address of Isthmus's node DNS."""

MOST_CLUSTERS: Final = 64
MOST_NODES: Final = 40
Network = Literal["flat", "island"]
"""Whether clusters reach each other's pods, or only each other's gateway nodes."""

NAME: Final = re.compile(r"[a-z][a-z0-9]{0,11}\Z")


@dataclass(frozen=True)
class Node:
    """A node of a cluster."""

    cluster: Cluster
    number: int

    @property
    def name(self) -> str:
        """What the API server calls it; the same in no two clusters, for the eyes of people."""
        return f"{self.cluster.name}-n{self.number}"

    @property
    def short(self) -> str:
        """Its name within the cluster, as paths and namespaces have it."""
        return f"n{self.number}"

    @property
    def address(self) -> str:
        """Where other nodes reach it."""
        return f"172.30.{self.cluster.index}.{10 + self.number}"

    @property
    def pod_cidr(self) -> str:
        """The range of its pods."""
        return f"{self.pod_prefix}.0/24"

    @property
    def pod_prefix(self) -> str:
        """What the addresses of its pods begin with."""
        return f"10.{self.cluster.pod_net}.{self.number}"

    @property
    def gateway(self) -> bool:
        """Whether other islands reach it: the first node of each."""
        return self.number == 1

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
        """What the names of its network namespaces begin with."""
        return f"{self.lab.prefix}-{self.name}"

    @property
    def control_plane(self) -> str:
        """The network namespace of etcd, API server and cluster DNS."""
        return f"{self.namespace}-cp"

    @property
    def wire(self) -> str:
        """The fabric's end of the control plane's cable."""
        return f"{self.name}-cp"

    @property
    def address(self) -> str:
        """The control plane's address."""
        return f"172.30.{self.index}.2"

    @property
    def gateway(self) -> str:
        """The fabric's address towards this cluster."""
        return f"172.30.{self.index}.1"

    @property
    def etcd(self) -> str:
        """Where its etcd answers."""
        return f"http://{self.address}:2379"

    @property
    def apiserver(self) -> str:
        """Where its API server answers, seen from inside the lab."""
        return f"https://{self.address}:6443"

    @property
    def pod_cidr(self) -> str:
        """The range of its pods, on whichever node."""
        return f"10.{self.pod_net}.0.0/16"

    @property
    def pod_net(self) -> int:
        """The second byte of its pods' addresses: every island has the same, as nobody has told it of the others."""
        return 1 if self.lab.network == "island" else self.index

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
    network: Network = "flat"

    @property
    def prefix(self) -> str:
        """What everything of the lab is called with."""
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
        """Where the lab's BPF objects are pinned."""
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
        """Whether a network namespace is this lab's, however large the lab is or was."""
        return re.fullmatch(rf"{re.escape(self.prefix)}-(fabric|c\d+-(cp|n\d+|p[a-z0-9]+))", namespace) is not None
