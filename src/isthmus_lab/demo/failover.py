"""Where policies send calls, and what becomes of them while clusters fail: a function per step.

c1 and c2 are two centres of one city, c3 is far away; the pod that calls is in c1 and speaks raw TCP. Each policy is a
file of examples/policies, as a user would apply it.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from isthmus.admin.query import Socket
from isthmus.kube.objects.policies import TRAFFIC_POLICY
from isthmus.loadbalancer import shares
from isthmus.model.balancing import Plan
from isthmus_lab import faults, images, manifests, pod_exec
from isthmus_lab.demo.report import Reporter
from isthmus_lab.demo.stage import CLIENT, IMPORT_NAME, NAMESPACE, PORT, SERVICE, Stage, StepFailed
from isthmus_lab.demo.steps import scale
from isthmus_lab.fault_targets import FaultTarget
from isthmus_lab.network.impairments import Cut
from isthmus_lab.supervisor.configs import socket_of

CLUSTERS: Final = ("c1", "c2", "c3")
PLACES: Final = (("east", "east-1"), ("east", "east-2"), ("west", "west-1"))
HERE: Final = "c1"
POLICIES: Final = Path("examples/policies")
LOAD: Final = images.PROGRAMS / "tcp_load.py"

MEASURED: Final = 10_000
"""Calls by which a split is measured."""
TOLERANCE: Final = 0.015
"""How far a cluster's measured part may be from the plan's: five standard deviations of 10,000 calls at 10 %."""
RATE: Final = 200
"""Calls a second while a cluster fails."""


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


def story(stage: Stage, reporter: Reporter) -> Iterable[tuple[str, Coroutine[Any, Any, str]]]:
    """The steps, in order."""
    return (
        ("all three export it; without a policy every backend is called alike", unordered(stage)),
        ("locality: calls stay in their cluster", locality(stage)),
        ("three centres in two places: the neighbour helps, then the far one", three_centres(stage)),
        ("active-active in one city: 90 to 10, whatever the number of pods", active_active(stage)),
        ("c2 is cut off under load: no connect fails", cut_under_load(stage)),
        ("canary: 5, 50, then an abort, then 100", canary(stage)),
        ("remote disaster recovery: the far site takes over and gives back", disaster(stage)),
    )


async def unordered(stage: Stage) -> str:
    """No policy."""
    await _planned(stage, dict.fromkeys(CLUSTERS, 1 / 3))
    return str(_close(await load(stage, calls=1_000), dict.fromkeys(CLUSTERS, 1 / 3), within=0.08))


async def locality(stage: Stage) -> str:
    """Locality Cluster."""
    await apply(stage, "locality", {HERE: 1.0})
    return str(_close(await load(stage, calls=500), {HERE: 1.0}))


async def three_centres(stage: Stage) -> str:
    """Ordered tiers with a spill in proportion, seen while the own cluster loses its pods."""
    await apply(stage, "three-centres-in-two-places", {"c1": 1.0})
    await scale(stage, "c1", 0)
    await _planned(stage, {"c2": 1.0})
    async with loading(stage) as calls:
        await _cut(stage)
        await _planned(stage, {"c3": 1.0}, seconds=30.0)
        await faults.heal(stage.lab, FaultTarget("c2"))
        await scale(stage, "c1", 2)
        await _planned(stage, {"c1": 1.0}, seconds=40.0)
        await asyncio.sleep(1.0)
    found = calls()
    firsts = list(dict.fromkeys(found.order))
    if firsts != ["c2", "c3", "c1"] or found.order[-1] != "c1":
        raise StepFailed(f"answered by {' → '.join(found.order)}")
    return f"without pods in c1: c2; c2 cut off: c3; and back to c1; {_unharmed(found)}"


async def active_active(stage: Stage) -> str:
    """Weights."""
    await apply(stage, "active-active-in-one-city", {"c1": 0.9, "c2": 0.1})
    first = _close(await load(stage, calls=MEASURED), {"c1": 0.9, "c2": 0.1})
    await scale(stage, "c1", 1)
    await stage.until("c1 has one pod", lambda: _ready(stage, "c1", 1))
    second = _close(await load(stage, calls=MEASURED), {"c1": 0.9, "c2": 0.1})
    await scale(stage, "c1", 2)
    await stage.until("c1 has two pods", lambda: _ready(stage, "c1", 2))
    return f"{first}; with one pod in c1 and two in c2: {second}"


async def cut_under_load(stage: Stage) -> str:
    """A cluster that calls go to is unreachable from one packet to the next."""
    async with loading(stage) as calls:
        await asyncio.sleep(1.0)
        began = asyncio.get_running_loop().time()
        await _cut(stage)
        await _planned(stage, {"c1": 1.0}, seconds=30.0)
        out = asyncio.get_running_loop().time() - began
        await faults.heal(stage.lab, FaultTarget("c2"))
        await _planned(stage, {"c1": 0.9, "c2": 0.1}, seconds=40.0)
        await stage.until("no backend is ejected", lambda: _none_ejected(stage), seconds=40.0)
    found = calls()
    return f"probes took c2 out after {out:.1f} s and back in when it answered; {_unharmed(found)}"


async def _cut(stage: Stage) -> None:
    for other in ("c1", "c3"):
        await faults.cut(stage.lab, Cut(FaultTarget("c2"), FaultTarget(other)))


async def canary(stage: Stage) -> str:
    """Weights changed step by step, as a controller or a person would, by raw TCP."""
    seen, took = [], []
    for weight in (5, 50, 0, 100):
        wanted = {name: part / 100 for name, part in (("c1", 100 - weight), ("c2", weight)) if part}
        tiers = [{"clusters": [{"name": "c1", "weight": 100 - weight}, {"name": "c2", "weight": weight}]}]
        await stage.client(HERE).patch(TRAFFIC_POLICY, NAMESPACE, SERVICE, {"spec": {"tiers": tiers}})
        took.append(await _planned(stage, wanted))
        found = _close(await load(stage, calls=MEASURED // 5), wanted, within=0.04)
        seen.append(f"{'abort to 0' if weight == 0 else weight} → {100 * found.by.get('c2', 0) / found.calls:.1f}%")
    return f"c2's measured part: {', '.join(seen)}; each in the kernel within {max(took):.2f} s; 0 failed connects"


async def disaster(stage: Stage) -> str:
    """The whole city goes: one centre loses its pods, the other its network."""
    await apply(stage, "remote-disaster-recovery", {"c1": 0.5, "c2": 0.5})
    await scale(stage, "c1", 0)
    await _planned(stage, {"c2": 1.0})
    async with loading(stage) as calls:
        await _cut(stage)
        await _planned(stage, {"c3": 1.0}, seconds=30.0)
        await faults.heal(stage.lab, FaultTarget("c2"))
        await scale(stage, "c1", 2)
        await _planned(stage, {"c1": 0.5, "c2": 0.5}, seconds=40.0)
        await asyncio.sleep(1.0)
    found = calls()
    if "c3" not in found.order or found.order[-1] == "c3":
        raise StepFailed(f"answered by {' → '.join(found.order[-20:])}")
    return f"west answered while east had nothing, and east again after it; {_unharmed(found)}"


async def apply(stage: Stage, policy: str, wanted: Mapping[str, float]) -> None:
    """Apply a policy of the examples in the cluster that calls, and wait until calls follow it."""
    if problems := await manifests.apply(stage.client(HERE), list(manifests.of_file(POLICIES / f"{policy}.yaml"))):
        raise StepFailed("; ".join(problems))
    await _planned(stage, wanted)


async def load(stage: Stage, *, calls: int) -> Load:
    """Calls from the pod, one after the other; StepFailed where a connect fails."""
    found = await _ended(_start(stage, "--calls", str(calls)))
    if found.connects_failed or found.answers_failed:
        raise StepFailed(f"{found}; the first failure: {found.first_failure}")
    return found


@asynccontextmanager
async def loading(stage: Stage) -> AsyncIterator[Callable[[], Load]]:
    """Calls at a steady rate while the block runs; what is given has the result after it."""
    child = _start(stage, "--rate", str(RATE), "--until-eof")
    found: list[Load] = []
    try:
        assert child.stdout is not None
        await asyncio.to_thread(child.stdout.readline)  # 'begun'; no more is written before the end
        yield lambda: found[0]
        found.append(await _ended(child))
    finally:
        child.kill()
        await asyncio.to_thread(child.wait)


def _start(stage: Stage, *options: str) -> subprocess.Popen[bytes]:
    pod = pod_exec.find(stage.lab.clusters[0], f"{NAMESPACE}/{CLIENT}")
    argv = ("python3", "-I", "-S", str(LOAD), IMPORT_NAME, str(PORT), *options)
    return pod_exec.run(pod, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


async def _ended(child: subprocess.Popen[bytes]) -> Load:
    """Close the caller's standard input, and wait for its count."""
    out, _ = await asyncio.to_thread(child.communicate)
    lines = [line for line in out.splitlines() if line.startswith(b"{")]
    if not lines:
        raise StepFailed(f"no call was made: {out.decode(errors='replace').strip()[-300:]}")
    return msgspec.json.decode(lines[-1], type=Load)


