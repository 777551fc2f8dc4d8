"""Plans of the calling node's agent, and the state of its kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from isthmus.admin.query import Socket
from isthmus.loadbalancer import shares
from isthmus.model.balancing import Plan
from isthmus_lab.demo.programmed import programmed
from isthmus_lab.demo.stage import NAMESPACE, PATIENCE, SERVICE, Stage
from isthmus_lab.supervisor.configs import socket_of

HERE: Final = "c1"
"""The cluster that calls."""


def agent(stage: Stage, cluster: str = HERE) -> Socket:
    [node, *_] = stage.cluster(cluster).nodes
    return Socket(socket_of(node, "agent"))


async def none_ejected(stage: Stage, cluster: str = HERE) -> bool:
    return not (await asyncio.to_thread(agent(stage, cluster).table, "failures")).rows


def all_plans(stage: Stage, cluster: str = HERE) -> Iterator[Plan]:
    return (msgspec.convert(row, Plan) for row in agent(stage, cluster).table("plans").rows)


def plan_of_import(stage: Stage) -> Plan | None:
    return next((plan for plan in plans_of_import(stage) if plan.key.family == "IPv4"), None)


def plans_of_import(stage: Stage, cluster: str = HERE) -> list[Plan]:
    """One of each family and port."""
    return [plan for plan in all_plans(stage, cluster) if plan.import_of == f"{NAMESPACE}/{SERVICE}"]


async def in_kernel(stage: Stage, plan: Plan, cluster: str = HERE) -> bool:
    """True if a plan is programmed in the kernel of a cluster's first node."""
    return await asyncio.to_thread(programmed().plan, stage.cluster(cluster), plan)


async def planned(
    stage: Stage,
    expected: Mapping[str, float],
    *,
    find: Callable[[Stage], Plan | None] = plan_of_import,
    cluster: str = HERE,
    seconds: float = PATIENCE,
) -> float:
    """Wait until a plan of a cluster's node, in the kernel too, has these parts; how long it took, in seconds.

    ``find`` gives the plan.
    """

    async def so() -> bool:
        plan = await asyncio.to_thread(find, stage)
        if plan is None or not _equal(shares.by_cluster(plan), expected):
            return False
        return await in_kernel(stage, plan, cluster)

    return await stage.until(f"the plan is {shares.text(dict(expected))}", so, seconds=seconds)  # type: ignore[arg-type]


def _equal(seen: Mapping[Any, float], shares: Mapping[str, float]) -> bool:
    return seen.keys() == shares.keys() and all(abs(seen[name] - part) < 1e-6 for name, part in shares.items())
