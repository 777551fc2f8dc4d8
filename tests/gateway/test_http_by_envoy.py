"""Exports of HTTP and gRPC through real Envoys: balanced by request, with the caller's cluster in a header."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from meshes.island_world import C3, DOMAIN, Islands, Pod, calling_with, islands, until
from meshes.route_world import C1

from isthmus.gateway import naming
from isthmus.gateway.http import CALLER, SPELLINGS
from isthmus.gateway.naming import service_sni
from isthmus.model.names import ServiceName
from isthmus.model.services import Port

pytestmark = pytest.mark.needs("envoy")

ECHO = ServiceName("demo/echo")
SNI = service_sni(ECHO, 80, DOMAIN)
HTTP = (Port("", 80, app_protocol="http"),)
GRPC = (Port("", 80, app_protocol="grpc"),)
FORGED = dict.fromkeys(SPELLINGS, "c3") | {"X-Isthmus-Cluster": "c3"}

PROXIED = (("x-forwarded-for", "192.0.2.1"), ("x-forwarded-proto", "https"))
"""What a client behind a proxy of its own passes on."""


@pytest.fixture
async def world() -> AsyncIterator[Islands]:
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        async with islands(Path(short)) as made:
            yield made


async def test_connections_are_made_before_they_are_needed_where_that_is_wanted() -> None:
    """Also then each client has its own caller's header, and its requests are balanced."""
    with TemporaryDirectory() as short:
        async with islands(Path(short), preconnect=True) as world:
            seen: list[web.BaseRequest] = []
            world.export(ECHO, await web_pod(world, "a", seen), await web_pod(world, "b", seen, number=2), ports=HTTP)
            world.imported(ECHO, app_protocol="http")
            await world.healthy()
            host, port = await world.target(ECHO)
            answers: Counter[str] = Counter()
            for _ in range(40):
                async with aiohttp.request("GET", f"http://{host}:{port}/", headers=FORGED) as answer:
                    answers[await answer.text()] += 1
            assert answers.keys() == {"a", "b"}
            assert [request.headers.getall(CALLER) for request in seen] == [["c1"]] * 40
            found = await world.node_stats("cluster.island.*upstream_cx.*")
            assert found["cluster.island c2 http.upstream_cx_active"] > 1
            assert found["cluster.island c2 http.upstream_cx_total"] < 40


async def web_pod(world: Islands, text: str, seen: list[web.BaseRequest], *, number: int = 1) -> Pod:
    """The export's pod of that number, which answers with a text."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request)
        return web.Response(text=text)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    world.stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, f"127.0.0.{number}", 0).start()
    pod = Pod()
    pod.port = runner.addresses[0][1]
    return pod


async def test_requests_of_one_connection_are_balanced_and_carry_the_callers_cluster(world: Islands) -> None:
    seen: list[web.BaseRequest] = []
    world.export(ECHO, await web_pod(world, "a", seen), await web_pod(world, "b", seen, number=2), ports=HTTP)
    world.imported(ECHO, app_protocol="http")
    await world.healthy()
    host, port = await world.target(ECHO)
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        answers: Counter[str] = Counter()
        for _ in range(40):
            async with session.get(f"http://{host}:{port}/x", headers=FORGED) as answer:
                answers[await answer.text()] += 1
    assert answers.keys() == {"a", "b"}
    assert answers.total() == 40
    assert [request.headers.getall(CALLER) for request in seen] == [["c1"]] * 40
    sent = {name.lower() for request in seen for name in request.headers}
    assert not sent.intersection({*SPELLINGS} - {CALLER}, {"x-forwarded-for", "x-envoy-external-address"})
    assert {request.headers["x-forwarded-proto"] for request in seen} == {"http"}


async def test_a_member_that_calls_the_gateway_itself_can_forge_no_other_cluster(world: Islands) -> None:
    seen: list[web.BaseRequest] = []
    world.export(ECHO, await web_pod(world, "a", seen), ports=HTTP)
    await world.healthy()
    lines = [f"{name}: {value}" for name, value in [*FORGED.items(), (CALLER, "c9"), ("connection", CALLER), *PROXIED]]
    request = "\r\n".join(["GET / HTTP/1.1", "host: echo", *lines, "", ""]).encode()
    c1 = world.identity(C1, naming.NODE)
    assert (await asked(world, c1, SNI, request)).startswith(b"HTTP/1.1 200 OK")
    assert [each.headers.getall(CALLER) for each in seen] == [["c1"]]
    assert (seen[0].headers["x-forwarded-for"], seen[0].headers["x-forwarded-proto"]) == ("192.0.2.1", "https")
    for sni in (f"{SNI} http", f"http {SNI}"):  # by the chain that passes bytes on as they are
        assert await asked(world, c1, sni, request) == b""
    assert len(seen) == 1


async def test_a_health_checker_of_http_1_0_without_host_is_answered_as_by_the_pod_itself(world: Islands) -> None:
    seen: list[web.BaseRequest] = []
    pod = await web_pod(world, "a", seen)
    world.export(ECHO, pod, ports=HTTP)
    world.imported(ECHO, app_protocol="http")
    await world.healthy()
    request = b"GET /healthz HTTP/1.0\r\n\r\n"
    flat = await answered("127.0.0.1", pod.port, request)
    assert flat == (b"HTTP/1.0 200 OK", b"a")
    assert await answered(*await world.target(ECHO), request) == flat
    assert (await asked(world, world.identity(C1, naming.NODE), SNI, request)).startswith(flat[0])
    assert [each.headers.get("host", "") for each in seen] == ["", "echo.demo", "localhost"]


async def answered(host: str, port: int, request: bytes) -> tuple[bytes, bytes]:
    """The status line and the body of the answer to a request, whose end is that of the connection."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(request)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.transport.abort()
    return head.partition(b"\r\n")[0], body


