"""A peer's etcd goes for longer than the cache lifetime while its pods answer: run in a network of its own, as root.

python tests/support/peers/lapse_story.py FOLDER, within `unshare -n`. A line of JSON for each part of the story.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from peers.clusterset_peers import OWN, Peers, announce, service
from peers.etcd_server import running
from rows.balancing_world import make

from isthmus import loadbalancer
from isthmus.clusterset.peers.follower import Follower
from isthmus.config import ClustersetSection, HealthSection
from isthmus.etcd import Session, binary
from isthmus.health import Prober
from isthmus.model import tables
from isthmus.model.names import ClusterName
from isthmus.model.policies import HealthCheck, Policy
from isthmus.processes.agent import KINDS
from isthmus.processes.start import tables_of
from isthmus.statedb import Database, Derivations

CHECK = HealthCheck(interval=0.3, timeout=10.0)
ANSWERS, SILENT = "10.2.1.1", "10.2.1.2"


def own_network() -> None:
    """Addresses of pods, unreachable from outside."""
    for command in ("link set lo up", f"addr add {ANSWERS}/32 dev lo", f"addr add {SILENT}/32 dev lo"):
        subprocess.run(["ip", *command.split()], check=True)


def tables_with_rows() -> tuple[Database, Derivations]:
    """The tables of an agent; an import stands in them."""
    derived = loadbalancer.derived(ClusterName("c1"), "n1")
    db = Database(*tables_of(derived, tables.CLUSTERS))
    with db.write() as txn:
        txn.put(tables.SERVICES, make.derived())
        txn.put(tables.IMPORTS, make.imported())
        txn.put(tables.POLICIES, Policy(name=make.ECHO, target=make.ECHO, health=CHECK))
    return db, Derivations(db, *derived)


async def until_rows(db: Database, part: str, wanted: list[list[Any]]) -> None:
    """Wait until the backends are these, and say so."""

    def seen() -> list[list[Any]]:
        rows = db.snapshot().all(tables.BACKENDS)
        return sorted([row.key.address, row.healthy, row.lapsed] for row in rows)

    try:
        async with asyncio.timeout(60):
            await db.until(lambda _: seen() == wanted)
    except TimeoutError:
        sys.exit(f"{part}: want {wanted}, have {seen()}")
    print(json.dumps({part: wanted}), flush=True)


async def main(folder: Path) -> None:
    """The story."""
    db, derivations = tables_with_rows()
    pod = await asyncio.start_server(lambda _, writer: writer.close(), ANSWERS, 8080)
    with running(binary.find(), folder / "etcd") as etcd:
        async with Session([etcd.endpoint]) as session:
            await etcd.ready(session)
            await service(session, "c2", make.DERIVED, ANSWERS, SILENT, number=2)
            await announce(session, "c2", 2)
        peers = Peers(folder / "peers", etcd.endpoint)
        peers.add("c2")
        section = ClustersetSection(directory=str(peers.folder), cache_lifetime=2.0)
        follower = Follower(db, cluster=OWN, section=section, kinds=KINDS)
        async with asyncio.TaskGroup() as tasks:
            parts = (follower.run(), derivations.run(), Prober(db, HealthSection(), node="n1").run())
            running_parts = [tasks.create_task(part) for part in parts]
            await until_rows(db, "heard", [[ANSWERS, True, False], [SILENT, False, False]])
            etcd.stop()
            await until_rows(db, "lapsed", [[ANSWERS, True, True]])
            pod.close()
            await until_rows(db, "the pod ends too", [])
            pod = await asyncio.start_server(lambda _, writer: writer.close(), ANSWERS, 8080)
            etcd.start()
            await until_rows(db, "heard again", [[ANSWERS, True, False], [SILENT, False, False]])
            for task in running_parts:
                task.cancel()
    pod.close()


if __name__ == "__main__":
    own_network()
    asyncio.run(main(Path(sys.argv[1])))
