"""One Envoy process, and what its admin socket is used for: its state, its drain."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import aiohttp
import msgspec
from msgspec import Struct

from isthmus import logs
from isthmus.model.hosts import joined
from isthmus.proxy.bootstrap import BOOTSTRAP, REFUSED_ABOVE, overlay

POLL: Final = 0.05
"""Seconds between questions for a state that is waited for."""
ASK_TIMEOUT: Final = 2.0
"""Seconds for an answer of the admin socket; a busy machine takes one."""
LAST_LINES: Final = 5
"""Lines of Envoy's own log that an error quotes."""
TERM_TIMEOUT: Final = 5.0
"""Seconds between SIGTERM and SIGKILL."""
LONGEST_LINE: Final = 65_536
"""Bytes of a line of Envoy's own log; of a longer one each part is a line. It lists all that it refuses in one."""
LAST_WORDS: Final = 1.0
"""Seconds until the log of a process that has ended is left unread: a child of it may hold the pipe open."""
LOOK_EVERY: Final = 0.2
"""Seconds between looks at how many descriptors a process has."""
LIVE: Final = "LIVE"

log = logs.get("envoy")


class HostHealth(Struct, frozen=True):
    """What Envoy found of a host, as its admin interface has it."""

    failed_active_health_check: bool = False
    failed_outlier_check: bool = False
    pending_active_hc: bool = False


class Host(NamedTuple):
    """A host of a cluster of Envoy."""

    cluster: str
    address: str
    """host:port."""
    health: HostHealth


class _SocketAddress(Struct, frozen=True):
    address: str = ""
    port_value: int = 0


class _Address(Struct, frozen=True):
    socket_address: _SocketAddress | None = None


class _HostStatus(Struct):
    address: _Address = _Address()
    health_status: HostHealth = HostHealth()


class _ClusterStatus(Struct):
    name: str = ""
    host_statuses: list[_HostStatus] = []


class _Clusters(Struct):
    cluster_statuses: list[_ClusterStatus] = []


class Admin:
    """The admin socket of an Envoy, this process's child or not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"<Admin {self.path}>"

    async def state(self) -> str | None:
        """The server's state ('LIVE' when it has its first configuration); None where the socket does not answer."""
        status, text = await self._ask("GET", "/ready")
        return text.strip() if status else None

    async def stats(self, pattern: str) -> dict[str, int]:
        """Numbers whose name matches a regular expression; none where the socket does not answer."""
        status, text = await self._ask("GET", f"/stats?format=json&filter={pattern}")
        if status != 200:
            return {}
        found: list[dict[str, Any]] = msgspec.json.decode(text)["stats"]
        return {each["name"]: each["value"] for each in found if "value" in each}

    async def hosts(self, pattern: str) -> list[Host] | None:
        """The hosts of clusters whose name matches a regular expression; None where the socket does not answer."""
        status, text = await self._ask("GET", f"/clusters?format=json&filter={pattern}")
        if status != 200:
            return None
        return [
            Host(cluster.name, joined(at.address, at.port_value), host.health_status)
            for cluster in msgspec.json.decode(text, type=_Clusters).cluster_statuses
            for host in cluster.host_statuses
            if (at := host.address.socket_address) is not None
        ]

    async def has_listeners(self) -> bool:
        """Whether it is live and has a list of listeners from the discovery service, not for want of an answer."""
        if await self.state() != LIVE:
            return False
        return (await self.stats("listener_manager.lds.update_success")).get(
            "listener_manager.lds.update_success", 0
        ) > 0

    async def connections(self) -> int | None:
        """Open connections of clients; None where it does not answer, though it runs."""
        found = await self.stats("downstream_cx_active")
        if not found and self._listens():  # the admin socket's own would be among them
            return None
        return sum(number for name, number in found.items() if name.startswith("listener.") and ".admin." not in name)

    @property
    def pid(self) -> int:
        """The process that listens; 0 where none does."""
        with socket.socket(socket.AF_UNIX) as asking:
            try:
                asking.connect(str(self.path))
            except OSError:
                return 0
            pid: int = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            return pid

    def _listens(self) -> bool:
        """Whether a process does, stopped or not."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.setblocking(False)
            try:
                asking.connect(str(self.path))
            except OSError as why:
                return isinstance(why, BlockingIOError)  # as many wait already as may
            return True

    async def drain(self, seconds: float, limit: float) -> None:
        """Ask clients to leave, stop listening after these seconds, and end it when all have left or at the limit."""
        await self._ask("POST", "/drain_listeners?graceful")
        ends = time.monotonic() + limit
        await asyncio.sleep(min(seconds, limit))
        while time.monotonic() < ends and await self.connections() != 0:  # noqa: ASYNC110 of another process
            await asyncio.sleep(POLL)
        await self.stop()

    async def stop(self) -> None:
        """End it now."""
        await self._ask("POST", "/quitquitquit")
        self.path.unlink(missing_ok=True)

    async def _ask(self, method: str, path: str) -> tuple[int, str]:
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT)
        try:
            connector = aiohttp.UnixConnector(str(self.path))
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.request(method, f"http://envoy{path}") as answer,
            ):
                return answer.status, await answer.text()
        except (OSError, aiohttp.ClientError, TimeoutError):
            return 0, ""


def admins(directory: Path) -> list[Admin]:
    """The admin sockets of a directory: of each Envoy that runs, or was killed; the one started last comes first."""
    return [Admin(path) for path in sorted(directory.glob("admin-*.sock"), key=_made, reverse=True)]


def _made(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class Descriptors:
    """Which part of an Envoy's descriptors is in use, in a file by which Envoy refuses calls while few are left."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._written = 0.0
        self._write(0.0)

    def __repr__(self) -> str:
        return f"<Descriptors {self.file}: {self._written:.0%}>"

    async def follow(self, pid: int) -> None:
        """Keep the file, until cancelled; then it is removed."""
        try:
            while True:
                with suppress(OSError):  # it is ending
                    self._take(_part_used(pid), pid)
                await asyncio.sleep(LOOK_EVERY)
        finally:
            self.file.unlink(missing_ok=True)

    def _take(self, part: float, pid: int) -> None:
        """Write what differs."""
        if (refused := part >= REFUSED_ABOVE) != (self._written >= REFUSED_ABOVE):
            log.warning(
                "few descriptors are left: connections are refused" if refused else "connections are taken", envoy=pid
            )
        if part != self._written:
            self._write(part)

    def _write(self, part: float) -> None:
        whole = self.file.with_suffix(".part")
        whole.write_text(f"{part}")
        whole.replace(self.file)  # what Envoy watches for
        self._written = part


