"""Steps about policies: which clusters get the calls, and the results while clusters fail.

c1 and c2 are two centres of one city, c3 is far away; the pod that calls is in c1 and speaks raw TCP. Each policy is a
file of examples/policies, as a user would apply it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final

from isthmus.kube.objects.policies import TRAFFIC_POLICY
from isthmus_lab import examples, faults, manifests
from isthmus_lab.demo import routes
from isthmus_lab.demo.calls import MEASURED, Load, loading, measured, unharmed
from isthmus_lab.demo.plans import HERE, in_kernel, none_ejected, plan_of_import, planned
from isthmus_lab.demo.report import Reporter
from isthmus_lab.demo.stage import NAMESPACE, SERVICE, Stage, StepFailed
from isthmus_lab.demo.steps import scale
from isthmus_lab.fault_targets import FaultTarget
from isthmus_lab.network.impairments import Cut

CLUSTERS: Final = ("c1", "c2", "c3")
PLACES: Final = (("east", "east-1"), ("east", "east-2"), ("west", "west-1"))
POLICIES: Final = examples.path("policies")


def story(stage: Stage, reporter: Reporter) -> Iterable[tuple[str, Coroutine[Any, Any, str]]]:
    """The steps, in order."""
    return (
        ("all three export it; without a policy every backend is called alike", unordered(stage)),
        ("locality: calls stay in their cluster", locality(stage)),
        ("three centres in two places: the neighbour helps, then the far one", three_centres(stage)),
        ("active-active in one city: 90 to 10, whatever the number of pods", active_active(stage)),
        ("a route splits calls by path: /v2 to c2, all others to c1", routes.by_path(stage)),
        ("canary of one path by the route: 5, 50, then an abort, then 100", routes.canary(stage)),
        ("c2 is cut off under load: no connect fails", cut_under_load(stage)),
        ("canary: 5, 50, then an abort, then 100", canary(stage)),
        ("remote disaster recovery: the far site takes over and gives back", disaster(stage)),
    )


async def unordered(stage: Stage) -> str:
    """No policy."""
    await planned(stage, dict.fromkeys(CLUSTERS, 1 / 3))
    return str(await measured(stage, dict.fromkeys(CLUSTERS, 1 / 3), calls=1_000))


async def locality(stage: Stage) -> str:
    """Locality Cluster."""
    await apply(stage, "locality", {HERE: 1.0})
    return str(await measured(stage, {HERE: 1.0}, calls=500))


async def three_centres(stage: Stage) -> str:
    """Ordered tiers with a spill in proportion, seen while the own cluster loses its pods."""
    await apply(stage, "three-centres-in-two-places", {"c1": 1.0})
    await scale(stage, "c1", 0)
    await planned(stage, {"c2": 1.0})
    result = await _far_and_back(stage, {"c1": 1.0})
    firsts = list(dict.fromkeys(result.order))
    if firsts != ["c2", "c3", "c1"] or result.order[-1] != "c1":
        raise StepFailed(f"answered by {' → '.join(result.order)}")
    return f"without pods in c1: c2; c2 cut off: c3; and back to c1; {unharmed(result)}"


async def active_active(stage: Stage) -> str:
    """Weights."""
    await apply(stage, "active-active-in-one-city", {"c1": 0.9, "c2": 0.1})
    first = await measured(stage, {"c1": 0.9, "c2": 0.1}, calls=MEASURED)
    await scale(stage, "c1", 1)
    await stage.until("c1 has one pod", lambda: _ready(stage, "c1", 1))
    second = await measured(stage, {"c1": 0.9, "c2": 0.1}, calls=MEASURED)
    await scale(stage, "c1", 2)
    await stage.until("c1 has two pods", lambda: _ready(stage, "c1", 2))
    return f"{first}; with one pod in c1 and two in c2: {second}"


async def cut_under_load(stage: Stage) -> str:
    """A cluster that calls go to is unreachable from one packet to the next."""
    async with loading(stage) as calls:
        await asyncio.sleep(1.0)
        began = asyncio.get_running_loop().time()
        await _cut(stage)
        await planned(stage, {"c1": 1.0})
        out = asyncio.get_running_loop().time() - began
        await faults.heal(stage.lab, FaultTarget("c2"))
        await planned(stage, {"c1": 0.9, "c2": 0.1})
        await stage.until("no backend is ejected", lambda: none_ejected(stage))
    result = calls.load
    return f"probes took c2 out after {out:.1f} s and back in when it answered; {unharmed(result)}"


async def _cut(stage: Stage) -> None:
    for other in ("c1", "c3"):
        await faults.cut(stage.lab, Cut(FaultTarget("c2"), FaultTarget(other)))


async def canary(stage: Stage) -> str:
    """Weights changed step by step, as a controller or a person would, by raw TCP."""
    seen, took = [], []
    for weight in (5, 50, 0, 100):
        shares = {name: part / 100 for name, part in (("c1", 100 - weight), ("c2", weight)) if part}
        tiers = [{"clusters": [{"name": "c1", "weight": 100 - weight}, {"name": "c2", "weight": weight}]}]
        await stage.client(HERE).patch(TRAFFIC_POLICY, NAMESPACE, SERVICE, {"spec": {"tiers": tiers}})
        took.append(await planned(stage, shares))
        result = await measured(stage, shares, calls=MEASURED // 5)
        seen.append(f"{'abort to 0' if weight == 0 else weight} → {100 * result.by.get('c2', 0) / result.calls:.1f}%")
    return f"c2's measured part: {', '.join(seen)}; each in the kernel within {max(took):.2f} s; 0 failed connects"


async def disaster(stage: Stage) -> str:
    """The whole city fails: one centre loses its pods, the other its network."""
    await apply(stage, "remote-disaster-recovery", {"c1": 0.5, "c2": 0.5})
    await scale(stage, "c1", 0)
    await planned(stage, {"c2": 1.0})
    result = await _far_and_back(stage, {"c1": 0.5, "c2": 0.5})
    if "c3" not in result.order or result.order[-1] == "c3":
        raise StepFailed(f"answered by {' → '.join(result.order[-20:])}")
    return f"west answered while east had nothing, and east again after it; {unharmed(result)}"


async def _far_and_back(stage: Stage, shares: Mapping[str, float]) -> Load:
    """Calls while c1 has no pods and c2 is cut off, until both are back and calls are spread as wanted."""
    async with loading(stage) as calls:
        await _cut(stage)
        await planned(stage, {"c3": 1.0})
        await calls.answered_by("c3")
        await faults.heal(stage.lab, FaultTarget("c2"))
        await scale(stage, "c1", 2)
        await planned(stage, shares)
        await calls.answered_by("c1")
        await asyncio.sleep(1.0)
    return calls.load


async def apply(stage: Stage, policy: str, shares: Mapping[str, float]) -> None:
    """Apply a policy of the examples in the cluster that calls, and wait until calls follow it."""
    if problems := await manifests.apply(stage.client(HERE), list(manifests.of_file(POLICIES / f"{policy}.yaml"))):
        raise StepFailed("; ".join(problems))
    await planned(stage, shares)


async def _ready(stage: Stage, cluster: str, count: int) -> bool:
    """True if plan and kernel send calls to ``count`` of a cluster's pods."""
    plan = await asyncio.to_thread(plan_of_import, stage)
    if plan is None or sum(target.cluster == cluster for group in plan.groups for target in group.targets) != count:
        return False
    return await in_kernel(stage, plan)
