"""Calls from the pod of the story, and what became of them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from isthmus_lab import images, pod_exec
from isthmus_lab.demo.stage import CLIENT, IMPORT_NAME, NAMESPACE, PORT, Stage, StepFailed

LOAD: Final = images.PROGRAMS / "tcp_load.py"

MEASURED: Final = 10_000
"""Calls by which a split is measured."""
TOLERANCE: Final = 0.015
"""How far a cluster's measured part may be from the plan's: five standard deviations of 10,000 calls at 10 %."""
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
    found = await _ended(_start(stage, of, path, "--calls", str(calls)))
    if found.connects_failed or found.answers_failed:
        raise StepFailed(f"{found}; the first failure: {found.first_failure}")
    return found


@asynccontextmanager
async def loading(
    stage: Stage, *, of: Caller = IMPORT, rate: float = RATE, path: str = ""
) -> AsyncIterator[Callable[[], Load]]:
    """Calls at a steady rate while the block runs, 0: as fast as they go; what is given has the result after it."""
    child = _start(stage, of, path, "--rate", str(rate), "--until-eof")
    found: list[Load] = []
    try:
        assert child.stdout is not None
        await asyncio.to_thread(child.stdout.readline)  # 'begun'; no more is written before the end
        yield lambda: found[0]
        found.append(await _ended(child))
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


def close(found: Load, wanted: Mapping[str, float], *, within: float = TOLERANCE, stray: float = 0.0) -> Load:
    """The load itself, where each cluster's part is close to the wanted one; else StepFailed.

    ``stray``: the part that may go elsewhere where one cluster is to have all.
    """
    for name in {*found.by, *wanted}:
        part = found.by.get(name, 0) / found.calls
        if abs(part - wanted.get(name, 0.0)) > (within if wanted.get(name, 0.0) < 1 else stray):
            raise StepFailed(f"{found}; {name} was to have {100 * wanted.get(name, 0.0):.1f}%")
    return found


def unharmed(found: Load) -> str:
    """A sentence on calls under load; StepFailed where a connect failed. An answer under way in a cut is lost."""
    if found.connects_failed:
        raise StepFailed(f"{found}; the first failure: {found.first_failure}")
    lost = f", {found.answers_failed} answers lost on the way" if found.answers_failed else ""
    return f"{found.calls} calls, 0 failed connects{lost}, the slowest {found.slowest:.2f} s"
