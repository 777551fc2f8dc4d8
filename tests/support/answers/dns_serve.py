"""``python dns_serve.py ADDRESSES UPLINKS [UPSTREAM]``: the node's server on port 53 of addresses, until input ends."""

from __future__ import annotations

import asyncio
import sys

from answers.dns_world import ROWS, ZONE

from isthmus.dns import Server
from isthmus.model.tables import NAMES, PODS
from isthmus.statedb import Database


async def main(addresses: str, uplinks: str, upstream: str = "") -> None:
    """Serve; ``upstream``: an address of the cluster DNS, nobody's where none is given."""
    db = Database(NAMES, PODS)
    with db.write() as txn:
        for row in ROWS:
            txn.put(NAMES, row)
    given = tuple(filter(None, uplinks.split(",")))
    listen = [(each, 53) for each in addresses.split(",")]
    passed_on = (upstream, 53) if upstream else ("127.0.0.1", 5353)
    server = Server(db, zone=ZONE, listen=listen, upstream=passed_on, uplinks=given, cluster_domain="cluster.local")
    run = asyncio.create_task(server.run())
    await server.listening()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    run.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
