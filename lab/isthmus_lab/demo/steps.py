"""The demo, a function per step. A step returns the sentence that is printed when it held."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

from isthmus.kube.objects.apps import DEPLOYMENT
from isthmus.kube.objects.core import POD
from isthmus.kube.objects.core import SERVICE as SERVICE_KIND
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.loadbalancer import shares
from isthmus.model import names
from isthmus_lab.beside import in_background
from isthmus_lab.demo.plans import in_kernel, plans_of_import
from isthmus_lab.demo.programmed import programmed
from isthmus_lab.demo.stage import CLIENT, IMPORT_NAME, LOCAL_NAME, NAMESPACE, PORT, SERVICE, Call, Stage, StepFailed

EXPORTERS: Final = ("c1", "c2")
CALLER: Final = "c3"
CALLS: Final = 60
DERIVED: Final = names.split(names.derived(names.service_name(NAMESPACE, SERVICE)))[1]


async def not_resolved(stage: Stage) -> str:
    """Before the export the name does not resolve."""
    code, out = await stage.run(CALLER, "getent", "hosts", IMPORT_NAME)
    if code == 0:
        raise StepFailed(f"{IMPORT_NAME} resolves before anything is exported: {out.strip()}")
    return f"getent hosts {IMPORT_NAME} in {CALLER}: no such name"


async def exported(stage: Stage) -> str:
    """Measure the time from writing the ServiceExports to the first answered call."""
    waiting = asyncio.create_task(stage.calls(CALLER, IMPORT_NAME, count=2_000, pause=0.01, until="ok"))
    await asyncio.sleep(0.5)  # the caller is running, and failing, when the export is created
    began = time.time()
    for cluster in EXPORTERS:
        await export(stage, cluster, SERVICE)
    first = (await waiting)[-1]
    if not first.ok or first.at + first.took < began:
        raise StepFailed(f"no call was answered after the export: {first.error or 'it was answered before'}")
    stage.import_address = first.dialled
    await stage.until("both clusters in the import", lambda: _imported_from(stage, EXPORTERS))
    await stage.until("backends of both clusters in the kernel", lambda: _backends(stage))
    return f"first answer {first.at + first.took - began:.2f} s after the export; {CALLER} dials {first.dialled}"


async def called(stage: Stage) -> tuple[str, Counter[tuple[str, str]]]:
    """Sixty calls reach every ready pod, while an unrelated export is created and deleted."""
    caller = stage.cluster(CALLER)
    before = programmed().counted(caller)
    async with _unrelated_export(stage):
        calls = await stage.calls(CALLER, IMPORT_NAME, count=CALLS)
    after = programmed().counted(caller)
    _all_answered(calls)
    own = await _seen_addresses(stage)
    seen = {call.answer["caller"] for call in calls}
    if seen != set(own):
        raise StepFailed(f"the servers saw {', '.join(sorted(seen))}, not {', '.join(own)}")
    counted = None if before is None or after is None else after - before
    if counted not in (None, CALLS):
        raise StepFailed(f"the kernel counted {counted} calls, not {CALLS}")
    spread = Counter((call.answer["cluster"], call.answer["pod"]) for call in calls)
    ready = sum([await stage.pods_ready(cluster, SERVICE) for cluster in EXPORTERS])
    if len(spread) != ready:
        raise StepFailed(f"{CALLS} calls reached {len(spread)} of {ready} ready pods")
    sentence = f"{CALLS} of {CALLS} answered by {len(spread)} pods; they saw {' and '.join(own)}"
    return sentence + ("" if counted is None else f"; the kernel counted {counted}"), spread


async def survived(stage: Stage) -> str:
    """One cluster's pods end under calls: no connect fails, and no call once the caller's plans have none of them."""
    [emptied, *remaining] = EXPORTERS
    calls: list[Call] = []
    async with in_background(_calling(stage, calls)):
        await stage.until("calls are made", lambda: _longer(calls, 20))
        await scale(stage, emptied, 0)
        await stage.until(f"{emptied}'s EndpointSlice is empty", lambda: _has_no_endpoints(stage, emptied))
        took = await stage.until(f"{CALLER}'s plans have no pod of {emptied}", lambda: _planned(stage, remaining))
        after, made = time.time(), len(calls)
        await stage.until("calls are made after it", lambda: _longer(calls, made + 100))
    later = [call for call in calls if call.at >= after]
    _all_answered(later)
    if wrong := {call.answer["cluster"] for call in later} - set(remaining):
        raise StepFailed(f"still answered by {', '.join(sorted(wrong))}")
    return (
        f"{CALLER}'s plans have none of them {took:.2f} s after {emptied}'s EndpointSlice; {len(later)} calls after "
        f"that, all answered by {' and '.join(remaining)}; in all {unharmed(calls, rescued=programmed().rescues)}"
    )


async def _calling(stage: Stage, calls: list[Call]) -> None:
    """Call on and on, some at a time."""
    while True:
        calls.extend(await stage.calls(CALLER, IMPORT_NAME, count=20, pause=0.01))


async def _longer(calls: list[Call], count: int) -> bool:
    return len(calls) >= count


async def _planned(stage: Stage, clusters: Collection[str]) -> bool:
    """True if the calling node sends calls to pods of exactly these clusters."""
    plans = await asyncio.to_thread(plans_of_import, stage, CALLER)
    if not plans or any(shares.by_cluster(plan).keys() != set(clusters) for plan in plans):
        return False
    return all([await in_kernel(stage, plan, CALLER) for plan in plans])


async def plain_service(stage: Stage) -> str:
    """A Service that is not exported is kube-proxy's business and in no map of ours, where there are some."""
    cluster = EXPORTERS[1]
    calls = await stage.calls(cluster, LOCAL_NAME, count=20)
    _all_answered(calls)
    if {call.answer["cluster"] for call in calls} != {cluster}:
        raise StepFailed(f"{LOCAL_NAME} in {cluster} was answered by another cluster")
    sentence = f"20 of 20 calls to {LOCAL_NAME} stayed in {cluster}"
    if not programmed().ours_only:
        return sentence
    addresses = await _cluster_ips(stage, cluster, SERVICE)
    for member in stage.lab.clusters:
        if any(programmed().frontend(member, address) for address in addresses):
            raise StepFailed(f"{addresses} of the plain Service is in the frontends map of {member.name}")
    return f"{sentence}; {' and '.join(addresses)} {'are' if len(addresses) > 1 else 'is'} in no map"


