"""One Envoy process, and its admin socket, by which it is queried and drained."""

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
"""Seconds between queries while waiting for a state."""
ASK_TIMEOUT: Final = 2.0
"""Seconds for an answer of the admin socket; a busy machine takes one."""
LAST_LINES: Final = 5
"""Lines of Envoy's own log that an error quotes."""
TERM_TIMEOUT: Final = 5.0
"""Seconds between SIGTERM and SIGKILL."""
LONGEST_LINE: Final = 65_536
"""Bytes up to which a line of Envoy's own log is kept whole. Envoy lists everything that it refuses in one line."""
LAST_WORDS: Final = 1.0
"""Seconds for which the log of an ended process is still read: a child of it may hold the pipe open."""
LOOK_EVERY: Final = 0.2
"""Seconds between counts of a process's descriptors."""
LIVE: Final = "LIVE"

log = logs.get("envoy")


class HostHealth(Struct, frozen=True):
    """Health of a host as Envoy's admin interface reports it."""

    failed_active_health_check: bool = False
    failed_outlier_check: bool = False
    pending_active_hc: bool = False


class Host(NamedTuple):
    """A host of one of Envoy's clusters."""

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
    """The admin socket of an Envoy, which need not be a child of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"<Admin {self.path}>"

    async def state(self) -> str | None:
        """Return the server's state ('LIVE' once it is configured); ``None`` if the socket does not answer."""
        status, text = await self._ask("GET", "/ready")
        return text.strip() if status else None

    async def stats(self, pattern: str) -> dict[str, int]:
        """Return the statistics whose names match a regular expression; empty if the socket does not answer."""
        status, text = await self._ask("GET", f"/stats?format=json&filter={pattern}")
        if status != 200:
            return {}
        stats: list[dict[str, Any]] = msgspec.json.decode(text)["stats"]
        return {each["name"]: each["value"] for each in stats if "value" in each}

    async def hosts(self, pattern: str) -> list[Host] | None:
        """Return the hosts of clusters that match a regular expression; ``None`` if the socket does not answer."""
        status, text = await self._ask("GET", f"/clusters?format=json&filter={pattern}")
        if status != 200:
            return None
        return [
            Host(cluster.name, joined(address.address, address.port_value), host.health_status)
            for cluster in msgspec.json.decode(text, type=_Clusters).cluster_statuses
            for host in cluster.host_statuses
            if (address := host.address.socket_address) is not None
        ]

    async def has_listeners(self) -> bool:
        """True if it is live with listeners from the discovery service; Envoy is also live when that never answered."""
        if await self.state() != LIVE:
            return False
        return (await self.stats("listener_manager.lds.update_success")).get(
            "listener_manager.lds.update_success", 0
        ) > 0

    async def connections(self) -> int | None:
        """Return the number of client connections; ``None`` if it runs and does not answer."""
        gauges = await self.stats("downstream_cx_active")
        if not gauges and self._listens():  # an answer would at least have the admin socket's own
            return None
        return sum(number for name, number in gauges.items() if name.startswith("listener.") and ".admin." not in name)

    @property
    def pid(self) -> int:
        """Id of the process that listens; 0 if none does."""
        with socket.socket(socket.AF_UNIX) as asking:
            try:
                asking.connect(str(self.path))
            except OSError:
                return 0
            pid: int = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            return pid

    def _listens(self) -> bool:
        """True if a process listens, even if it is stopped."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.setblocking(False)
            try:
                asking.connect(str(self.path))
            except OSError as error:
                return isinstance(error, BlockingIOError)  # the queue is full
            return True

    async def drain(self, seconds: float, limit: float) -> None:
        """Ask clients to leave, stop listening after ``seconds``, and end when all have left, or after ``limit``."""
        await self._ask("POST", "/drain_listeners?graceful")
        ends = time.monotonic() + limit
        await asyncio.sleep(min(seconds, limit))
        while time.monotonic() < ends and await self.connections() != 0:  # noqa: ASYNC110 of another process
            await asyncio.sleep(POLL)
        await self.stop()

    async def stop(self) -> None:
        """End the process now."""
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
    """Return the admin sockets of a directory, of running and of killed Envoys, the latest first."""
    return [Admin(path) for path in sorted(directory.glob("admin-*.sock"), key=_made, reverse=True)]


def _made(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class Descriptors:
    """Writes the fraction of descriptors in use to a file by which Envoy refuses calls while few are left."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._written = 0.0
        self._write(0.0)

    def __repr__(self) -> str:
        return f"<Descriptors {self.file}: {self._written:.0%}>"

    async def follow(self, pid: int) -> None:
        """Update the file until cancelled, then remove it."""
        try:
            while True:
                with suppress(OSError):  # the process is ending
                    self._take(_part_used(pid), pid)
                await asyncio.sleep(LOOK_EVERY)
        finally:
            self.file.unlink(missing_ok=True)

    def _take(self, part: float, pid: int) -> None:
        """Write the fraction if it differs."""
        if (refused := part >= REFUSED_ABOVE) != (self._written >= REFUSED_ABOVE):
            log.warning(
                "few descriptors are left: connections are refused" if refused else "connections are taken", envoy=pid
            )
        if part != self._written:
            self._write(part)

    def _write(self, part: float) -> None:
        whole = self.file.with_suffix(".part")
        whole.write_text(f"{part}")
        whole.replace(self.file)  # Envoy watches for a rename
        self._written = part


