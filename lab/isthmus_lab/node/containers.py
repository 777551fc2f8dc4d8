"""One container: its process, its probes, its restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, structs

from isthmus.times import timestamp
from isthmus_lab import cgroups, images, pod_exec, privileges, spawn
from isthmus_lab.node import probes, stdio
from isthmus_lab.node.objects import Container, Probe
from isthmus_lab.node.sandbox import Sandbox, enter
from isthmus_lab.node.status import ContainerState, Running, Terminated, Waiting

INITIAL_BACKOFF: Final = 1.0
MAX_BACKOFF: Final = 60.0
STABLE_AFTER: Final = 600.0
"""A container that ran this long is started again without a pause."""
YOUNG: Final = 1.0
"""Seconds in which a program gets to say how it takes SIGTERM."""

RecordEvent = Callable[[str, str, Literal["Normal", "Warning"]], None]
"""Reason, message and type of an event."""


class ContainerPlan(Struct, frozen=True):
    """All that is needed to run a container, as often as it takes."""

    spec: Container
    command: list[str]
    environment: dict[str, str]
    directory: str
    sandbox: Sandbox
    cgroup: Path
    namespace: Path | None
    logs: Path
    address: str
    stand_in: bool = False
    """True if a stand-in that only answers runs in place of the image, without the image's programs."""


