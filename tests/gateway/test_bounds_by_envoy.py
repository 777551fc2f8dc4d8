"""What callers can take of a gateway's Envoy at most, members and others, with real Envoys."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from meshes.island_world import C3, DOMAIN, Islands, Pod, calling_with, client_hello, greet, islands, until
from meshes.route_world import C1, C2

from isthmus.gateway import exports, naming
from isthmus.gateway.naming import etcd_sni, service_sni
from isthmus.model.hosts import Endpoint as Address
from isthmus.model.names import ClusterName, ServiceName

pytestmark = pytest.mark.needs("envoy")

ECHO = ServiceName("demo/echo")
SNI = service_sni(ECHO, 80, DOMAIN)
BOUND = 3
"""Connections of each kind."""


class World(NamedTuple):
    islands: Islands
    etcd: Pod


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    for each in ("HELLO_TIMEOUT", "HANDSHAKE_TIMEOUT", "ETCD_IDLE"):
        monkeypatch.setattr(exports, each, 2.0)
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        async with AsyncExitStack() as stack:
            etcd = await Pod().start(greet, stack)
            bounds = {"connections": BOUND, "etcd": (Address(etcd.host, etcd.port),)}
            yield World(await stack.enter_async_context(islands(Path(short), gateway=bounds)), etcd)


async def test_a_member_that_opens_ever_more_connections_is_refused_and_no_other_member(world: World) -> None:
    gateway = world.islands
    gateway.export(ECHO, await gateway.pod())
    await gateway.healthy()
    members = {name: gateway.identity(name, naming.NODE) for name in (C1, C3)}

    async def called(name: ClusterName) -> Held:
        made = await asyncio.open_connection(*gateway.gateways[0], ssl=calling_with(members[name]), server_hostname=SNI)
        return Held(*made)

    held = [await called(C1) for _ in range(BOUND)]
    assert [await each.line() for each in held] == [b"hello\n"] * BOUND
    assert await gateway.handshake(members[C1], SNI) == b""
    assert await gateway.handshake(members[C3], SNI) == b"hello\n"
    await until(refused(gateway), {"too many": {"unknown": 1}})
    held[0].close()
    await until(lambda: gateway.handshake(members[C1], SNI), b"hello\n")
    for each in held:
        each.close()


async def test_strangers_have_so_many_connections_to_the_etcd_and_none_for_long_that_says_nothing(
    world: World,
) -> None:
    gateway = world.islands
    await gateway.healthy()
    hello = client_hello(calling_with(None), etcd_sni(C2, DOMAIN))
    held = [await sent(gateway, hello) for _ in range(BOUND)]
    assert [await each.line() for each in held] == [b"hello\n"] * BOUND
    beyond = await sent(gateway, hello)
    assert await beyond.line() == b""
    assert world.etcd.seen == BOUND
    assert [await each.line() for each in held] == [b""] * BOUND, "ended: they said nothing"
    again = await sent(gateway, hello)
    assert await again.line() == b"hello\n"
    await until(refused(gateway), {"too many": {"unknown": 1}})


@pytest.mark.slow
async def test_who_goes_no_further_than_its_first_bytes_is_cut_off(world: World) -> None:
    gateway = world.islands
    pod = await gateway.pod()
    gateway.export(ECHO, pod)
    await gateway.healthy()
    hello = client_hello(calling_with(None, "c1"), SNI)
    for first in (b"", hello[:40], hello):
        await (await sent(gateway, first)).end()
    assert pod.seen == 0


async def test_a_node_or_a_pod_that_vanishes_leaves_no_connection_at_a_gateway_for_ever(world: World) -> None:
    """The kernel asks each side whether it is still there."""
    gateway = world.islands
    pod = await gateway.pod()
    gateway.export(ECHO, pod)
    await gateway.healthy()
    context = calling_with(gateway.identity(C1, naming.NODE))
    held = Held(*await asyncio.open_connection(*gateway.gateways[0], ssl=context, server_hostname=SNI))
    assert await held.line() == b"hello\n"
    of_caller, of_pod = held.writer.get_extra_info("sockname")[1], pod.port

    async def probed() -> bool:
        timers = keepalive_timers()
        return timers[gateway.gateways[0].port, of_caller] and any(
            has for port, has in timers.items() if port[1] == of_pod
        )

    await until(probed, True)
    held.close()


def keepalive_timers() -> dict[tuple[int, int], bool]:
    """Of each connection of IPv4 in this namespace, by its own and the other port: whether it has that timer."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = {(int(row[1][-4:], 16), int(row[2][-4:], 16)): row[5].startswith("02:") for row in rows if row[3] == "01"}
    return defaultdict(bool, ports)


def refused(gateway: Islands) -> Callable[[], Awaitable[object]]:
    """Connections that were refused, by reason and peer."""

    async def ask() -> object:
        return gateway.refusals.by_reason()

    return ask


class Held(NamedTuple):
    """A connection to a gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def line(self) -> bytes:
        """What comes next; empty: it has ended."""
        try:
            async with asyncio.timeout(60):
                return await self.reader.readline()
        except OSError:
            return b""

    async def end(self) -> None:
        """Wait until the other side ends it."""
        while await self.line():
            pass

    def close(self) -> None:
        self.writer.transport.abort()


async def sent(gateway: Islands, first: bytes) -> Held:
    """A caller that sends this."""
    made = Held(*await asyncio.open_connection(*gateway.gateways[0]))
    gateway.stack.callback(made.writer.close)
    made.writer.write(first)
    return made
