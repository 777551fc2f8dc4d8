"""Envoy's supervisor, with the real Envoy: replaced, killed, left behind, not wanted any more."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from meshes.envoy_world import EnvoyWorld, cluster, endpoints, envoy_world, http_listener, routes
from peers.etcd_server import free_ports

from isthmus.proxy import BootstrapFile, NoEnvoyError, Supervisor, binary, bootstrap, process
from isthmus.proxy.supervisor import decide

needs_envoy = pytest.mark.needs("envoy")
RATE = 200
"""Calls in a second."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[EnvoyWorld]:
    async with envoy_world(tmp_path / "envoy") as made:
        yield made


async def serving(world: EnvoyWorld) -> int:
    """The port of a service that answers through Envoy."""
    [port] = free_ports(1)
    backend = await world.backend("one")
    world.put(http_listener("echo", port), routes("echo", ("/", "echo")), cluster("echo"), endpoints("echo", backend))
    await world.until(port, (200, "one"))
    return port


async def posted(port: int) -> bytes:
    """What comes of one request on one connection, which nobody repeats; empty if nothing does."""
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(b"POST / HTTP/1.1\r\nhost: late\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return await reader.read()
    return b""


async def began(asked: asyncio.Event, call: asyncio.Task[bytes]) -> bool:
    """True once a call has reached its backend; False if it got no answer before."""
    reached = asyncio.create_task(asked.wait())
    await asyncio.wait([reached, call], return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    return not call.done()


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 of another process
        await asyncio.sleep(0.02)


class Calls:
    """New connections at a steady rate, and what came of those that failed."""

    def __init__(self, world: EnvoyWorld, port: int) -> None:
        self.total, self.failed = 0, list[tuple[int, str]]()
        self._world, self._port = world, port
        self._pending: set[asyncio.Task[None]] = set()

    async def during(self, seconds: float) -> None:
        """Call for so long, and wait for all answers."""
        loop = asyncio.get_running_loop()
        ends, due = loop.time() + seconds, loop.time()
        while due < ends:
            task = asyncio.create_task(self._one())
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)
            due = max(due + 1 / RATE, loop.time())  # no burst after a pause of this process
            await asyncio.sleep(max(0.0, due - loop.time()))
        await asyncio.gather(*self._pending)

    async def _one(self) -> None:
        got = await self._world.get(self._port)
        self.total += 1
        if got != (200, "one"):
            self.failed.append(got)


@needs_envoy
async def test_an_envoy_that_is_replaced_fails_no_call(world: EnvoyWorld) -> None:
    port = await serving(world)
    calls, first = Calls(world, port), world.supervisor.stats().running
    load = asyncio.create_task(calls.during(5))
    await asyncio.sleep(0.5)
    world.supervisor.replace()
    await eventually(lambda: world.supervisor.stats().running not in (first, 0))
    await eventually(lambda: world.supervisor.stats().draining == 0)
    await load
    assert calls.failed == []
    assert calls.total
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


@needs_envoy
async def test_a_supervisor_that_ends_while_it_drains_leaves_no_envoy_behind(world: EnvoyWorld) -> None:
    await serving(world)
    first = world.supervisor.stats().running
    world.supervisor.replace()
    await eventually(lambda: world.supervisor.stats().running not in (first, 0))
    second = world.supervisor.stats().running
    await world.stop("supervisor")
    for pid in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@needs_envoy
async def test_no_call_fails_while_the_discovery_service_is_away_and_comes_back(world: EnvoyWorld) -> None:
    port = await serving(world)
    calls = Calls(world, port)
    load = asyncio.create_task(calls.during(3))
    await world.stop("ads")
    await asyncio.sleep(1)
    world.serve()
    await load
    assert calls.failed == []


@needs_envoy
@pytest.mark.slow
async def test_an_envoy_with_few_descriptors_left_refuses_calls_and_those_that_it_has_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(bootstrap, "KNOWN_WITHIN", 0.02)
    monkeypatch.setattr(bootstrap, "UNANSWERED_ABOVE", 1.0)
    async with envoy_world(tmp_path / "envoy") as world:
        port = await serving(world)
        running = world.supervisor.stats().running
        resource.prlimit(running, resource.RLIMIT_NOFILE, (1_000, 1_000))
        held: list[Held] = []
        while not held or held[-1].status == b"200":
            async with asyncio.timeout(60):
                held.append(await Held.of(port))
        assert {await each.again() for each in held[:-1]} == {b"200"}
        for each in held:
            each.close()
        await world.until(port, (200, "one"))
        stats = world.supervisor.stats()
        assert (stats.running, stats.died) == (running, 0)


class Held(NamedTuple):
    """A connection that is kept, and the status of its first request; empty: it was refused."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: bytes

    @classmethod
    async def of(cls, port: int) -> Held:
        made = cls(*await asyncio.open_connection("127.0.0.1", port), b"")
        return made._replace(status=await made.again())

    async def again(self) -> bytes:
        with suppress(OSError, asyncio.IncompleteReadError):
            self.writer.write(b"GET / HTTP/1.1\r\nhost: echo\r\n\r\n")
            head = await self.reader.readuntil(b"\r\n\r\n")
            await self.reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
            return head.split()[1]
        return b""

    def close(self) -> None:
        self.writer.transport.abort()


async def test_an_envoy_that_is_drained_and_too_busy_to_answer_keeps_its_connections(tmp_path: Path) -> None:
    """Its admin socket gives no answer first; then it has a connection, then none."""
    active = '{"stats": [{"name": "listener.0.downstream_cx_active", "value": %d}]}'
    counts, asked = iter([(503, ""), (200, active % 1), (200, active % 0)]), list[str]()

    async def admin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):  # of a connection by which nothing is asked
            request = await reader.readuntil(b"\r\n\r\n")
            asked.append(request.split()[1].decode().partition("?")[0])
            status, body = next(counts) if asked[-1] == "/stats" else (200, "")
            writer.write(f"HTTP/1.1 {status} answer\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())

    path = tmp_path / "admin.sock"
    async with await asyncio.start_unix_server(admin, path):
        await process.Admin(path).drain(0, 60)
    assert asked == ["/drain_listeners", "/stats", "/stats", "/stats", "/quitquitquit"]


async def test_lines_of_any_length_are_read_of_an_envoys_log(tmp_path: Path) -> None:
    """One that is not read to its end fills the pipe, and Envoy stands still when it logs."""
    program = tmp_path / "envoy"
    program.write_text(
        "#!/bin/sh\n{ head -c 1000000 /dev/zero | tr '\\0' x; echo; echo behind it; } >&2\nexec sleep 60\n"
    )
    program.chmod(0o755)
    admin = tmp_path / "admin.sock"
    envoy = await process.Envoy.start(program, tmp_path, admin=admin, digest="", concurrency=1, drain_time=1)
    try:
        async with asyncio.timeout(60):
            await eventually(lambda: envoy.last_lines().endswith("behind it"))
    finally:
        await envoy.stop()


@needs_envoy
async def test_a_killed_envoy_is_started_again_and_serves(world: EnvoyWorld) -> None:
    port = await serving(world)
    first = world.supervisor.stats().running
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: world.supervisor.stats().running not in (first, 0))
    await world.until(port, (200, "one"))
    assert world.supervisor.stats().died == 1


@needs_envoy
async def test_no_envoy_runs_while_none_is_wanted(world: EnvoyWorld) -> None:
    port = await serving(world)
    world.wanted.remove()
    await eventually(lambda: world.supervisor.stats().running == 0 and not world.supervisor.stats().draining)
    assert (await world.get(port))[0] == 0
    world.wanted.write("test")
    await world.until(port, (200, "one"))


@needs_envoy
async def test_a_successor_that_gets_no_configuration_is_given_up(tmp_path: Path) -> None:
    async with envoy_world(tmp_path / "envoy", ready_timeout=2.0) as world:
        port = await serving(world)
        first = world.supervisor.stats().running
        await world.stop("ads")
        world.supervisor.replace()
        await eventually(lambda: "given up" in world.supervisor.stats().outcome)
        assert world.supervisor.stats().running == first
        assert await world.get(port) == (200, "one")


@pytest.mark.slow
@needs_envoy
async def test_another_supervisor_takes_over_from_one_that_was_killed_without_a_failed_call(tmp_path: Path) -> None:
    async with envoy_world(tmp_path / "envoy") as world:
        await world.stop("supervisor")
        command = [sys.executable, "-m", "isthmus", "envoy", "--set", f"proxy.directory={world.directory}"]
        command += ["--set", "proxy.drain_time=1"]
        killed = await asyncio.create_subprocess_exec(*command)
        port = await serving(world)
        killed.kill()
        await killed.wait()
        assert await world.get(port) == (200, "one")
        calls = Calls(world, port)
        load = asyncio.create_task(calls.during(4))
        world.supervisor = Supervisor(world.supervisor._settings)
        world.supervise()
        await eventually(lambda: world.supervisor.stats().running != 0 and not world.supervisor.stats().draining)
        await load
        assert calls.failed == []
        assert len(list(world.directory.glob("admin-*.sock"))) == 1


@needs_envoy
async def test_the_supervisor_that_came_later_has_the_directory(world: EnvoyWorld) -> None:
    port = await serving(world)
    earlier, world.supervisor = world.supervisor, Supervisor(world.supervisor._settings)
    world._tasks["earlier"] = world._tasks.pop("supervisor")
    world.supervise()
    await eventually(lambda: "another supervisor" in earlier.stats().outcome)
    async with asyncio.timeout(90):
        await world._tasks["earlier"]
    assert await world.get(port) == (200, "one")
    assert earlier.stats().started == world.supervisor.stats().started == 1


@needs_envoy
@pytest.mark.slow
async def test_calls_of_a_supervisor_that_is_ended_after_another_took_over_go_on(world: EnvoyWorld) -> None:
    """As in a rollout: the earlier pod is ended once the later one is ready; calls last longer than its drain time."""
    [port], asked, answering = free_ports(1), asyncio.Event(), asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await answering.wait()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none")
            await writer.drain()

    async with await asyncio.start_server(late, "127.0.0.1", 0) as server:
        backend = server.sockets[0].getsockname()[1]
        listener, targets = http_listener("late", port), endpoints("late", backend)
        world.put(listener, routes("late", ("/", "late")), cluster("late"), targets)
        while (call := asyncio.create_task(posted(port))) and not await began(asked, call):
            pass  # Envoy has no listener yet
        earlier, world.supervisor = world.supervisor, Supervisor(world.supervisor._settings)
        ending = world._tasks["earlier"] = world._tasks.pop("supervisor")
        world.supervise()
        await eventually(lambda: "another supervisor" in earlier.stats().outcome)
        ending.cancel()
        await asyncio.sleep(3 * world.supervisor._settings.drain_time)
        assert not call.done()
        answering.set()
        assert (await call).endswith(b"one")
        with suppress(asyncio.CancelledError):
            await world._tasks.pop("earlier")


@needs_envoy
@pytest.mark.slow
async def test_the_process_replaces_its_envoy_on_sighup_and_drains_it_at_its_end(tmp_path: Path) -> None:
    async with envoy_world(tmp_path / "envoy") as world:
        await world.stop("supervisor")
        flags = ["--set", f"proxy.directory={world.directory}", "--set", "proxy.drain_time=1"]
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "isthmus", "envoy", *flags)
        port = await serving(world)
        sockets = set(world.directory.glob("admin-*.sock"))
        process.send_signal(signal.SIGHUP)
        await eventually(
            lambda: (
                bool(set(world.directory.glob("admin-*.sock")))
                and sockets.isdisjoint(world.directory.glob("admin-*.sock"))
            )
        )
        process.terminate()
        assert await process.wait() == 0
        assert (await world.get(port))[0] == 0
        assert list(world.directory.glob("admin-*.sock")) == []


@needs_envoy
async def test_the_program_is_found_and_its_version_read() -> None:
    assert (await binary.check(binary.find())).startswith("1.")


async def test_a_program_that_is_no_envoy_is_refused_with_its_path(tmp_path: Path) -> None:
    program = tmp_path / "envoy"
    program.write_text("#!/bin/sh\necho envoy  version: aaa/1.20.7/Clean\n")
    program.chmod(0o755)
    with pytest.raises(NoEnvoyError, match=r"is 1\.20\.7; want 1\.34 or newer"):
        await binary.check(program)
    program.write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(NoEnvoyError, match="no version in its output"):
        await binary.check(program)
    with pytest.raises(NoEnvoyError, match="no program there"):
        binary.find(str(tmp_path / "none"))


async def test_the_package_without_a_program_is_no_envoy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "envoy").write_text("#!/usr/bin/python3\nimport envoy\n")
    (tmp_path / "envoy").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binary, "in_package", lambda: None)
    with pytest.raises(NoEnvoyError, match=r"requirements/envoy\.lock"):
        binary.find()


@pytest.mark.parametrize(
    ("wanted", "serving", "alive", "asked", "step"),
    [
        ("", None, False, False, "keep"),
        ("a", None, False, False, "start"),
        ("a", "a", True, False, "keep"),
        ("a", "a", False, False, "start"),
        ("b", "a", True, False, "replace"),
        ("a", "a", True, True, "replace"),
        ("a", "a", False, True, "start"),
        ("", "a", True, False, "stop"),
        ("", None, False, True, "keep"),
    ],
)
def test_what_is_done_next(wanted: str, serving: str | None, alive: bool, asked: bool, step: str) -> None:
    assert decide(desired=wanted, serving=serving, alive=alive, asked=asked) == step


def test_an_equal_bootstrap_is_not_written_again(tmp_path: Path) -> None:
    wanted = BootstrapFile(tmp_path)
    wanted.write("n1")
    first = (tmp_path / "bootstrap.json").stat()
    wanted.write("n1")
    assert (tmp_path / "bootstrap.json").stat().st_mtime_ns == first.st_mtime_ns
    wanted.write("n2")
    assert b'"n2"' in (tmp_path / "bootstrap.json").read_bytes()
    wanted.remove()
    with suppress(FileNotFoundError):
        wanted.remove()
    assert list(tmp_path.iterdir()) == []