class Runner:
    """Runs one container until it is over for good, by the pod's restart policy; calls ``changed`` on every state."""

    def __init__(
        self,
        plan: ContainerPlan,
        *,
        policy: str,
        changed: Callable[[], None],
        say: RecordEvent,
        before: ContainerState | None = None,
    ) -> None:
        """``before`` is the state that an earlier node process left; a running container is adopted."""
        self.plan = plan
        self._policy = policy
        self._changed = changed
        self._event = say
        self._process: spawn.Process | None = None
        self._stopping = False
        self.console: stdio.StandardStreams | None = None
        """Its input, where it asks for one; not of one that an earlier process of this node started."""
        self.state = before or ContainerState(plan.spec.name, plan.spec.image)

    def __repr__(self) -> str:
        return f"<Runner {self.state.name}: {self.state.now}>"

    @property
    def running(self) -> bool:
        """True if its process runs."""
        return self._process is not None and self._process.code is None

    @property
    def inside(self) -> pod_exec.Container | None:
        """Handle for entering the container; None while it does not run."""
        if self._process is None or not self.running:
            return None
        return pod_exec.Container("", self.state.name, self._process.pid, self.plan.cgroup)

    def log(self, *, previous: bool) -> Path | None:
        """The log of the current run, or of the one before; None where there was none before."""
        number = self.state.restarts - 1 if previous else self.state.restarts
        path = self.plan.logs / f"{number}.log"
        if not previous and not path.exists() and self.state.restarts:
            path = self.plan.logs / f"{number - 1}.log"  # waits to be started again: the run that ended
        return None if previous and not path.exists() else path

    async def run(self) -> int:
        """Start, watch, start again; the exit code that was the last."""
        pause = 0.0
        if isinstance(self.state.now, Terminated) and not self._restarts(self.state.now.code):
            return self.state.now.code  # it was over before this process of the node
        while True:
            if pause:
                message = f"back-off {pause:g}s restarting failed container {self.state.name}"
                self._update(now=Waiting("CrashLoopBackOff", message))
                self._event("BackOff", message, "Warning")
                await asyncio.sleep(pause)
            begun = asyncio.get_running_loop().time()
            code = await self._once()
            if self._stopping or not self._restarts(code):
                return code
            lasted = asyncio.get_running_loop().time() - begun
            pause = INITIAL_BACKOFF if lasted > STABLE_AFTER or not pause else min(MAX_BACKOFF, pause * 2)
            self._update(restarts=self.state.restarts + 1)
            if self.state.restarts == 1:
                pause = 0.0  # the first restart is at once

    def _restarts(self, code: int) -> bool:
        return self._policy == "Always" or (self._policy == "OnFailure" and code != 0)

    async def stop(self, *, grace: float) -> None:
        """End it, and start it no more."""
        self._stopping = True
        self._update(ready=False)
        if self._process is not None:
            handled = await _until_sigterm_is_handled(self._process, within=min(YOUNG, grace))
            late = None if handled else asyncio.create_task(_sigterm_once_handled(self._process))
            try:
                await self._process.stop(grace=grace)
            finally:
                if late is not None:
                    late.cancel()

    async def _once(self) -> int:
        begun = timestamp()
        try:
            self._process = self._adopted() or self._start()
        except OSError as error:
            self._close_console()
            missing = isinstance(error, FileNotFoundError)
            program = self.plan.command[0] if self.plan.command else "no command"
            reason = images.missing(program) if missing else f"{program}: {error.strerror}"
            self._ended(127, begun, reason="StartError", message=reason)
            self._event("Failed", f"container {self.state.name}: {reason}", "Warning")
            return 127
        if not isinstance(self.state.now, Running):
            no_startup = self.plan.spec.startup_probe is None
            self._update(now=Running(self._process.pid, begun, self._process.born), started=no_startup, unready="")
            self._event("Started", f"Started container {self.state.name}", "Normal")
        watchers = [asyncio.ensure_future(self._watch(self._process)), asyncio.ensure_future(self._record())]
        try:
            code = await self._process.wait()
            await asyncio.wait(watchers[1:], timeout=1.0)  # a grandchild may hold the terminal
        finally:
            for task in watchers:
                task.cancel()
            self._close_console()
        message = "could not be prepared; see its log" if code == spawn.PREPARATION_FAILED else ""
        self._ended(code, begun, message=message)
        return code

    def _adopted(self) -> spawn.Process | None:
        """The process that an earlier process of this node started, if it still runs."""
        current = self.state.now
        if not isinstance(current, Running):
            return None
        if (adopted := spawn.adopt(current.pid, start_time=current.born)) is None:
            self._ended(spawn.UNKNOWN, current.started, message="ended while the node's process was away")
            self._update(restarts=self.state.restarts + 1)
        return adopted

    def _start(self) -> spawn.Process:
        plan = self.plan
        cgroups.kill(plan.cgroup)  # what was started in the moment before a crash of this node, and not remembered
        plan.sandbox.scratch.mkdir(parents=True, exist_ok=True)
        plan.logs.mkdir(parents=True, exist_ok=True)
        place = spawn.Isolation(cgroups.make(plan.cgroup), plan.namespace)
        if not privileges.on_loopback():
            place = structs.replace(place, own_pids=True, prepare=plan.sandbox.enter)
        log, spec = plan.logs / f"{self.state.restarts}.log", plan.spec
        self.console = stdio.Terminal() if spec.tty else stdio.Input(enabled=spec.stdin)
        try:
            return spawn.start(
                plan.command,
                place=place,
                environment={"TERM": "xterm"} | plan.environment if spec.tty else plan.environment,
                output=log,
                directory=plan.directory,
                stdin=self.console.stdin,
                terminal=spec.tty,
            )
        finally:
            self.console.handed_over()

    async def _record(self) -> None:
        """Copy the terminal's output to the log."""
        path = self.log(previous=False)
        if not isinstance(self.console, stdio.Terminal) or path is None:
            return

        async def write(data: bytes) -> None:
            with path.open("ab") as log:
                log.write(data)

        await stdio.pour(self.console.outputs[0][1], write)

    def _close_console(self) -> None:
        if self.console is not None:
            self.console.close()
            self.console = None

    def _ended(self, code: int, begun: str, *, reason: str = "", message: str = "") -> None:
        cgroups.kill(self.plan.cgroup)  # what it left behind outside its PID namespace: probes, exec sessions
        ended = Terminated(code, begun, timestamp(), reason, message)
        self._update(now=ended, last=ended, ready=False, started=False)

    async def _watch(self, process: spawn.Process) -> None:
        """The probes of a running container, in the order Kubernetes has: startup, then the other two together."""
        spec = self.plan.spec
        if spec.startup_probe is not None and not self.state.started:
            await self._until_started(spec.startup_probe, process)
            self._update(started=True)
        async with asyncio.TaskGroup() as group:
            if spec.liveness_probe is not None:
                group.create_task(self._liveness(spec.liveness_probe, process))
            if spec.readiness_probe is not None:
                group.create_task(self._readiness(spec.readiness_probe))
            else:
                self._update(ready=True)

    async def _until_started(self, probe: Probe, process: spawn.Process) -> None:
        await asyncio.sleep(probe.initial_delay_seconds)
        failures = 0
        pauses = probes.eager(probe)
        while (failure := await self._probe(probe)) is not None:
            if pauses:
                await asyncio.sleep(pauses.pop(0))
                continue
            failures += 1
            if failures >= probe.failure_threshold:
                self._event("Unhealthy", f"Startup probe failed: {failure}", "Warning")
                self._update(unready=f"startup probe: {failure}")
                process.signal(signal.SIGKILL)
                return
            await asyncio.sleep(probe.period_seconds)

    async def _liveness(self, probe: Probe, process: spawn.Process) -> None:
        await asyncio.sleep(probe.initial_delay_seconds)
        failures = 0
        while failures < probe.failure_threshold:
            failure = await self._probe(probe)
            failures = failures + 1 if failure is not None else 0
            if failure is not None:
                self._event("Unhealthy", f"Liveness probe failed: {failure}", "Warning")
            await asyncio.sleep(probe.period_seconds)
        self._event("Killing", f"Container {self.state.name} failed its liveness probe and is restarted", "Normal")
        await process.stop(grace=5.0)

    async def _readiness(self, probe: Probe) -> None:
        await asyncio.sleep(probe.initial_delay_seconds)
        pauses = probes.eager(probe)
        good = bad = 0
        while True:
            failure = await self._probe(probe)
            well = failure is None
            if not well and not pauses:
                self._event("Unhealthy", f"Readiness probe failed: {failure}", "Warning")
            self._update(unready=f"readiness probe: {failure}" if failure is not None and not pauses else "")
            good, bad = (good + 1, 0) if well else (0, bad + 1)
            if good >= probe.success_threshold:
                pauses.clear()
                self._update(ready=not self._stopping)
            elif bad >= probe.failure_threshold:
                self._update(ready=False)
            await asyncio.sleep(pauses.pop(0) if pauses else probe.period_seconds)

    async def _probe(self, probe: Probe) -> str | None:
        return await probes.ask(probe, self.plan.spec, address=self.plan.address, run=self._run)

    async def _run(self, command: list[str]) -> int:
        """A command inside the container; nothing of it stays when the caller no longer waits."""
        if self._process is None or self._process.code is not None:
            return 1
        if self.plan.stand_in:
            return 0  # the image's own programs are not here
        pid = self._process.pid
        place = spawn.Isolation(self.plan.cgroup)
        if not privileges.on_loopback():
            place = structs.replace(place, pids_of=pid, prepare=lambda: enter(pid))
        child = spawn.start(
            command, place=place, environment=self.plan.environment, output=Path("/dev/null"), directory="/"
        )
        try:
            return await child.wait()
        finally:
            child.signal(signal.SIGKILL)

    def _update(self, **changes: object) -> None:
        changed = structs.replace(self.state, **changes)
        if changed != self.state:
            self.state = changed
            self._changed()


