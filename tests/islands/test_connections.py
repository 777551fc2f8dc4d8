"""Connections through Envoys of a node and of gateways, many of them, and what they outlive: ``make test-islands``."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from meshes.island_load import Gateway, Load, LoadedIslands, http, loaded_islands, tcp
from meshes.island_world import C3, DOMAIN, reset
from meshes.route_world import C1, C2

from isthmus.clusterset import Folder, certificates
from isthmus.model.names import ClusterName
from isthmus.model.services import Port

pytestmark = [pytest.mark.needs("envoy"), pytest.mark.islands]

ECHO = "demo/echo"
TIMES = 100
AT_ONCE = 5
SIZE = 4 * 1024 * 1024


@pytest.fixture
async def world() -> AsyncIterator[LoadedIslands]:
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        async with loaded_islands(Path(short), connect_timeout=5.0) as made:
            made.follow()
            yield made


async def called(world: LoadedIslands) -> tuple[str, int]:
    """Where calls of c2's export go, once all of its gateways are healthy."""
    world.world.rows.imported(ECHO, c2=["10.1.0.1:8080"])
    await world.healthy(C2)
    await world.planned(ECHO, C2)
    return await world.world.target(ECHO)


async def times(work: Callable[[], Awaitable[object]]) -> Counter[object]:
    """What comes of a hundred times, a few at once."""
    gate, found = asyncio.Semaphore(AT_ONCE), Counter[object]()

    async def one() -> None:
        async with gate, asyncio.timeout(60):
            found[await work()] += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(TIMES):
            tasks.create_task(one())
    return found


async def test_4_mib_that_the_server_closes_behind_arrive_whole_each_time(world: LoadedIslands) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(SIZE))
        await writer.drain()

    world.export(ECHO, C2, await world.serving(serve))
    at = await called(world)

    async def download() -> int:
        reader, writer = await asyncio.open_connection(*at)
        found = len(await reader.read(-1))
        writer.close()
        return found

    assert await times(download) == {SIZE: TIMES}


async def test_the_client_closes_its_half_first_and_the_answer_to_all_of_it_arrives(world: LoadedIslands) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d" % len(await reader.read(-1)))
        await writer.drain()

    world.export(ECHO, C2, await world.serving(count))
    at = await called(world)

    async def upload() -> bytes:
        reader, writer = await asyncio.open_connection(*at)
        writer.write(bytes(1_000_000))
        writer.write_eof()
        found = await reader.read(-1)
        writer.close()
        return found

    assert await times(upload) == {b"1000000": TIMES}


async def test_the_server_closes_its_half_first_and_all_that_follows_reaches_it(world: LoadedIslands) -> None:
    received: Counter[int] = Counter()

    async def answer_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"done")
        writer.write_eof()
        received[len(await reader.read(-1))] += 1

    world.export(ECHO, C2, await world.serving(answer_first))
    at = await called(world)

    async def upload() -> bytes:
        reader, writer = await asyncio.open_connection(*at)
        found = await reader.read(-1)
        writer.write(bytes(1_000_000))
        writer.write_eof()
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        return found

    assert await times(upload) == {b"done": TIMES}
    async with asyncio.timeout(60):
        while received.total() < TIMES:  # noqa: ASYNC110 of other tasks
            await asyncio.sleep(0.02)
    assert received == {1_000_000: TIMES}


async def test_a_reset_of_the_client_ends_the_connection_of_the_pod_each_time(world: LoadedIslands) -> None:
    ended = 0

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal ended
        writer.write(b"hello\n")
        try:
            await reader.read(-1)
        finally:
            ended += 1

    world.export(ECHO, C2, await world.serving(hold))
    at = await called(world)

    async def begin_and_reset() -> bytes:
        reader, writer = await asyncio.open_connection(*at)
        found = await reader.readline()
        reset(writer)
        return found

    assert await times(begin_and_reset) == {b"hello\n": TIMES}
    async with asyncio.timeout(60):
        while ended < TIMES:  # noqa: ASYNC110 of other tasks
            await asyncio.sleep(0.02)


async def test_a_reset_of_the_pod_ends_the_connection_of_the_client_each_time(world: LoadedIslands) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        reset(writer)

    world.export(ECHO, C2, await world.serving(refuse))
    at = await called(world)

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection(*at)
        writer.write(b"x\n")
        try:
            return await reader.read(-1)
        except ConnectionResetError:
            return b""
        finally:
            writer.transport.abort()

    assert await times(ask) == {b"": TIMES}


@pytest.mark.parametrize(("speaks", "ask"), [("", tcp), ("http", http("GET"))], ids=["tcp", "http"])
async def test_affinity_is_one_pod_whichever_gateway_and_however_it_learned_of_the_pods(
    world: LoadedIslands, speaks: str, ask: Callable[[str, int, int], Awaitable[str]]
) -> None:
    pods = [await world.pod(f"pod-{number}") for number in range(5)]
    how: dict[str, Any] = {"ports": (Port("", 80, app_protocol=speaks),), "affinity": "ClientIP"}
    world.export(ECHO, C2, *pods[:2], gateway=0, **how)
    world.export(ECHO, C2, *pods[3:], gateway=1, **how)
    world.world.rows.imported(ECHO, app_protocol=speaks, c2=["10.1.0.1:8080"])
    await world.healthy(C2)
    await world.planned(ECHO, C2)
    at = await world.world.target(ECHO)
    assert len(await times(lambda: ask(*at, 1))) > 1  # gateways that know different pods cannot agree
    world.export(ECHO, C2, *pods, **how)
    both = await used(world)
    await until_agreed(lambda: ask(*at, 1))
    assert [*(await times(lambda: ask(*at, 1))).values()] == [TIMES]
    assert all(now > before for now, before in zip(await used(world), both, strict=True))


