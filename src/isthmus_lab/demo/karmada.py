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
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus.admin.query import Socket
from isthmus.kube.objects.discovery import ENDPOINT_SLICE, EndpointSlice
from isthmus.loadbalancer import shares
from isthmus.model.balancing import Plan
from isthmus_lab import cgroups, faults, manifests, pod_exec
from isthmus_lab.demo.calls import Caller, close, load, loading, unharmed
from isthmus_lab.demo.report import Reporter
from isthmus_lab.demo.stage import Stage, StepFailed
from isthmus_lab.fault_targets import FaultTarget
from isthmus_lab.karmada import autoscaling, plane
from isthmus_lab.karmada.plane import Karmada
from isthmus_lab.supervisor.configs import socket_of

EXAMPLES: Final = Path("examples/karmada")
POLICIES: Final = Path("deploy/crds/trafficpolicies.yaml")
PLACES: Final = (("east", "east-1"), ("west", "west-1"), ("east", "east-2"))
"""c1 is the caller's neighbour."""
PROVIDERS: Final = ("c1", "c2")
CONSUMER: Final = "c3"
NAMESPACE: Final = "shop"
SERVICE: Final = f"{NAMESPACE}/web"
EXPORTED: Final = Caller(3, f"{NAMESPACE}/deploy/client", f"web.{NAMESPACE}.svc.clusterset.local")
NATIVE: Final = Caller(3, f"{NAMESPACE}/deploy/client", f"web.{NAMESPACE}.svc.cluster.local")
RETAIN: Final = "resourcetemplate.karmada.io/retain-replicas"
PATIENCE: Final = 120.0
"""Seconds for what Karmada, or a pod, is to do."""
NOTICED: Final = 240.0
"""Seconds within which Karmada is to find that a member died; by its defaults it takes about a minute."""
BEHIND: Final = 10.0
"""Seconds that a plan may be behind the pods; it is far less on a machine that has nothing else to do, and printed."""
CALLERS: Final = 6
"""Processes that call as fast as they can while pods are scaled: one has too small a part of a busy machine."""
RATE: Final = 100
"""Calls a second of each name."""


