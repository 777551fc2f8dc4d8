"""A node's load balancing, and a part of its own that connects to backends and writes `probes`, which plans follow.

python examples/health-checker/health_checker.py examples/health-checker/node.toml
"""

import asyncio
import sys
from pathlib import Path

from isthmus import loadbalancer
from isthmus.admin import Server
from isthmus.config import Config, load
from isthmus.model import tables
from isthmus.model.balancing import BackendKey, Probe
from isthmus.model.names import ClusterName
from isthmus.processes.programming import TABLES, Programming
from isthmus.processes.start import start, tables_of
from isthmus.sources.files import Files
from isthmus.statedb import Database, Derivations


async def probe(key: BackendKey) -> Probe:
    """One connection, and what became of it."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(key.address, key.port), 1.0)
        writer.close()
    except OSError as why:  # TimeoutError is one
        return Probe(key, healthy=False, reason=str(why) or "no answer within 1 s")
    return Probe(key, healthy=True)


async def check(db: Database, *, every: float) -> None:
    """Probe all backends at a time, for ever; who is no backend any more has no verdict either."""
    while True:
        keys = {row.key for row in db.snapshot().all(tables.BACKENDS) if row.key.protocol == "TCP"}
        found = await asyncio.gather(*map(probe, keys))
        with db.write() as txn:
            for gone in {row.key for row in txn.all(tables.PROBES)} - keys:
                txn.delete(tables.PROBES, gone)
            for verdict in found:
                txn.put(tables.PROBES, verdict)
        await asyncio.sleep(every)


async def main(config: Config) -> None:
    """Wire the parts and keep them going."""
    derived = loadbalancer.derived(ClusterName(config.cluster.name), config.node.name, services="all")
    db = Database(*tables_of(derived, *TABLES))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Files(db, Path(config.sources.files)).run())
        tasks.create_task(Derivations(db, *derived).run())
        tasks.create_task(check(db, every=0.5))
        tasks.create_task(Server(db, config.admin.socket).run())
        if config.datapath.cgroup:
            tasks.create_task(Programming(db, config).run())


if __name__ == "__main__":
    sys.exit(start("health-checker", main, load(Path(sys.argv[1]), environment={})))
