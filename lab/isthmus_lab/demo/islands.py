"""One service in two flat clusters and two islands: who is called, and what gateways refuse. A function per step.

c1 and c2 reach each other's pods. c3 and c4 are islands with the pod addresses of c1, and are called through their
gateways. The pod that calls is in c1 and speaks raw TCP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any, Final

import msgspec

from isthmus.config import KubernetesSection
from isthmus.gateway.refusals import UNKNOWN
from isthmus.kube.objects.core import CONFIG_MAP
from isthmus.model.names import ClusterName
from isthmus.sources import peer_policies
from isthmus_lab import faults
from isthmus_lab.demo import gateways
from isthmus_lab.demo.calls import loading, measured, unharmed
from isthmus_lab.demo.failover import apply
from isthmus_lab.demo.plans import HERE, agent, planned
from isthmus_lab.demo.report import Reporter
from isthmus_lab.demo.stage import SERVICE, Stage, StepFailed
from isthmus_lab.demo.steps import scale
from isthmus_lab.fault_targets import FaultTarget
from isthmus_lab.layout import Cluster, Network

NETWORKS: Final[tuple[Network, ...]] = ("flat", "flat", "island", "island")
PLACES: Final = (("home", ""), ("home", ""), ("away", ""), ("away", ""))
CLUSTERS: Final = ("c1", "c2", "c3", "c4")
ISLANDS: Final = ("c3", "c4")
HIDDEN: Final = "hidden"
"""The Service that is not exported, of the same pods."""
FIELD_MANAGER: Final = "isthmus-lab"


def story(stage: Stage, reporter: Reporter) -> Iterable[tuple[str, Coroutine[Any, Any, str]]]:
    """The steps, in order."""
    return (
        ("one service in all four; without a policy every pod has an equal part, on whichever network", equal(stage)),
        ("c1, c3 and c4 use the same pod addresses; c1 knows none of an island's pods", addresses(stage)),
        ("the gateway of c3 is killed under load: the others take its part, and give it back", gateway_killed(stage)),
        ("a service that is not exported is refused at the gateway, before a pod is reached", not_exported(stage)),
        ("c4 expels c1: the same certificate is refused, until c1 is trusted again", expelled(stage)),
        ("locality: local first", local(stage)),
        ("no pods in c1: then the flat neighbour, by the kernel", flat(stage)),
        ("no pods in c2: then the islands, through their gateways", island(stage)),
    )


async def equal(stage: Stage) -> str:
    """No policy: a quarter each."""
    took = await planned(stage, dict.fromkeys(CLUSTERS, 1 / 4))
    result = await measured(stage, dict.fromkeys(CLUSTERS, 1 / 4), calls=1_000)
    return f"{result}; planned after {took:.1f} s"


async def addresses(stage: Stage) -> str:
    """Overlapping addresses, of which the caller's node knows those of the flat clusters alone."""
    pods = {name: await stage.endpoints(name) for name in CLUSTERS}
    if not (common := set.intersection(*(pods[name] for name in (HERE, *ISLANDS)))):
        raise StepFailed(f"the pods have no address in common: {pods}")
    rows = (await asyncio.to_thread(agent(stage).table, "backends")).rows
    frontends = {(row["key"]["cluster"], row["key"]["address"]) for row in rows if row["import_of"]}
    outside = {address for cluster, address in frontends if cluster in ISLANDS}
    own = {scheme.node_local for scheme in stage.lab.clusters[0].schemes}
    if outside != own:
        raise StepFailed(f"backends of islands in {HERE} are at {', '.join(sorted(outside))}")
    envoy = ", ".join(sorted(own))
    return f"{', '.join(sorted(common))} are pods of c1, c3 and c4; each island is {envoy} to c1, its node's Envoy"


async def gateway_killed(stage: Stage) -> str:
    """An island whose only gateway dies has no part of new calls until it is back. What is under way in it is lost."""
    gateway = FaultTarget("c3", node=1, process="gateway-envoy")
    async with loading(stage) as calls:
        await asyncio.sleep(1.0)
        began = time.monotonic()
        await faults.inject(stage.lab, "kill", gateway)
        try:
            await planned(stage, dict.fromkeys(("c1", "c2", "c4"), 1 / 3))
            out = time.monotonic() - began
        finally:
            began = time.monotonic()
            await faults.inject(stage.lab, "start", gateway)
        await planned(stage, dict.fromkeys(CLUSTERS, 1 / 4))
        back = time.monotonic() - began
    return f"c3 out after {out:.1f} s, and back {back:.1f} s after the gateway was started; {unharmed(calls.load)}"


