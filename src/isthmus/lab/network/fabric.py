"""The fabric and everything with a cable to it."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_network
from typing import Any, Final

from isthmus.lab.layout import NODE_LOCAL, Cluster, Lab, Node
from isthmus.lab.network import namespaces
from isthmus.lab.network.filters import nft
from isthmus.lab.network.netlink import within

LOOPBACK: Final = 1
FIRST_TABLE: Final = 1000
FIRST_RULE: Final = 50
SCOPE_HOST: Final = 254
SCOPE_LINK: Final = 253

# A fabric that answers "unreachable" for everything it does not know would be a poor stand-in for a network: limits on
# those answers are per namespace and left as the kernel has them.
ROUTER: Final = (
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
    ("net/ipv4/conf/all/rp_filter", "0"),  # a link's relay puts packets back by another interface than they came in by
    ("net/ipv4/conf/default/rp_filter", "0"),
)


async def build(lab: Lab) -> None:
    """Fabric, control planes and nodes with their addresses and routes; flat, or islands with shores."""
    namespaces.create(lab.fabric)
    for cluster in lab.clusters:
        namespaces.create(cluster.control_plane)
        for node in cluster.nodes:
            namespaces.create(node.namespace)
            namespaces.set_kernel_parameters(node.namespace, ROUTER)
    namespaces.set_kernel_parameters(lab.fabric, ROUTER)
    async with within(lab.fabric) as fabric:
        await fabric.link("set", index=LOOPBACK, state="up")
        for cluster in lab.clusters:
            await fabric.addr("add", index=LOOPBACK, address=cluster.gateway, prefixlen=32)
            await _cable(fabric, cluster.wire, cluster.control_plane, cluster.address)
            for node in cluster.nodes:
                await _cable(fabric, node.wire, node.namespace, node.address)
    await asyncio.gather(*(_join(cluster) for cluster in lab.clusters))
    async with within(lab.fabric) as fabric:
        for cluster in lab.clusters:
            for node in cluster.nodes:
                await _pods_behind(fabric, node)
            if lab.network == "island":
                await _own_table(fabric, cluster)
    if lab.network == "island":
        shores(lab)


async def _cable(fabric: Any, wire: str, namespace: str, address: str) -> None:
    """A veth from the fabric into a namespace, where it is called eth0, and the fabric's route to who is there."""
    await fabric.link("add", ifname=wire, kind="veth", peer={"ifname": "eth0", "net_ns_fd": namespace})
    index = (await fabric.link_lookup(ifname=wire))[0]
    await fabric.link("set", index=index, state="up")
    await fabric.route("add", dst=f"{address}/32", oif=index, scope=SCOPE_LINK)


async def _join(cluster: Cluster) -> None:
    await _member(cluster.control_plane, address=cluster.address, gateway=cluster.gateway)
    for node in cluster.nodes:
        await _member(node.namespace, address=node.address, gateway=cluster.gateway, local=NODE_LOCAL)


async def _member(namespace: str, *, address: str, gateway: str, local: str = "") -> None:
    async with within(namespace) as here:
        await here.link("set", index=LOOPBACK, state="up")
        if local:  # scope host, else it would become the node's source address towards its pods
            await here.addr("add", index=LOOPBACK, address=local, prefixlen=32, scope=SCOPE_HOST)
        index = (await here.link_lookup(ifname="eth0"))[0]
        await here.addr("add", index=index, address=address, prefixlen=32)
        await here.link("set", index=index, state="up")
        await here.route("add", dst=f"{gateway}/32", oif=index, scope=SCOPE_LINK)
        await here.route("add", dst="default", gateway=gateway, oif=index)


async def _pods_behind(fabric: Any, node: Node) -> None:
    """The way to a node's pods: for everybody, or for its own island only, since others have the same addresses."""
    index = (await fabric.link_lookup(ifname=node.wire))[0]
    own = {"table": table(node.cluster)} if node.cluster.lab.network == "island" else {}
    net = str(ip_network(node.pod_cidr))
    await fabric.route("add", dst=net, gateway=node.address, oif=index, flags=["onlink"], **own)


async def _own_table(fabric: Any, cluster: Cluster) -> None:
    """What comes from a cluster looks for pods in the cluster's own table first."""
    for wire in cluster.wires:
        await fabric.rule("add", family=socket.AF_INET, iifname=wire, table=table(cluster), priority=FIRST_RULE)


def table(cluster: Cluster) -> int:
    """The routing table of an island's pods."""
    return FIRST_TABLE + cluster.index


def shores(lab: Lab) -> None:
    """Between islands only gateway nodes are reached, and only they answer."""
    gateways = ", ".join(node.address for cluster in lab.clusters for node in cluster.nodes if node.gateway)
    machines = ", ".join(node.address for cluster in lab.clusters for node in cluster.nodes)
    rules = []
    for cluster in lab.clusters:
        wires = ", ".join(f'"{wire}"' for wire in cluster.wires)
        sea = f"iifname {{ {wires} }} oifname != {{ {wires} }}"
        rules.append(f"{sea} ip saddr {{ {machines} }} ip daddr {{ {gateways} }} accept")
        rules.append(f"{sea} ip saddr {{ {gateways} }} ip daddr {{ {machines} }} accept")
        rules.append(f"{sea} drop")
    hook = "type filter hook forward priority filter; policy accept;"
    body = "".join(f"    {rule}\n" for rule in rules)
    nft(lab.fabric, f"table ip shores {{\n  chain forward {{\n    {hook}\n{body}  }}\n}}\n")
