"""Calls from the pod of the story, and what became of them."""

from __future__ import annotations

import asyncio
import math
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from isthmus_lab import images, pod_exec
from isthmus_lab.demo.stage import CLIENT, IMPORT_NAME, NAMESPACE, PATIENCE, PORT, Stage, StepFailed

LOAD: Final = images.PROGRAMS / "tcp_load.py"

MEASURED: Final = 10_000
"""Calls by which a split is measured."""
ANSWERED: Final = b"answered by "
"""How lines of the caller begin, one for each cluster when it answers first."""
STANDSTILL: Final = 10.0
"""Seconds that a connect or an answer may take where nothing fails: a machine may stand still meanwhile."""
RATE: Final = 200
"""Calls a second while a cluster fails."""


class Caller(NamedTuple):
    """Who calls what."""

    cluster: int = 1
    """Its number."""
    pod: str = f"{NAMESPACE}/{CLIENT}"
    name: str = IMPORT_NAME


IMPORT: Final = Caller()


class Load(Struct, frozen=True):
    """What became of calls, as the caller in the pod counts them."""

    calls: int
    by: dict[str, int]
    order: list[str]
    """Clusters that answered, as they changed."""
    connects_failed: int
    answers_failed: int
    first_failure: str
    slowest: float
    """Seconds."""

    def __str__(self) -> str:
        parts = [f"{name} {100 * count / self.calls:.1f}%" for name, count in sorted(self.by.items())]
        return f"{self.calls} calls: {', '.join(parts)}; {self.connects_failed} failed connects"


async def load(stage: Stage, *, calls: int, path: str = "", of: Caller = IMPORT) -> Load:
    """Calls from the pod, one after the other, by raw TCP or of a path by HTTP; StepFailed where one fails."""
    found = await _ended(_start(stage, of, path, "--calls", str(calls), "--timeout", str(STANDSTILL)))
    if found.connects_failed or found.answers_failed:
        raise StepFailed(f"{found}; the first failure: {found.first_failure}")
    return found


class Loading:
    """Calls that go on while a block runs."""

    load: Load
    """What became of them: there is none before the end of the block."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self._clusters: set[str] = set()

    async def answer(self) -> None:
        """Wait until a cluster answers that had not answered yet."""
        assert self._child.stdout is not None
        line = await asyncio.to_thread(self._child.stdout.readline)
        if not line.startswith(ANSWERED):
            raise StepFailed(f"no more calls are made: {line.decode(errors='replace').strip()}")
        self._clusters.add(line[len(ANSWERED) :].decode().strip())

    async def answered_by(self, cluster: str) -> None:
        """Wait until a cluster has answered."""
        try:
            async with asyncio.timeout(PATIENCE):
                while cluster not in self._clusters:
                    await self.answer()
        except TimeoutError:
            raise StepFailed(f"waited {PATIENCE:.0f} s, and still not: a call answered by {cluster}") from None


@asynccontextmanager
async def loading(stage: Stage, *, of: Caller = IMPORT, rate: float = RATE, path: str = "") -> AsyncIterator[Loading]:
    """Calls at a steady rate while the block runs, 0: as fast as they go. One was answered when the block begins."""
    child = _start(stage, of, path, "--rate", str(rate), "--until-eof")
    calls = Loading(child)
    try:
        await calls.answer()
        yield calls
        calls.load = await _ended(child)
    finally:
        child.kill()
        await asyncio.to_thread(child.wait)


def _start(stage: Stage, of: Caller, path: str, *options: str) -> subprocess.Popen[bytes]:
    """By raw TCP where there is no path."""
    pod = pod_exec.find(stage.lab.clusters[of.cluster - 1], of.pod)
    argv = ("python3", "-I", "-S", str(LOAD), of.name, str(PORT), *(["--http", path] if path else []), *options)
    return pod_exec.run(pod, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


async def _ended(child: subprocess.Popen[bytes]) -> Load:
    """Close the caller's standard input, and wait for its count."""
    out, _ = await asyncio.to_thread(child.communicate)
    lines = [line for line in out.splitlines() if line.startswith(b"{")]
    if not lines:
        raise StepFailed(f"no call was made: {out.decode(errors='replace').strip()[-300:]}")
    return msgspec.json.decode(lines[-1], type=Load)


async def measured(
    stage: Stage,
    wanted: Mapping[str, float],
    *,
    calls: int,
    path: str = "",
    of: Caller = IMPORT,
    elsewhere: float = 0.0,
) -> Load:
    """Calls that are spread as wanted; StepFailed where they are not, or where one fails.

    Where they go elsewhere they are measured again for a while: on a machine that stood still probes are late, and a
    backend that they take out is called again after the next ones. ``elsewhere``: the part that may.
    """
    until = time.monotonic() + PATIENCE
    while True:
        found = await load(stage, calls=calls, path=path, of=of)
        if not (wrong := aelsewhere(found, wanted, elsewhere=elsewhere)):
            return found
        if time.monotonic() > until:
            raise StepFailed(f"{found}; {wrong}")
        await asyncio.sleep(1.0)


def aelsewhere(found: Load, wanted: Mapping[str, float], *, elsewhere: float = 0.0) -> str:
    """A cluster whose part chance does not explain, to five standard deviations of as many calls; empty where none."""
    for name in sorted({*found.by, *wanted}):
        part = wanted.get(name, 0.0)
        near = max(elsewhere, 5 * math.sqrt(part * (1 - part) / found.calls))
        if abs(found.by.get(name, 0) / found.calls - part) > near:
            return f"{name} was to have {100 * part:.1f}%"
    return ""


def unharmed(found: Load) -> str:
    """A sentence on calls under load; StepFailed where a connect failed. An answer under way in a cut is lost."""
    if found.connects_failed:
        raise StepFailed(f"{found}; the first failure: {found.first_failure}")
    lost = f", {found.answers_failed} answers lost on the way" if found.answers_failed else ""
    return f"{found.calls} calls, 0 failed connects{lost}, the slowest {found.slowest:.2f} s"