async def not_exported(stage: Stage) -> str:
    """The node of c1 shows its certificate, and asks for a service of c4 that no ServiceExport names."""
    caller, callee = _cluster(stage, HERE), _cluster(stage, "c4")
    spoke = await _answered(stage, caller, callee)
    reason = ("not exported", HERE)
    before = gateways.refused(callee)[reason]

    async def refused() -> bool:
        if reply := await asyncio.to_thread(gateways.ask, caller, callee, HIDDEN):
            raise StepFailed(f"{HIDDEN} is not exported, and answers {reply.decode(errors='replace')}")
        return gateways.refused(callee)[reason] > before

    await stage.until(f"the gateway of {callee.name} counts what it refused", refused)
    edge = gateways.address(callee)
    return f"with {HERE}'s certificate {edge} answers for {SERVICE} ({spoke}), and refuses {HIDDEN}: '{reason[0]}'"


async def expelled(stage: Stage) -> str:
    """Run `isthmus clusters distrust c1` in c4, then undo it with `trust`."""
    caller, callee = _cluster(stage, HERE), _cluster(stage, "c4")
    await _answered(stage, caller, callee)
    reason = ("certificate", UNKNOWN)
    before = gateways.refused(callee)[reason]

    async def answered() -> bool:
        return bool(await asyncio.to_thread(gateways.ask, caller, callee, SERVICE))

    async def refused() -> bool:  # and counts it: a connection may also break while Envoy changes
        return not await answered() and gateways.refused(callee)[reason] > before

    await _decide(stage, distrusted=True)
    try:
        out = await stage.until(f"c4 refuses {HERE}, and counts it", refused)
    finally:
        await _decide(stage, distrusted=False)
    back = await stage.until(f"c4 answers {HERE}", answered)
    return f"refused {out:.1f} s after that: '{reason[0]}'; answered {back:.1f} s after it is trusted again"


async def local(stage: Stage) -> str:
    """Locality Cluster."""
    await apply(stage, "locality", {HERE: 1.0})
    return str(await measured(stage, {HERE: 1.0}, calls=500))


async def flat(stage: Stage) -> str:
    """c2 is in the region of c1, and the kernel connects to its pods."""
    await scale(stage, "c1", 0)
    took = await planned(stage, {"c2": 1.0})
    return f"{await measured(stage, {'c2': 1.0}, calls=500)}; {took:.1f} s after c1 was scaled to none"


async def island(stage: Stage) -> str:
    """Nothing is left at home."""
    await scale(stage, "c2", 0)
    took = await planned(stage, dict.fromkeys(ISLANDS, 1 / 2))
    result = await measured(stage, dict.fromkeys(ISLANDS, 1 / 2), calls=1_000)
    return f"{result}; {took:.1f} s after c2 was scaled to none"


async def _answered(stage: Stage, caller: Cluster, callee: Cluster) -> str:
    """The cluster that answers the export, asked as the refused calls are: so nothing else refuses those."""
    answers: list[bytes] = []

    async def answered() -> bool:
        answers.append(await asyncio.to_thread(gateways.ask, caller, callee, SERVICE))
        return bool(answers[-1])

    await stage.until(f"{gateways.address(callee)} answers for {SERVICE}, which is exported", answered)
    return str(msgspec.json.decode(answers[-1])["cluster"])


async def _decide(stage: Stage, *, distrusted: bool) -> None:
    cluster = ClusterName(HERE)
    body = peer_policies.body(cluster, distrusted=distrusted)
    namespace = KubernetesSection().namespace
    name = peer_policies.name_of(cluster)
    await stage.client("c4").apply(CONFIG_MAP, namespace, name, body, field_manager=FIELD_MANAGER)


def _cluster(stage: Stage, name: str) -> Cluster:
    return next(each for each in stage.lab.clusters if each.name == name)
