"""The fabric and everything with a cable to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from isthmus_lab.families import Scheme
from isthmus_lab.layout import Cluster, Lab, Node
from isthmus_lab.network import islands, namespaces
from isthmus_lab.network.netlink import within
from isthmus_lab.network.wiring import HOST6, LOOPBACK, add_address, add_default, add_neighbour

FIRST_RULE: Final = 50

# A fabric that answers "unreachable" for everything it does not know would be a poor stand-in for a network: limits on
# those answers are per namespace, at the kernel's defaults.
ROUTER: Final = (
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv4/conf/all/rp_filter", "0"),  # a link's relay puts packets back by another interface than they came in by
    ("net/ipv4/conf/default/rp_filter", "0"),
)
ROUTER6: Final = (*HOST6, ("net/ipv6/conf/all/forwarding", "1"))


async def build(lab: Lab) -> None:
    """Fabric, control planes and nodes with their addresses and routes; flat, or with shores around each network."""
    six = any(scheme.family == "IPv6" for scheme in lab.schemes)
    host, router = (HOST6, (*ROUTER, *ROUTER6)) if six else ((), ROUTER)
    namespaces.create(lab.fabric)
    for cluster in lab.clusters:
        namespaces.create(cluster.control_plane)
        namespaces.set_kernel_parameters(cluster.control_plane, host)
        for node in cluster.nodes:
            namespaces.create(node.namespace)
            namespaces.set_kernel_parameters(node.namespace, router)
    namespaces.set_kernel_parameters(lab.fabric, router)
    async with within(lab.fabric) as fabric:
        await fabric.link("set", index=LOOPBACK, state="up")
        for cluster in lab.clusters:
            for scheme in lab.schemes:
                await add_address(fabric, cluster.gateway(scheme), index=LOOPBACK, scheme=scheme)
            await _cable(fabric, cluster, cluster.control_plane, lab.schemes)
            for node in cluster.nodes:
                await _cable(fabric, node, node.namespace, lab.schemes)
    await asyncio.gather(*(_join(cluster) for cluster in lab.clusters))
    async with within(lab.fabric) as fabric:
        for cluster in lab.clusters:
            for node in cluster.nodes:
                await _pods_behind(fabric, node)
            await _balancers_behind(fabric, cluster.nodes[0])
            if cluster.island:
                await _own_table(fabric, cluster)
    if lab.islands:
        islands.shores(lab)


async def _cable(fabric: Any, member: Cluster | Node, namespace: str, schemes: Iterable[Scheme]) -> None:
    """Create a veth from the fabric into a namespace (named eth0 there), and the fabric's routes to the member."""
    await fabric.link(
        "add", ifname=member.wire, kind="veth", peer={"ifname": "eth0", "net_ns_fd": str(namespaces.path(namespace))}
    )
    index = (await fabric.link_lookup(ifname=member.wire))[0]
    await fabric.link("set", index=index, state="up")
    for scheme in schemes:
        await add_neighbour(fabric, member.machine(scheme), index=index, scheme=scheme)


async def _join(cluster: Cluster) -> None:
    await _member(cluster, cluster.control_plane, cluster)
    for node in cluster.nodes:
        await _member(node, node.namespace, cluster)


async def _member(member: Cluster | Node, namespace: str, cluster: Cluster) -> None:
    async with within(namespace) as here:
        await here.link("set", index=LOOPBACK, state="up")
        index = (await here.link_lookup(ifname="eth0"))[0]
        await here.link("set", index=index, state="up")
        for scheme in cluster.lab.schemes:
            if isinstance(member, Node):
                await add_address(here, scheme.node_local, index=LOOPBACK, scheme=scheme, local=True)
            await add_address(here, member.machine(scheme), index=index, scheme=scheme)
            await add_default(here, cluster.gateway(scheme), index=index, scheme=scheme)


async def _pods_behind(fabric: Any, node: Node) -> None:
    """The way to a node's pods: for everybody, or for its own island only, since others have the same addresses."""
    index = (await fabric.link_lookup(ifname=node.wire))[0]
    own = {"table": islands.table(node.cluster)} if node.cluster.island else {}
    for scheme, net in zip(node.cluster.schemes, node.pod_cidrs, strict=True):
        next_hop = {"gateway": node.machine(scheme), "oif": index, "flags": ["onlink"]}
        await fabric.route("add", family=scheme.socket, dst=net, **next_hop, **own)


async def _balancers_behind(fabric: Any, node: Node) -> None:
    """The way to a cluster's load balancers, of which the network only knows that they are at this node."""
    index = (await fabric.link_lookup(ifname=node.wire))[0]
    for scheme, net in zip(node.cluster.schemes, node.cluster.balancers, strict=True):
        next_hop = {"gateway": node.machine(scheme), "oif": index, "flags": ["onlink"]}
        await fabric.route("add", family=scheme.socket, dst=net, **next_hop)


async def _own_table(fabric: Any, cluster: Cluster) -> None:
    """Route packets from a cluster by the cluster's own table first."""
    for wire in cluster.wires:
        for scheme in cluster.schemes:
            await fabric.rule(
                "add", family=scheme.socket, iifname=wire, table=islands.table(cluster), priority=FIRST_RULE
            )
