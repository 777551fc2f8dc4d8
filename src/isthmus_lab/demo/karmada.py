"""An app that Karmada's own programs place in c1 and c2, called from c3 by both its names. A function per step.

The exported name follows the providers' records, the native one the EndpointSlices that Karmada copies between members.
Manifests are those of examples/karmada, applied to Karmada's API server as a user would.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from isthmus import kube
from isthmus.config import KubernetesSection
from isthmus_lab import cgroups, faults, manifests, pod_exec
from isthmus_lab.demo import endpoints, plans
from isthmus_lab.demo.calls import Caller, loading, measured, unharmed
from isthmus_lab.demo.endpoints import CONSUMER, EXPORTED, NAMESPACE, NATIVE, PROVIDERS
from isthmus_lab.demo.report import Reporter
from isthmus_lab.demo.stage import Stage, StepFailed
from isthmus_lab.fault_targets import FaultTarget
from isthmus_lab.karmada import autoscaling, plane
from isthmus_lab.karmada.plane import Karmada

EXAMPLES: Final = Path("examples/karmada")
POLICIES: Final = Path("deploy/crds/trafficpolicies.yaml")
PLACES: Final = (("east", "east-1"), ("west", "west-1"), ("east", "east-2"))
"""c1 is the caller's neighbour."""
REPLICAS: Final = 3
"""Of the app's template."""
PLACED: Final = {"c1": 2, "c2": 1}
"""As its policy divides them."""
RETAIN: Final = "resourcetemplate.karmada.io/retain-replicas"
PATIENCE: Final = 120.0
"""Seconds for what Karmada, or a pod, is to do."""
NOTICED: Final = 240.0
"""Seconds within which Karmada is to find that a member died; by its defaults it takes about a minute."""
BEHIND: Final = 5.0
"""Seconds that a plan may be behind the first of several changes of the pods in a row. The aim is 1, and steps print
what it was: 0.23 to 0.41 where two cores had nothing else to do, and 0.32 to 0.42 beside eight programs that want
all of both; the median look took 0.03. More than the bound means that plans follow something rarer than changes."""
EXCHANGES: Final = 8
"""Between a pod and a plan there are as many requests and events, each as late as the machine makes them."""
CALLERS: Final = 4
"""Processes that call as fast as they can while pods are scaled: one has too small a part of a busy machine."""
WORK: Final = "/?cpu=5"
"""What they ask for. Pods that only answered used 0.3 of two cores: c2's one pod of ten was none to scale then, where
c1's autoscaler was the first to act, and none of them on a busy machine."""
RATE: Final = 100
"""Calls a second of each name."""


def story(stage: Stage, reporter: Reporter) -> Iterable[tuple[str, Coroutine[Any, Any, str]]]:
    """The steps, in order."""
    members = {each.name: plane.of_context(stage.lab.kubeconfig, each.name) for each in stage.lab.clusters}
    group = cgroups.make(cgroups.root() / stage.lab.prefix / "karmada")
    made = Karmada(stage.lab.directory / "karmada", members, definitions=[POLICIES], cgroup=group)
    return (
        ("Karmada's control plane comes up, with c1, c2 and c3 as its members", begin(stage, made)),
        ("it places an app in c1 and c2, and c3 calls it by both names", placed(stage, made)),
        ("members scale their parts under load, and the shares of calls follow", scaled(stage, made)),
        ("a FederatedHPA scales the app as a whole under load, and the shares of calls follow", federated(stage, made)),
        ("Karmada moves all replicas to c2: no connect fails", moved(stage, made)),
        ("a policy that Karmada brings to all members prefers the region west", regional(stage, made)),
        ("c2 dies: no connect fails, long before Karmada notices", died(stage, made)),
        ("c2 comes back: it is called again, and no connect fails", returned(stage, made)),
    )


async def begin(stage: Stage, made: Karmada) -> str:
    """Regions and zones of members are those of the lab's clusters."""
    await asyncio.to_thread(made.start)
    for cluster in stage.lab.clusters:
        region, zone = cluster.place
        await asyncio.to_thread(made.register, cluster.name, region=region, zones=[zone], provider="lab")
    took = await stage.until("Karmada finds every member ready", made.ready, seconds=PATIENCE)
    return f"controllers, scheduler and webhooks over a kube-apiserver; all members ready {took:.1f} s after joining"


