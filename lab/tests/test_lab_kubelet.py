"""The node's own API: logs and exec, as an API server asks for them."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from labs.host_processes import with_command
from labs.lab_running import Running

from isthmus_lab import kernel
from isthmus_lab.network import namespaces
from isthmus_lab.node.kubelet import PORT
from isthmus_lab.node.tail import start_of

pytestmark = pytest.mark.lab

SPEAK = "echo one; echo two; echo three; while :; do sleep 0.2; date +%N; done"


@pytest.fixture(scope="module")
def talker(clusters: Running) -> Running:
    """A pod that prints something, and one that has been restarted."""
    meta, spec = {"name": "talker"}, {"nodeName": "c1-n1", "containers": [{"name": "main", "image": "busybox"}]}
    spec["containers"][0]["command"] = ["sh", "-c", SPEAK]  # type: ignore[index]
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}]
    crash = json.loads(json.dumps(pods[0]).replace("talker", "again"))
    crash["spec"]["containers"][0]["command"] = ["sh", "-c", "echo I live; sleep 0.2; exit 1"]
    clusters.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all([*pods, crash]))
    return clusters


@asynccontextmanager
async def asking(talker: Running, *, token: str | None = None) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A client in the control plane, and the node's address. ``token`` replaces the cluster's; empty sends none."""
    cluster = talker.lab.clusters[0]
    opened: list[socket.socket] = []

    def inside(address: Any) -> socket.socket:
        with kernel.inside(namespaces.path(cluster.control_plane)):
            made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        opened.append(made)
        return made

    token = (cluster.directory / "token").read_text() if token is None else token
    head = {"Authorization": f"Bearer {token}"} if token else {}
    context = ssl.create_default_context(cafile=str(cluster.directory / "ca.crt"))
    connector = aiohttp.TCPConnector(socket_factory=inside, ssl=context)
    async with aiohttp.ClientSession(headers=head, connector=connector) as session:
        yield session, f"https://{cluster.nodes[0].address}:{PORT}"
    async with asyncio.timeout(60):  # TLS connections are closed in the loop's next turns, not in close()
        while any(made.fileno() >= 0 for made in opened):  # noqa: ASYNC110 no event to wait for
            await asyncio.sleep(0.01)


async def logs(talker: Running, query: str, *, pod: str = "talker") -> tuple[int, str]:
    async with (
        asking(talker) as (session, node),
        session.get(f"{node}/containerLogs/default/{pod}/main?{query}") as reply,
    ):
        return reply.status, await reply.text()


async def logged(talker: Running, query: str, wanted: str, *, pod: str = "talker") -> str:
    """Return the log once it contains ``wanted``."""
    async with asyncio.timeout(60):
        while True:
            if wanted in (output := (await logs(talker, query, pod=pod))[1]):
                return output
            await asyncio.sleep(0.1)


async def test_logs_are_what_a_container_prints(talker: Running) -> None:
    assert (await logged(talker, "", "three\n")).startswith("one\ntwo\nthree\n")


async def test_a_log_is_followed_while_the_container_runs(talker: Running) -> None:
    query = "follow=true&tailLines=0"
    await logged(talker, "", "three\n")
    async with (
        asyncio.timeout(60),
        asking(talker) as (session, node),
        session.get(f"{node}/containerLogs/default/talker/main?{query}") as reply,
    ):
        lines = [await reply.content.readline() for _ in range(3)]
    assert all(line.strip().isdigit() for line in lines)


async def test_the_log_before_a_restart_is_kept(talker: Running) -> None:
    assert await logged(talker, "previous=true", "I live\n", pod="again") == "I live\n"
    status, output = await logs(talker, "previous=true")
    assert (status, output) == (400, "previous terminated container 'main' not found\n")


async def test_what_is_not_on_the_node_is_named(talker: Running) -> None:
    assert await logs(talker, "", pod="nobody") == (404, "pod default/nobody is not here\n")


@pytest.mark.parametrize("token", ["", "another"])
async def test_only_the_clusters_api_server_may_ask(talker: Running, token: str) -> None:
    where = "/containerLogs/default/talker/main"
    async with asking(talker, token=token) as (session, node), session.get(node + where) as reply:
        assert reply.status == 401


async def exec(
    talker: Running, *command: str, send: tuple[bytes, ...] = (), **more: str
) -> tuple[bytes, dict[str, Any]]:
    """Run a command; return its standard output and the status."""
    await logged(talker, "", "three")
    query = [("command", word) for word in command] + list(more.items())
    output, status = b"", {}
    async with asking(talker) as (session, node), asyncio.timeout(60):
        where = f"{node}/exec/default/talker/main"
        async with session.ws_connect(where, params=query, protocols=("v5.channel.k8s.io",)) as ws:
            for message in send:
                await ws.send_bytes(message)
            async for reply in ws:
                if reply.data[0] == 1:
                    output += reply.data[1:]
                elif reply.data[0] == 3:
                    status = json.loads(reply.data[1:])
            assert ws.close_code == 1000
    return output, status


async def test_exec_gives_output_and_the_exit_code(talker: Running) -> None:
    output, status = await exec(talker, "sh", "-c", "echo hi; exit 3")
    assert output == b"hi\n"
    assert status["reason"] == "NonZeroExitCode"
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]


async def test_exec_passes_input_on_until_it_is_closed(talker: Running) -> None:
    output, status = await exec(talker, "tr", "a-z", "A-Z", stdin="1", send=(b"\x00shout", b"\xff\x00"))
    assert (output, status["status"]) == (b"SHOUT", "Success")


async def test_exec_on_a_terminal_has_its_size(talker: Running) -> None:
    resize = b"\x04" + json.dumps({"Width": 100, "Height": 30}).encode()
    output, status = await exec(talker, "sh", "-c", "read x; stty size", tty="1", stdin="1", send=(resize, b"\x00go\n"))
    assert b"30 100" in output
    assert status["status"] == "Success"


async def test_a_program_that_is_not_there_is_named(talker: Running) -> None:
    _, status = await exec(talker, "no-such-program")
    assert "no-such-program: not on this host" in status["message"]
    assert status["details"]["causes"][0]["message"] == "127"


async def test_a_command_ends_with_its_caller(talker: Running, until: Callable[..., Any]) -> None:
    await logged(talker, "", "three")
    async with asking(talker) as (session, node):
        where = f"{node}/exec/default/talker/main?command=sleep&command=4711"
        async with session.ws_connect(where, protocols=("v5.channel.k8s.io",)):
            until(lambda: [*with_command("sleep 4711")])
    until(lambda: not [*with_command("sleep 4711")])


@pytest.mark.parametrize(
    ("lines", "rest"), [("1", "c\n"), ("2", "b\nc\n"), ("9", "a\nb\nc\n"), ("0", ""), (None, "a\nb\nc\n")]
)
def test_the_last_lines_of_a_log_begin_where_they_begin(tmp_path: Path, lines: str | None, rest: str) -> None:
    path = tmp_path / "log"
    path.write_text("a\nb\nc\n")
    assert path.read_text()[start_of(path, lines) :] == rest
