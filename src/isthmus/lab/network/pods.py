"""A pod's network: one namespace, one veth to its node, a default route through the node's link-local address.

The node knows a pod by a host route to its interface; there is no bridge, so every packet of a pod passes the node's
routing, its nftables and its traffic-control hooks.
"""

from __future__ import annotations

from typing import NamedTuple

from pyroute2 import NetlinkError

from isthmus.lab.layout import NODE_LOCAL
from isthmus.lab.network import namespaces
from isthmus.lab.network.fabric import LOOPBACK, SCOPE_LINK
from isthmus.lab.network.netlink import within


class Plug(NamedTuple):
    """Where a pod is plugged in."""

    node: str
    """The node's network namespace."""
    namespace: str
    interface: str
    """The node's end."""
    address: str


async def attach(plug: Plug) -> None:
    """Make the pod's namespace and join it to its node. What an interrupted attempt left is replaced."""
    await detach(plug)
    namespaces.create(plug.namespace)
    async with within(plug.node) as node:
        await node.link("add", ifname=plug.interface, kind="veth", peer={"ifname": "eth0", "net_ns_fd": plug.namespace})
        index = (await node.link_lookup(ifname=plug.interface))[0]
        await node.link("set", index=index, state="up")
        await node.route("add", dst=f"{plug.address}/32", oif=index, scope=SCOPE_LINK)
    async with within(plug.namespace) as pod:
        await pod.link("set", index=LOOPBACK, state="up")
        index = (await pod.link_lookup(ifname="eth0"))[0]
        await pod.addr("add", index=index, address=plug.address, prefixlen=32)
        await pod.link("set", index=index, state="up")
        await pod.route("add", dst=f"{NODE_LOCAL}/32", oif=index, scope=SCOPE_LINK)
        await pod.route("add", dst="default", gateway=NODE_LOCAL, oif=index)


async def detach(plug: Plug) -> None:
    """Unplug: both ends of the veth and the name of the namespace go at once."""
    async with within(plug.node) as node:
        for index in await node.link_lookup(ifname=plug.interface):
            try:
                await node.link("del", index=index)
            except NetlinkError:
                pass  # went with its namespace in between
    namespaces.remove(plug.namespace)