async def used(world: LoadedIslands) -> list[int]:
    """Connections that each of c2's gateways has had."""
    name = "listener.gateway.downstream_cx_total"
    return [(await each.stats(name)).get(name, 0) for each in world.gateways[C2]]


async def until_agreed(ask: Callable[[], Awaitable[str]]) -> None:
    """Wait until twenty calls in a row reach one pod."""
    async with asyncio.timeout(60):
        while len({await ask() for _ in range(20)}) > 1:
            pass


async def test_a_held_connection_outlives_weights_discovery_services_and_the_gateways_envoy(
    world: LoadedIslands,
) -> None:
    """The other side's Envoy is replaced, and the one that served ends when its connections have."""
    world.export(ECHO, C2, await world.pod("c2"))
    at = await called(world)
    held = [await asyncio.open_connection(*at) for _ in range(6)]  # by both gateways, but once in 2^5

    async def still() -> None:
        for reader, writer in held:
            writer.write(b"still there\n")
            async with asyncio.timeout(60):
                assert await reader.readline() == b"c2\n"

    await still()
    world.world.rows.imported(ECHO, c2=[f"10.1.0.{number}:8080" for number in range(1, 9)])  # another weight
    await still()
    world.export(ECHO, C3, await world.pod("c3"))
    world.world.rows.imported(ECHO, c2=["10.1.0.1:8080"], c3=["10.1.0.1:8080"])  # another island
    await world.healthy(C3)
    await world.planned(ECHO, C2, C3)
    await still()
    world.world.rows.imported(ECHO, c2=["10.1.0.1:8080"])
    await world.planned(ECHO, C2)
    await still()
    for envoy in (world.world.node, *(each.envoy for each in world.gateways[C2])):
        await envoy.stop("ads")
    await still()
    for envoy in (world.world.node, *(each.envoy for each in world.gateways[C2])):
        envoy.serve()
    await still()
    for each in world.gateways[C2]:
        before = each.pids()
        each.envoy.supervisor.replace()
        await each.replaced(before)
    await asyncio.sleep(3)  # longer than the drain
    await still()
    assert await tcp(*at, 1) == "c2"
    for _, writer in held:
        writer.close()


async def test_an_authority_gives_way_to_another_under_load_and_no_handshake_fails(
    world: LoadedIslands, tmp_path: Path
) -> None:
    """By the folders of keys, on both sides at once: both are trusted, the new one signs, the old is forgotten."""
    world.export(ECHO, C2, await world.pod("c2"))
    await called(world)
    folders = {name: folder_of(tmp_path, name, world.world.authorities[name]) for name in (C1, C2)}
    load = Load(world, ECHO)
    running = asyncio.create_task(load.run(10))
    for name, folder in folders.items():
        folder.begin_rotation(name)
    trust(world, folders)
    await asyncio.sleep(2.5)
    for name, folder in folders.items():
        folder.switch()
        assert {"gateway", "node"} <= {*folder.ensure(name, ["127.0.0.1"], days=30, domain=DOMAIN)}
    trust(world, folders)
    for each in world.gateways[C2]:
        await renewed(world, each, folders[C2].pair("gateway"))
    held, fresh = world.world.node_secrets.identity, world.world.saved(folders[C1].pair("node"))
    fresh.key.replace(held.key)
    fresh.certificate.replace(held.certificate)
    await asyncio.sleep(2.5)
    for folder in folders.values():
        folder.end_rotation()
    trust(world, folders)
    await running
    await load.ended()
    assert len(load.calls) == 2000
    assert load.failed() == []
    # Nor one that no call noticed, since another connect was made.
    found = await world.world.node_stats("cluster.island.*upstream_cx_connect_fail")
    assert found["cluster.island c2.upstream_cx_connect_fail"] == 0


def folder_of(path: Path, name: ClusterName, authority: certificates.Pair) -> Folder:
    """The folder of keys of a cluster that has this authority, as `isthmus keys` has it."""
    folder = Folder(path / name)
    folder.path.mkdir()
    folder.save("ca.crt", authority.certificate)
    folder.save("ca.key", authority.key)
    folder.ensure(name, ["127.0.0.1"], days=30, domain=DOMAIN)
    return folder


def trust(world: LoadedIslands, folders: Mapping[ClusterName, Folder]) -> None:
    """Bring each cluster's bundle to the other one, as a link does."""
    for name, folder in folders.items():
        (world.world.trust / f"{name}.ca.crt").write_bytes(folder.bundle)
    world.renew()


async def renewed(world: LoadedIslands, gateway: Gateway, pair: certificates.Pair) -> None:
    """Give a gateway another certificate, and wait until it is shown."""
    held, fresh = gateway.secrets.identity, world.world.saved(pair)
    fresh.key.replace(held.key)
    fresh.certificate.replace(held.certificate)
    want = ssl.PEM_cert_to_DER_cert(held.certificate.read_text())
    async with asyncio.timeout(60):
        while await world.world.shown(gateway.at) != want:  # noqa: ASYNC110 of another process
            await asyncio.sleep(0.05)
