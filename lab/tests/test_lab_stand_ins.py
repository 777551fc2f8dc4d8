"""Stand-ins for missing images, and the gRPC probe, each against the other and against real parts."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import msgspec
import pytest
from peers.etcd_server import free_ports

from isthmus_lab import images, process_logs
from isthmus_lab.layout import Lab
from isthmus_lab.node import grpc_health, probes, status
from isthmus_lab.node.environment import Addresses
from isthmus_lab.node.objects import Container, Pod
from isthmus_lab.node.status import ContainerState, Running
from isthmus_lab.own_programs import ON_HOST
from isthmus_lab.process_logs import NoSuchLog

CHECK = "/grpc.health.v1.Health/Check"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a stand-in, TCP and UDP."""
    [found] = free_ports(1)
    process = subprocess.Popen(
        images.stand_in("acme/shop:2", [f"tcp:{found}", f"udp:{found}"], own=ON_HOST), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"stands in for acme/shop:2: tcp:{found} udp:{found}\n"
    yield found
    process.terminate()
    assert process.wait(60) == 0
    process.stdout.close()


def test_http_is_answered_on_any_path(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz?x=1", timeout=30) as answer:
        seen = json.loads(answer.read())
    assert (seen["standsInFor"], seen["path"], seen["caller"]) == ("acme/shop:2", "/healthz?x=1", "127.0.0.1")


def test_other_bytes_are_echoed_over_tcp_and_udp(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 30) as caller:
        for text in (b"*1\r\n$4\r\nPING\r\n", b"again"):
            caller.sendall(text)
            assert caller.recv(99) == text
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
        datagram.settimeout(30)
        datagram.sendto(b"hi", ("127.0.0.1", port))
        assert datagram.recv(99) == b"hi"


def test_a_real_grpc_client_is_told_that_every_service_serves(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(CHECK, request_serializer=bytes, response_deserializer=bytes)
        assert [call(b"", timeout=30), call(b"\x0a\x04shop", timeout=30)] == [b"\x08\x01"] * 2


async def test_a_grpc_probe_passes_on_a_stand_in(port: int) -> None:
    assert await grpc_health.check("127.0.0.1", port, "") is None
    assert await grpc_health.check("127.0.0.1", port, "shop") is None


class Health(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs, not at run time
    """A real server of grpc.health.v1: '' serves, 'down' does not, of others it knows nothing."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if details.method != CHECK:
            return None

        def check(request: bytes, context: grpc.ServicerContext) -> bytes:
            if request not in (b"", b"\x0a\x04down"):
                context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
            return b"\x08\x02" if request else b"\x08\x01"

        return grpc.unary_unary_rpc_method_handler(check, bytes, bytes)


@contextmanager
def serving(*handlers: grpc.GenericRpcHandler[bytes, bytes]) -> Iterator[int]:
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=list(handlers))
        found = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield int(found)
        finally:
            server.stop(None).wait()


async def test_a_grpc_probe_reads_what_a_real_server_answers() -> None:
    with serving(Health()) as real:
        assert await grpc_health.check("127.0.0.1", real, "") is None
        assert await grpc_health.check("127.0.0.1", real, "down") == "the service is NOT_SERVING"
        assert "no such service" in (await grpc_health.check("127.0.0.1", real, "nobody") or "")
    with serving() as real:
        assert "no grpc.health.v1" in (await grpc_health.check("127.0.0.1", real, "") or "")


def container(**fields: object) -> Container:
    return msgspec.convert({"name": "web", **fields}, Container)


async def test_a_grpc_probe_of_what_is_no_grpc_server_fails_with_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found = listening.getsockname()[1]
        probe = container(readinessProbe={"grpc": {"port": found}, "timeoutSeconds": 1}).readiness_probe
        assert probe is not None
        ask = probes.ask(probe, container(), address="127.0.0.1", run=never)
        assert await ask == "no answer within 1 s"


async def never(command: list[str]) -> int:
    raise AssertionError(command)


def test_a_stand_in_listens_where_the_container_and_its_probes_say() -> None:
    found = container(
        ports=[{"containerPort": number, "protocol": name} for name, number in (("TCP", 80), ("UDP", 53), ("SCTP", 7))],
        readinessProbe={"httpGet": {"port": 81}},
        livenessProbe={"grpc": {"port": 80}},
        startupProbe={"tcpSocket": {"port": "web"}},
    )
    assert probes.ports(found) == ["tcp:80", "udp:53", "tcp:81"]


def test_a_condition_has_why_a_container_is_not_ready() -> None:
    pod = msgspec.convert({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "web"}]}}, Pod)
    state = ContainerState("web", "x", Running(1, ""), unready="readiness probe: HTTP status 503")
    body = status.body(
        pod, [state], inits=[], addresses=Addresses(("10.1.1.2",), ("10.0.0.1",)), started="", transitions={}
    )
    (ready,) = [each for each in body["conditions"] if each["type"] == "Ready"]
    assert ready["message"] == "web: readiness probe: HTTP status 503"


def test_a_log_is_found_by_the_processs_name_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus_lab.layout.STATE_ROOT", tmp_path)
    lab = Lab("demo")
    lab.logs.mkdir(parents=True)
    for name in ("supervisor", "c1-etcd", "c1-n1-agent", "c1-n2-agent"):
        (lab.logs / f"{name}.log").write_text(f"{name}\none\ntwo\n")
    for wanted, name in (("supervisor", "supervisor"), ("c1/etcd", "c1-etcd"), ("c1/agent", "c1-n1-agent"),
                         ("c1/node/2/agent", "c1-n2-agent"), ("c1/n2/agent", "c1-n2-agent")):  # fmt: skip
        assert process_logs.find(lab, wanted).stem == name
    with pytest.raises(NoSuchLog, match="c1/dns: lab demo has no log of it; there are: c1/etcd, c1/n1/agent, "):
        process_logs.find(lab, "c1/dns")
    path = process_logs.find(lab, "c1/etcd")
    assert list(process_logs.read(path, tail=1, follow=False)) == ["two\n"]
    lines = process_logs.read(path, tail=1, follow=True)
    assert next(lines) == "two\n"
    with path.open("a") as log:
        print("three", file=log)
    assert next(lines) == "three\n"
