"""Forget tracked UDP connections to removed endpoints, so that the next datagram uses another one.

TCP needs none of this: its next packet is refused, and a new connection is dispatched anew.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyroute2 import NetlinkError
from pyroute2.netlink.nfnetlink.nfctsocket import AsyncNFCTSocket, NFCTAttrTuple

from isthmus_lab.families import Scheme
from isthmus_lab.node.services import Destination, Vip


class Flow(NamedTuple):
    """Datagrams to an address and port that go to a target. Without address: to this node's port."""

    address: str
    port: int
    target: Destination


def removed(before: Mapping[Scheme, Sequence[Vip]], after: Mapping[Scheme, Sequence[Vip]]) -> set[Flow]:
    """Flows whose endpoint was removed."""
    return _flows(before) - _flows(after)


async def forget(flows: set[Flow]) -> None:
    """Forget every tracked connection of these, in the network namespace that this process runs in."""
    for family in {_family(flow) for flow in flows}:
        async with AsyncNFCTSocket(nfgen_family=family) as tracked:
            for entry in [each async for each in await tracked.dump()]:
                way = NFCTAttrTuple.from_netlink(family, entry.get_attr("CTA_TUPLE_ORIG"))
                back = NFCTAttrTuple.from_netlink(family, entry.get_attr("CTA_TUPLE_REPLY"))
                if way.proto == socket.IPPROTO_UDP and not flows.isdisjoint(_both_ways(way, back)):
                    await _delete(tracked, way)


def _both_ways(way: Any, back: Any) -> set[Flow]:
    target = (back.saddr, back.sport)
    return {Flow(way.daddr, way.dport, target), Flow("", way.dport, target)}


async def _delete(tracked: AsyncNFCTSocket, way: Any) -> None:
    try:
        await tracked.entry("del", tuple_orig=way)
    except NetlinkError:
        pass  # it has ended by itself


def _flows(by_scheme: Mapping[Scheme, Sequence[Vip]]) -> set[Flow]:
    return {
        Flow(vip.address, vip.port, target)
        for vips in by_scheme.values()
        for vip in vips
        if vip.protocol == "udp"
        for target in vip.targets
    }


def _family(flow: Flow) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in flow.target[0] else socket.AF_INET