async def asked(world: Islands, identity: Any, sni: str, request: bytes) -> bytes:
    """The first bytes that the gateway answers a request with; none where it refuses."""
    context = calling_with(identity)
    try:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*world.gateways[0], ssl=context, server_hostname=sni)
            try:
                writer.write(request)
                return await reader.read(64)
            finally:
                writer.transport.abort()
    except OSError:
        return b""


async def test_an_export_of_http_for_some_clusters_answers_them_alone(world: Islands) -> None:
    seen: list[web.BaseRequest] = []
    world.export(ECHO, await web_pod(world, "a", seen), ports=HTTP, importers="c3")
    await world.healthy()
    request = b"GET / HTTP/1.1\r\nhost: echo\r\nx-isthmus-cluster: c1\r\n\r\n"
    assert await asked(world, world.identity(C1, naming.NODE), SNI, request) == b""
    assert (await asked(world, world.identity(C3, naming.NODE), SNI, request)).startswith(b"HTTP/1.1 200 OK")
    assert [each.headers.getall(CALLER) for each in seen] == [["c3"]]


async def test_calls_of_grpc_on_one_channel_are_balanced_and_carry_the_callers_cluster(world: Islands) -> None:
    callers: list[list[str]] = []

    async def pod(name: bytes, number: int) -> Pod:
        async def answer(request: bytes, context: Any) -> bytes:
            callers.append([str(value) for key, value in context.invocation_metadata() if key == CALLER])
            return name

        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(answer)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("demo.Echo", {"Say": handler}),))
        found = Pod()
        found.port = server.add_insecure_port(f"127.0.0.{number}:0")
        await server.start()
        world.stack.push_async_callback(server.stop, None)
        return found

    world.export(ECHO, await pod(b"a", 1), await pod(b"b", 2), ports=GRPC)
    world.imported(ECHO, app_protocol="grpc")
    await world.healthy()
    host, port = await world.target(ECHO)
    async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
        say = channel.unary_unary("/demo.Echo/Say", request_serializer=None, response_deserializer=None)
        answers = [await say(b"", metadata=[(CALLER, "c3")], timeout=60, wait_for_ready=True) for _ in range(40)]
    assert set(answers) == {b"a", b"b"}
    assert callers == [["c1"]] * 40


@pytest.mark.slow
async def test_clients_that_come_and_go_leave_no_connections_to_gateways(world: Islands) -> None:
    """Each would stay for an hour, and a gateway takes so many of a cluster: one that calls thrice a second had none
    left for another call after that hour."""
    world.export(ECHO, await web_pod(world, "a", []), ports=HTTP)
    world.imported(ECHO, app_protocol="http")
    await world.healthy()
    host, port = await world.target(ECHO)
    for _ in range(20):
        async with aiohttp.request("GET", f"http://{host}:{port}/") as answer:
            assert await answer.text() == "a"

    async def active() -> int:
        return (await world.node_stats("cluster.island.*upstream_cx.*"))["cluster.island c2.upstream_cx_active"]

    await until(active, 0)
