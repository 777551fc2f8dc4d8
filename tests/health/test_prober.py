"""Probes of real servers on loopback, from rows of ``checks`` to rows of ``probes``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import pytest
from msgspec.structs import replace
from peers.etcd_server import free_ports

from isthmus.config import HealthSection
from isthmus.health import Prober, exchange
from isthmus.model.balancing import BackendKey, Probe
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Check, HealthCheck
from isthmus.model.tables import CHECKS, FAULTS, NODES, PROBES
from isthmus.statedb import Database

FAST = {"interval": 0.05, "timeout": 10.0, "unhealthy_after": 2}
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def row(port: int, address: str = "127.0.0.1", **check: Any) -> Check:
    key = BackendKey(ServiceName("demo/echo"), ClusterName("c2"), address, port, "TCP")
    return Check(key, HealthCheck(**(FAST | check)))


class Probing:
    """A prober over tables of its own."""

    def __init__(self) -> None:
        self.db = Database(CHECKS, PROBES, NODES, FAULTS)
        self.prober = Prober(self.db, HealthSection(rate=1_000.0, backend_rate=1_000.0), node="n1")

    def check(self, *rows: Check) -> None:
        with self.db.write() as txn:
            for each in rows:
                txn.put(CHECKS, each)

    async def verdict(self, of: Check, *, healthy: bool) -> Probe:
        """The row of a check, as soon as it is this one."""

        def found() -> Probe | None:
            return self.db.snapshot().get(PROBES, of.key)

        async with asyncio.timeout(90):
            await self.db.until(lambda _: (row := found()) is not None and row.healthy is healthy)
        verdict = found()
        assert verdict is not None
        return verdict

    async def prober_is_idle(self) -> None:
        async with asyncio.timeout(60):
            while self.prober.stats().in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def probing(*rows: Check) -> AsyncIterator[Probing]:
    made = Probing()
    made.check(*rows)
    task = asyncio.create_task(made.prober.run())
    yield made
    task.cancel()
    await asyncio.wait([task])
    assert made.prober.stats().in_flight == 0


def answering(text: bytes, *, wait: bool = True) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if wait:
            await reader.read(1)
        writer.write(text)
        writer.close()

    return serve


@asynccontextmanager
async def server(serve: Serve, port: int = 0) -> AsyncIterator[int]:
    made = await asyncio.start_server(serve, "127.0.0.1", port)
    async with made:
        yield made.sockets[0].getsockname()[1]


@contextmanager
def full_backlog() -> Any:
    """A port whose connects get no answer: SYNs are dropped where the queue of a listener is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = []
        for _ in range(4):
            each = socket.socket()
            each.setblocking(False)
            each.connect_ex(listening.getsockname())
            waiting.append(each)
        yield listening.getsockname()[1]
        for each in waiting:
            each.close()


async def test_a_connect_passes_and_where_the_server_goes_it_fails_and_passes_again() -> None:
    [port] = free_ports(1)
    async with server(answering(b""), port), probing(row(port)) as made:
        assert (await made.verdict(row(port), healthy=True)).reason == ""
    async with probing(row(port)) as made:
        assert (await made.verdict(row(port), healthy=False)).reason == "Connection refused"
        async with server(answering(b""), port):
            assert (await made.verdict(row(port), healthy=True)).since > 0


@pytest.mark.parametrize("bad", [row(70_000), row(1, "nowhere at all")], ids=["port", "address"])
async def test_a_backend_whose_probe_raises_costs_itself_and_is_a_fault_until_its_check_goes(bad: Check) -> None:
    async with server(answering(b"")) as port, probing(bad, row(port)) as made:
        await made.verdict(row(port), healthy=True)
        async with asyncio.timeout(60):
            await made.db.until(lambda now: now.count(FAULTS) == 1)
        [fault] = made.db.snapshot().all(FAULTS)
        assert (fault.part, fault.name, fault.cause) == ("probes", str(bad.key), "bug")
        assert made.db.snapshot().get(PROBES, bad.key) is None, "no verdict"
        with made.db.write() as txn:
            txn.delete(CHECKS, bad.key)
        async with asyncio.timeout(60):
            await made.db.until(lambda now: now.count(FAULTS) == 0)


