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
from statistics import median
from typing import Any, Final

from isthmus import kube
from isthmus.config import KubernetesSection
from isthmus_lab import cgroups, examples, faults, manifests, pod_exec
from isthmus_lab.demo import endpoints, plans
from isthmus_lab.demo.calls import Caller, loading, measured, total, unharmed
from isthmus_lab.demo.endpoints import CONSUMER, EXPORTED, NAMESPACE, NATIVE, PROVIDERS
from isthmus_lab.demo.report import Reporter
from isthmus_lab.demo.stage import Stage, StepFailed
from isthmus_lab.fault_targets import FaultTarget
from isthmus_lab.karmada import autoscaling, plane
from isthmus_lab.karmada.plane import Karmada
from isthmus_lab.realapi import definitions

EXAMPLES: Final = examples.path("karmada")
POLICIES: Final = definitions.directory() / "trafficpolicies.yaml"
PLACES: Final = (("east", "east-1"), ("west", "west-1"), ("east", "east-2"))
"""c1 is the caller's neighbour."""
REPLICAS: Final = 3
"""Replicas of the app's template."""
PLACED: Final = {"c1": 2, "c2": 1}
"""Replicas of each cluster, as divided by the policy."""
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
"""Path of their requests. Pods that only answered used 0.3 of two cores: c2's one pod of ten was none to scale, where
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
    """Calls of the export stay in the caller's region; calls of the native name reach every pod equally."""
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
    near = await measured(stage, {"c1": 1.0}, calls=300, caller=EXPORTED)
    every = await measured(stage, {"c1": 2 / 3, "c2": 1 / 3}, calls=600, caller=NATIVE)
    return f"by the exported name, locality Cluster: {near}; by the native one: {every}"


async def scaled(stage: Stage, made: Karmada) -> str:
    """kube-controller-manager's autoscaler in each provider, by the CPU time that its pods really use."""
    await _kubectl(stage, made, "-n", NAMESPACE, "label", "deployment", "web", f"{RETAIN}=true")
    await _kubectl(stage, made, "apply", "-f", str(EXAMPLES / "hpa"))
    async with (
        autoscaling.autoscaler(stage.lab.clusters[0], stage.client("c1"), NAMESPACE),
        autoscaling.autoscaler(stage.lab.clusters[1], stage.client("c2"), NAMESPACE),
    ):
        result = await _under_load(stage, made, more=PLACED)
    await _kubectl(stage, made, "delete", "--ignore-not-found", "-f", str(EXAMPLES / "hpa"))
    await _kubectl(stage, made, "-n", NAMESPACE, "label", "deployment", "web", f"{RETAIN}-")
    await _settled(stage)
    return result


async def federated(stage: Stage, made: Karmada) -> str:
    """Karmada's own autoscaler, by the same metrics, which are on its API server: it scales the template."""
    await _kubectl(stage, made, "apply", "-f", str(EXAMPLES / "federated-hpa"))
    providers = {each: stage.client(each.name) for each in stage.lab.clusters if each.name in PROVIDERS}
    async with (
        await kube.connect(KubernetesSection(kubeconfig=made.kubeconfig)) as control,
        autoscaling.pod_metrics(providers, control, NAMESPACE),
    ):
        result = await _under_load(stage, made, more={"c1": PLACED["c1"]})  # of four replicas c2 has one still
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
    return f"the template {REPLICAS} → {template} replicas, {result}"


async def _under_load(stage: Stage, made: Karmada, *, more: Mapping[str, int]) -> str:
    """Call until each provider has more pods than ``more`` gives, and plans include them."""
    async with (
        await kube.connect(KubernetesSection(kubeconfig=made.kubeconfig)) as control,
        endpoints.following(
            stage,
            exported=lambda: endpoints.called_addresses(stage, EXPORTED),
            native=lambda: endpoints.called_addresses(stage, NATIVE),
            works=lambda: endpoints.in_works(control),
            copies=lambda: endpoints.brought(stage),
        ) as behind,
        AsyncExitStack() as stack,
    ):
        calls = [
            await stack.enter_async_context(loading(stage, caller=NATIVE, rate=0, path=WORK)) for _ in range(CALLERS)
        ]
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
    return f"{pods}; {follow}; {unharmed(total([each.load for each in calls]))}"


