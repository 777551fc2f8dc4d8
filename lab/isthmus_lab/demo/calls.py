"""Calls from the pod of the story, and what became of them."""

from __future__ import annotations

import asyncio
import math
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from isthmus_lab import own_programs, pod_exec
from isthmus_lab.demo.stage import CLIENT, IMPORT_NAME, NAMESPACE, PATIENCE, PORT, Stage, StepFailed

MEASURED: Final = 10_000
"""Calls by which a split is measured."""
ANSWERED: Final = b"answered by "
"""Prefix of the caller's line for a cluster's first answer."""
STANDSTILL: Final = 10.0
"""Seconds that a connect or an answer may take where nothing fails: a machine may stand still meanwhile."""
RATE: Final = 200
"""Calls a second while a cluster fails."""


class Caller(NamedTuple):
    """A calling pod and the name that it calls."""

    cluster: int = 1
    """Its number."""
    pod: str = f"{NAMESPACE}/{CLIENT}"
    name: str = IMPORT_NAME


IMPORT: Final = Caller()


class Load(Struct, frozen=True):
    """Results of calls, as counted by the caller in the pod."""

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


async def load(stage: Stage, *, calls: int, path: str = "", caller: Caller = IMPORT) -> Load:
    """Calls from the pod, one after the other, by raw TCP or of a path by HTTP; StepFailed where one fails."""
    result = await _ended(_start(stage, caller, path, "--calls", str(calls), "--timeout", str(STANDSTILL)))
    if result.connects_failed or result.answers_failed:
        raise StepFailed(f"{result}; the first failure: {result.first_failure}")
    return result


class Loading:
    """Calls that go on while a block runs."""

    load: Load
    """Results; set at the end of the block."""

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
async def loading(
    stage: Stage, *, caller: Caller = IMPORT, rate: float = RATE, path: str = ""
) -> AsyncIterator[Loading]:
    """Call at a steady rate while the block runs; rate 0 is unlimited. The block begins after the first answer."""
    child = _start(stage, caller, path, "--rate", str(rate), "--until-eof")
    calls = Loading(child)
    try:
        await calls.answer()
        yield calls
        calls.load = await _ended(child)
    finally:
        child.kill()
        await asyncio.to_thread(child.wait)


def _start(stage: Stage, caller: Caller, path: str, *options: str) -> subprocess.Popen[bytes]:
    """Start the caller; without a path it speaks raw TCP."""
    pod = pod_exec.find(stage.lab.clusters[caller.cluster - 1], caller.pod)
    words = (caller.name, str(PORT), *(["--http", path] if path else []), *options)
    argv = own_programs.location().command("tcp_load.py", *words)
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
    shares: Mapping[str, float],
    *,
    calls: int,
    path: str = "",
    caller: Caller = IMPORT,
    elsewhere: float = 0.0,
) -> Load:
    """Calls that are spread as wanted; StepFailed where they are not, or where one fails.

    Where they go elsewhere they are measured again for a while: on a machine that stood still probes are late, and a
    backend that they take out is called again after the next ones. ``elsewhere``: the part that may.
    """
    until = time.monotonic() + PATIENCE
    while True:
        measured_load = await load(stage, calls=calls, path=path, caller=caller)
        if not (wrong := aelsewhere(measured_load, shares, elsewhere=elsewhere)):
            return measured_load
        if time.monotonic() > until:
            raise StepFailed(f"{measured_load}; {wrong}")
        await asyncio.sleep(1.0)


def aelsewhere(measured_load: Load, shares: Mapping[str, float], *, elsewhere: float = 0.0) -> str:
    """A cluster whose part chance does not explain, to five standard deviations of as many calls; empty where none."""
    for name in sorted({*measured_load.by, *shares}):
        part = shares.get(name, 0.0)
        near = max(elsewhere, 5 * math.sqrt(part * (1 - part) / measured_load.calls))
        if abs(measured_load.by.get(name, 0) / measured_load.calls - part) > near:
            return f"{name} was to have {100 * part:.1f}%"
    return ""


def total(loads: Sequence[Load]) -> Load:
    """Calls of several callers as if of one."""
    return Load(
        calls=sum(each.calls for each in loads),
        by=dict(sum((Counter(each.by) for each in loads), Counter())),
        order=[cluster for each in loads for cluster in each.order],
        connects_failed=sum(each.connects_failed for each in loads),
        answers_failed=sum(each.answers_failed for each in loads),
        first_failure=next((each.first_failure for each in loads if each.first_failure), ""),
        slowest=max(each.slowest for each in loads),
    )


def unharmed(measured_load: Load) -> str:
    """A sentence on calls under load; StepFailed where a connect failed. An answer under way in a cut is lost."""
    if measured_load.connects_failed:
        raise StepFailed(f"{measured_load}; the first failure: {measured_load.first_failure}")
    lost = f", {measured_load.answers_failed} answers lost on the way" if measured_load.answers_failed else ""
    return f"{measured_load.calls} calls, 0 failed connects{lost}, the slowest {measured_load.slowest:.2f} s"