async def test_an_answer_that_raises_ends_the_probe_without_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    result = exchange.result

    def raising(check: HealthCheck, received: bytes, *, ended: bool) -> str | None:
        if b"teapot" in received:
            raise KeyError("teapot")
        return result(check, received, ended=ended)

    monkeypatch.setattr(exchange, "result", raising)
    async with (
        server(answering(b"HTTP/1.1 418 teapot\r\n")) as bad,
        server(answering(b"HTTP/1.1 204 No\r\n")) as good,
        probing(row(bad, type="HTTP"), row(good, type="HTTP")) as made,
    ):
        await made.verdict(row(good), healthy=True)
        async with asyncio.timeout(60):
            await made.db.until(lambda now: now.count(FAULTS) == 1)
        await made.prober_is_idle()
        assert made.db.snapshot().get(PROBES, row(bad).key) is None
        made.check(row(bad))
        await made.verdict(row(bad), healthy=True)
        assert made.db.snapshot().count(FAULTS) == 0


async def test_what_does_not_answer_in_time_is_found_dead() -> None:
    with full_backlog() as port:
        late = row(port, timeout=0.3)
        async with probing(late) as made:
            assert (await made.verdict(late, healthy=False)).reason == "no answer within 0.3 s"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", ""),
        (b"HTTP/1.1 302 Found\r\n", ""),
        (b"HTTP/1.1 500 No\r\n\r\n", "HTTP status 500"),
        (b"HTTP/1.1 40", "the connection ended before an answer"),
        (b"SSH-2.0-x\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 " + b"2" * 5000 + b"\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 -200\r\n", "the answer is not HTTP"),
        (b"x" * 200_000, "no answer within 65536 bytes"),
    ],
)
async def test_an_http_probe_passes_by_the_status_alone(answer: bytes, reason: str) -> None:
    check = {"type": "HTTP", "path": "/ready", "host": "echo.example"}
    async with server(answering(answer)) as port, probing(row(port, **check)) as made:
        found = await made.verdict(row(port, **check), healthy=not reason)
        assert found.reason == reason or (len(answer) > 65_536 and "reset" in found.reason)


async def test_an_http_probe_asks_for_its_path_at_its_host_and_at_its_own_port() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    async with server(serve) as port:
        check = row(1, type="HTTP", path="/ready?full=1", host="echo.example")
        check = replace(check, check=replace(check.check, port=port))
        async with probing(check) as made:
            await made.verdict(check, healthy=True)
    assert asked[0].startswith(b"GET /ready?full=1 HTTP/1.1\r\nHost: echo.example\r\n")


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        ("", ""),
        ("up", ""),
        ("down", "the service is NOT_SERVING"),
        ("other", "no grpc.health.v1 there, or no such service"),
    ],
)
async def test_a_grpc_probe_asks_a_grpc_server(service: str, reason: str) -> None:
    def check(request: bytes, context: grpc.ServicerContext) -> bytes:
        name = request[2:].decode()
        if name == "other":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return b"\x08\x02" if name == "down" else b"\x08\x01"

    handlers = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    serving = grpc.server(ThreadPoolExecutor(2))
    serving.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers),))
    port = serving.add_insecure_port("127.0.0.1:0")
    serving.start()
    try:
        wanted = row(port, type="GRPC", service=service)
        async with probing(wanted) as made:
            assert (await made.verdict(wanted, healthy=not reason)).reason == reason
    finally:
        serving.stop(None).wait()