async def withdrawn(stage: Stage) -> str:
    """No export is left: the import, its address and its name are gone."""
    for cluster in EXPORTERS:
        await stage.client(cluster).delete(SERVICE_EXPORT, NAMESPACE, SERVICE)
    took = await stage.until("the import is gone", lambda: _import_deleted(stage))
    where = programmed().word
    await stage.until(f"its address is in no {where}", lambda: _no_frontend(stage))
    calls = await stage.calls(CALLER, IMPORT_NAME, count=200, pause=0.02, until="gone")
    if calls[-1].ok:
        raise StepFailed(f"{IMPORT_NAME} is still answered")
    code, out = await stage.run(CALLER, "getent", "hosts", IMPORT_NAME)
    if code == 0:
        raise StepFailed(f"{IMPORT_NAME} still resolves: {out.strip()}")
    return f"import and derived Service gone after {took:.2f} s; {stage.import_address} is in no {where}; no such name"


async def export(stage: Stage, cluster: str, service: str) -> None:
    """Mark a Service as exported."""
    await stage.client(cluster).create(SERVICE_EXPORT, NAMESPACE, {"metadata": {"name": service}})


async def scale(stage: Stage, cluster: str, replicas: int) -> None:
    """Scale the cluster's echo Deployment."""
    await stage.client(cluster).patch(DEPLOYMENT, NAMESPACE, SERVICE, {"spec": {"replicas": replicas}})


