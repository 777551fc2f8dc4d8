"""What people name when they hurt a lab: a cluster, a node, a process, a pod. Pure.

``c1``, ``c1/node/2`` (or ``c1/n2``), ``c1/agent``, ``c1/n2/agent``, ``c1/etcd``, ``c1/pod/demo/echo-1``.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from isthmus_lab.layout import Cluster, Lab, Node

CENTRAL: Final = {"etcd": 2379, "apiserver": 6443, "clusterdns": 53}
"""Processes of the control plane and where they listen."""
OF_NODES: Final = ("agent", "dns", "node")


class NoSuchThing(Exception):  # noqa: N818
    """What is named is not in the lab; the message says what is."""


class Thing(Struct, frozen=True):
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


def parse(lab: Lab, text: str) -> Thing:
    """What is meant; NoSuchThing where the lab has no such thing."""
    name, *rest = re.sub(r"/node/(\d+)", r"/n\1", text.strip("/")).split("/")
    if (cluster := lab.cluster(name)) is None:
        raise NoSuchThing(f"{text}: lab {lab.name} has no cluster {name}: it has c1 to c{lab.size}")
    match rest:
        case []:
            return Thing(name)
        case ["pod", namespace, pod]:
            return Thing(name, pod=f"{namespace}/{pod}")
        case [process] if process in (*CENTRAL, "operator", *OF_NODES):
            return Thing(name, process=process)
        case [node] if node in _nodes(cluster):
            return Thing(name, node=_nodes(cluster)[node])
        case [node, process] if node in _nodes(cluster) and process in OF_NODES:
            return Thing(name, node=_nodes(cluster)[node], process=process)
    nodes = f"node/1 to node/{lab.nodes}" if lab.nodes > 1 else "node/1"
    known = f"{nodes}, pod/NAMESPACE/NAME, {', '.join((*CENTRAL, 'operator', 'agent', 'dns'))}"
    raise NoSuchThing(f"{text}: cluster {name} has no such thing: it has {known}")


def programs(lab: Lab, thing: Thing, known: list[str]) -> list[str]:
    """Which of the lab's programs, by name, belong to it."""
    if thing.pod:
        return []
    prefix = f"{thing.cluster}/" + (f"n{thing.node}/" if thing.node else "")
    return [name for name in known if name.startswith(prefix) and thing.process in ("", name.rpartition("/")[2])]


def nodes(lab: Lab, thing: Thing) -> list[Node]:
    """The nodes that are hit as a whole: machine, cable and pods."""
    cluster = _cluster(lab, thing)
    if thing.process or thing.pod:
        return []
    return [node for node in cluster.nodes if thing.node in (0, node.number)]


def wires(lab: Lab, thing: Thing) -> frozenset[str]:
    """The fabric's interfaces behind which it is."""
    cluster = _cluster(lab, thing)
    if thing.pod:
        raise NoSuchThing(f"{thing}: cut or slow its node; a pod has no cable of its own in the fabric")
    if thing.process in CENTRAL:
        return frozenset({cluster.wire})
    of_nodes = frozenset(node.wire for node in cluster.nodes if thing.node in (0, node.number))
    return of_nodes if thing.node or thing.process else of_nodes | {cluster.wire}


def port(thing: Thing) -> int:
    """Where it listens, if it is one process; 0 for everything."""
    return CENTRAL.get(thing.process, 0)


def _cluster(lab: Lab, thing: Thing) -> Cluster:
    found = lab.cluster(thing.cluster)
    assert found is not None, "parse() has looked"
    return found


def _nodes(cluster: Cluster) -> dict[str, int]:
    return {node.short: node.number for node in cluster.nodes}
