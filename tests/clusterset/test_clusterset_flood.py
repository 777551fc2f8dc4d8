"""A peer that writes keys as fast as its etcd takes them: bounded in memory, and no other peer waits.

``ISTHMUS_FLOOD=500000`` (``make test-flood``) is the size of the specification; without it a small one runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.clusterset_peers import Following, Peers, announce, following, service
from peers.etcd_server import EtcdServer, running

from isthmus.clusterset.peers import sinks
from isthmus.etcd import Put, Session, binary

KEYS = int(os.environ.get("ISTHMUS_FLOOD", "25000"))
TAKEN = 16_000
"""Of 20,000 endpoints (``clusterset.max_endpoints``) the share of one namespace that is alone."""
MOST_MEMORY = 200 * 1024 * 1024
"""Above what the process had before; at any number of keys."""

pytestmark = pytest.mark.timeout(300 + KEYS // 500)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[EtcdServer, EtcdServer]]:
    quota = ("--quota-backend-bytes", str(4 * 1024**3))
    with running(binary.find(), tmp_path / "bad", *quota) as bad, running(binary.find(), tmp_path / "good") as good:
        yield bad, good


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def record(n: int) -> Put:
    fields = {"cluster": "c2", "namespace": "demo", "name": f"s{n}", "shared": True, "clusterID": 2}
    return Put(f"cilium/state/services/v1/c2/demo/s{n}", json.dumps(fields).encode())


async def flood(session: Session) -> None:
    for first in range(0, KEYS, 100):
        await session.txn((), [record(n) for n in range(first, first + 100)])


async def withdraw(session: Session) -> None:
    """Delete everything of c2, in portions that the etcd does within its time."""
    for digit in range(10):
        for second in "0123456789/":  # "/" comes before the digits: the keys that end with the first one
            prefix = f"cilium/state/services/v1/c2/demo/s{digit}"
            await session.delete_prefix(prefix + second if second != "/" else prefix)


async def change(session: Session, seen: Following, number: int) -> float:
    """Seconds until a change of the good peer is in the table."""
    address = f"10.3.{number // 250}.{number % 250 + 1}"
    began = time.monotonic()
    await service(session, "c3", "demo/echo", address, number=3)
    await seen.until(lambda s: seen.addresses("c3") == {address})
    return time.monotonic() - began


@pytest.mark.slow
async def test_a_flood_is_bounded_in_memory_and_delays_no_other_peer(
    servers: tuple[EtcdServer, EtcdServer], tmp_path: Path
) -> None:
    bad, good = servers
    peers = Peers(tmp_path / "clusters", bad.endpoint)
    peers.add("c2")
    peers.add("c3", endpoint=good.endpoint)
    async with Session([bad.endpoint]) as bad_session, Session([good.endpoint]) as good_session:
        await bad.ready(bad_session)
        await good.ready(good_session)
        await announce(bad_session, "c2", 2)
        await announce(good_session, "c3", 3)
        async with following(peers, kinds=("services",)) as seen:
            await seen.state("c2", "ready")
            await seen.state("c3", "ready")
            before = resident()
            took: list[float] = []
            flooding = asyncio.create_task(flood(bad_session))
            while not flooding.done():
                took.append(await change(good_session, seen, len(took)))
                await asyncio.sleep(0.2)
            await flooding
            await seen.until(lambda s: seen.cluster("c2").dropped == min(KEYS - TAKEN, sinks.RECORD_LIMITS.keys))
            took.append(await change(good_session, seen, len(took)))
            grown = resident() - before
            print(f"{KEYS} keys: {len(took)} changes of another peer, slowest {max(took):.2f} s; {grown / 1e6:.0f} MB")
            assert seen.count("c2") == TAKEN
            assert grown < MOST_MEMORY
        async with following(peers, kinds=("services",)) as seen:
            await seen.state("c3", "ready")
            await seen.state("c2", "ready")
            assert seen.count("c2") == TAKEN
            await seen.until(lambda s: seen.cluster("c2").dropped == KEYS - TAKEN)
            await withdraw(bad_session)
            await service(bad_session, "c2", "demo/echo", "10.2.1.1", number=2)
            await seen.state("c2", "ready")
            await seen.until(lambda s: seen.addresses("c2") == {"10.2.1.1"})