def story(stage: Stage, reporter: Reporter) -> Iterable[tuple[str, Coroutine[Any, Any, str]]]:
    """The steps, in order."""
    members = {each.name: plane.of_context(stage.lab.kubeconfig, each.name) for each in stage.lab.clusters}
    group = cgroups.make(cgroups.root() / stage.lab.prefix / "karmada")
    made = Karmada(stage.lab.directory / "karmada", members, cgroup=group)
    return (
        ("Karmada's control plane comes up, with c1, c2 and c3 as its members", begin(stage, made)),
        ("it places an app in c1 and c2, and c3 calls it by both names", placed(stage, made)),
        ("members scale their parts under load, and the shares of calls follow", scaled(stage, made)),
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
    await _kubectl(made, "apply", "--server-side", "-f", str(POLICIES))
    await _kubectl(made, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    await _kubectl(made, "apply", "-f", str(EXAMPLES / "app"))
    await _kubectl(made, "apply", "-f", str(EXAMPLES / "native"))
    client = list(manifests.of_file(EXAMPLES / "client" / "client.yaml"))

    async def applied() -> bool:  # Karmada makes the namespace
        return not await manifests.apply(stage.client(CONSUMER), client)

    await stage.until("c3 takes the client", applied, seconds=PATIENCE)
    await _pods(stage, c1=2, c2=1)
    await _planned(stage, EXPORTED, {"c1": 1.0})
    await _planned(stage, NATIVE, {"c1": 2 / 3, "c2": 1 / 3})
    await stage.until("the client runs", lambda: _runs(stage), seconds=PATIENCE)
    near = close(await load(stage, calls=300, of=EXPORTED), {"c1": 1.0})
    every = close(await load(stage, calls=600, of=NATIVE), {"c1": 2 / 3, "c2": 1 / 3}, within=0.1)
    return f"by the exported name, locality Cluster: {near}; by the native one: {every}"


async def scaled(stage: Stage, made: Karmada) -> str:
    """kube-controller-manager's autoscaler in each provider, by the CPU time that its pods really use."""
    await _kubectl(made, "-n", NAMESPACE, "label", "deployment", "web", f"{RETAIN}=true")
    await _kubectl(made, "apply", "-f", str(EXAMPLES / "hpa"))
    async with (
        autoscaling.autoscaler(stage.lab.clusters[0], stage.client("c1"), NAMESPACE),
        autoscaling.autoscaler(stage.lab.clusters[1], stage.client("c2"), NAMESPACE),
        _following(stage, EXPORTED) as exported,
        _following(stage, NATIVE) as native,
        AsyncExitStack() as stack,
    ):
        calls = [await stack.enter_async_context(loading(stage, of=NATIVE, rate=0)) for _ in range(CALLERS)]
        took = await stage.until("both have more pods", lambda: _more(stage, c1=2, c2=1), seconds=PATIENCE)
        await _planned(stage, NATIVE, await _parts(stage))
        await asyncio.sleep(2.0)
    counts = {name: len(await _endpoints(stage, name)) for name in PROVIDERS}
    await _kubectl(made, "delete", "-f", str(EXAMPLES / "hpa"))
    await _kubectl(made, "-n", NAMESPACE, "label", "deployment", "web", f"{RETAIN}-")
    await _pods(stage, c1=2, c2=1)
    if max(exported(), native()) > BEHIND:
        raise StepFailed(f"plans were {exported():.1f} s (exported name) and {native():.1f} s (native) behind the pods")
    pods = f"c1 2 → {counts['c1']}, c2 1 → {counts['c2']} pods within {took:.0f} s"
    follow = f"plans follow within {exported():.2f} s (exported name), {native():.2f} s (native)"
    for each in calls:
        unharmed(each())
    return f"{pods}; {follow}; {sum(each().calls for each in calls)} calls, 0 failed connects"


async def moved(stage: Stage, made: Karmada) -> str:
    """The policy's placement changes: the Deployment leaves c1, its Service and export stay."""
    async with _both(stage) as calls:
        await asyncio.sleep(1.0)
        await _place(made, "c2")
        await _pods(stage, c1=0, c2=3)
        await _planned(stage, EXPORTED, {"c2": 1.0})
        await _planned(stage, NATIVE, {"c2": 1.0})
        await asyncio.sleep(1.0)
    emptied = [each.metadata.name for each in await _slices(stage, CONSUMER) if each.metadata.name.startswith("c1-")]
    if not emptied:
        raise StepFailed("Karmada took c1's EndpointSlice away from c3; it kept it, empty, when this was written")
    return f"{calls()}; {', '.join(emptied)} stays in c3, empty"


async def regional(stage: Stage, made: Karmada) -> str:
    """In both again, and called in the far region first."""
    await _place(made, *PROVIDERS)
    await _kubectl(made, "apply", "-f", str(EXAMPLES / "region"))
    await _pods(stage, c1=2, c2=1)
    await _planned(stage, EXPORTED, {"c2": 1.0})
    await _planned(stage, NATIVE, {"c1": 2 / 3, "c2": 1 / 3})
    return str(close(await load(stage, calls=300, of=EXPORTED), {"c2": 1.0}))


async def died(stage: Stage, made: Karmada) -> str:
    """All of c2 from one packet to the next: nodes, API server, etcd. What Karmada wrote of it stays."""
    before = await _of_c2(stage, made)
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
        await _pods(stage, c1=2, c2=1)
        await _planned(stage, EXPORTED, {"c2": 1.0})
        await stage.until("nothing is ejected", lambda: _none_ejected(stage), seconds=PATIENCE)
        await asyncio.sleep(1.0)
    again = close(await load(stage, calls=300, of=EXPORTED), {"c2": 1.0})
    return f"{calls()}; Karmada noticed after {noticed:.0f} s; then {again}"


async def _kubectl(made: Karmada, *words: str) -> None:
    await asyncio.to_thread(made.kubectl, *words)


async def _place(made: Karmada, *names: str) -> None:
    placement = {"clusterAffinity": {"clusterNames": names}}
    patch = json.dumps({"spec": {"placement": placement}})
    await _kubectl(made, "-n", NAMESPACE, "patch", "propagationpolicy", "web", "--type=merge", "-p", patch)


@asynccontextmanager
async def _both(stage: Stage) -> AsyncIterator[Callable[[], str]]:
    """Calls by both names while the block runs; what is given has a sentence on them after it."""
    found: list[str] = []
    async with loading(stage, of=EXPORTED, rate=RATE) as exported, loading(stage, of=NATIVE, rate=RATE) as native:
        yield lambda: found[0]
    found.append(f"exported name: {unharmed(exported())}; native: {unharmed(native())}")


@asynccontextmanager
async def _following(stage: Stage, of: Caller) -> AsyncIterator[Callable[[], float]]:
    """How long, at most, a plan was behind the providers' ready pods while the block ran, in seconds.

    An upper bound: a change counts from the last look that did not see it.
    """
    longest = 0.0

    async def follow() -> None:
        nonlocal longest
        known, looked = await _addresses(stage), time.monotonic()
        since: float | None = None
        while True:
            await asyncio.sleep(0.02)
            began, pods = time.monotonic(), await _addresses(stage)
            since = looked if since is None and pods != known else since
            known, looked = pods, began
            plan = await asyncio.to_thread(_plan, stage, of)
            targets = {target.address for group in plan.groups for target in group.targets} if plan else set()
            if since is not None and targets == pods:
                longest, since = max(longest, time.monotonic() - since), None

    following = asyncio.create_task(follow())
    try:
        yield lambda: longest
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _addresses(stage: Stage) -> set[str]:
    return {address for name in PROVIDERS for address in await _endpoints(stage, name)}


async def _pods(stage: Stage, **counts: int) -> None:
    """Wait until each provider has so many ready endpoints."""

    async def so() -> bool:
        return {name: len(await _endpoints(stage, name)) for name in counts} == counts

    text = ", ".join(f"{count} in {name}" for name, count in counts.items())
    await stage.until(f"ready pods: {text}", so, seconds=PATIENCE)


async def _parts(stage: Stage) -> dict[str, float]:
    """The part of all ready pods that each provider has."""
    counts = {name: len(await _endpoints(stage, name)) for name in PROVIDERS}
    return {name: count / sum(counts.values()) for name, count in counts.items()}


async def _more(stage: Stage, **counts: int) -> bool:
    return all([len(await _endpoints(stage, name)) > count for name, count in counts.items()])


async def _endpoints(stage: Stage, cluster: str) -> set[str]:
    """Ready addresses of a provider's own pods."""
    return {
        address
        for each in await _slices(stage, cluster)
        if (each.metadata.labels or {}).get("endpointslice.kubernetes.io/managed-by")
        == "endpointslice-controller.k8s.io"
        for endpoint in each.endpoints or ()
        if endpoint.conditions is None or endpoint.conditions.ready is not False
        for address in endpoint.addresses or ()
    }


async def _slices(stage: Stage, cluster: str) -> list[EndpointSlice]:
    selector = "kubernetes.io/service-name=web"
    return list(await stage.client(cluster).list(ENDPOINT_SLICE, NAMESPACE, label_selector=selector))


async def _runs(stage: Stage) -> bool:
    try:
        pod_exec.find(stage.lab.clusters[EXPORTED.cluster - 1], EXPORTED.pod)
    except pod_exec.NoSuchPod:
        return False
    return True


async def _planned(stage: Stage, of: Caller, wanted: Mapping[str, float]) -> None:
    async def so() -> bool:
        plan = await asyncio.to_thread(_plan, stage, of)
        found = shares.by_cluster(plan) if plan is not None else {}
        return found.keys() == wanted.keys() and all(abs(found[name] - part) < 1e-6 for name, part in wanted.items())  # type: ignore[index]

    await stage.until(f"{of.name} is planned as {shares.text(dict(wanted))}", so, seconds=PATIENCE)  # type: ignore[arg-type]


def _plan(stage: Stage, of: Caller) -> Plan | None:
    rows = (msgspec.convert(row, Plan) for row in _agent(stage).table("plans").rows)
    return next((row for row in rows if (row.import_of if of is EXPORTED else row.key.service) == SERVICE), None)


async def _none_ejected(stage: Stage) -> bool:
    return not (await asyncio.to_thread(_agent(stage).table, "failures")).rows


def _agent(stage: Stage) -> Socket:
    return Socket(socket_of(stage.lab.clusters[EXPORTED.cluster - 1].nodes[0], "agent"))


async def _found(made: Karmada, **ready: bool) -> bool:
    found = await asyncio.to_thread(made.readiness)
    return all((found.get(name) == "True") == wanted for name, wanted in ready.items())


async def _of_c2(stage: Stage, made: Karmada) -> tuple[Any, Any]:
    """What Karmada keeps of c2: endpoints of its slices in c3, and where the Deployment is bound."""
    slices = [each for each in await _slices(stage, CONSUMER) if each.metadata.name.startswith("c2-")]
    addresses = sorted(
        address for each in slices for endpoint in each.endpoints or () for address in endpoint.addresses or ()
    )
    binding = await asyncio.to_thread(made.get, "resourcebinding", "web-deployment", "-n", NAMESPACE)
    return addresses, binding["spec"]["clusters"]