async def _planned(stage: Stage, wanted: Mapping[str, float], *, seconds: float = 15.0) -> float:
    """Wait until the node's plan, in the kernel too, has these parts; how long it took, in seconds."""

    async def so() -> bool:
        plan = await asyncio.to_thread(_plan, stage)
        if plan is None or not _equal(shares.by_cluster(plan), wanted):
            return False
        groups = sorted((group.tier, group.weight, len(group.targets)) for group in plan.groups)
        return groups in await asyncio.to_thread(_programmed, stage, plan)

    return await stage.until(f"the plan is {shares.text(dict(wanted))}", so, seconds=seconds)  # type: ignore[arg-type]


async def _none_ejected(stage: Stage) -> bool:
    return not (await asyncio.to_thread(_agent(stage).table, "failures")).rows


def _agent(stage: Stage) -> Socket:
    [node, *_] = stage.lab.clusters[0].nodes
    return Socket(socket_of(node, "agent"))


def _plan(stage: Stage) -> Plan | None:
    rows = (msgspec.convert(row, Plan) for row in _agent(stage).table("plans").rows)
    return next((row for row in rows if row.import_of == f"{NAMESPACE}/{SERVICE}" and row.key.family == "IPv4"), None)


def _programmed(stage: Stage, plan: Plan) -> list[list[tuple[int, int, int]]]:
    rows = [row for row in stage.maps(HERE)["plans"] if row["plan"] == str(plan.key)]
    return [sorted((each["tier"], each["weight"], each["count"]) for each in row["groups"]) for row in rows]


