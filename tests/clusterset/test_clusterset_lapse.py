"""A peer is away for longer than the cache lifetime: of its backends those stay that probes find alive."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from peers.clusterset_peers import OWN
from rows.balancing_world import World, make

from isthmus.clusterset.peers.cache import Cache
from isthmus.clusterset.peers.follower import Follower
from isthmus.clusterset.peers.timings import FollowerTimings
from isthmus.clusterset.records import endpoints
from isthmus.clusterset.records.identity import ClusterConfig
from isthmus.config import ClustersetSection
from isthmus.model.balancing import BackendKey, Probe
from isthmus.model.names import ClusterName
from isthmus.model.sources import CLUSTERSET
from isthmus.processes.agent import KINDS

ROOT = Path(__file__).resolve().parents[2]
C2, C3 = ClusterName("c2"), ClusterName("c3")
ADDRESSES = [f"10.2.1.{n}" for n in range(1, 6)]
LIFETIME = 600.0

verdicts = st.dictionaries(st.sampled_from(ADDRESSES), st.booleans())


def probe(address: str, healthy: bool, cluster: ClusterName = C2) -> Probe:
    return Probe(BackendKey(make.DERIVED, cluster, address, 8080, "TCP"), healthy)


@given(published=st.sets(st.sampled_from(ADDRESSES)), found=verdicts, lapsed=st.booleans())
def test_a_backend_that_lapsed_is_there_exactly_while_a_probe_finds_it_alive(
    published: set[str], found: dict[str, bool], lapsed: bool
) -> None:
    world = World().put(make.derived(), make.imported(), *(probe(*each) for each in found.items()))
    world.put(
        structs.replace(make.endpoints("c2", *sorted(published)), lapsed=lapsed), make.endpoints("c3", "10.3.1.1")
    )
    seen = {(b.key.cluster, b.key.address): (b.healthy, b.lapsed) for b in world.backends}
    wanted = {(C2, each): (found.get(each, True), False) for each in published}
    if lapsed:
        wanted = {(C2, each): (True, True) for each in published if found.get(each)}
    assert seen == wanted | {(C3, "10.3.1.1"): (True, False)}


def test_endpoints_of_another_source_take_precedence_over_lapsed_ones() -> None:
    world = World().put(make.derived(), make.imported(), probe("10.2.1.1", True))
    world.put(structs.replace(make.endpoints("c2", "10.2.1.1"), lapsed=True))
    world.put(make.endpoints("c2", "10.2.1.2", source="karmada"))
    assert [(b.key.address, b.lapsed) for b in world.backends] == [("10.2.1.2", False)]


def remembered(folder: Path, *addresses: str) -> None:
    """What an earlier process last read of c2, just now; c2 is out of reach."""
    row = structs.replace(make.endpoints("c2", *addresses), source=CLUSTERSET, part=endpoints.PART)
    Cache(str(folder / "state")).save("services", C2, ClusterConfig(2), [row])
    (folder / "peers").mkdir()
    (folder / "peers" / "c2").write_text("endpoints: nowhere")


@pytest.mark.looptime
async def test_it_lapses_when_the_lifetime_ends_and_an_endpoint_that_fails_a_probe_is_removed_for_good(
    tmp_path: Path,
) -> None:
    remembered(tmp_path, "10.2.1.1", "10.2.1.2", "10.2.1.3")
    world = World()
    world.put(make.derived(), make.imported(), probe("10.2.1.1", True), probe("10.2.1.2", False))
    directory, state = str(tmp_path / "peers"), str(tmp_path / "state")
    section = ClustersetSection(directory=directory, state=state, cache_lifetime=LIFETIME)
    timings = FollowerTimings(look_every=60.0)
    follower = Follower(world.db, cluster=OWN, section=section, kinds=KINDS, timings=timings)
    task = asyncio.create_task(follower.run())
    await asyncio.sleep(LIFETIME - 10)
    assert [b.key.address for b in world.backends] == ["10.2.1.1", "10.2.1.2", "10.2.1.3"]
    await asyncio.sleep(20)
    assert [(b.key.address, b.lapsed) for b in world.backends] == [("10.2.1.1", True)]
    await asyncio.sleep(3600)
    assert [b.key.address for b in world.backends] == ["10.2.1.1"]
    world.put(probe("10.2.1.1", False))
    assert world.backends == []
    world.delete(probe("10.2.1.1", False))  # as who probes forgets what is no backend
    assert world.backends == []
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.needs("unshare")
@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
@pytest.mark.slow
def test_real_pods_that_answer_are_called_while_their_cluster_cannot_be_reached(tmp_path: Path) -> None:
    story = [sys.executable, "-m", "peers.lapse_story", str(tmp_path)]
    there = os.environ | {"PYTHONPATH": str(ROOT / "tests" / "support")}
    command = ["unshare", "-n", *story]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=there)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    parts = [next(iter(json.loads(line))) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert parts == ["heard", "lapsed", "the pod ends too", "heard again"]