def _part_used(pid: int) -> float:
    """Of a process's descriptors, to a hundredth; 0 where they have no limit."""
    limit, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    folder = Path(f"/proc/{pid}/fd")
    used = folder.stat().st_size or sum(1 for _ in folder.iterdir())  # the size is 0 before Linux 6.2
    return round(used / limit, 2) if limit > 0 else 0.0


class Envoy:
    """A child process. Made by :meth:`start`."""

    def __init__(
        self, process: asyncio.subprocess.Process, admin: Admin, digest: str, descriptors: Descriptors
    ) -> None:
        self._process = process
        self._admin = admin
        self._looking = asyncio.create_task(descriptors.follow(process.pid))
        self._began = time.monotonic()
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._reading = asyncio.create_task(self._read())
        self.digest = digest
        """Of the bootstrap that it was started with."""

    def __repr__(self) -> str:
        return f"<Envoy {self.pid} {'runs' if self.alive else 'ended'}>"

    @classmethod
    async def start(
        cls, program: Path, directory: Path, *, admin: Path, digest: str, concurrency: int, drain_time: float
    ) -> Self:
        """Start one with the bootstrap of a directory. It is no part of our process group: it may outlive us."""
        found = Descriptors(admin.with_suffix(".pressure"))
        flags = ["--disable-hot-restart", "--log-level", "warning", "--drain-strategy", "gradual"]
        process = await asyncio.create_subprocess_exec(
            program,
            *("-c", str(directory / BOOTSTRAP)),
            *("--config-yaml", msgspec.json.encode(overlay(admin, found.file)).decode()),
            *("--concurrency", str(concurrency)),
            *("--drain-time-s", str(max(1, round(drain_time)))),
            *flags,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process, Admin(admin), digest, found)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.returncode is None

    @property
    def status(self) -> int | None:
        """Its exit status; negative: the signal that ended it; None while it runs."""
        return self._process.returncode

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._began

    def last_lines(self) -> str:
        """What it logged last, on one line."""
        return " | ".join(self._lines) or "it logged nothing"

    async def ended(self) -> None:
        """Wait until it has ended."""
        await self._process.wait()

    async def ready(self, timeout: float) -> bool:
        """Wait until it has its listeners; whether it came to that within so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.alive:
                    if await self._admin.has_listeners():
                        return True
                    await asyncio.sleep(POLL)
        return False

    async def drain(self, seconds: float, limit: float) -> None:
        """See :meth:`Admin.drain`; afterwards it has ended."""
        if self.alive:
            await self._admin.drain(seconds, limit)
        await self.stop()

    async def stop(self) -> None:
        """End it now, in the kernel's way where it does not end itself."""
        if self.alive:
            with suppress(ProcessLookupError):
                self._process.terminate()
        try:
            async with asyncio.timeout(TERM_TIMEOUT):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await asyncio.wait([self._reading], timeout=LAST_WORDS)  # else what it logged last is lost, and its pipe left
        self.forget()

    def forget(self) -> None:
        """Remove what an ended process leaves."""
        self._admin.path.unlink(missing_ok=True)
        self._looking.cancel()
        self._reading.cancel()

    async def _read(self) -> None:
        """Pass its log on, and keep the last lines."""
        stream = self._process.stderr
        assert stream is not None
        rest = b""
        while part := await stream.read(LONGEST_LINE):
            *lines, rest = (rest + part).split(b"\n")
            if len(rest) >= LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            self._log(lines)
        self._log([rest] if rest else [])

    def _log(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            print(text, flush=True)
