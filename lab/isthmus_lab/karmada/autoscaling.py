"""The metrics that autoscalers read, and the autoscaler of a lab's cluster: kube-controller-manager's alone.

A metrics server asks kubelets, and karmada-metrics-adapter the metrics servers of members. Here the CPU time of
containers is read off their control groups, and PodMetrics of metrics.k8s.io are objects of a custom resource: to the
controllers these are like served ones.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from isthmus import kube, logs
from isthmus.kube.objects.core import POD
from isthmus.reflector import Transient
from isthmus_lab import cgroups, manifests, pod_exec, spawn
from isthmus_lab.beside import in_background
from isthmus_lab.layout import Cluster
from isthmus_lab.network import namespaces
from isthmus_lab.realapi import binaries
from isthmus_lab.supervisor.configs import kubeconfig_of

log = logs.get("lab")

GROUP: Final = "metrics.k8s.io"
WINDOW: Final = 2.0
"""Seconds of CPU time that a measurement covers, and between two looks of the controller."""
PACE: Final = (
    f"--horizontal-pod-autoscaler-sync-period={WINDOW:.0f}s",
    "--horizontal-pod-autoscaler-cpu-initialization-period=1s",
    "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
)
"""Flags of kube-controller-manager and of Karmada's. The last two: what a pod uses counts a second after its start, not
after five minutes."""
FLAGS: Final = (
    "--controllers=horizontal-pod-autoscaler-controller",
    "--leader-elect=false",
    "--secure-port=0",
    *PACE,
)
DEFINITION: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"pods.{GROUP}",
        "annotations": {"api-approved.kubernetes.io": "unapproved, in place of a metrics server"},
    },
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "PodMetrics", "listKind": "PodMetricsList", "plural": "pods", "singular": "pod"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@asynccontextmanager
async def autoscaler(cluster: Cluster, client: kube.Client, namespace: str) -> AsyncIterator[None]:
    """HorizontalPodAutoscalers of a namespace count while the block runs."""
    controller = spawn.start(
        [str(binaries.find(binaries.CONTROLLERS)), f"--kubeconfig={kubeconfig_of(cluster)}", *FLAGS],
        place=spawn.Isolation(
            cgroups.root() / cluster.lab.prefix / cluster.cgroup, namespaces.path(cluster.control_plane)
        ),
        environment=os.environ,
        output=cluster.lab.logs / f"{cluster.name}-autoscaler.log",
    )
    try:
        async with pod_metrics({cluster: client}, client, namespace):
            yield
    finally:
        await controller.stop(grace=5.0)


@asynccontextmanager
async def pod_metrics(
    clusters: Mapping[Cluster, kube.Client], server: kube.Client, namespace: str
) -> AsyncIterator[None]:
    """An API server has the metrics of the pods of these clusters while the block runs."""
    if failed := await manifests.apply(server, [manifests.Manifest(Path("PodMetrics"), DEFINITION)]):
        raise kube.KubeError("; ".join(failed))
    async with AsyncExitStack() as stack:
        for cluster, client in clusters.items():
            await stack.enter_async_context(in_background(_measure(cluster, client, server, namespace)))
        yield


async def _measure(cluster: Cluster, client: kube.Client, server: kube.Client, namespace: str) -> None:
    """Write what each pod has used, again and again.

    What a request meets costs that measurement alone: a kind that was just defined, or a server that is busy.
    """
    before = _used(cluster, namespace)
    while True:
        began = time.monotonic()
        await asyncio.sleep(WINDOW)
        used, passed = _used(cluster, namespace), time.monotonic() - began
        try:
            await _write(client, server, namespace, _cores(before, used, passed), passed)
        except (kube.KubeError, Transient) as error:
            log.warning("pods are not measured", cluster=cluster.name, why=str(error))
        before = used


async def _write(
    client: kube.Client, server: kube.Client, namespace: str, pods: Mapping[str, dict[str, float]], window: float
) -> None:
    """Publish the metrics of the pods that still exist."""
    kind = await server.kind(f"{GROUP}/v1beta1", "PodMetrics", manifests.AnyObject)
    labels = {pod.metadata.name: pod.metadata.labels for pod in await client.list(POD, namespace)}
    for pod, cores in pods.items():
        if pod in labels:
            body = _metrics(pod, labels[pod] or {}, cores, window)
            await server.apply(kind, namespace, pod, body, field_manager=manifests.MANAGER)


def _cores(
    before: Mapping[str, dict[str, float]], after: Mapping[str, dict[str, float]], passed: float
) -> dict[str, dict[str, float]]:
    """Cores that containers used between two looks; none where there was no first."""
    return {
        pod: {name: (used - before.get(pod, {}).get(name, used)) / passed for name, used in containers.items()}
        for pod, containers in after.items()
    }


def _used(cluster: Cluster, namespace: str) -> dict[str, dict[str, float]]:
    """CPU time of containers by pod, in seconds."""
    usage: dict[str, dict[str, float]] = {}
    for container in pod_exec.containers(cluster):
        namespace_name, _, pod = container.pod.partition("/")
        if namespace_name == namespace:
            usage.setdefault(pod, {})[container.name] = _seconds(container.cgroup)
    return usage


def _seconds(cgroup: Path) -> float:
    """The kernel counts a group's CPU time whether or not the controller ``cpu`` is on."""
    try:
        lines = (cgroup / "cpu.stat").read_text().splitlines()
    except OSError:
        return 0.0  # it has just ended
    return next(int(line.split()[1]) for line in lines if line.startswith("usage_usec")) / 1e6


def _metrics(pod: str, labels: dict[str, str], cores: dict[str, float], window: float) -> dict[str, Any]:
    return {
        "metadata": {"labels": labels},
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "window": f"{window:.3f}s",
        "containers": [
            {"name": name, "usage": {"cpu": f"{max(0, round(1000 * used))}m", "memory": "16Mi"}}
            for name, used in cores.items()
        ],
    }
