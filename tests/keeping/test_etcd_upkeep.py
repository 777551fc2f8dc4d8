"""An etcd that has reached its quota takes writes again, with what is wanted still in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from peers.etcd_server import EtcdServer, running

from isthmus.clusterset.keeping import maintenance
from isthmus.clusterset.keeping.maintenance import Upkeep, full
from isthmus.etcd import EtcdError, Session
from isthmus.processes.etcd import EtcdWatch
from isthmus.reflector import Transient

QUOTA = 4 << 20


@pytest.fixture
async def small(etcd_program: Path, tmp_path: Path) -> AsyncIterator[tuple[EtcdServer, Session]]:
    """An etcd with a small quota, of each version."""
    with running(etcd_program, tmp_path / "small", f"--quota-backend-bytes={QUOTA}") as server:
        async with Session([server.endpoint]) as session:
            await server.ready(session)
            yield server, session


async def fill(session: Session) -> None:
    """Overwrite one key until the etcd refuses writes: history fills it, not data."""

    async def overwrite() -> None:
        for number in range(200):
            await session.put("large", bytes([number]) * (256 << 10))

    with pytest.raises((EtcdError, Transient), match="space exceeded"):
        await overwrite()


async def test_an_etcd_without_space_is_cured_and_has_what_is_wanted(small: tuple[EtcdServer, Session]) -> None:
    _, session = small
    await session.put("wanted", b"1")
    await fill(session)
    assert full(await session.status())
    assert await Upkeep().look(session) == "cured"
    assert not full(await session.status())
    await session.put("wanted", b"2")
    kept = await session.get("wanted")
    assert kept is not None
    assert kept.value == b"2"


async def test_an_operator_displays_that_nothing_is_published_and_the_cure(small: tuple[EtcdServer, Session]) -> None:
    _, session = small
    watch = EtcdWatch()
    await fill(session)
    watching = asyncio.create_task(watch.run("isthmus-etcd", session))
    async with asyncio.timeout(60):
        while not (problems := watch.problems()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    watching.cancel()
    assert "NOSPACE" in problems[0]
    assert "no change of an export is published; 'isthmus keys' cures" in problems[0]


async def test_a_second_quota_that_is_reached_is_cured_as_well(small: tuple[EtcdServer, Session]) -> None:
    _, session = small
    upkeep = Upkeep()
    for cures in (1, 2):
        await fill(session)
        await upkeep.look(session)
        assert (upkeep.cures, upkeep.problem) == (cures, "")


async def test_an_etcd_with_space_is_left_alone(small: tuple[EtcdServer, Session]) -> None:
    _, session = small
    await session.put("a", b"1")
    assert await Upkeep().look(session) == ""


async def test_a_file_that_is_mostly_unused_shrinks(
    small: tuple[EtcdServer, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, session = small
    monkeypatch.setattr(maintenance, "WORTHWHILE", 1 << 20)
    for number in range(6):  # far from the quota
        await session.put("large", bytes([number]) * (256 << 10))
    await session.put("large", b"")
    before = await session.status()
    await session.compact(before.revision)
    async with asyncio.timeout(60):
        while await Upkeep().look(session) != "defragmented":
            await session.put("small", b"")  # etcd removes what is compacted by and by, and counts it with a write
            await asyncio.sleep(0.02)  # else these fill the file, where etcd is slow
    assert (await session.status()).db_size < 1 << 20
