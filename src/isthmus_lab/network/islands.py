"""What makes islands of clusters: pods that are unreachable from outside, and gateway nodes that others reach.

Every island has a table of its own for the ways to its pods, since all have the same addresses. Clusters that are flat
are one network: the main table has the ways to their pods. Across networks a cluster's etcd is reached at its gateway
node, as its services are.
"""

from __future__ import annotations

from typing import Final

from isthmus.model.hosts import joined
from isthmus_lab.layout import ETCD, Cluster, Lab
from isthmus_lab.network.filters import nft

FIRST_TABLE: Final = 1000


def table(cluster: Cluster) -> int:
    """The routing table of an island's pods."""
    return FIRST_TABLE + cluster.index


def shores(lab: Lab) -> None:
    """Between networks only gateway nodes are reached, and only they answer.

    Judged as packets arrive: what a link's relay holds comes back by another interface, and has been judged before.
    """
    nodes = [node for cluster in lab.clusters for node in cluster.nodes]
    rules = []
    for cluster in lab.clusters:
        near = [each for each in lab.clusters if each.network == cluster.network]
        from_here = f"iifname {_wires(cluster)}"
        rules += [
            f"{from_here} fib daddr oifname {_wires(*near)} accept",
            f"{from_here} fib daddr type {{ local, multicast }} accept",
        ]
        for scheme, pods in zip(cluster.schemes, cluster.pod_cidrs, strict=True):
            gateways = ", ".join(node.machine(scheme) for node in nodes if node.gateway)
            machines = ", ".join(node.machine(scheme) for node in nodes)
            saddr, daddr = f"{scheme.nft} saddr", f"{scheme.nft} daddr"
            if cluster.island:
                rules.append(f"{from_here} {daddr} {pods} accept")  # by its own table, so its own
            rules.append(f"{from_here} {saddr} {{ {machines} }} {daddr} {{ {gateways} }} accept")
            rules.append(f"{from_here} {saddr} {{ {gateways} }} {daddr} {{ {machines} }} accept")
        rules.append(f"{from_here} drop")
    hook = "type filter hook prerouting priority raw; policy accept;"
    body = "".join(f"    {rule}\n" for rule in rules)
    nft(lab.fabric, f"table inet shores {{\n  chain arrive {{\n    {hook}\n{body}  }}\n}}\n")


def _wires(*clusters: Cluster) -> str:
    return "{ " + ", ".join(f'"{wire}"' for cluster in clusters for wire in cluster.wires) + " }"


def door(cluster: Cluster) -> None:
    """Let other networks reach the cluster's etcd at its gateway node, and see that node as who asks."""
    node, scheme = cluster.nodes[0], cluster.schemes[0]
    called = f'iifname "eth0" {scheme.nft} daddr {node.address} tcp dport {ETCD}'
    passed = f'oifname "eth0" ct status dnat {scheme.nft} daddr {cluster.address} tcp dport {ETCD}'
    chains = {
        "arrive": ("prerouting priority dstnat", f"{called} dnat {scheme.nft} to {joined(cluster.address, ETCD)}"),
        "leave": ("postrouting priority srcnat", f"{passed} masquerade"),
    }
    body = "".join(
        f"  chain {name} {{\n    type nat hook {hook}; policy accept;\n    {rule}\n  }}\n"
        for name, (hook, rule) in chains.items()
    )
    nft(node.namespace, f"table inet door {{\n{body}}}\n")
