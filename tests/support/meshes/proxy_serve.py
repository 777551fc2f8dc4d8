"""``python proxy_serve.py DIRECTORY UPLINKS``: an Envoy that answers on port 15100, to the end of its input.

On port 15101 it sends datagrams on to the one that comes first in its own namespace: to 127.0.0.1:15102.

A line of its input replaces the Envoy; another line of output has the process then.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datapath_worlds.uplink_node import ADDRESS

from isthmus.gateway.udp import ROUTE, UDP_PROXY
from isthmus.model.tables import XDS, XDS_REFUSED, XDS_SERVED
from isthmus.model.xds import Resource
from isthmus.proxy import AdsServer, BootstrapFile, Settings, Supervisor, binary
from isthmus.proxy.listeners import http_listener
from isthmus.proxy.messages import packed
from isthmus.proxy.resources import address, resource
from isthmus.statedb import Database

PORT, DATAGRAMS, ECHO = 15_100, 15_101, 15_102


class Echo(asyncio.DatagramProtocol):
    """Sends back what it gets."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._transport.sendto(data, addr)


def datagrams() -> Iterator[Resource]:
    """A listener of UDP, and where it sends datagrams."""
    host = {"endpoint": {"address": address("127.0.0.1", ECHO)}}
    where = {"cluster_name": "datagrams", "endpoints": [{"lb_endpoints": [host]}]}
    yield resource("cluster", "datagrams", "Service demo/r", "demo/echo", type="STATIC", load_assignment=where)
    route = {"action": {"name": "route", "typed_config": packed(ROUTE, cluster="datagrams")}}
    proxy = packed(UDP_PROXY, stat_prefix="datagrams", matcher={"on_no_match": route})
    yield resource(
        "listener",
        "datagrams",
        "Service demo/r",
        "demo/echo",
        address=address(ADDRESS, DATAGRAMS, protocol="UDP"),
        listener_filters=[{"name": "envoy.filters.udp_listener.udp_proxy", "typed_config": proxy}],
        udp_listener_config={},
        enable_reuse_port={"value": True},
    )


async def main(directory: Path, uplinks: str) -> None:
    """Serve."""
    db = Database(XDS, XDS_REFUSED, XDS_SERVED)
    answer = {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "answered"}}}
    hosts = [{"name": "all", "domains": ["*"], "routes": [answer]}]
    with db.write() as txn:
        where = [(ADDRESS, PORT)]
        row = http_listener("echo", where, "HTTPRoute demo/r", "demo/echo", cluster="datagrams", host="echo.demo")
        txn.put(XDS, row)
        for each in datagrams():
            txn.put(XDS, each)
        txn.put(XDS, resource("routes", "echo", "HTTPRoute demo/r", "demo/echo", virtual_hosts=hosts))
    await asyncio.get_running_loop().create_datagram_endpoint(Echo, local_addr=("127.0.0.1", ECHO))
    wanted = BootstrapFile(directory)
    given = tuple(filter(None, uplinks.split(",")))
    supervisor = Supervisor(Settings(binary.find(), directory, concurrency=2, drain_time=1.0, uplinks=given))
    parts = [asyncio.create_task(AdsServer(db, wanted.ads).run()), asyncio.create_task(supervisor.run())]
    wanted.write("test")
    await db.until(lambda now: len(list(now.all(XDS_SERVED))) == 2)
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        before = supervisor.stats().running
        supervisor.replace()
        while supervisor.stats().running in (0, before) or supervisor.stats().draining:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        print(f"replaced {before} by {supervisor.stats().running}", flush=True)
    for part in parts[::-1]:
        part.cancel()
    await asyncio.gather(*parts, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
