"""The account of a calling pod, from its node's Envoy to the gateway of another cluster, by real Envoys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from meshes.island_world import C3, DOMAIN, Islands, Pod, islands, until
from meshes.route_world import C1

from isthmus.gateway import naming
from isthmus.gateway.naming import service_sni
from isthmus.model import services, tables
from isthmus.model.export_policies import Allow, ExportPolicy
from isthmus.model.names import ServiceName
from isthmus.model.services import Port

pytestmark = pytest.mark.needs("envoy")

ECHO = ServiceName("demo/echo")
SNI = service_sni(ECHO, 80, DOMAIN)
WEB, JOB, UNKNOWN = "127.0.0.11", "127.0.0.12", "127.0.0.13"
"""Addresses of pods of c1's node, and one that no pod of it has."""
ALLOWED = Allow(cluster=C1, namespace="shop", service_account="web")


@pytest.fixture(params=[False, True], ids=["a connection for each client", "preconnected"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[Islands]:
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        options: dict[str, Any] = {"accounts": True, "preconnect": request.param}
        async with islands(Path(short), gateway={"policies": True}, **options) as made:
            made.rows.put(tables.PODS, pod("shop/web", WEB), pod("shop/job", JOB))
            yield made


def pod(name: str, *addresses: str, account: str = "", **fields: Any) -> services.Pod:
    account = account or name.partition("/")[2]
    return services.Pod(name=name, uid=name, addresses=addresses, service_account=account, **fields)


def put(world: Islands, *allow: Allow, **fields: Any) -> None:
    world.put_gateway(tables.EXPORT_POLICIES, ExportPolicy(name=ServiceName("demo/callers"), allow=allow, **fields))


async def answer_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that checks that requests contain nothing of the caller's account."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        status = b"500 Seen" if b"isthmus-caller" in head else b"200 OK"
        writer.write(b"HTTP/1.1 %s\r\ncontent-length: 0\r\n\r\n" % status)
        await writer.drain()


async def exported(world: Islands, *, http: bool) -> tuple[Pod, tuple[str, int]]:
    """A pod behind an export of c2, and the address at which a pod of c1 calls it."""
    target = await (world.pod(answer_http) if http else world.pod())
    world.export(ECHO, target, ports=(Port("", 80, app_protocol="http" if http else ""),))
    world.imported(ECHO, app_protocol="http" if http else "")
    return target, await world.target(ECHO)


async def got(at: tuple[str, int], source: str, sent: bytes = b"") -> bytes:
    """The first bytes of the answer to a call from an address; empty if it is refused."""
    reader, writer = await asyncio.open_connection(*at, local_addr=(source, 0))
    try:
        writer.write(sent)
        async with asyncio.timeout(30):
            return (await reader.read(4096)).partition(b"\r\n")[0]
    except OSError:
        return b""
    finally:
        writer.transport.abort()


async def ejected(world: Islands) -> set[int]:
    return set((await world.node_stats("cluster.island.*ejections_active")).values())


GET = b"GET / HTTP/1.1\r\nhost: echo\r\n\r\n"


@pytest.mark.parametrize("world", [False], indirect=True)
async def test_a_rule_for_an_account_allows_pods_that_have_it_and_no_others(world: Islands) -> None:
    target, at = await exported(world, http=False)
    await world.healthy()

    async def answers() -> list[bytes]:
        return [await got(at, each) for each in (WEB, JOB, UNKNOWN)]

    await until(answers, [b"hello\n"] * 3)
    put(world, ALLOWED)
    await until(answers, [b"hello\n", b"", b""])
    seen = target.seen
    for _ in range(5):
        assert await got(at, JOB) == b""
    assert target.seen == seen, "no connection of a refused caller reaches a pod"
    assert await got(at, WEB) == b"hello\n"
    assert await ejected(world) == {0}, "a refusal is no failure of the gateway"
    put(world, ALLOWED, audit=True)
    await until(answers, [b"hello\n"] * 3)
    put(world, ALLOWED, require=False)
    await until(answers, [b"hello\n", b"", b"hello\n"])
    world.rows.put(tables.PODS, pod("shop/job", JOB, account="web"))
    put(world, ALLOWED)
    await until(answers, [b"hello\n", b"hello\n", b""])
    world.rows.put(tables.PODS, pod("shop/web", WEB, phase="Succeeded"))
    await until(answers, [b"", b"hello\n", b""])


@pytest.mark.islands  # it takes three seconds
async def test_of_http_a_refused_caller_gets_403_and_the_gateway_stays_healthy(world: Islands) -> None:
    _, at = await exported(world, http=True)
    await world.healthy()
    ok, forbidden = b"HTTP/1.1 200 OK", b"HTTP/1.1 403 Forbidden"

    async def answers() -> list[bytes]:
        return [await got(at, each, GET) for each in (WEB, JOB, UNKNOWN)]

    await until(answers, [ok] * 3)
    put(world, ALLOWED)
    await until(answers, [ok, forbidden, forbidden])
    await until(lambda: ejected(world), {0})  # the change itself ends connections
    for _ in range(5):
        assert [await got(at, each, GET) for each in (WEB, JOB)] == [ok, forbidden], "no shared connection"
    assert await ejected(world) == {0}
    put(world, Allow(namespace="shop"))
    await until(answers, [ok, ok, forbidden])
    put(world, Allow(service_account="job"))
    await until(answers, [forbidden, ok, forbidden])


@pytest.mark.parametrize("world", [False], indirect=True)
async def test_a_node_names_accounts_of_its_own_cluster_alone(world: Islands) -> None:
    target = await world.pod()
    world.export(ECHO, target)
    c1, c3, web = world.identity(C1, naming.NODE), world.identity(C3, naming.NODE), ("shop", "web")
    put(world, ALLOWED, Allow(cluster=C3, namespace="lab"))

    async def of_c1() -> bytes:
        return await world.handshake(c1, SNI, account=web)

    await until(of_c1, b"hello\n")
    assert await world.handshake(c3, SNI, account=("lab", "any")) == b"hello\n"
    seen = target.seen
    for refused in (
        await world.handshake(c3, SNI, account=web),
        await world.handshake(c3, SNI, caller="c1", account=web),
        await world.handshake(c1, SNI, caller="c3", account=("lab", "any")),
        await world.handshake(c1, SNI, account=("lab", "any")),
        await world.handshake(c1, SNI, account=("shop", "job")),
        await world.handshake(c1, f"{SNI} restricted", account=web),
        await world.handshake(c1, SNI),
        await world.handshake(None, SNI, caller="c1", account=web),
    ):
        assert refused == b""
    assert target.seen == seen
