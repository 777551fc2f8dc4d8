"""``python proxy_serve.py DIRECTORY UPLINKS``: an Envoy that answers on port 15100, to the end of its input.

A line of its input replaces the Envoy; another line of output has the process then.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from uplink_node import ADDRESS

from isthmus.model.tables import XDS, XDS_REFUSED, XDS_SERVED
from isthmus.proxy import AdsServer, Settings, Supervisor, Wanted, binary
from isthmus.proxy.listeners import Chain, http_listener
from isthmus.proxy.resources import resource
from isthmus.statedb import Database

PORT = 15_100


async def main(directory: Path, uplinks: str) -> None:
    """Serve."""
    db = Database(XDS, XDS_REFUSED, XDS_SERVED)
    answer = {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "answered"}}}
    hosts = [{"name": "all", "domains": ["*"], "routes": [answer]}]
    with db.write() as txn:
        txn.put(XDS, http_listener("echo", [(ADDRESS, PORT)], [Chain("echo", ())], "HTTPRoute demo/r", "demo/echo"))
        txn.put(XDS, resource("routes", "echo", "HTTPRoute demo/r", "demo/echo", virtual_hosts=hosts))
    wanted = Wanted(directory)
    given = tuple(filter(None, uplinks.split(",")))
    supervisor = Supervisor(Settings(binary.find(), directory, concurrency=2, drain_time=1.0, uplinks=given))
    parts = [asyncio.create_task(AdsServer(db, wanted.ads).run()), asyncio.create_task(supervisor.run())]
    wanted.write("test")
    await db.until(lambda now: bool(list(now.all(XDS_SERVED))))
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
