"""Keeps one Envoy running for a directory, and replaces it without a refused call.

The interface is files. The agent or a gateway writes ``bootstrap.json`` while it needs an Envoy, which starts with that
bootstrap, and removes it afterwards. This process runs in a unit of its own, so Envoy outlives them. Each Envoy has an
admin socket ``admin-*.sock`` in the directory.

Replacement: listeners have ``reuse_port``, so a second process starts on the same ports. When it has its listeners, the
first is drained, and ends when its connections have, or after a limit. A successor that does not get its configuration
is stopped, and the first continues. An Envoy that a killed supervisor left behind is replaced in the same way. Of two
supervisors, the one that wrote the file ``owner`` last acts, and the other only waits for its processes to end.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from isthmus import logs, statefile
from isthmus.proxy.bootstrap import BOOTSTRAP
from isthmus.proxy.filtering import UplinkFilter
from isthmus.proxy.process import Admin, Envoy, admins
from isthmus.proxy.steering import Steering
from isthmus.running import Tasks
from isthmus.statedb import Backoff, Retry

OWNER: Final = "owner"
POLL: Final = 0.2
"""Seconds between looks at the directory."""
ACCEPT_TIME: Final = 0.5
"""Seconds for a process that gets no new connections to accept those in its queues."""
SETTLED: Final = 10.0
"""Seconds of life after which an ended Envoy is restarted at once; before, with growing pauses from the second time."""

DESCRIPTORS: Final = 65_536
"""File descriptors that an Envoy may need: one for each listener, address and worker, two for each connection."""

log = logs.get("envoy")

Step = Literal["keep", "start", "replace", "stop"]


class Settings(NamedTuple):
    """Settings of the Envoys of a directory."""

    program: Path
    directory: Path
    concurrency: int = 2
    drain_time: float = 5.0
    """Seconds during which a replaced process asks clients to leave before it stops listening."""
    drain_limit: float = 600.0
    """Seconds after which connections that are still open are cut."""
    uplinks: tuple[str, ...] = ()
    """Interfaces whose packets are dropped."""
    ready_timeout: float = 30.0
    """Seconds for a successor to get its listeners: twice Envoy's own timeout of its discovery service."""


class SupervisorStats(Struct, frozen=True, gc=False):
    """Running processes, and counts since the start."""

    running: int
    """Process id of the serving Envoy; 0 if none."""
    draining: int
    started: int
    died: int
    outcome: str
    """The last action, as a sentence."""


def decide(*, desired: str, serving: str | None, alive: bool, asked: bool) -> Step:
    """Return the next step. ``desired`` and ``serving`` are digests of bootstraps; ``desired`` is '' for no Envoy."""
    if not desired:
        return "stop" if serving is not None else "keep"
    if serving is None or not alive:
        return "start"
    return "replace" if asked or serving != desired else "keep"


