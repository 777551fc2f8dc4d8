"""Network rules of islands: pods are unreachable from outside, other networks reach gateways only.

Every island has a table of its own for the ways to its pods, since all have the same addresses. Clusters that are flat
are one network: the main table has the ways to their pods. Across networks the port of a cluster's gateways is the only
one that is open, for calls and for its etcd.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from isthmus_lab.families import Scheme
from isthmus_lab.layout import GATEWAY, Cluster, Lab, Node
from isthmus_lab.network.filters import nft

FIRST_TABLE: Final = 1000
OPENING: Final = "tcp flags & (syn | ack) == syn"
ANSWERING: Final = "tcp flags & (syn | ack) != syn"
"""A gateway's machine opens no connection from that port."""


def table(cluster: Cluster) -> int:
    """The routing table of an island's pods."""
    return FIRST_TABLE + cluster.index


def shores(lab: Lab) -> None:
    """Between networks, and from the fabric itself, only the port of gateways is reached.

    Filters arriving packets: those that a link's relay returns on another interface have passed before.
    """
    to_gateways = [_to_gateways(lab, scheme) for scheme in lab.schemes]
    chains = {
        "prerouting": [rule for cluster in lab.clusters for rule in _from(cluster)],
        "output": [*to_gateways, f"oifname != lo {OPENING} drop", "oifname != lo meta l4proto udp drop"],
    }
    nft(lab.fabric, "table inet shores {\n" + "".join(_chain(*each) for each in chains.items()) + "}\n")


def _chain(hook: str, rules: Iterable[str]) -> str:
    lines = [f"type filter hook {hook} priority raw; policy accept;", *rules]
    return "".join((f"  chain {hook} {{\n", *(f"    {line}\n" for line in lines), "  }\n"))


def _from(cluster: Cluster) -> Iterator[str]:
    """The rules of packets that a cluster sends."""
    lab, from_here = cluster.lab, f"iifname {_wires(cluster)}"
    near = [each for each in lab.clusters if each.network == cluster.network]
    yield f"{from_here} fib daddr oifname {_wires(*near)} accept"
    yield f"{from_here} fib daddr type {{ local, multicast }} accept"
    for scheme, pods in zip(cluster.schemes, cluster.pod_cidrs, strict=True):
        if cluster.island:
            yield f"{from_here} {scheme.nft} daddr {pods} accept"  # by its own table, so its own
    for scheme in lab.schemes:
        saddr = f"{from_here} {scheme.nft} saddr"
        yield f"{saddr} {_machines(cluster.nodes, scheme)} {_to_gateways(lab, scheme)}"
        gateways = _machines((node for node in cluster.nodes if node.gateway), scheme)
        yield f"{saddr} {gateways} tcp sport {GATEWAY} {ANSWERING} accept"
    yield f"{from_here} drop"


def _to_gateways(lab: Lab, scheme: Scheme) -> str:
    gateways = (node for cluster in lab.clusters for node in cluster.nodes if node.gateway)
    return f"{scheme.nft} daddr {_machines(gateways, scheme)} tcp dport {GATEWAY} accept"


def _machines(nodes: Iterable[Node], scheme: Scheme) -> str:
    return "{ " + ", ".join(node.machine(scheme) for node in nodes) + " }"


def _wires(*clusters: Cluster) -> str:
    return "{ " + ", ".join(f'"{wire}"' for cluster in clusters for wire in cluster.wires) + " }"