def too_late(behind: endpoints.Behind) -> str:
    """Reason why plans did not follow the pods in time; empty if they did.

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
    async with _calling_both(stage) as calls:
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
    """Place pods in both clusters, where callers prefer their own region; then in the far one alone."""
    await _place(stage, made, *PROVIDERS)
    await _settled(stage)
    await _planned(stage, EXPORTED, {"c1": 1.0})
    near = await measured(stage, {"c1": 1.0}, calls=300, caller=EXPORTED)
    began = time.monotonic()
    await _kubectl(stage, made, "apply", "-f", str(EXAMPLES / "region"))
    await _planned(stage, EXPORTED, {"c2": 1.0})
    took = time.monotonic() - began
    far = await measured(stage, {"c2": 1.0}, calls=300, caller=EXPORTED)
    await _planned(stage, NATIVE, {"c1": 2 / 3, "c2": 1 / 3})
    return f"before it {near}; c3 has it {took:.1f} s after it was applied on Karmada's API server; then {far}"


async def died(stage: Stage, made: Karmada) -> str:
    """All of c2 from one packet to the next: nodes, API server, etcd. What Karmada wrote of it stays."""
    before = await _of_c2(stage, made)
    if not before[0]:
        raise StepFailed("c3 has no endpoint of c2's, which Karmada is to keep")
    async with _calling_both(stage) as calls:
        await asyncio.sleep(1.0)
        began = time.monotonic()
        await faults.inject(stage.lab, "kill", FaultTarget("c2"))
        await stage.until("Karmada finds c2 not ready", lambda: _has_readiness(made, c2=False), seconds=NOTICED)
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
    async with _calling_both(stage) as calls:
        await asyncio.sleep(1.0)
        began = time.monotonic()
        await faults.inject(stage.lab, "start", FaultTarget("c2"))
        await stage.until("c2 is ready", lambda: _has_readiness(made, c2=True), seconds=NOTICED)
        noticed = time.monotonic() - began
        await _settled(stage)
        await _planned(stage, EXPORTED, {"c2": 1.0})
        await asyncio.sleep(1.0)
    result = await measured(stage, {"c2": 1.0}, calls=300, caller=EXPORTED)
    return f"{calls()}; Karmada noticed after {noticed:.0f} s; then {result}"


async def _replicas(made: Karmada) -> int:
    """Read the replicas of the app's template."""
    template = await asyncio.to_thread(made.get, "deployment", "web", "-n", NAMESPACE)
    return int(template["spec"]["replicas"])


async def _kubectl(stage: Stage, made: Karmada, *words: str) -> None:
    """Again where it is refused: a webhook of Karmada's may be slow, an object may have changed meanwhile."""

    async def accepted() -> bool:
        await asyncio.to_thread(made.kubectl, *words)
        return True

    await stage.until(f"kubectl {' '.join(words)}", accepted, seconds=PATIENCE)


async def _place(stage: Stage, made: Karmada, *names: str) -> None:
    placement = {"clusterAffinity": {"clusterNames": names}}
    patch = json.dumps({"spec": {"placement": placement}})
    await _kubectl(stage, made, "-n", NAMESPACE, "patch", "propagationpolicy", "web", "--type=merge", "-p", patch)


@asynccontextmanager
async def _calling_both(stage: Stage) -> AsyncIterator[Callable[[], str]]:
    """Calls by both names while the block runs; what is given has a sentence on them after it."""
    messages: list[str] = []
    async with (
        loading(stage, caller=EXPORTED, rate=RATE) as exported,
        loading(stage, caller=NATIVE, rate=RATE) as native,
    ):
        yield lambda: messages[0]
    messages.append(f"exported name: {unharmed(exported.load)}; native: {unharmed(native.load)}")


async def _pods(stage: Stage, counts: Mapping[str, int]) -> None:
    """Wait until each provider has its number of ready endpoints."""
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


async def _planned(stage: Stage, caller: Caller, shares: Mapping[str, float]) -> None:
    """Wait until calls of a name are spread so."""
    find = partial(endpoints.plan, caller=caller)
    await plans.planned(stage, shares, find=find, cluster=CONSUMER, seconds=PATIENCE)


async def _settled(stage: Stage) -> None:
    """Wait until the pods are placed as before, and plans contain exactly these.

    Before that most of a plan's pods may be deleted at once; a call that tries only such pods fails rightly.
    Karmada's copies of slices are not waited for: it misses a member's last change now and then, and keeps old pods.
    """
    await _pods(stage, PLACED)
    await stage.until("plans in the kernel have the pods", lambda: _followed(stage), seconds=PATIENCE)
    await stage.until("nothing is ejected", lambda: plans.none_ejected(stage, CONSUMER), seconds=PATIENCE)


async def _followed(stage: Stage) -> bool:
    pods = await endpoints.provided(stage)
    return all([await _calls(stage, caller, pods) for caller in (EXPORTED, NATIVE)])


async def _calls(stage: Stage, caller: Caller, pods: set[str]) -> bool:
    """True if plan and kernel send calls of a name to exactly these pods."""
    plan = await asyncio.to_thread(endpoints.plan, stage, caller)
    if plan is None or endpoints.targets(plan) != pods:
        return False
    return await plans.in_kernel(stage, plan, CONSUMER)


async def _has_readiness(made: Karmada, **ready: bool) -> bool:
    readiness = await asyncio.to_thread(made.readiness)
    return all((readiness.get(name) == "True") == expected for name, expected in ready.items())


async def _of_c2(stage: Stage, made: Karmada) -> tuple[list[str], Any]:
    """Karmada's data about c2: its slices in c3 that have endpoints, and the clusters of the Deployment's binding.

    Their addresses are not compared: a copy that was behind may be brought up to date meanwhile.
    """
    non_empty = [each for each in await endpoints.slices(stage, CONSUMER) if each.endpoints]
    names = sorted(each.metadata.name for each in non_empty if each.metadata.name.startswith("c2-"))
    binding = await asyncio.to_thread(made.get, "resourcebinding", "web-deployment", "-n", NAMESPACE)
    return names, binding["spec"]["clusters"]
