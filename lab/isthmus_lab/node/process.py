"""The node process: registers the Node, runs the pods bound to it, programs plain Services."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from isthmus import kube, logs
from isthmus.config import KubernetesSection
from isthmus.kube.events import Recorder
from isthmus.kube.objects.coordination import LEASE
from isthmus.kube.objects.core import NODE
from isthmus.reflector import Event, Reflector, Transient
from isthmus.times import timestamp
from isthmus_lab import record
from isthmus_lab.images import Image
from isthmus_lab.layout import Node
from isthmus_lab.node import balancers, claims, kubelet, proxying
from isthmus_lab.node.objects import POD, Pod
from isthmus_lab.node.pod_record import PodLocation, load_states, place_of, tidy
from isthmus_lab.node.pods import PodRunner
from isthmus_lab.node.settings import Settings

FIRST_POD: Final = 2
"""The last number of the first pod's address."""
LAST_POD: Final = 254
HEARTBEAT_INTERVAL: Final = 10.0
MANAGER: Final = "isthmus-lab-node"

log = logs.get("node")


class Pods:
    """A reflector's sink: every pod bound to this node has a runner, until nothing of it is left."""

    def __init__(self, settings: Settings, client: kube.Client, events: Recorder, group: asyncio.TaskGroup) -> None:
        self._node = settings.place
        self._lab = settings.lab
        self._client = client
        self._events = events
        self._group = group
        self._runners: dict[str, PodRunner] = {}
        self._left = load_states(self._node)
        self._next = FIRST_POD

    async def replace(self, items: Mapping[str, Pod], *, partial: bool) -> None:
        """The reflector's."""
        mine = {pod.metadata.uid for pod in items.values()}
        for pod in items.values():
            self._ensure_runner(pod)
        for uid, runner in self._runners.items():
            if uid not in mine and not partial:
                runner.end(_grace(runner.pod))
        for uid in [uid for uid in self._left if uid not in mine and not partial]:
            self._group.create_task(place_of(self._node, uid, self._left.pop(uid)).clear())

    def apply(self, events: Sequence[Event[Any]]) -> None:
        """The reflector's."""
        for event in events:
            if event.item is not None:
                self._ensure_runner(event.item)
            for runner in self._runners.values():
                same = event.item is not None and event.item.metadata.uid == runner.pod.metadata.uid
                if runner.pod.key == event.key and not same:
                    runner.end(_grace(runner.pod))

    def find(self, namespace: str, name: str) -> PodRunner | None:
        """The pod of a name that runs here."""
        key = f"{namespace}/{name}"
        return next((runner for runner in self._runners.values() if runner.pod.key == key), None)

    def _ensure_runner(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if pod.spec.node_name != self._node.name:
            return
        if (runner := self._runners.get(uid)) is not None:
            if pod.metadata.deletion_timestamp is not None:
                runner.end(_grace(pod))
            return
        over = pod.status.phase in ("Succeeded", "Failed") and pod.metadata.deletion_timestamp is None
        before = self._left.pop(uid, None)
        if over and before is None:
            return
        number = before.number if before else self._number()
        place = PodLocation(self._node, uid, pod.metadata.namespace, pod.metadata.name, number, pod.spec.host_network)
        runner = PodRunner(
            pod, place, client=self._client, events=self._events, own_images=self._own_images, before=before
        )
        self._runners[uid] = runner
        if pod.metadata.deletion_timestamp is not None:
            runner.end(0)  # nothing of it runs: an earlier process of this node ended it, and did not get to write so
        self._group.create_task(self._run(uid, runner))

    async def _run(self, uid: str, runner: PodRunner) -> None:
        log.info("pod starts", pod=runner.pod.key, address=runner.place.address)
        await runner.run()
        del self._runners[uid]
        log.info("pod is gone", pod=runner.pod.key)

    def _own_images(self) -> Mapping[str, Image]:
        """The lab's own stand-ins as they are now: `lab image add` adds some while the node runs."""
        return record.read(self._lab).images

    def _number(self) -> int:
        """The next free one, going round, so that an address is not another pod's at once."""
        in_use = {each.place.number for each in self._runners.values()} | {each.number for each in self._left.values()}
        for step in range(LAST_POD - FIRST_POD + 1):
            number = FIRST_POD + (self._next - FIRST_POD + step) % (LAST_POD - FIRST_POD + 1)
            if number not in in_use:
                self._next = number + 1
                return number
        raise RuntimeError(f"{self._node.name}: no address left in {self._node.pod_cidrs[0]}")


async def run(settings: Settings) -> None:
    """All parts of the node, until cancelled."""
    node = settings.place
    tidy(node, load_states(node))
    async with await kube.connect(KubernetesSection(kubeconfig=settings.kubeconfig)) as client:
        await _register(client, node)
        async with asyncio.TaskGroup() as group:
            events = Recorder(client, component="kubelet", instance=node.name)
            group.create_task(events.run())
            pods = Pods(settings, client, events, group)
            group.create_task(kubelet.serve(node, pods.find, token=(node.cluster.directory / "token").read_text()))
            store = client.store(POD, field_selector=f"spec.nodeName={node.name}")
            group.create_task(Reflector(store, pods, name="pods").run())
            if settings.services:
                group.create_task(proxying.run(client, node, agent=settings.plans))
            if node.number == 1:
                group.create_task(balancers.run(client, node.cluster))
                group.create_task(claims.run(client, node.cluster))
            group.create_task(_heartbeat(client, node))


async def _register(client: kube.Client, node: Node) -> None:
    """Make the Node and say that it is ready; again until the API server takes it."""
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/region": "lab",
        "topology.kubernetes.io/zone": node.cluster.name,
    }
    body = {"metadata": {"labels": labels}, "spec": {"podCIDR": node.pod_cidrs[0], "podCIDRs": list(node.pod_cidrs)}}
    while True:
        try:
            await client.apply(NODE, "", node.name, body, field_manager=MANAGER)
            # no apply: to that, two addresses of one type are one
            await client.patch(NODE, "", node.name, _status(node), subresource="status", field_manager=MANAGER)
        except Transient as error:
            log.info("API server unavailable", why=str(error))
            await asyncio.sleep(0.1)
        else:
            return