def _part_used(pid: int) -> float:
    """Fraction of a process's descriptors in use, to a hundredth; 0 if they are unlimited."""
    limit, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    folder = Path(f"/proc/{pid}/fd")
    used = folder.stat().st_size or sum(1 for _ in folder.iterdir())  # the size is 0 before Linux 6.2
    return round(used / limit, 2) if limit > 0 else 0.0


class Envoy:
    """An Envoy that is a child process. Created by :meth:`start`."""

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
        """Digest of the bootstrap that it was started with."""

    def __repr__(self) -> str:
        return f"<Envoy {self.pid} {'runs' if self.alive else 'ended'}>"

    @classmethod
    async def start(
        cls, program: Path, directory: Path, *, admin: Path, digest: str, concurrency: int, drain_time: float
    ) -> Self:
        """Start one with the bootstrap of a directory. It has its own session, so that it may outlive this process."""
        descriptors = Descriptors(admin.with_suffix(".pressure"))
        flags = ["--disable-hot-restart", "--log-level", "warning", "--drain-strategy", "gradual"]
        process = await asyncio.create_subprocess_exec(
            program,
            *("-c", str(directory / BOOTSTRAP)),
            *("--config-yaml", msgspec.json.encode(overlay(admin, descriptors.file)).decode()),
            *("--concurrency", str(concurrency)),
            *("--drain-time-s", str(max(1, round(drain_time)))),
            *flags,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process, Admin(admin), digest, descriptors)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while it runs."""
        return self._process.returncode is None

    @property
    def status(self) -> int | None:
        """Exit status, negative for the signal that ended it; ``None`` while it runs."""
        return self._process.returncode

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._began

    def last_lines(self) -> str:
        """Return its last log lines, joined to one."""
        return " | ".join(self._lines) or "it logged nothing"

    async def ended(self) -> None:
        """Wait until it has ended."""
        await self._process.wait()

    async def ready(self, timeout: float) -> bool:
        """Wait until it has its listeners. Returns False if it ends or ``timeout`` seconds pass first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.alive:
                    if await self._admin.has_listeners():
                        return True
                    await asyncio.sleep(POLL)
        return False

    async def drain(self, seconds: float, limit: float) -> None:
        """Drain as :meth:`Admin.drain`, then make sure that it has ended."""
        if self.alive:
            await self._admin.drain(seconds, limit)
        await self.stop()

    async def stop(self) -> None:
        """Terminate it, and kill it if it does not end."""
        if self.alive:
            with suppress(ProcessLookupError):
                self._process.terminate()
        try:
            async with asyncio.timeout(TERM_TIMEOUT):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await asyncio.wait(
            [self._reading], timeout=LAST_WORDS
        )  # so that its last log lines are kept and the pipe is closed
        self.forget()

    def forget(self) -> None:
        """Clean up after an ended process."""
        self._admin.path.unlink(missing_ok=True)
        self._looking.cancel()
        self._reading.cancel()

    async def _read(self) -> None:
        """Print its log, and keep the last lines."""
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
