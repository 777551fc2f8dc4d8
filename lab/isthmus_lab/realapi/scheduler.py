"""``python -m isthmus_lab.realapi.scheduler``: binds pods to nodes, as a client of the API.

The choice is the small server's.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from typing import Any, Final

import msgspec

from isthmus import kube, logs
from isthmus.config import KubernetesSection
from isthmus.kube.kind import Kind
from isthmus.kube.objects.coordination import LEASE
from isthmus.kube.objects.meta import Meta, Wire
from isthmus.reflector import Reflector, Transient
from isthmus.running import until_told
from isthmus_lab.controllers.scheduler import choose
from isthmus_lab.object_cache import ObjectCache

NAME: Final = "kube-scheduler"
AGAIN: Final = 0.2

log = logs.get("scheduler")


class Schedulable(Wire, frozen=True):
    """A pod or a node, as far as the choice looks at it."""

    metadata: Meta = Meta()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


POD: Final = Kind("", "v1", "pods", "Pod", Schedulable)
NODE: Final = Kind("", "v1", "nodes", "Node", Schedulable, namespaced=False)
BINDING: Final = Kind("", "v1", "bindings", "Binding", Schedulable)


async def run(section: KubernetesSection) -> None:
    """For ever."""
    changed = asyncio.Event()
    pods: ObjectCache[Schedulable] = ObjectCache(changed)
    nodes: ObjectCache[Schedulable] = ObjectCache(changed)
    async with await kube.connect(section) as client, asyncio.TaskGroup() as group:
        group.create_task(_publish_lease(client))
        group.create_task(Reflector(client.store(POD), pods, name="pods").run())
        group.create_task(Reflector(client.store(NODE), nodes, name="nodes").run())
        bound: dict[str, str] = {}
        while True:
            await changed.wait()
            changed.clear()
            if pods.complete and nodes.complete:
                await _round(client, pods.items, nodes.items, bound, changed)


async def _round(
    client: kube.Client,
    pods: dict[str, Schedulable],
    nodes: dict[str, Schedulable],
    bound: dict[str, str],
    changed: asyncio.Event,
) -> None:
    """Bind pods that have no node. ``bound`` are those bound here that the watch has not delivered yet, by uid."""
    for uid in {each.metadata.uid for each in pods.values() if each.spec.get("nodeName")} & bound.keys():
        del bound[uid]
    load = Counter([*(each.spec.get("nodeName", "") for each in pods.values()), *bound.values()])
    node_objects = [msgspec.to_builtins(node) for node in nodes.values()]
    for pod in [*pods.values()]:
        meta = pod.metadata
        if pod.spec.get("nodeName") or meta.deletion_timestamp or meta.uid in bound:
            continue
        if node := choose(msgspec.to_builtins(pod), node_objects, load=lambda name: load[name]):
            if await _bind(client, meta, node):
                bound[meta.uid] = node
                load[node] += 1
            else:
                asyncio.get_running_loop().call_later(AGAIN, changed.set)


async def _bind(client: kube.Client, pod: Meta, node: str) -> bool:
    body = {
        "metadata": {"name": pod.name, "uid": pod.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    try:
        await client.create(BINDING, pod.namespace, body)
    except kube.NotFound:
        return True  # it went meanwhile, and the watch will say so
    except (Transient, kube.KubeError) as error:
        log.info("not bound", pod=f"{pod.namespace}/{pod.name}", node=node, why=str(error))
        return False
    return True


async def _publish_lease(client: kube.Client) -> None:
    """The Lease by which people and the lab see that there is a scheduler."""
    while True:
        try:
            await client.apply(LEASE, "kube-system", NAME, {"spec": {"holderIdentity": NAME}}, field_manager=NAME)
        except (Transient, kube.KubeError) as error:
            log.debug("no lease yet", why=str(error))
            await asyncio.sleep(AGAIN)
        else:
            return


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser(prog="isthmus_lab.realapi.scheduler")
    parser.add_argument("--kubeconfig", required=True)
    options = parser.parse_args()
    logs.configure()
    until_told(run(KubernetesSection(kubeconfig=options.kubeconfig)))


if __name__ == "__main__":
    main()