class Supervisor:
    """Runs the Envoy of one directory: :meth:`run` until cancelled; :meth:`replace` starts a new process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._token = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._numbers = count(1)
        self._serving: Envoy | None = None
        self._draining: set[asyncio.Task[None]] = set()
        self._alive: list[Envoy] = []
        """Processes started here that were running at the last start."""
        self._leftovers: list[Admin] = []
        self._asked = False
        self._wake = asyncio.Event()
        self._uplinks = UplinkFilter(settings.uplinks)
        self._retry = Retry(Backoff(0.1, 5.0))
        self._started = 0
        self._died = 0
        self._outcome = "waits for a bootstrap"

    def __repr__(self) -> str:
        return f"<Supervisor {self._settings.directory}: {self._outcome}>"

    def stats(self) -> SupervisorStats:
        """Return the state and the counts since the start."""
        running = self._serving.pid if self._serving is not None else 0
        return SupervisorStats(running, len(self._draining), self._started, self._died, self._outcome)

    def replace(self) -> None:
        """Replace the serving process, for example after an upgrade of its program."""
        self._asked = True
        self._wake.set()

    async def run(self) -> None:
        """Keep an Envoy running. When cancelled, drain it, unless another supervisor has taken over."""
        directory = self._settings.directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        if 0 <= most < DESCRIPTORS:  # negative means unlimited
            log.warning(
                "Envoy will refuse calls for want of descriptors: raise LimitNOFILE", limit=most, wanted=DESCRIPTORS
            )
        statefile.replace(directory / OWNER, self._token.encode())
        self._leftovers = await _leftovers(directory)
        try:
            async with Tasks() as tasks:  # a step that raises is repeated and ends no Envoy
                tasks.start("steps", self._keep, ends=True)
            self._outcome = "another supervisor has taken over: waits for its own processes to end"
            await self._ended()
        finally:
            await asyncio.shield(self._shutdown())

    async def _keep(self) -> None:
        """Repeat steps until another supervisor takes over."""
        while self._owns():
            await self._step()
            self._filter()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL):
                    await self._wake.wait()
            self._wake.clear()

    def _owns(self) -> bool:
        try:
            return (self._settings.directory / OWNER).read_text() == self._token
        except OSError:
            return True

    async def _step(self) -> None:
        serving, desired = self._serving, self._desired_digest()
        step = decide(
            desired=desired,
            serving=serving.digest if serving is not None else None,
            alive=serving is not None and serving.alive,
            asked=self._asked,
        )
        if serving is not None and not serving.alive and step != "keep":
            self._died += 1
            if serving.age > SETTLED:
                self._retry.succeeded()
            self._retry.failed()
            self._report(f"Envoy {serving.pid} ended by itself, status {serving.status}")
            serving.forget()
            self._serving = serving = None
        if step == "stop" and serving is not None:
            self._drain(serving)
            self._serving = None
            self._report("no Envoy is wanted: what served is drained")
        elif step == "start" and not self._leftovers:
            await self._start(desired)
        elif step != "keep":
            await self._replace(desired, serving)

    async def _start(self, desired: str) -> None:
        """Start an Envoy while none serves, so without waiting until it is ready."""
        if self._retry.attempts > 1:
            await self._retry.pause()
        self._asked = False
        self._serving = await self._launched(desired)
        self._report(f"Envoy {self._serving.pid} started")

    async def _replace(self, desired: str, before: Envoy | None) -> None:
        self._asked = False
        started = await self._launched(desired)
        if not await started.ready(self._settings.ready_timeout):
            await started.stop()
            self._asked = True
            self._report(f"Envoy {started.pid} did not get its configuration and is given up: {started.last_lines()}")
            self._retry.failed()
            await self._retry.pause()
            return
        self._filter()
        self._serving = started
        self._background(self._hand_over(started, before, self._leftovers))
        self._leftovers = []
        self._report(f"Envoy {started.pid} serves in place of another, which is drained")

    async def _hand_over(self, successor: Envoy, before: Envoy | None, leftovers: Sequence[Admin]) -> None:
        """Steer new connections to the successor, then drain the predecessors."""
        earlier: list[Envoy | Admin] = [*([before] if before is not None else []), *leftovers]
        steering = Steering(successor.pid, [each.pid for each in earlier])
        await self._drain_all(earlier, after=ACCEPT_TIME)
        steering.end()

    async def _drain_all(self, earlier: Sequence[Envoy | Admin], *, after: float = 0.0) -> None:
        """Drain predecessors. When cancelled, end them at once, since no other task would."""
        settings = self._settings
        try:
            await asyncio.sleep(after)
            await asyncio.gather(*(each.drain(settings.drain_time, settings.drain_limit) for each in earlier))
        except asyncio.CancelledError:
            await asyncio.gather(*(each.stop() for each in earlier))
            raise

    async def _launched(self, digest: str) -> Envoy:
        admin = self._settings.directory / f"admin-{self._token}-{next(self._numbers)}.sock"
        self._started += 1
        starting = asyncio.ensure_future(
            Envoy.start(
                self._settings.program,
                self._settings.directory,
                admin=admin,
                digest=digest,
                concurrency=self._settings.concurrency,
                drain_time=self._settings.drain_time,
            )
        )
        try:
            started = await asyncio.shield(starting)
        except asyncio.CancelledError:  # an untracked process would serve forever
            await (await starting).stop()
            raise
        self._alive = [*(each for each in self._alive if each.alive), started]
        return started

    def _filter(self) -> None:
        """Filter the listeners of all running Envoys, since draining ones still get new listeners."""
        self._uplinks.look(each.pid for each in self._alive if each.alive)

    def _desired_digest(self) -> str:
        try:
            return blake2b((self._settings.directory / BOOTSTRAP).read_bytes(), digest_size=8).hexdigest()
        except OSError:
            return ""

    def _drain(self, envoy: Envoy) -> None:
        self._background(self._drain_all([envoy]))

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def _ended(self) -> None:
        if self._serving is not None:
            await self._serving.ended()
        if self._draining:
            await asyncio.wait(self._draining)

    async def _shutdown(self) -> None:
        if not self._owns():
            # The other supervisor drains them and ends them after its limit: a kubelet ends the earlier pod at once.
            await self._ended()
            return
        for task in tuple(self._draining):
            task.cancel()
        if self._draining:
            await asyncio.wait(self._draining)
        if self._serving is not None and self._serving.alive:
            await self._serving.drain(self._settings.drain_time, self._settings.drain_time)

    def _report(self, outcome: str) -> None:
        self._outcome = outcome
        log.info(outcome)


async def _leftovers(directory: Path) -> list[Admin]:
    """Return the Envoys of an earlier supervisor that still answer; remove the sockets of others."""
    running = []
    for admin in admins(directory):
        if await admin.state() is not None:
            running.append(admin)
        else:
            admin.path.unlink(missing_ok=True)
    return running
