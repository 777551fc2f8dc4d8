"""A node's keys of signatures: files of secrets in, keys of the present epochs out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

import isthmus
from isthmus import statefile
from isthmus.clusterset import Folder
from isthmus.config import Config, IdentitySection
from isthmus.identity import pairs
from isthmus.identity.epoch_keys import KeySet
from isthmus.identity.schedule import Schedule
from isthmus.model.names import ClusterName
from isthmus.processes.pair_keys import NodeKeys, OwnPair

DEPLOY = Path(isthmus.__file__).parents[2] / "deploy"
IDS = {ClusterName("c2"): 2, ClusterName("c3"): 3}
OWN = bytes([1]) * 32
NOON = 1_795_780_800.0


def file(peer: str) -> bytes:
    public = Schedule(key=bytes([IDS[ClusterName(peer)]]) * 32).public()
    return pairs.encode(pairs.pair(Schedule(key=OWN), public, own="c1", peer=peer, now=NOON))


def signed_to(current: KeySet) -> set[int]:
    """Ids of the clusters towards which there are keys."""
    return {cluster for cluster, _ in current.sign}


class Node:
    """A node with files, a clock and peers."""

    def __init__(self, folder: Path, *, secret: str = "") -> None:
        self.folder = folder
        self.now = NOON + 5
        self.ids = dict(IDS)
        self.put: list[KeySet] = []
        section = IdentitySection(enabled=True, directory=str(folder), secret=secret)
        self.keys = NodeKeys(Config(identity=section), now=self.time)

    def time(self) -> float:
        return self.now

    def write(self, *peers: str) -> None:
        for peer in peers:
            statefile.replace(self.folder / peer, file(peer))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        task = asyncio.create_task(self.keys.run(self.put.append, lambda: self.ids))
        try:
            await asyncio.sleep(0.5)
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.write("c2", "c3")
    return made


@pytest.mark.looptime
async def test_keys_are_put_when_an_epoch_a_file_or_a_peer_changes_and_not_else(node: Node) -> None:
    async with node.running():
        await asyncio.sleep(10)
        assert [signed_to(each) for each in node.put] == [{2, 3}]
        node.now += 60
        await asyncio.sleep(1)
        assert signed_to(node.put[1]) == {2, 3}
        assert node.put[1].sign != node.put[0].sign
        del node.ids[ClusterName("c2")]
        await asyncio.sleep(1)
        (node.folder / "c3").unlink()
        await asyncio.sleep(1)
        assert [signed_to(each) for each in node.put[2:]] == [{3}, set()]
        node.write("c3")
        await asyncio.sleep(1)
        node.now -= 3600  # the clock is set
        await asyncio.sleep(10)
        assert [each.until for each in node.put[4:]] == [NOON + 120, NOON - 3480]


@pytest.mark.looptime
async def test_a_file_that_is_half_written_or_cannot_be_read_is_one_problem_and_keeps_its_keys(node: Node) -> None:
    async with node.running():
        (node.folder / "c2").write_bytes(file("c2")[:100])
        await asyncio.sleep(1)
        assert node.put[-1] == node.put[0]
        [problem] = node.keys.problems()
        assert "c2 are not read anew: it is no JSON of a pair's secrets, or is cut off" in problem
        (node.folder / "c2").unlink()
        os.mkfifo(node.folder / "c2")
        await asyncio.sleep(1)
        assert node.put[-1] == node.put[0]
        assert node.keys.problems() == ["keys of signatures of c2 are not read anew: it is not a regular file"]
        node.now += 60
        await asyncio.sleep(1)
        assert signed_to(node.put[-1]) == {2, 3}, "and they go on with the epochs"
        (node.folder / "c2").unlink()
        node.write("c2")
        await asyncio.sleep(1)
        assert node.keys.problems() == []


@pytest.mark.looptime
async def test_an_agent_that_starts_leaves_the_kernel_its_keys_until_it_has_read_the_secret(tmp_path: Path) -> None:
    made = Node(tmp_path, secret="isthmus-pair-keys")
    async with made.running():
        await asyncio.sleep(10)
        assert made.put == []
        made.write("c2")
        await made.keys.files.replace({}, partial=False)
        await asyncio.sleep(1)
        assert [signed_to(each) for each in made.put] == [{2}]


@pytest.mark.looptime
async def test_guards_do_not_wait_for_ever_for_a_secret_that_cannot_be_read(tmp_path: Path) -> None:
    async with Node(tmp_path, secret="isthmus-pair-keys").running() as made:
        await asyncio.sleep(Config().sync.timeout)
        assert [signed_to(each) for each in made.put] == [set()]


def test_without_files_there_are_no_keys_and_no_problem(tmp_path: Path) -> None:
    made = Node(tmp_path / "none")
    assert made.keys.look(IDS).sign == {}
    assert made.keys.problems() == []


def test_agents_may_read_the_secrets_of_signatures_and_nobody_but_the_keeper_the_key_that_they_follow_from() -> None:
    readers: dict[str, set[str]] = {}
    for path in DEPLOY.rglob("*.yaml"):
        if "chart" in path.parts:
            continue
        for body in yaml.safe_load_all(path.read_text()):
            if isinstance(body, dict) and body.get("kind") in ("Role", "ClusterRole"):
                for rule in body["rules"]:
                    if "secrets" in rule.get("resources", ()):
                        for name in rule.get("resourceNames", ["every Secret"]):
                            readers.setdefault(name, set()).add(body["metadata"]["name"])
    assert readers["isthmus-keys"] == {"isthmus-keys"}
    assert readers["isthmus-pair-keys"] == {"isthmus-keys", "isthmus-agent"}
    assert "every Secret" not in readers


def test_a_next_pair_that_a_wrong_clock_has_planned_is_one_problem_until_another_one_is_requested(
    tmp_path: Path,
) -> None:
    clock = [NOON]
    own_pair, folder = OwnPair(every=90 * 86_400.0, now=lambda: clock[0]), Folder(tmp_path)
    own_pair.ensure(folder, {})
    clock[0] += 5_000 * 86_400
    own_pair.ensure(folder, {})
    clock[0] = NOON + 60
    assert own_pair.ensure(folder, {}) == []
    assert "a clock was wrong" in own_pair.problem
    assert own_pair.ensure(folder, {"signing": "2026-11-27T12:00:30Z"}) == ["signing.key", "signing.pub"]
    assert own_pair.problem == ""
    assert own_pair.ensure(folder, {"signing": "2026-11-27T12:00:30Z"}) == []
