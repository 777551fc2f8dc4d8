"""A pod's network: one namespace, one veth to its node, a default route through the node's link-local address.

The node knows a pod by a host route to its interface; there is no bridge, so every packet of a pod passes the node's
routing, its nftables and its traffic-control hooks.
"""

from __future__ import annotations

from typing import NamedTuple

from pyroute2 import NetlinkError

from isthmus_lab import families
from isthmus_lab.network import namespaces
from isthmus_lab.network.netlink import within
from isthmus_lab.network.wiring import HOST6, LOOPBACK, add_address, add_default, add_neighbour


class PodLink(NamedTuple):
    """Network attachment of a pod."""

    node: str
    """The node's network namespace."""
    namespace: str
    interface: str
    """The node's end."""
    addresses: tuple[str, ...]


async def attach(plug: PodLink) -> None:
    """Make the pod's namespace and join it to its node. What an interrupted attempt left is replaced."""
    await detach(plug)
    namespaces.create(plug.namespace)
    if any(families.scheme_of(address).family == "IPv6" for address in plug.addresses):
        namespaces.set_kernel_parameters(plug.namespace, HOST6)
    async with within(plug.node) as node:
        await node.link(
            "add",
            ifname=plug.interface,
            kind="veth",
            peer={"ifname": "eth0", "net_ns_fd": str(namespaces.path(plug.namespace))},
        )
        index = (await node.link_lookup(ifname=plug.interface))[0]
        await node.link("set", index=index, state="up")
        for address in plug.addresses:
            await add_neighbour(node, address, index=index, scheme=families.scheme_of(address))
    async with within(plug.namespace) as pod:
        await pod.link("set", index=LOOPBACK, state="up")
        index = (await pod.link_lookup(ifname="eth0"))[0]
        await pod.link("set", index=index, state="up")
        for address in plug.addresses:
            scheme = families.scheme_of(address)
            await add_address(pod, address, index=index, scheme=scheme)
            await add_default(pod, scheme.node_local, index=index, scheme=scheme)


async def detach(plug: PodLink) -> None:
    """Unplug: both ends of the veth and the name of the namespace go at once."""
    async with within(plug.node) as node:
        for index in await node.link_lookup(ifname=plug.interface):
            try:
                await node.link("del", index=index)
            except NetlinkError:
                pass  # went with its namespace in between
    namespaces.remove(plug.namespace)
