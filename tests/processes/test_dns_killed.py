"""Two ``dns`` processes of a node, killed under questions that the kernel cannot answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from answers.names_node import SUPPORT, Node, within
from answers.names_world import CLUSTER_DNS, CLUSTER_DNS6, SERVER, SERVER6, ZONE

from isthmus import admin, config
from isthmus.datapath.core import libbpf
from isthmus.datapath.core.attach import directory
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.settings import ALIVE
from isthmus.model.dns import Name
from isthmus.model.tables import NAMES, PODS
from isthmus.statedb import Database

pytestmark = pytest.mark.bpf

ECHO = f"echo.demo.svc.{ZONE}"
ROWS = (
    Name(ECHO, "A", ("10.96.0.7",)),
    Name(f"_http._tcp.{ECHO}", "SRV", (f"0 100 80 {ECHO}.",)),
    Name(f"huge.demo.svc.{ZONE}", "A", tuple(f"10.1.{n // 250}.{n % 250}" for n in range(300))),
    Name(f"dns-version.{ZONE}", "TXT", ('"1.1.0"',), ttl=28800),
)

DEADLINE = 10.0
"""Seconds; longer than the machine may stand still: what is tested is that a closed socket ends steering to it."""
CONNECTED = 4
"""Sockets. The kernel sends six ICMP errors in a row to one pod, and one a second after them (icmp_ratelimit)."""


class Servers:
    """The node's ``dns`` processes, by instance; an agent's admin socket with the names is served by the test."""

    def __init__(self, node: Node, directory_: Path) -> None:
        self.node = node
        self._directory = directory_
        self._pin = node.pins.with_name(f"{node.name}-maps")
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started: dict[str, int] = {}
        self.agent = directory_ / "agent.sock"
        pinned = directory(str(self._pin), max_entries=1024)
        pinned.mkdir(parents=True)
        for name in ("alive", "sockets"):
            libbpf.pin(node.world.maps.fd(name), pinned / name)

    def start(self, instance: str, **more: Any) -> None:
        """A process; it serves once :meth:`alive` is true."""
        section = config.DnsSection(
            listen=(f"{SERVER}:53", f"[{SERVER6}]:53"),
            cluster_dns=(CLUSTER_DNS, CLUSTER_DNS6),
            agent=str(self.agent),
            tcp="off",
            uplinks=(),
            instance=instance,  # type: ignore[arg-type]
            deadline=DEADLINE,
            **more,
        )
        file = self._directory / f"{instance}.toml"
        datapath = config.DatapathSection(cgroup="/", pin=str(self._pin))
        file.write_text(config.to_toml(config.Config(dns=section, datapath=datapath)))
        command = [sys.executable, "-m", "isthmus", "dns", "--config", str(file)]
        with (self._directory / f"{instance}.log").open("ab") as log:
            self._started[instance] = time.monotonic_ns()
            self._running[instance] = subprocess.Popen(["ip", "netns", "exec", self.node.name, *command], stderr=log)

    async def alive(self, instance: str) -> None:
        """Return when it has renewed its deadline."""
        slot = ID.pack(int(instance == "second"))
        own = self._started[instance] + int(DEADLINE * 1e9)
        while ALIVE.unpack(libbpf.lookup(self.node.world.maps.fd("alive"), slot, ALIVE.size))[0] < own:
            assert self._running[instance].poll() is None, (self._directory / f"{instance}.log").read_text()
            await asyncio.sleep(0.02)

    async def waits(self, instance: str) -> None:
        """Return when it looks for the agent, and a bit later."""
        while "names" not in (log := (self._directory / f"{instance}.log").read_text()):
            assert self._running[instance].poll() is None, log
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)

    def signal(self, instance: str, number: int) -> None:
        """Send a signal; SIGKILL is waited for."""
        process = self._running[instance]
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait()

    def close(self) -> None:
        """End all of them."""
        for process in self._running.values():
            process.kill()
            process.wait()
        for pin in (*self._pin.rglob("alive"), *self._pin.rglob("sockets")):
            pin.unlink()


@pytest.fixture(scope="module")
def bpffs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    where = tmp_path_factory.mktemp("bpffs")
    subprocess.run(["mount", "-t", "bpf", "bpf", str(where)], check=True)
    yield where
    subprocess.run(["umount", str(where)], check=True)


@pytest.fixture
async def servers(tmp_path: Path, bpffs: Path) -> AsyncIterator[Servers]:
    node = Node(tmp_path, bpffs, ROWS)
    links = node.attach()
    db = Database(NAMES, PODS)
    with db.write() as txn:
        for row in ROWS:
            txn.put(NAMES, row)
    made = Servers(node, tmp_path)
    agent = asyncio.create_task(admin.Server(db, made.agent).run())
    try:
        yield made
    finally:
        made.close()
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
        links.close()
        node.close()


@contextlib.asynccontextmanager
async def asked(node: Node, server: str) -> AsyncIterator[dict[str, Any]]:
    """A pod that asks 200 questions a second meanwhile; the counts afterwards."""
    command = [sys.executable, str(SUPPORT / "answers" / "dns_load.py"), "200", server]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("ip", "netns", "exec", node.pod, *command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"asking\n"
    counts: dict[str, Any] = {}
    yield counts
    process.stdin.close()
    counts.update(json.loads(await process.stdout.read()))
    await process.wait()


@pytest.mark.slow
async def test_processes_that_are_killed_in_turn_cost_no_answer(servers: Servers) -> None:
    for instance in ("first", "second"):
        servers.start(instance)
        await servers.alive(instance)
    async with asked(servers.node, CLUSTER_DNS) as counts:
        for instance in ("first", "second"):
            await asyncio.sleep(0.5)
            servers.signal(instance, signal.SIGKILL)
            await asyncio.sleep(0.2)
            servers.start(instance)
            await servers.alive(instance)
        await asyncio.sleep(0.5)
    assert counts["questions"] > 200
    assert (counts["wrong"], counts["timeouts"]) == (0, 0), counts


@pytest.mark.slow
async def test_a_process_without_names_leaves_the_questions_to_the_one_that_has_them(servers: Servers) -> None:
    servers.start("first")
    await servers.alive("first")
    servers.agent = servers.agent.with_name("nobody.sock")
    servers.start("second")
    async with asked(servers.node, SERVER) as counts:
        await servers.waits("second")
    assert (counts["wrong"], counts["timeouts"]) == (0, 0), counts


@pytest.mark.slow
async def test_a_process_that_stops_gives_its_questions_to_the_other(servers: Servers) -> None:
    for instance in ("first", "second"):
        servers.start(instance)
        await servers.alive(instance)
    async with asked(servers.node, CLUSTER_DNS6) as counts:
        await asyncio.sleep(0.5)
        servers.signal("second", signal.SIGTERM)
        await asyncio.sleep(0.5)
    assert (counts["wrong"], counts["timeouts"]) == (0, 0), counts


@pytest.mark.slow
async def test_a_connected_socket_is_answered_by_the_process_that_is_left_and_refused_without_any(
    servers: Servers,
) -> None:
    """As the sockets of ``redirect`` are: their calls of the cluster DNS are connected to the server's own address."""
    for instance in ("first", "second"):
        servers.start(instance)
        await servers.alive(instance)
    with within(servers.node.pod):
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(CONNECTED)]
    try:
        for each in sockets:
            each.connect((SERVER, 53))
            each.settimeout(10)
        assert [await asyncio.to_thread(ask, each) for each in sockets] == ["answered"] * CONNECTED
        servers.signal("first", signal.SIGKILL)
        assert [await asyncio.to_thread(ask, each) for each in sockets] == ["answered"] * CONNECTED
        servers.signal("second", signal.SIGKILL)
        assert [await asyncio.to_thread(ask, each) for each in sockets] == ["ConnectionRefusedError"] * CONNECTED
        servers.start("first")
        await servers.alive("first")
        assert [await asyncio.to_thread(ask, each) for each in sockets] == ["answered"] * CONNECTED
    finally:
        for each in sockets:
            each.close()


def ask(connected: socket.socket) -> str:
    """What becomes of a question over a connected socket."""
    name = b"".join(bytes([len(label)]) + label.encode() for label in f"dns-version.{ZONE}".split("."))
    question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + name + b"\x00\x00\x10\x00\x01"
    try:
        connected.send(question)
        return "answered" if connected.recv(512)[:2] == b"\x12\x34" else "wrong"
    except OSError as error:
        return type(error).__name__