def _status(node: Node) -> dict[str, Any]:
    now = timestamp()
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the lab's node runs"}
    return {
        "status": {
            "addresses": [
                *({"type": "InternalIP", "address": address} for address in node.addresses),
                {"type": "Hostname", "address": node.name},
            ],
            "capacity": {"pods": str(LAST_POD - FIRST_POD + 1), "cpu": "2", "memory": "4Gi"},
            "allocatable": {"pods": str(LAST_POD - FIRST_POD + 1), "cpu": "2", "memory": "4Gi"},
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.PORT}},
            "conditions": [{**ready, "lastHeartbeatTime": now, "lastTransitionTime": now}],
            "nodeInfo": {
                "kubeletVersion": "v1.34.0-isthmus-lab",
                "operatingSystem": "linux",
                "osImage": "the host's",
                "containerRuntimeVersion": "isthmus-lab://0",
                "kernelVersion": "",
                "architecture": "",
                "bootID": "",
                "machineID": "",
                "systemUUID": "",
                "kubeProxyVersion": "",
            },
        }
    }


async def _heartbeat(client: kube.Client, node: Node) -> None:
    """The Lease by which a node controller sees that the node lives. A small API server may not keep the namespace."""
    while True:
        spec = {
            "holderIdentity": node.name,
            "leaseDurationSeconds": 40,
            "renewTime": timestamp().replace("Z", ".000000Z"),
        }
        try:
            await client.apply(LEASE, "kube-node-lease", node.name, {"spec": spec}, field_manager=MANAGER)
        except kube.KubeError as error:
            log.debug("lease not renewed", why=str(error))
        await asyncio.sleep(HEARTBEAT_INTERVAL)


def _grace(pod: Pod) -> float:
    asked = pod.metadata.deletion_grace_period_seconds
    return float(pod.spec.termination_grace_period_seconds if asked is None else asked)
