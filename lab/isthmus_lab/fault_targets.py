"""Targets of injected faults: a cluster, a node, a process, a pod. Pure.

``c1``, ``c1/node/2`` (or ``c1/n2``), ``c1/agent``, ``c1/n2/agent``, ``c1/etcd``, ``c1/pod/demo/echo-1``.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from isthmus_lab.layout import GATEWAY, Cluster, Lab, Node
from isthmus_lab.supervisor.configs import OF_NODES

CENTRAL: Final = {"etcd": 2379, "apiserver": 6443, "clusterdns": 53}
"""Processes of the control plane and where they listen."""
GATEWAYS: Final = ("gateway", "gateway-envoy")
"""Processes of gateway nodes, in labs with islands."""
ENVOYS: Final = ("envoy", *GATEWAYS)
"""Envoy processes of nodes."""
LISTENING: Final = {**CENTRAL, **dict.fromkeys(GATEWAYS, GATEWAY)}
"""The port of a process that has one."""


class NoSuchTarget(Exception):  # noqa: N818
    """The lab has no such target; the message lists what it has."""


class FaultTarget(Struct, frozen=True):
    """Something of a lab. Without node, process and pod it is the whole cluster."""

    cluster: str
    node: int = 0
    process: str = ""
    pod: str = ""
    """namespace/name."""

    def __str__(self) -> str:
        parts = [
            self.cluster,
            f"n{self.node}" if self.node else "",
            self.process,
            f"pod/{self.pod}" if self.pod else "",
        ]
        return "/".join(part for part in parts if part)


def parse(lab: Lab, text: str) -> FaultTarget:
    """The target of a word on the command line; NoSuchTarget where the lab has no such target."""
    name, *rest = re.sub(r"/node/(\d+)", r"/n\1", text.strip("/")).split("/")
    if (cluster := lab.cluster(name)) is None:
        raise NoSuchTarget(f"{text}: lab {lab.name} has no cluster {name}: it has c1 to c{lab.size}")
    match rest:
        case []:
            return FaultTarget(name)
        case ["pod", namespace, pod]:
            return FaultTarget(name, pod=f"{namespace}/{pod}")
        case [process] if process in (*CENTRAL, "operator", *OF_NODES, "node", *ENVOYS):
            return FaultTarget(name, process=process)
        case [node] if node in _nodes(cluster):
            return FaultTarget(name, node=_nodes(cluster)[node])
        case [node, process] if node in _nodes(cluster) and process in (*OF_NODES, "node", *ENVOYS):
            return FaultTarget(name, node=_nodes(cluster)[node], process=process)
    nodes = f"node/1 to node/{lab.nodes}" if lab.nodes > 1 else "node/1"
    valid = f"{nodes}, pod/NAMESPACE/NAME, {', '.join((*CENTRAL, 'operator', *OF_NODES, *ENVOYS))}"
    raise NoSuchTarget(f"{text}: cluster {name} has no such target: it has {valid}")


def programs(lab: Lab, target: FaultTarget, running: list[str]) -> list[str]:
    """Names of the lab's programs that belong to a target."""
    if target.pod:
        return []
    prefix = f"{target.cluster}/" + (f"n{target.node}/" if target.node else "")
    return [name for name in running if name.startswith(prefix) and target.process in ("", name.rpartition("/")[2])]


def nodes(lab: Lab, target: FaultTarget) -> list[Node]:
    """The nodes that are hit as a whole: machine, cable and pods."""
    cluster = _cluster(lab, target)
    if target.process or target.pod:
        return []
    return [node for node in cluster.nodes if target.node in (0, node.number)]


def wires(lab: Lab, target: FaultTarget) -> frozenset[str]:
    """The fabric's interfaces behind which it is."""
    cluster = _cluster(lab, target)
    if target.pod:
        raise NoSuchTarget(f"{target}: cut or slow its node; a pod has no cable of its own in the fabric")
    if target.process in CENTRAL:
        return frozenset({cluster.wire})
    of_nodes = frozenset(
        node.wire
        for node in cluster.nodes
        if target.node in (0, node.number) and (node.gateway or target.process not in GATEWAYS)
    )
    return of_nodes if target.node or target.process else of_nodes | {cluster.wire}


def port(target: FaultTarget) -> int:
    """Port of a target that is one process; 0 matches every port."""
    return LISTENING.get(target.process, 0)


def _cluster(lab: Lab, target: FaultTarget) -> Cluster:
    cluster = lab.cluster(target.cluster)
    assert cluster is not None, "parse() has looked"
    return cluster


def _nodes(cluster: Cluster) -> dict[str, int]:
    return {node.short: node.number for node in cluster.nodes}
