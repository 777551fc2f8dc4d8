"""The own etcd of a kept cluster as a StatefulSet, what a node does for it, and load by its operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from clusters.keys_world import KeptCluster, until

from isthmus.clusterset.keeping.rotating import AUTHORITY_ROTATION, ETCD, TRUSTED
from isthmus.clusterset.keeping.rotation import Step
from isthmus.etcd import Credentials, Session, Tls
from isthmus.kube.objects.apps import STATEFUL_SET
from isthmus.kube.objects.core import CONFIG_MAP
from isthmus.reflector import Transient


def statefulset(trusted: str = "") -> dict[str, Any]:
    labels = {"app": ETCD}
    annotations = {TRUSTED: trusted} if trusted else {}
    containers = [{"name": "etcd", "image": "etcd"}]
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": {"containers": containers}}
    return {"spec": {"serviceName": ETCD, "selector": {"matchLabels": labels}, "template": template}}


class Nodes:
    """A kubelet that renews what is mounted, and a controller that restarts the etcd for another template."""

    def __init__(self, cluster: KeptCluster) -> None:
        self._cluster = cluster
        self.restarts = 0
        self.restarting = asyncio.Event()
        self.restarting.set()

    async def run(self) -> None:
        current = ""
        while True:
            await self._cluster.mount("isthmus-etcd-server", "isthmus-etcd-operator")
            etcd = await self._cluster.admin.get(STATEFUL_SET, ETCD, self._cluster.namespace)
            wanted = (etcd.spec.template.metadata.annotations or {}).get(TRUSTED, "")
            if wanted != current:
                await self.restarting.wait()
                self._cluster.etcd.stop()
                await self._cluster.mount("isthmus-etcd-server")
                self._cluster.etcd.wipe()
                self._cluster.etcd.start()
                self.restarts, current = self.restarts + 1, wanted
            status = {"observedGeneration": etcd.metadata.generation, "replicas": 1, "readyReplicas": 1}
            body = {"status": {**status, "updatedReplicas": 1}}
            await self._cluster.admin.patch(STATEFUL_SET, self._cluster.namespace, ETCD, body, subresource="status")
            await asyncio.sleep(0.1)


@asynccontextmanager
async def deployed(cluster: KeptCluster) -> AsyncIterator[Nodes]:
    """The etcd as a StatefulSet whose pod has the keys of the cluster."""
    await cluster.admin.create(STATEFUL_SET, cluster.namespace, {"metadata": {"name": ETCD}, **statefulset()})
    await cluster.mount("isthmus-etcd-server", "isthmus-etcd-operator")
    cluster.etcd.start()
    nodes = Nodes(cluster)
    task = asyncio.create_task(nodes.run())
    try:
        yield nodes
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def shown(cluster: KeptCluster) -> dict[str, str]:
    return (await cluster.admin.get(CONFIG_MAP, AUTHORITY_ROTATION, cluster.namespace)).data or {}


async def at(cluster: KeptCluster, step: Step) -> None:
    async def reached() -> bool:
        return (await shown(cluster)).get("step") == step

    await until(reached, f"step {step}")


class Load:
    """Handshakes as an operator of the cluster, one after the other; those that failed for a certificate."""

    def __init__(self, cluster: KeptCluster) -> None:
        self.endpoint = cluster.etcd.endpoint
        self.mount = cluster.mounts / "isthmus-etcd-operator"
        self.done = 0
        self.refused: list[str] = []

    async def run(self) -> None:
        tls = Tls(*(str(self.mount / file) for file in ("ca.crt", "operator.crt", "operator.key")))
        while True:
            credentials = Credentials("operator", (self.mount / "operator.password").read_text())
            async with Session([self.endpoint], tls=tls, credentials=credentials, timeout=5) as session:
                try:
                    await session.put("cilium/.heartbeat", b"")
                    self.done += 1
                except Transient as error:  # the etcd restarts, or has no users for a moment
                    # Not "handshake": a server that restarts during one closes the socket, and names no certificate.
                    if any(word in str(error).lower() for word in ("certificate", "tls", "ssl")):
                        self.refused.append(str(error))
            await asyncio.sleep(0.02)