async def placed(stage: Stage, made: Karmada) -> str:
    """By the export calls stay in the caller's region; by the native name every pod has an equal part."""
    await _kubectl(stage, made, "apply", "-f", str(EXAMPLES / "app"))
    await _kubectl(stage, made, "apply", "-f", str(EXAMPLES / "native"))
    client = list(manifests.of_file(EXAMPLES / "client" / "client.yaml"))

    async def applied() -> bool:  # Karmada makes the namespace
        return not await manifests.apply(stage.client(CONSUMER), client)

    await stage.until("c3 takes the client", applied, seconds=PATIENCE)
    await _pods(stage, PLACED)
    await _planned(stage, EXPORTED, {"c1": 1.0})
    await _planned(stage, NATIVE, {"c1": 2 / 3, "c2": 1 / 3})
    await stage.until("the client runs", lambda: _runs(stage), seconds=PATIENCE)
    near = await measured(stage, {"c1": 1.0}, calls=300, of=EXPORTED)
    every = await measured(stage, {"c1": 2 / 3, "c2": 1 / 3}, calls=600, of=NATIVE)
    return f"by the exported name, locality Cluster: {near}; by the native one: {every}"


async def scaled(stage: Stage, made: Karmada) -> str:
    """kube-controller-manager's autoscaler in each provider, by the CPU time that its pods really use."""
    await _kubectl(stage, made, "-n", NAMESPACE, "label", "deployment", "web", f"{RETAIN}=true")
    await _kubectl(stage, made, "apply", "-f", str(EXAMPLES / "hpa"))
    async with (
        autoscaling.autoscaler(stage.lab.clusters[0], stage.client("c1"), NAMESPACE),
        autoscaling.autoscaler(stage.lab.clusters[1], stage.client("c2"), NAMESPACE),
    ):
        found = await _under_load(stage, made, more=PLACED)
    await _kubectl(stage, made, "delete", "--ignore-not-found", "-f", str(EXAMPLES / "hpa"))
    await _kubectl(stage, made, "-n", NAMESPACE, "label", "deployment", "web", f"{RETAIN}-")
    await _settled(stage)
    return found


async def federated(stage: Stage, made: Karmada) -> str:
    """Karmada's own autoscaler, by the same metrics, which are on its API server: it scales the template."""
    await _kubectl(stage, made, "apply", "-f", str(EXAMPLES / "federated-hpa"))
    providers = {each: stage.client(each.name) for each in stage.lab.clusters if each.name in PROVIDERS}
    async with (
        await kube.connect(KubernetesSection(kubeconfig=made.kubeconfig)) as control,
        autoscaling.pod_metrics(providers, control, NAMESPACE),
    ):
        found = await _under_load(stage, made, more={"c1": PLACED["c1"]})  # of four replicas c2 has one still
    status = (await asyncio.to_thread(made.get, "federatedhpa", "web", "-n", NAMESPACE))["status"]
    await _kubectl(stage, made, "delete", "--ignore-not-found", "-f", str(EXAMPLES / "federated-hpa"))
    template = await _replicas(made)
    if template <= REPLICAS:
        raise StepFailed(f"the template has {template} replicas: {status}")

    async def back() -> bool:  # again, if need be: the autoscaler may end a turn after its FederatedHPA is deleted
        if await _replicas(made) != REPLICAS:
            await _kubectl(stage, made, "-n", NAMESPACE, "scale", "deployment", "web", f"--replicas={REPLICAS}")
        return await _have(stage, PLACED)

    await stage.until(f"{REPLICAS} pods again", back, seconds=PATIENCE)
    await _settled(stage)
    return f"the template {REPLICAS} → {template} replicas, {found}"


async def _under_load(stage: Stage, made: Karmada, *, more: Mapping[str, int]) -> str:
    """Calls until providers have more pods than so many, and plans have them."""
    async with (
        await kube.connect(KubernetesSection(kubeconfig=made.kubeconfig)) as control,
        endpoints.following(
            stage,
            exported=lambda: endpoints.called(stage, EXPORTED),
            native=lambda: endpoints.called(stage, NATIVE),
            works=lambda: endpoints.in_works(control),
            copies=lambda: endpoints.brought(stage),
        ) as behind,
        AsyncExitStack() as stack,
    ):
        calls = [await stack.enter_async_context(loading(stage, of=NATIVE, rate=0, path=WORK)) for _ in range(CALLERS)]
        took = await stage.until(f"more pods in {' and '.join(more)}", lambda: _more(stage, more), seconds=PATIENCE)
        await asyncio.sleep(2.0)
    counts = {name: len(await endpoints.own(stage, name)) for name in PROVIDERS}
    grown = ", ".join(f"{name} {PLACED[name]} → {count}" for name, count in counts.items())
    pods = f"{grown} pods within {took:.0f} s"
    follow = (
        "plans follow within {exported:.2f} s (exported name), {native:.2f} s (native); "
        "Karmada's Works for c3 within {works:.2f} s, its slices there within {copies:.2f} s"
    ).format(**behind.views)
    if late := too_late(behind):
        raise StepFailed(f"{pods}; {follow}; {late}")
    for each in calls:
        unharmed(each.load)
    return f"{pods}; {follow}; {sum(each.load.calls for each in calls)} calls, 0 failed connects"


