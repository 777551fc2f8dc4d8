"""One program of the lab: started, watched, started again with a growing pause."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from isthmus import logs
from isthmus_lab import cgroups, spawn
from isthmus_lab.network import namespaces
from isthmus_lab.supervisor import forking
from isthmus_lab.supervisor.forking import Zygote
from isthmus_lab.supervisor.programs import ISTHMUS, Program

INITIAL_BACKOFF: Final = 0.2
MAX_BACKOFF: Final = 10.0
STABLE_AFTER: Final = 10.0
SURGE: Final = 5.0
"""Seconds from the start of a successor to the end of what it replaces; in deploy/ it is ``minReadySeconds``."""
POLL_INTERVAL: Final = 0.03
"""Seconds between two looks at a process that is not ready yet; they grow to ten times that."""

log = logs.get("supervisor")


class Keeper:
    """Keeps one program running. ``ready`` is set once it has been seen to work, and cleared while it does not run."""

    def __init__(
        self,
        program: Program,
        *,
        root: Path,
        output: Path,
        listeners: Mapping[str, Sequence[int]],
        check: Callable[[], Awaitable[bool]],
        after: list[asyncio.Event],
        changed: Callable[[], None],
        zygote: Zygote,
    ) -> None:
        self.program = program
        self.ready = asyncio.Event()
        self.restarts = -1
        self.failure = ""
        self._root = root
        self._output = output
        self._listeners = listeners
        self._check = check
        self._after = after
        self._changed = changed
        self._zygote = zygote
        self._process: spawn.Process | None = None
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._paused = False
        self._python = sys.executable
        self._rolling: asyncio.Task[None] | None = None
        self.task: asyncio.Task[None]

    def __repr__(self) -> str:
        return f"<Keeper of {self.program.name}: {self._process}>"

    def stats(self) -> dict[str, Any]:
        """For ``lab status``."""
        running = self._process is not None and self._process.code is None
        return {
            "name": self.program.name,
            "state": self._state(running),
            "pid": self._process.pid if self._process is not None and running else None,
            "restarts": max(self.restarts, 0),
            "failure": self.failure,
            "log": str(self._output),
        }

    def _state(self, running: bool) -> str:
        if not running:
            return "down" if self._may_run.is_set() else "killed"
        if self._paused:
            return "paused"
        return "ready" if self.ready.is_set() else "starting"

    def kill(self) -> None:
        """End it at once, and do not start it until asked to."""
        self._may_run.clear()
        self._send(signal.SIGKILL)

    def pause(self) -> None:
        """Stop it where it is: it keeps its connections and answers nothing."""
        self._paused = True
        self._send(signal.SIGSTOP)

    def replace(self, python: str) -> None:
        """Run ``isthmus`` of another interpreter's environment from now on; as in a rollout it ends by SIGTERM."""
        self._python = python
        self._rolling = asyncio.create_task(self._roll())

    async def _roll(self) -> None:
        earlier = self._process
        if self.program.surge and earlier is not None and earlier.code is None:
            self._process = await self._start()
            await asyncio.sleep(SURGE)
        if earlier is not None:
            earlier.signal(signal.SIGTERM)
        self.resume()

    def resume(self) -> None:
        """Let it run again, whatever was done to it."""
        self._paused = False
        self._send(signal.SIGCONT)
        self._may_run.set()

    def _send(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(number)

    async def end(self) -> None:
        """It is not needed any more."""
        self.task.cancel()
        if self._process is not None:
            await self._process.stop(grace=2.0)

    async def run(self) -> None:
        """For ever."""
        for event in self._after:
            await event.wait()
        pause = 0.0
        while True:
            await self._may_run.wait()
            begun = asyncio.get_running_loop().time()
            await self._once()
            if not self._may_run.is_set():
                pause = 0.0
                continue
            lasted = asyncio.get_running_loop().time() - begun
            pause = INITIAL_BACKOFF if lasted > STABLE_AFTER else min(MAX_BACKOFF, max(INITIAL_BACKOFF, pause * 2))
            log.warning("process ended", process=self.program.name, why=self.failure, again_in=pause)
            await asyncio.sleep(pause)

    async def _once(self) -> None:
        self.restarts += 1
        try:
            self._process = await self._start()
        except OSError as error:
            self.failure = f"{self.program.command[0]}: {error}"
            self._changed()
            return
        looking = asyncio.ensure_future(self._look())
        try:
            code = await self._exit()
        finally:
            looking.cancel()
        self.ready.clear()
        self.failure = (
            f"ended with {code}{_last_line(self._output)}" if code < 128 else f"killed by signal {code - 128}"
        )
        self._changed()

    async def _exit(self) -> int:
        """Exit code of the process, or of what took its place meanwhile."""
        while True:
            process = self._process
            assert process is not None, "it was started"
            code = await process.wait()
            if process is self._process:
                return code

    async def _start(self) -> spawn.Process:
        program = self.program
        inherit = [*self._listeners[program.listener]] if program.listener else []
        command = tuple(each for word in program.command for each in _for_each(word, inherit))
        if command[:3] == ISTHMUS:
            command = (self._python, *command[1:])
        place = spawn.Isolation(cgroups.make(self._root / program.cgroup), namespaces.place(program.namespace))
        return await launch(command, place=place, output=self._output, inherit=inherit, zygote=self._zygote)

    async def _look(self) -> None:
        pause = POLL_INTERVAL
        while not await self._check():
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, POLL_INTERVAL * 10)
        self.ready.set()
        self.failure = ""
        self._changed()


def _for_each(word: str, inherit: Sequence[int]) -> list[str]:
    """A word of a command; one that names an inherited listener, for each of these."""
    return [word.replace("{fd}", str(number)) for number in inherit] if "{fd}" in word else [word]


async def launch(
    command: tuple[str, ...], *, place: spawn.Isolation, output: Path, zygote: Zygote, inherit: list[int] | None = None
) -> spawn.Process:
    """Start a command in its place, by the zygote where that can; OSError where it cannot be started."""
    variables, inherit = environment(), inherit or []
    ordered = forking.order(command, environment=variables, place=place, output=output, inherit=inherit)
    if ordered is not None and zygote.usable:
        return await zygote.start(ordered)
    return spawn.start(command, place=place, environment=variables, output=output, inherit=inherit, directory="/")


def environment() -> dict[str, str]:
    """The supervisor's own, without what would reach out of the lab or colour the logs."""
    dropped = ("_PROXY", "KUBECONFIG", "ISTHMUS_")
    kept = {k: v for k, v in os.environ.items() if not k.upper().endswith("_PROXY") and not k.startswith(dropped)}
    return {**kept, "PYTHONUNBUFFERED": "1", "ETCD_UNSUPPORTED_ARCH": "arm64"}


def _last_line(output: Path) -> str:
    """The last line of a program's output, which mostly is why it ended."""
    try:
        lines = output.read_bytes()[-2000:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    texts = [text for line in lines if (text := line.strip(" |+-"))]  # frames of a traceback of several
    return f": {texts[-1][:200]}" if texts else ""