async def test_a_grpc_probe_of_what_is_no_grpc_server_fails() -> None:
    async with server(answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        wanted = row(port, type="GRPC")
        async with probing(wanted) as made:
            assert (await made.verdict(wanted, healthy=False)).reason == "the answer is not HTTP/2"


async def test_a_check_that_goes_takes_its_verdict_with_it() -> None:
    async with server(answering(b"")) as port, probing(row(port)) as made:
        await made.verdict(row(port), healthy=True)
        with made.db.write() as txn:
            txn.delete(CHECKS, row(port).key)
        async with asyncio.timeout(90):
            await made.db.until(lambda now: now.get(PROBES, row(port).key) is None)
        await asyncio.sleep(0.2)
        assert made.db.snapshot().get(PROBES, row(port).key) is None


async def test_a_thousand_backends_take_as_many_tasks_as_one_and_a_bounded_number_of_sockets() -> None:
    async with server(answering(b"")) as port:
        addresses = [f"127.0.{n >> 8}.{n & 255}" for n in range(1, 1_001)]
        before = len(asyncio.all_tasks())
        async with probing(*(row(port, address, interval=1.0) for address in addresses)) as made:
            most = 0
            async with asyncio.timeout(60):
                while made.prober.stats().dead < 999:
                    await asyncio.sleep(0.01)
                    most = max(most, made.prober.stats().in_flight)
            assert len(asyncio.all_tasks()) - before <= 8, "the prober's, supervisors included, and one of this test"
            assert most <= 256


def frames(raw: bytes) -> list[tuple[int, int, int, bytes]]:
    """Type, flags, stream and payload of HTTP/2's frames (RFC 9113, section 4.1)."""
    found = []
    while raw:
        size = int.from_bytes(raw[:3], "big")
        found.append((raw[3], raw[4], int.from_bytes(raw[5:9], "big"), raw[9 : 9 + size]))
        raw = raw[9 + size :]
    return found


def test_a_grpc_request_is_settings_then_headers_and_a_message_that_ends_the_stream() -> None:
    raw = exchange.request(HealthCheck(type="GRPC", service="up"), "echo:80")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    assert raw.startswith(preface)
    settings, headers, data = frames(raw.removeprefix(preface))
    assert settings == (0x4, 0, 0, b"")
    assert headers[:3] == (0x1, 0x4, 1), "END_HEADERS, and not END_STREAM: a message follows"
    assert data == (0x0, 0x1, 1, b"\0\0\0\0\4\x0a\2up")


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


SERVING = b"\0\0\0\0\2\x08\1"
NOT_SERVING = b"\0\0\0\0\2\x08\2"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (frame(0, 0, 1, SERVING) + frame(1, 5, 1, b"trailers"), ""),
        (frame(0, 8, 1, b"\3" + SERVING + bytes(3)) + frame(1, 5, 1, b""), ""),
        (frame(0, 8, 1, b"\0" + NOT_SERVING) + frame(1, 5, 1, b""), "the service is NOT_SERVING"),
        (frame(0, 0, 1, SERVING[:4]) + frame(0, 1, 1, SERVING[4:]), ""),
        (frame(0, 0, 3, NOT_SERVING) + frame(0, 1, 3, b"") + frame(0, 1, 1, SERVING), ""),
        (frame(0, 0, 1, SERVING) + frame(3, 0, 1, bytes(4)), ""),
        (frame(7, 0, 0, bytes(8)), "no grpc.health.v1 there, or no such service"),
        (frame(0, 1, 1, bytes(5)), "the service is UNKNOWN"),
        (frame(0, 1, 1, b"\0\0\0\0\2\x08\3"), "the service is SERVICE_UNKNOWN"),
        (frame(10, 0, 1, b""), "the answer is not HTTP/2"),
    ],
)
def test_a_grpc_answer_is_read_frame_by_frame_however_it_is_cut(answer: bytes, reason: str) -> None:
    check = HealthCheck(type="GRPC")
    whole = frame(4, 0, 0, bytes(6)) + frame(6, 1, 0, bytes(8)) + frame(1, 4, 1, b"headers") + answer
    assert exchange.result(check, whole, ended=False) == reason
    before = [exchange.result(check, whole[:end], ended=False) for end in range(len(whole) - len(answer))]
    assert set(before) == {None}
    assert exchange.result(check, whole[: -len(answer)], ended=True) == "the connection ended before an answer"


@pytest.mark.parametrize("kind", ["HTTP", "GRPC"])
def test_no_answer_of_a_hostile_server_raises(kind: Any) -> None:
    from random import Random

    random, check = Random(1), HealthCheck(type=kind)
    for _ in range(5_000):
        answer = random.randbytes(random.randrange(60))
        for end in (False, True):
            found = exchange.result(check, answer, ended=end)
            assert found is None or isinstance(found, str)
            assert not (end and found is None)