async def _until_sigterm_is_handled(process: spawn.Process, *, within: float) -> bool:
    """Wait until a process that has just been started handles SIGTERM; whether it does.

    The kernel keeps from the first process of a PID namespace every signal that it has no handler for
    (pid_namespaces(7)): sent while the program still starts, SIGTERM would be lost and the whole grace waited for.
    """
    young_until = process.born / os.sysconf("SC_CLK_TCK") + within
    while process.code is None and time.clock_gettime(time.CLOCK_BOOTTIME) < young_until:
        if _handles(process.pid, signal.SIGTERM):
            return True
        await asyncio.sleep(0.02)
    return _handles(process.pid, signal.SIGTERM)


async def _sigterm_once_handled(process: spawn.Process) -> None:
    """SIGTERM again for a program that took longer to start. Accepts a race: it may have handled the first one."""
    while process.code is None and not _handles(process.pid, signal.SIGTERM):  # noqa: ASYNC110 no event announces it
        await asyncio.sleep(0.1)
    if process.code is None:
        process.signal(signal.SIGTERM)


def _handles(pid: int, number: int) -> bool:
    """True if a process has a handler for a signal (``SigCgt`` of proc_pid_status(5))."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = int(status.partition("SigCgt:")[2].split(maxsplit=1)[0], 16)
    return bool(caught >> (number - 1) & 1)
