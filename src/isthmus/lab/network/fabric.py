"""The fabric and everything with a cable to it."""

from __future__ import annotations

import asyncio
from ipaddress import ip_network
from typing import Any, Final

from isthmus.lab.layout import NODE_LOCAL, Cluster, Lab, Node
from isthmus.lab.network import namespaces
from isthmus.lab.network.netlink import within

LOOPBACK: Final = 1
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
    """Fabric, control planes and nodes with their addresses and routes; every pod network of the lab is flat."""
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
    index = (await fabric.link_lookup(ifname=node.wire))[0]
    await fabric.route("add", dst=str(ip_network(node.pod_cidr)), gateway=node.address, oif=index, flags=["onlink"])