def _equal(seen: Mapping[Any, float], wanted: Mapping[str, float]) -> bool:
    return seen.keys() == wanted.keys() and all(abs(seen[name] - part) < 1e-6 for name, part in wanted.items())


def _close(found: Load, wanted: Mapping[str, float], *, within: float = TOLERANCE) -> Load:
    for name in {*found.by, *wanted}:
        part = found.by.get(name, 0) / found.calls
        if abs(part - wanted.get(name, 0.0)) > (within if wanted.get(name, 0.0) < 1 else 0):
            raise StepFailed(f"{found}; {name} was to have {100 * wanted.get(name, 0.0):.1f}%")
    return found


def _unharmed(found: Load) -> str:
    """A sentence on calls under load; StepFailed where a connect failed. An answer under way in a cut is lost."""
    if found.connects_failed:
        raise StepFailed(f"{found}; the first failure: {found.first_failure}")
    lost = f", {found.answers_failed} answers lost on the way" if found.answers_failed else ""
    return f"{found.calls} calls, 0 failed connects{lost}, the slowest {found.slowest:.2f} s"


async def _ready(stage: Stage, cluster: str, count: int) -> bool:
    listing = await asyncio.to_thread(_plan, stage)
    targets = [target for group in listing.groups for target in group.targets] if listing is not None else []
    return sum(target.cluster == cluster for target in targets) == count
