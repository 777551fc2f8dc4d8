"""Endpoints of the app that Karmada places, wherever they can be seen between the providers and the calling node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec
from msgspec import Struct

from isthmus import kube
from isthmus.kube.objects.discovery import ENDPOINT_SLICE, EndpointSlice
from isthmus.kube.objects.meta import Meta, Wire
from isthmus.model.balancing import Plan
from isthmus.sources import karmada
from isthmus_lab.beside import in_background
from isthmus_lab.demo import plans
from isthmus_lab.demo.calls import Caller
from isthmus_lab.demo.stage import REFUSALS, Stage

PROVIDERS: Final = ("c1", "c2")
CONSUMER: Final = "c3"
NAMESPACE: Final = "shop"
SERVICE: Final = f"{NAMESPACE}/web"
EXPORTED: Final = Caller(3, f"{NAMESPACE}/deploy/client", f"web.{NAMESPACE}.svc.clusterset.local")
NATIVE: Final = Caller(3, f"{NAMESPACE}/deploy/client", f"web.{NAMESPACE}.svc.cluster.local")
PAUSE: Final = 0.02
"""Seconds between two looks at the same, and between two ticks of a clock."""
STILL: Final = 0.25
"""Seconds that pass between two ticks at most: in what is more the machine stood still, as CI's does now and then."""

View = Callable[[], Awaitable[set[str]]]
"""Addresses as they are seen somewhere."""


class Behind(Struct):
    """Longest lag of each view behind the providers' ready pods, in seconds in which the machine ran."""

    views: dict[str, float]
    looks: list[float] = []
    """Seconds that each look at the pods took: what the machine makes of two requests to API servers."""
    changes: int = 0
    """Observed changes of the pods."""


class _Workload(Wire, frozen=True):
    manifests: list[dict[str, Any]] | None = None


class _WorkSpec(Wire, frozen=True):
    workload: _Workload = _Workload()


class _Work(Wire, frozen=True):
    metadata: Meta
    spec: _WorkSpec = _WorkSpec()


WORK: Final = kube.Kind("work.karmada.io", "v1alpha1", "works", "Work", _Work)


@asynccontextmanager
async def ticking(clock: Callable[[], float] = time.monotonic) -> AsyncIterator[Callable[[], float]]:
    """A clock, in seconds from its start, that stands still where the machine does."""
    passed = 0.0

    async def tick() -> None:
        nonlocal passed
        last = clock()
        while True:
            await asyncio.sleep(PAUSE)
            tick_time = clock()
            passed, last = passed + min(tick_time - last, STILL), tick_time

    async with in_background(tick()):
        yield lambda: passed


@asynccontextmanager
async def following(stage: Stage, **views: View) -> AsyncIterator[Behind]:
    """Follow views while the block runs. Upper bounds: a change counts from the last look that did not see it.

    A look that is refused is none. What else ends the looks is raised at the end of the block.
    """
    behind = Behind(dict.fromkeys(views, 0.0))
    longest = behind.views
    changed: dict[str, float] = {}  # when, for views that do not have the change yet
    previous: set[str] | None = None
    looked = 0.0

    async def look() -> None:
        nonlocal changed, previous, looked
        began, looked_at, pods = time.monotonic(), clock(), await provided(stage)
        behind.looks.append(time.monotonic() - began)
        if previous is not None and pods != previous:
            behind.changes += 1
            changed = {**dict.fromkeys(views, looked), **changed}
        previous, looked = pods, looked_at
        for name in [name for name in changed if await views[name]() == pods]:
            longest[name] = max(longest[name], clock() - changed.pop(name))

    async def follow() -> None:
        while True:
            with suppress(*REFUSALS):
                await look()
            await asyncio.sleep(PAUSE)

    async with ticking() as clock:
        async with in_background(follow()):
            yield behind
        longest |= {name: max(longest[name], clock() - changed_at) for name, changed_at in changed.items()}


async def own(stage: Stage, cluster: str) -> set[str]:
    """Addresses of a provider's own pods."""
    return _ready(each for each in await slices(stage, cluster) if not karmada.dispatched(each.metadata))


async def provided(stage: Stage) -> set[str]:
    """Addresses of the pods of all providers."""
    return {address for name in PROVIDERS for address in await own(stage, name)}


async def in_works(plane: kube.Client) -> set[str]:
    """Addresses in the works that Karmada is to apply in the consumer."""
    works = await plane.list(WORK, f"karmada-es-{CONSUMER}")
    manifests = (body for work in works for body in work.spec.workload.manifests or ())
    return _ready(msgspec.convert(body, EndpointSlice) for body in manifests if body["kind"] == "EndpointSlice")


async def brought(stage: Stage) -> set[str]:
    """Addresses in the slices that Karmada applied in the consumer."""
    return _ready(each for each in await slices(stage, CONSUMER) if karmada.dispatched(each.metadata))


async def called_addresses(stage: Stage, caller: Caller) -> set[str]:
    """Addresses to which the calling node sends calls of a name."""
    current_plan = await asyncio.to_thread(plan, stage, caller)
    return targets(current_plan) if current_plan is not None else set()


def targets(plan: Plan) -> set[str]:
    """The addresses that a plan's calls go to."""
    return {target.address for group in plan.groups for target in group.targets}


async def slices(stage: Stage, cluster: str) -> list[EndpointSlice]:
    """All of the native name's."""
    selector = f"kubernetes.io/service-name={SERVICE.partition('/')[2]}"
    return list(await stage.client(cluster).list(ENDPOINT_SLICE, NAMESPACE, label_selector=selector))


def plan(stage: Stage, caller: Caller) -> Plan | None:
    """The calling node's plan for a name, None if it has none."""
    candidates = plans.all_plans(stage, CONSUMER)
    return next(
        (row for row in candidates if (row.import_of if caller is EXPORTED else row.key.service) == SERVICE), None
    )


def _ready(endpoint_slices: Iterable[EndpointSlice]) -> set[str]:
    return {
        address
        for each in endpoint_slices
        for endpoint in each.endpoints or ()
        if endpoint.conditions is None or endpoint.conditions.ready is not False
        for address in endpoint.addresses or ()
    }
