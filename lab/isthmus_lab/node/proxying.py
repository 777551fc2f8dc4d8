"""Keeps the node's nftables true to Services and EndpointSlices: one atomic write per batch of changes.

In a lab without BPF the agent's plans are in them as well. The last known stay while the agent is away. On loopback
addresses the files of an Envoy take the place of nftables.
"""

from __future__ import annotations

import asyncio

from isthmus import kube, logs
from isthmus.admin.client import TableStore
from isthmus.kube.objects.core import SERVICE, Service
from isthmus.kube.objects.discovery import ENDPOINT_SLICE, EndpointSlice
from isthmus.model import tables
from isthmus.model.balancing import Plan
from isthmus.reflector import Reflector
from isthmus_lab.families import Scheme
from isthmus_lab.layout import Node
from isthmus_lab.node import calls, planned, tracking
from isthmus_lab.node.ruleset import ruleset
from isthmus_lab.node.services import Vip, vips
from isthmus_lab.object_cache import ObjectCache

AGAIN = 1.0

log = logs.get("node")


async def run(client: kube.Client, node: Node, *, agent: str = "") -> None:
    """For ever; runs in the node's network namespace. ``agent``: the admin socket with the plans to program."""
    schemes = node.cluster.schemes
    changed = asyncio.Event()
    services: ObjectCache[Service] = ObjectCache(changed)
    slices: ObjectCache[EndpointSlice] = ObjectCache(changed)
    plans: ObjectCache[Plan] = ObjectCache(changed)
    async with asyncio.TaskGroup() as group:
        if agent:
            store = TableStore[Plan](agent, tables.PLANS)
            group.create_task(Reflector(store, plans, name="plans", max_delay=1.0).run())
        group.create_task(Reflector(client.store(SERVICE), services, name="services").run())
        group.create_task(Reflector(client.store(ENDPOINT_SLICE), slices, name="endpointslices").run())
        before: dict[Scheme, list[Vip]] = {}
        while True:
            await changed.wait()
            changed.clear()
            if not (services.complete and slices.complete):
                continue  # half a view would refuse calls that have somewhere to go
            current = {
                scheme: planned.over(
                    vips(services.items.values(), slices.items.values(), scheme, node=node.name),
                    plans.items.values(),
                    scheme,
                )
                for scheme in schemes
            }
            if current == before:
                continue
            if node.cluster.lab.loopback:
                calls.write(node, current[schemes[0]])
                before = current
                continue
            rules = (
                ruleset(current[scheme], scheme, before.get(scheme), balancers=net)
                for scheme, net in zip(schemes, node.cluster.balancers, strict=True)
            )
            if await write("".join(rules)):
                await tracking.forget(tracking.removed(before, current))
                before = current
            else:
                before = {}  # unknown: replace all rules
                await asyncio.sleep(AGAIN)
                changed.set()


async def write(rules: str) -> bool:
    """One transaction of nft; whether the kernel took it."""
    nft = await asyncio.create_subprocess_exec(
        "nft",
        "-f",
        "-",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await nft.communicate(rules.encode())
    if nft.returncode:
        log.error("nft refused the rules of Services", why=stderr.decode(errors="replace").strip()[:500])
    return nft.returncode == 0