def unharmed(calls: list[Call], *, rescued: bool) -> str:
    """A sentence on calls of which some met pods that ended; StepFailed if a connect failed that was to be rescued.

    A call without an address of the name has failed to connect. Answers of connections to a pod that ends may be lost.
    """
    lost = sum(call.failed == "answer" for call in calls)
    failed = [call for call in calls if call.failed not in ("", "answer")]
    sentence = f"{len(calls)} calls, {len(failed)} failed connects, {lost} lost answers"
    if failed and rescued:
        raise StepFailed(f"{sentence}; the first failed connect: {failed[0].failed}: {failed[0].error}")
    return sentence


def _all_answered(calls: list[Call]) -> None:
    failed = [call for call in calls if not call.ok]
    if failed:
        raise StepFailed(f"{len(failed)} of {len(calls)} calls failed, the first: {failed[0].error}")


async def _imported_from(stage: Stage, clusters: tuple[str, ...]) -> bool:
    service_import = await stage.client(CALLER).get(SERVICE_IMPORT, SERVICE, NAMESPACE)
    sentence = {each.cluster for each in (service_import.status.clusters if service_import.status else None) or ()}
    return sentence == set(clusters)


async def _backends(stage: Stage) -> bool:
    expected = [each for cluster in EXPORTERS for each in await stage.endpoints(cluster)]
    return len(expected) == 4 * len(stage.lab.schemes) and programmed().backends(stage.cluster(CALLER), expected)


async def _has_no_endpoints(stage: Stage, cluster: str) -> bool:
    return not await stage.endpoints(cluster)


async def _import_deleted(stage: Stage) -> bool:
    imports = await stage.client(CALLER).list(SERVICE_IMPORT, NAMESPACE)
    services = await stage.client(CALLER).list(SERVICE_KIND, NAMESPACE)
    return SERVICE not in {each.metadata.name for each in imports} and DERIVED not in {
        each.metadata.name for each in services
    }


async def _no_frontend(stage: Stage) -> bool:
    return not programmed().frontend(stage.cluster(CALLER), stage.import_address)


async def _seen_addresses(stage: Stage) -> list[str]:
    """Client addresses that servers should see: the pod's own, or its node's if an Envoy makes the calls."""
    if stage.lab.loopback:
        return list(stage.cluster(CALLER).nodes[0].addresses)
    client = await stage.client(CALLER).get(POD, CLIENT, NAMESPACE)
    return [each.ip for each in (client.status.pod_ips if client.status else None) or () if each.ip]


async def _cluster_ips(stage: Stage, cluster: str, service: str) -> list[str]:
    service_object = await stage.client(cluster).get(SERVICE_KIND, service, NAMESPACE)
    return list(service_object.spec.cluster_ips or ()) if service_object.spec else []


@asynccontextmanager
async def _unrelated_export(stage: Stage) -> AsyncIterator[None]:
    """Another Service is exported and withdrawn again and again meanwhile."""
    client = stage.client(EXPORTERS[0])
    body = {"metadata": {"name": "other"}, "spec": {"selector": {"app": "echo"}, "ports": [{"port": PORT}]}}
    await client.create(SERVICE_KIND, NAMESPACE, body)

    async def come_and_go() -> None:
        while True:
            await export(stage, EXPORTERS[0], "other")
            await asyncio.sleep(0.05)
            await client.delete(SERVICE_EXPORT, NAMESPACE, "other")
            await asyncio.sleep(0.05)

    going = asyncio.create_task(come_and_go())
    try:
        yield
    finally:
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        await client.delete(SERVICE_EXPORT, NAMESPACE, "other")
        await client.delete(SERVICE_KIND, NAMESPACE, "other")