def too_late(behind: endpoints.Behind) -> str:
    """Why plans did not follow the pods in time; empty where they did.

    One long look moves no bound: of the looks the median counts.
    """
    if not behind.changes:
        return "no change of the pods was seen, so none was followed"
    look = median(behind.looks)
    bound = BEHIND + EXCHANGES * look
    late = max(behind.views["exported"], behind.views["native"])
    return f"the bound is {bound:.2f} s, where a look at the pods took {look:.2f} s" if late > bound else ""


async def moved(stage: Stage, made: Karmada) -> str:
    """The policy's placement changes: the Deployment leaves c1, its Service and export stay."""
    async with _both(stage) as calls:
        await asyncio.sleep(1.0)
        await _place(stage, made, "c2")
        await _pods(stage, {"c1": 0, "c2": REPLICAS})
        await _planned(stage, EXPORTED, {"c2": 1.0})
        await _planned(stage, NATIVE, {"c2": 1.0})
        await asyncio.sleep(1.0)
    in_c3 = await endpoints.slices(stage, CONSUMER)
    emptied = [each.metadata.name for each in in_c3 if each.metadata.name.startswith("c1-")]
    if not emptied:
        raise StepFailed("Karmada took c1's EndpointSlice away from c3; it kept it, empty, when this was written")
    return f"{calls()}; {', '.join(emptied)} stays in c3, empty"


async def regional(stage: Stage, made: Karmada) -> str:
    """In both again, where callers have their own region first; then in the far one."""
    await _place(stage, made, *PROVIDERS)
    await _settled(stage)
    await _planned(stage, EXPORTED, {"c1": 1.0})
    near = await measured(stage, {"c1": 1.0}, calls=300, of=EXPORTED)
    began = time.monotonic()
    await _kubectl(stage, made, "apply", "-f", str(EXAMPLES / "region"))
    await _planned(stage, EXPORTED, {"c2": 1.0})
    took = time.monotonic() - began
    far = await measured(stage, {"c2": 1.0}, calls=300, of=EXPORTED)
    await _planned(stage, NATIVE, {"c1": 2 / 3, "c2": 1 / 3})
    return f"before it {near}; c3 has it {took:.1f} s after it was applied on Karmada's API server; then {far}"


async def died(stage: Stage, made: Karmada) -> str:
    """All of c2 from one packet to the next: nodes, API server, etcd. What Karmada wrote of it stays."""
    before = await _of_c2(stage, made)
    if not before[0]:
        raise StepFailed("c3 has no endpoint of c2's, which Karmada is to keep")
    async with _both(stage) as calls:
        await asyncio.sleep(1.0)
        began = time.monotonic()
        await faults.inject(stage.lab, "kill", FaultTarget("c2"))
        await stage.until("Karmada finds c2 not ready", lambda: _found(made, c2=False), seconds=NOTICED)
        noticed = time.monotonic() - began
    if (after := await _of_c2(stage, made)) != before:
        raise StepFailed(f"Karmada changed what it keeps of c2: {before}, now {after}")
    taints = (await asyncio.to_thread(made.get, "cluster", "c2"))["spec"].get("taints", [])
    effects = sorted({f"{each['key'].rpartition('/')[2]}:{each['effect']}" for each in taints})
    return (
        f"{calls()}; Karmada noticed after {noticed:.0f} s ({', '.join(effects) or 'no taint'}), and keeps c2's slices"
    )


async def returned(stage: Stage, made: Karmada) -> str:
    """Its records and slices are back before its pods are reachable."""
    async with _both(stage) as calls:
        await asyncio.sleep(1.0)
        began = time.monotonic()
        await faults.inject(stage.lab, "start", FaultTarget("c2"))
        await stage.until("c2 is ready", lambda: _found(made, c2=True), seconds=NOTICED)
        noticed = time.monotonic() - began
        await _settled(stage)
        await _planned(stage, EXPORTED, {"c2": 1.0})
        await asyncio.sleep(1.0)
    found = await measured(stage, {"c2": 1.0}, calls=300, of=EXPORTED)
    return f"{calls()}; Karmada noticed after {noticed:.0f} s; then {found}"


