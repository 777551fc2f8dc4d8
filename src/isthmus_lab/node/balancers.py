"""Addresses for Services of type LoadBalancer, as a cloud gives them: of a range that leads to this node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from typing import Final

from isthmus import kube, logs
from isthmus.kube.objects.core import SERVICE, Service
from isthmus.reflector import Reflector, Transient
from isthmus_lab.families import of
from isthmus_lab.layout import Cluster
from isthmus_lab.object_cache import ObjectCache

AGAIN: Final = 1.0

log = logs.get("node")


async def run(client: kube.Client, cluster: Cluster) -> None:
    """For ever."""
    changed = asyncio.Event()
    known: ObjectCache[Service] = ObjectCache(changed)
    async with asyncio.TaskGroup() as group:
        group.create_task(Reflector(client.store(SERVICE), known, name="services").run())
        while True:
            await changed.wait()
            changed.clear()
            for service, addresses in wanted(known.items.values(), cluster.balancers) if known.complete else ():
                if not await _give(client, service, addresses):
                    changed.set()


def wanted(services: Iterable[Service], ranges: Iterable[str]) -> Iterator[tuple[Service, list[str]]]:
    """Who has no address yet, in order of names, and the first free ones of the families it has."""
    known = sorted(services, key=lambda each: (each.metadata.namespace, each.metadata.name))
    taken = {ip for each in known for ip in _given(each)}
    free = {
        of(net.split("/")[0]): (str(ip) for ip in ip_network(net).hosts() if str(ip) not in taken) for net in ranges
    }
    for each in known:
        if each.spec.type == "LoadBalancer" and not each.spec.load_balancer_class and not _given(each):
            own = [of(ip) for ip in each.spec.cluster_ips or () if ip]
            if addresses := [next(free[scheme]) for scheme in own if scheme in free]:
                yield each, addresses


def _given(service: Service) -> list[str]:
    balancer = service.status.load_balancer
    return [each.ip for each in (balancer.ingress if balancer else None) or () if each.ip]


async def _give(client: kube.Client, service: Service, addresses: list[str]) -> bool:
    meta = service.metadata
    body = {"status": {"loadBalancer": {"ingress": [{"ip": ip} for ip in addresses]}}}
    try:
        await client.patch(SERVICE, meta.namespace, meta.name, body, subresource="status")
    except kube.NotFound:
        return True  # it went meanwhile, and the watch will say so
    except (Transient, kube.KubeError) as why:
        log.info("no address given", service=f"{meta.namespace}/{meta.name}", why=str(why))
        await asyncio.sleep(AGAIN)
        return False
    return True
