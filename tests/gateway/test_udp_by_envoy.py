"""Datagrams from one island to another through the real Envoys of a node and of a gateway, and who is refused."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from meshes.island_datagrams import UDP, Client, DatagramPod, ask, endpoint_set, tunnel
from meshes.island_world import C3, DOMAIN, Islands, calling_with, expired, islands
from meshes.route_world import C1, C2
from msgspec.structs import replace

from isthmus.clusterset import certificates
from isthmus.gateway import naming, udp
from isthmus.gateway.http import TARGET
from isthmus.gateway.naming import service_sni
from isthmus.gateway.secrets import Identity
from isthmus.gateway.udp import TARGET_END
from isthmus.mcs.imports import MAX_DATAGRAM
from isthmus.model import tables
from isthmus.model.islands import GatewayCheck
from isthmus.model.names import ServiceName
from isthmus.model.services import Endpoint, Namespace, Port

pytestmark = pytest.mark.needs("envoy")

ECHO, SECRET, HIDDEN = (ServiceName(f"demo/{each}") for each in ("echo", "secret", "hidden"))
SNI = service_sni(ECHO, 80, DOMAIN, protocol="UDP")
PATH = "/.well-known/masque/udp/echo/80/"


@pytest.fixture
async def world() -> AsyncIterator[Islands]:
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        async with islands(Path(short)) as made:
            yield made


def export(world: Islands, name: ServiceName, *pods: DatagramPod, **fields: Any) -> None:
    world.export(name, ports=UDP, **fields)
    world.put_gateway(tables.ENDPOINT_SETS, endpoint_set(name, C2, *pods))


async def called(world: Islands, *pods: DatagramPod, **fields: Any) -> tuple[str, int]:
    """An export of c2 that c1 imports; where the plan sends c1's datagrams."""
    export(world, ECHO, *pods, **fields)
    world.rows.imported(ECHO, protocol="UDP", c2=["10.1.0.1:8080"])
    await world.healthy()
    return await world.target(ECHO)


async def pod(world: Islands, name: str = "c2", **fields: Any) -> DatagramPod:
    return await DatagramPod(name, **fields).start(world.stack)


async def test_a_datagram_reaches_a_pod_of_another_island_and_its_answer_comes_back(world: Islands) -> None:
    answering = await pod(world)
    at = await called(world, answering)
    assert await ask(at, b"hello", again=1.0) == b"c2 hello"
    assert set(answering.seen) == {b"hello"}
    [backend] = world.rows.rows(tables.BACKENDS)
    assert (backend.key.protocol, backend.stands_for) == ("UDP", 1)
    assert "10.1.0." not in repr([*world.rows.rows(tables.BACKENDS), *world.rows.rows(tables.XDS)])


@pytest.mark.parametrize("size", [1, 1_472, 9_000, MAX_DATAGRAM])
async def test_datagrams_of_every_size_pass_both_ways(world: Islands, size: int) -> None:
    answering = await pod(world, answer=bytes(size))
    at = await called(world, answering)
    assert await ask(at, bytes(size), again=1.0) == bytes(size)
    assert set(answering.seen) == {bytes(size)}


async def test_clients_of_one_node_are_spread_over_pods_and_each_keeps_its_own(world: Islands) -> None:
    pods = [await pod(world, f"pod-{number}") for number in range(3)]
    at = await called(world, *pods)
    clients = [await Client.to(at) for _ in range(30)]
    first = [await each.ask(b"x", again=1.0) for each in clients]
    assert set(first) == {b"pod-0 x", b"pod-1 x", b"pod-2 x"}
    assert [await each.ask(b"x", again=1.0) for each in clients] == first
    for each in clients:
        each.close()


async def test_with_affinity_all_clients_of_a_node_share_a_pod(world: Islands) -> None:
    pods = [await pod(world, f"pod-{number}") for number in range(5)]
    at = await called(world, *pods, affinity="ClientIP")
    assert len({await ask(at, b"x", again=1.0) for _ in range(30)}) == 1


async def test_a_datagram_reaches_the_pod_whose_name_is_called(world: Islands) -> None:
    pods = {host: await pod(world, host) for host in ("db-0", "db-1")}
    export(world, ECHO, type="Headless")
    each = tuple(Endpoint(one.at.host, (Port("", one.at.port, "UDP"),), hostname=host) for host, one in pods.items())
    world.put_gateway(tables.ENDPOINT_SETS, replace(endpoint_set(ECHO, C2), endpoints=each))
    world.rows.put(tables.NAMESPACES, Namespace("demo"))
    world.rows.headless(ECHO, protocol="UDP", c2=[f"{host}=10.1.0.1:{one.at.port}" for host, one in pods.items()])
    await world.healthy()
    for host, one in pods.items():
        at = await world.pod_target(f"echo.demo.svc.{DOMAIN}", host, one.at.port, "UDP")
        assert await asyncio.gather(*(ask(at, b"x", again=1.0) for _ in range(10))) == [f"{host} x".encode()] * 10


