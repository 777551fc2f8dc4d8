"""Status of a lab: its processes from the supervisor, its pods from the API servers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import Struct

from isthmus import kube
from isthmus.config import KubernetesSection
from isthmus.kube.kind import Kind
from isthmus.kube.objects.core import PodIP
from isthmus.kube.objects.meta import Meta, Wire
from isthmus.reflector import Transient
from isthmus_lab import supervisor_client
from isthmus_lab.ignored import Ignored, acted_on, kinds, of_object
from isthmus_lab.layout import Cluster, Lab
from isthmus_lab.network import impairments
from isthmus_lab.record import Record


class Condition(Wire, frozen=True):
    """One of its conditions."""

    type: str
    message: str = ""


class Status(Wire, frozen=True):
    """A pod's status, as its node writes it."""

    phase: str = "Pending"
    pod_ips: list[PodIP] = msgspec.field(default_factory=list, name="podIPs")
    container_statuses: list[dict[str, Any]] | None = None
    conditions: list[Condition] | None = None


class Spec(Wire, frozen=True):
    """The shown part of a pod's spec."""

    node_name: str = ""


class Pod(Wire, frozen=True):
    """A pod as it is shown."""

    metadata: Meta
    spec: Spec = Spec()
    status: Status = Status()


POD = Kind("", "v1", "pods", "Pod", Pod)


class Row(Struct, frozen=True):
    """A pod's line."""

    cluster: str
    pod: str
    state: str
    address: str
    why: str


async def status(lab: Lab) -> dict[str, Any]:
    """Programs, pods, and what could not be asked."""
    trouble: list[str] = []
    programs: list[dict[str, Any]] = []
    try:
        async for answer in supervisor_client.ask(lab, {"do": "status"}):
            programs = answer["programs"]
    except ConnectionError as error:
        trouble.append(f"{error}: processes are not shown")
    impaired = impairments.read(lab)
    pods: list[Row] = []
    for rows, why_not in await asyncio.gather(*(_pods(lab, cluster) for cluster in lab.clusters)):
        pods += rows
        trouble += why_not
    return {
        "lab": lab.name,
        "programs": programs,
        "network": [str(each) for each in (*impaired.cuts, *impaired.links)],
        "pods": [msgspec.to_builtins(row) for row in pods],
        "trouble": trouble,
    }


async def ignored(record: Record) -> dict[str, Any]:
    """Fields of applied objects that nothing acts on, and the clusters that did not answer."""
    rows, trouble = [], []
    for cluster, (fields, why_not) in zip(
        record.lab.clusters,
        await asyncio.gather(*(_ignored(record, each) for each in record.lab.clusters)),
        strict=True,
    ):
        rows += [{"cluster": cluster.name, **msgspec.to_builtins(each)} for each in fields]
        trouble += why_not
    return {"lab": record.name, "ignored": rows, "trouble": trouble}


async def _ignored(record: Record, cluster: Cluster) -> tuple[list[Ignored], list[str]]:
    section = KubernetesSection(kubeconfig=str(record.lab.kubeconfig), context=cluster.name)
    real = record.apiserver == "real"
    try:
        async with asyncio.timeout(10.0), await kube.connect(section) as client:
            return [
                each
                for kind in kinds(real=real)
                for body in await client.list(kind)
                for each in of_object(kind.kind, body, acted_on(kind.resource, real=real))
            ], []
    except TimeoutError:
        return [], [f"{cluster.name}: the API server does not answer"]
    except (Transient, kube.KubeError) as error:
        return [], [f"{cluster.name}: {error}"]


async def _pods(lab: Lab, cluster: Cluster) -> tuple[list[Row], list[str]]:
    section = KubernetesSection(kubeconfig=str(lab.kubeconfig), context=cluster.name)
    try:
        async with asyncio.timeout(3.0), await kube.connect(section) as client:
            return [_row(cluster, pod) for pod in await client.list(POD)], []
    except TimeoutError:
        return [], [f"{cluster.name}: the API server does not answer"]
    except (Transient, kube.KubeError) as error:
        return [], [f"{cluster.name}: {error}"]


def _row(cluster: Cluster, pod: Pod) -> Row:
    containers = pod.status.container_statuses or []
    ready = sum(1 for each in containers if each.get("ready"))
    waiting = [each["state"]["waiting"] for each in containers if "waiting" in each.get("state", {})]
    state = waiting[0]["reason"] if waiting else pod.status.phase
    if pod.metadata.deletion_timestamp:
        state = "Terminating"
    elif containers and not waiting:
        state += f" {ready}/{len(containers)}"
    reason = "; ".join(each["message"] for each in waiting if each.get("message"))
    if not reason:
        reason = next((each.message for each in pod.status.conditions or () if each.type == "Ready"), "")
    if not pod.spec.node_name:
        reason = "no node yet"
    address = ",".join(each.ip for each in pod.status.pod_ips if each.ip)
    return Row(cluster.name, f"{pod.metadata.namespace}/{pod.metadata.name}", state, address, reason)
