"""Actions and observations for steps of a story. Every wait has a deadline; a step that misses it fails."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from isthmus import kube
from isthmus.admin.query import QueryError
from isthmus.kube.objects.core import POD
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.reflector import Transient
from isthmus_lab import own_programs, pod_exec
from isthmus_lab.karmada.plane import NoKarmada
from isthmus_lab.layout import Cluster, Lab

NAMESPACE: Final = "demo"
SERVICE: Final = "echo"
CLIENT: Final = "client"
IMPORT_NAME: Final = f"{SERVICE}.{NAMESPACE}.svc.clusterset.local"
LOCAL_NAME: Final = f"{SERVICE}.{NAMESPACE}.svc.cluster.local"
PORT: Final = 80
PATIENCE: Final = 60.0
"""Seconds for what a machine that is busy, or stands still for a while, may delay. What it took is printed."""
REFUSALS: Final = (kube.KubeError, Transient, NoKarmada, QueryError)
"""Errors that a wait retries: a server that is busy or has just started may refuse a request."""


class StepFailed(Exception):  # noqa: N818 a claim of the story that did not hold
    """A claim of the story that does not hold; the message has the claim and the observation."""


class Call(Struct, frozen=True, kw_only=True):
    """The result of one call, as the caller inside the pod reports it."""

    at: float
    took: float
    ok: bool
    failed: Literal["", "name", "connect", "answer"] = ""
    """The phase in which it failed; ``answer`` is one that was lost on a connection."""
    error: str = ""
    answer: dict[str, Any] = {}
    dialled: str = ""
    peer: str = ""


class Stage:
    """A running lab and the means to look at it."""

    def __init__(self, lab: Lab, clients: Mapping[str, kube.Client]) -> None:
        self.lab = lab
        self.clients = clients
        self.import_address = ""

    def client(self, cluster: str) -> kube.Client:
        """The API server of a cluster."""
        return self.clients[cluster]

    async def pods_ready(self, cluster: str, app: str) -> int:
        """Number of ready pods with this label."""
        pods = await self.client(cluster).list(POD, NAMESPACE, label_selector=f"app={app}")
        conditions = [c for pod in pods for c in (pod.status.conditions if pod.status else None) or ()]
        return sum(condition.type == "Ready" and condition.status == "True" for condition in conditions)

    async def endpoints(self, cluster: str) -> set[str]:
        """The ready addresses that the EndpointSlices of the cluster's own Service have."""
        selector = f"kubernetes.io/service-name={SERVICE}"
        slices = await self.client(cluster).list(ENDPOINT_SLICE, NAMESPACE, label_selector=selector)
        endpoints = (endpoint for each in slices for endpoint in each.endpoints or ())
        return {
            address
            for endpoint in endpoints
            if endpoint.conditions is None or endpoint.conditions.ready is not False
            for address in endpoint.addresses or ()
        }

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]], *, seconds: float = PATIENCE) -> float:
        """Wait for a condition; how long it took. StepFailed when it does not come true in time.

        A look that is refused is one that does not see it.
        """
        began, refused = time.monotonic(), ""
        while True:
            try:
                if await condition():
                    return time.monotonic() - began
                refused = ""
            except REFUSALS as error:
                refused = f": {error}"
            if time.monotonic() - began > seconds:
                raise StepFailed(f"waited {seconds:.0f} s, and still not: {what}{refused}")
            await asyncio.sleep(0.02)

    async def run(self, cluster: str, *argv: str) -> tuple[int, str]:
        """A command inside the cluster's client pod: exit code and what it printed."""
        pod = pod_exec.find(self.cluster(cluster), f"{NAMESPACE}/{CLIENT}")
        child = pod_exec.run(pod, argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        out, _ = await asyncio.to_thread(child.communicate)
        return child.returncode, out.decode(errors="replace")

    async def calls(self, cluster: str, name: str, *, count: int, pause: float = 0.0, until: str = "") -> list[Call]:
        """Calls from the cluster's client pod, one after the other; ``until``: 'ok' or 'gone' ends them early."""
        more = [f"--until-{until}"] if until else []
        arguments = [name, str(PORT), "--count", str(count), "--pause", str(pause), *more]
        _, out = await self.run(cluster, *own_programs.location().command("caller.py", *arguments))
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if not lines:
            raise StepFailed(f"no call was made in {cluster}: {out.strip()[-300:]}")
        return [msgspec.json.decode(line, type=Call) for line in lines]

    def cluster(self, name: str) -> Cluster:
        """The cluster of a name."""
        return next(each for each in self.lab.clusters if each.name == name)