@pytest.mark.slow
async def test_sessions_beyond_the_bound_of_a_port_get_no_answer_and_those_that_are_there_do(
    world: Islands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp, "SESSIONS", 8)
    at = await called(world, await pod(world))
    clients = [await Client.to(at) for _ in range(30)]
    first = await asyncio.gather(*(each.ask(b"x", within=5, again=1.0) for each in clients))
    served = [each for each, answer in zip(clients, first, strict=True) if answer]
    assert 1 <= len(served) <= udp.SESSIONS
    assert await asyncio.gather(*(each.ask(b"y", again=1.0) for each in served)) == [b"c2 y"] * len(served)
    for each in clients:
        each.close()


@pytest.mark.slow
async def test_a_session_whose_pod_has_gone_has_another_one_by_a_new_port_or_after_a_pause(
    world: Islands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while it goes on: Envoy keeps what it sends to, whether that is an endpoint or not."""
    monkeypatch.setattr(udp, "IDLE", 1.0)
    gone, other = await pod(world, "gone"), await pod(world, "other")
    at = await called(world, gone)
    client = await Client.to(at)
    assert await client.ask(b"x", again=0.25) == b"gone x"
    gone.stop()
    world.put_gateway(tables.ENDPOINT_SETS, endpoint_set(ECHO, C2, other))
    async with asyncio.timeout(60):
        while await ask(at, b"x", within=0.25) != b"other x":
            client.send(b"x")  # so that this one's session goes on: it ends after a second of silence
    while not client.got.empty():
        assert client.got.get_nowait() == b"gone x"
    assert await client.ask(b"x", within=3.0, again=0.25) == b""
    async with asyncio.timeout(60):
        while await client.ask(b"x", within=0.5) != b"other x":  # noqa: ASYNC110 of another process
            await asyncio.sleep(2.0)
    client.close()


async def test_clients_go_on_while_round_trips_come_to_be_known() -> None:
    """Envoy replaces the cluster under its sessions each time; it once ended of that (envoyproxy/envoy#26206)."""
    with TemporaryDirectory() as short:
        async with islands(Path(short), connect_timeout=1.0) as world:
            await go_on(world)


async def go_on(world: Islands) -> None:
    at = await called(world, await pod(world))
    clients = [await Client.to(at) for _ in range(10)]
    assert await asyncio.gather(*(each.ask(b"x", again=1.0) for each in clients)) == [b"c2 x"] * 10
    for trip in (1 / 2, 1, 1 / 2):
        before = await modified(world)
        check = GatewayCheck(cluster=C2, address=str(world.gateways[0]), healthy=True, round_trip=trip)
        world.rows.put(tables.GATEWAY_CHECKS, check)
        async with asyncio.timeout(60):
            while await modified(world) < before + 2:  # noqa: ASYNC110 of another process
                await asyncio.sleep(0.05)
        assert await asyncio.gather(*(each.ask(b"y", again=1.0) for each in clients)) == [b"c2 y"] * 10
    for each in clients:
        each.close()


async def modified(world: Islands) -> int:
    """How often the node's Envoy has replaced a cluster."""
    return (await world.node_stats("cluster_manager.cluster_modified"))["cluster_manager.cluster_modified"]


async def tunnelled(
    world: Islands,
    identity: Identity | None,
    sni: str,
    *,
    caller: str | None = None,
    request: bytes = tunnel(PATH, b"hello"),
    **options: Any,
) -> bytes:
    """What a gateway answers to a caller with this certificate that begins a tunnel and sends a datagram in it."""
    context = calling_with(identity, caller)
    for key, value in options.items():
        setattr(context, key, value)
    found = b""
    with suppress(OSError, ssl.SSLError, TimeoutError):
        async with asyncio.timeout(10.0):
            reader, writer = await asyncio.open_connection(*world.gateways[0], ssl=context, server_hostname=sni)
            try:
                writer.write(request)
                while b" hello" not in found and (part := await reader.read(4096)):
                    found += part
            finally:
                writer.transport.abort()
    return found


async def test_who_is_refused_reaches_no_pod(world: Islands) -> None:
    """As of TCP, before a byte of HTTP is read."""
    echo, secret, hidden = await pod(world, "echo"), await pod(world, "secret"), await pod(world, "hidden")
    export(world, ECHO, echo)
    export(world, SECRET, secret, importers="c3")
    world.put_hidden(HIDDEN)
    world.put_gateway(tables.ENDPOINT_SETS, endpoint_set(HIDDEN, C2, hidden))
    await world.healthy()
    c1, c3 = world.identity(C1, naming.NODE), world.identity(C3, naming.NODE)
    secret_sni = service_sni(SECRET, 80, DOMAIN, protocol="UDP")
    strangers = certificates.authority("isthmus clusterset c1")
    signed_by_c1 = world.identity(C3, naming.NODE, by=world.authorities[C1])
    both = world.named(world.authorities[C1], naming.node_identity(C1, DOMAIN), naming.node_identity(C3, DOMAIN))
    call = partial(tunnelled, world)
    cases: list[tuple[str, Awaitable[bytes], str, str]] = [
        ("wrong CA", call(world.identity(C1, naming.NODE, by=strangers), SNI), "certificate", "unknown"),
        ("no certificate", call(None, SNI, caller="c1"), "no certificate", "unknown"),
        ("expired", call(expired(world, C1), SNI), "expired", "c1"),
        ("another cluster's name by the own authority", call(signed_by_c1, SNI), "certificate", "unknown"),
        ("in the name of another member", call(c1, SNI, caller="c3"), "not allowed", "unknown"),
        ("in nobody's name", call(c1, SNI, caller=""), "not allowed", "c1"),
        ("a gateway's identity", call(world.identity(C3, naming.GATEWAY), SNI), "not allowed", "c3"),
        ("not exported", call(c1, service_sni(HIDDEN, 80, DOMAIN, protocol="UDP")), "not exported", "c1"),
        ("as a port of TCP", call(c1, service_sni(ECHO, 80, DOMAIN)), "not exported", "c1"),
        ("a port that it has not", call(c1, service_sni(ECHO, 81, DOMAIN, protocol="UDP")), "not exported", "c1"),
        ("another cluster's restricted export", call(c1, secret_sni), "not allowed", "c1"),
        ("an importer's name beside the own one", call(both, secret_sni), "not allowed", "c1"),
        ("words before a restricted export's SNI", call(c1, f"restricted {secret_sni}"), "not exported", "c1"),
        ("words behind a restricted export's SNI", call(c1, f"{secret_sni} restricted"), "unknown SNI", "unknown"),
        ("words behind an export's SNI", call(c1, f"{SNI}{TARGET_END}"), "unknown SNI", "unknown"),
        ("TLS 1.2", call(c1, SNI, maximum_version=ssl.TLSVersion.TLSv1_2), "handshake", "unknown"),
    ]
    assert {name: got for name, answer, *_ in cases if (got := await answer)} == {}
    assert (echo.seen, secret.seen, hidden.seen) == ([], [], [])
    assert b"echo hello" in await call(c1, SNI)
    assert b"secret hello" in await call(c3, secret_sni)
    want: dict[str, dict[str, int]] = {}
    for *_, reason, peer in cases:
        found = want.setdefault(reason, {})
        found[peer] = found.get(peer, 0) + 1
    async with asyncio.timeout(60):
        while counted(world, *want) != want:  # noqa: ASYNC110 of another process
            await asyncio.sleep(0.05)


def counted(world: Islands, *reasons: str) -> dict[str, dict[str, int]]:
    """Refusals of some reasons; a busy node's checks break off too: of those only whether there were any."""
    found = {reason: peers for reason, peers in world.refusals.by_reason().items() if reason in reasons}
    return {reason: dict.fromkeys(peers, 1) if reason == "handshake" else peers for reason, peers in found.items()}


async def test_a_tunnel_leads_to_the_service_of_its_sni_whatever_its_request_says(world: Islands) -> None:
    echo, secret = await pod(world, "echo"), await pod(world, "secret")
    export(world, ECHO, echo)
    export(world, SECRET, secret, importers="c3")
    await world.healthy()
    c1, secret_sni = world.identity(C1, naming.NODE), service_sni(SECRET, 80, DOMAIN, protocol="UDP")
    path = f"/.well-known/masque/udp/127.0.0.1/{secret.at.port}/"
    target = {TARGET: f"{secret_sni} restricted"}
    assert b"echo hello" in await tunnelled(world, c1, SNI, request=tunnel(path, b"hello", **target))
    assert secret.seen == []


@pytest.mark.parametrize(
    "request_",
    [
        tunnel("/", b"hello", method="GET", protocol=""),
        tunnel("/", b"hello", method="CONNECT", protocol=""),
        tunnel("/", b"hello", protocol="websocket"),
        b"GET / HTTP/1.1\r\nhost: echo\r\n\r\n",
    ],
    ids=["GET", "CONNECT", "WebSocket", "HTTP/1.1"],
)
@pytest.mark.slow
async def test_what_asks_for_no_tunnel_of_datagrams_reaches_no_pod(world: Islands, request_: bytes) -> None:
    echo = await pod(world, "echo")
    export(world, ECHO, echo)
    await world.healthy()
    c1 = world.identity(C1, naming.NODE)
    await tunnelled(world, c1, SNI, request=request_)
    assert echo.seen == []
    assert b"echo hello" in await tunnelled(world, c1, SNI)