async def _replicas(made: Karmada) -> int:
    """Of the app's template."""
    template = await asyncio.to_thread(made.get, "deployment", "web", "-n", NAMESPACE)
    return int(template["spec"]["replicas"])


async def _kubectl(stage: Stage, made: Karmada, *words: str) -> None:
    """Again where it is refused: a webhook of Karmada's may be slow, an object may have changed meanwhile."""

    async def taken() -> bool:
        await asyncio.to_thread(made.kubectl, *words)
        return True

    await stage.until(f"kubectl {' '.join(words)}", taken, seconds=PATIENCE)


async def _place(stage: Stage, made: Karmada, *names: str) -> None:
    placement = {"clusterAffinity": {"clusterNames": names}}
    patch = json.dumps({"spec": {"placement": placement}})
    await _kubectl(stage, made, "-n", NAMESPACE, "patch", "propagationpolicy", "web", "--type=merge", "-p", patch)


@asynccontextmanager
async def _both(stage: Stage) -> AsyncIterator[Callable[[], str]]:
    """Calls by both names while the block runs; what is given has a sentence on them after it."""
    found: list[str] = []
    async with loading(stage, of=EXPORTED, rate=RATE) as exported, loading(stage, of=NATIVE, rate=RATE) as native:
        yield lambda: found[0]
    found.append(f"exported name: {unharmed(exported.load)}; native: {unharmed(native.load)}")


async def _pods(stage: Stage, counts: Mapping[str, int]) -> None:
    """Wait until each provider has so many ready endpoints."""
    text = ", ".join(f"{count} in {name}" for name, count in counts.items())
    await stage.until(f"ready pods: {text}", lambda: _have(stage, counts), seconds=PATIENCE)


async def _have(stage: Stage, counts: Mapping[str, int]) -> bool:
    return {name: len(await endpoints.own(stage, name)) for name in counts} == counts


async def _more(stage: Stage, counts: Mapping[str, int]) -> bool:
    return all([len(await endpoints.own(stage, name)) > count for name, count in counts.items()])


async def _runs(stage: Stage) -> bool:
    try:
        pod_exec.find(stage.lab.clusters[EXPORTED.cluster - 1], EXPORTED.pod)
    except pod_exec.NoSuchPod:
        return False
    return True


async def _planned(stage: Stage, of: Caller, wanted: Mapping[str, float]) -> None:
    """Wait until calls of a name are spread so."""
    find = partial(endpoints.plan, of=of)
    await plans.planned(stage, wanted, find=find, cluster=CONSUMER, seconds=PATIENCE)


async def _settled(stage: Stage) -> None:
    """Wait until the pods are as they were placed, and plans have them and no others.

    Before that most of a plan's pods may have gone together, and a call that meets only such in a row fails by right.
    Karmada's copies of slices are not waited for: it misses a member's last change now and then, and keeps old pods.
    """
    await _pods(stage, PLACED)
    await stage.until("plans in the kernel have the pods", lambda: _followed(stage), seconds=PATIENCE)
    await stage.until("nothing is ejected", lambda: plans.none_ejected(stage, CONSUMER), seconds=PATIENCE)


async def _followed(stage: Stage) -> bool:
    pods = await endpoints.provided(stage)
    return all([await _calls(stage, of, pods) for of in (EXPORTED, NATIVE)])


async def _calls(stage: Stage, of: Caller, pods: set[str]) -> bool:
    """Whether calls of a name go to these, in the kernel too."""
    plan = await asyncio.to_thread(endpoints.plan, stage, of)
    if plan is None or endpoints.targets(plan) != pods:
        return False
    return await plans.in_kernel(stage, plan, CONSUMER)


async def _found(made: Karmada, **ready: bool) -> bool:
    found = await asyncio.to_thread(made.readiness)
    return all((found.get(name) == "True") == wanted for name, wanted in ready.items())


async def _of_c2(stage: Stage, made: Karmada) -> tuple[list[str], Any]:
    """What Karmada keeps of c2: its slices in c3 that have endpoints, and where the Deployment is bound.

    Their addresses are not compared: a copy that was behind may be brought up to date meanwhile.
    """
    found = [each for each in await endpoints.slices(stage, CONSUMER) if each.endpoints]
    names = sorted(each.metadata.name for each in found if each.metadata.name.startswith("c2-"))
    binding = await asyncio.to_thread(made.get, "resourcebinding", "web-deployment", "-n", NAMESPACE)
    return names, binding["spec"]["clusters"]
