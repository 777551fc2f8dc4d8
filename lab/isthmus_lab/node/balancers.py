"""Addresses for Services of type LoadBalancer, as a cloud gives them: of a range that leads to this node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from typing import Final

from isthmus import kube, logs
from isthmus.kube.objects.core import SERVICE, Service
from isthmus.reflector import Reflector, Transient
from isthmus_lab.families import scheme_of
from isthmus_lab.layout import Cluster
from isthmus_lab.object_cache import ObjectCache

AGAIN: Final = 1.0

log = logs.get("node")


async def run(client: kube.Client, cluster: Cluster) -> None:
    """For ever."""
    changed = asyncio.Event()
    services: ObjectCache[Service] = ObjectCache(changed)
    async with asyncio.TaskGroup() as group:
        group.create_task(Reflector(client.store(SERVICE), services, name="services").run())
        while True:
            await changed.wait()
            changed.clear()
            for service, addresses in assign(services.items.values(), cluster.balancers) if services.complete else ():
                if not await _give(client, service, addresses):
                    changed.set()


def assign(services: Iterable[Service], ranges: Iterable[str]) -> Iterator[tuple[Service, list[str]]]:
    """Services without an address, in order of names, each with the first free address of each of its families."""
    ordered = sorted(services, key=lambda service: (service.metadata.namespace, service.metadata.name))
    in_use = {ip for service in ordered for ip in _assigned(service)}
    free = {
        scheme_of(net.split("/")[0]): (str(ip) for ip in ip_network(net).hosts() if str(ip) not in in_use)
        for net in ranges
    }
    for service in ordered:
        if service.spec.type == "LoadBalancer" and not service.spec.load_balancer_class and not _assigned(service):
            own = [scheme_of(ip) for ip in service.spec.cluster_ips or () if ip]
            if addresses := [next(free[scheme]) for scheme in own if scheme in free]:
                yield service, addresses


def _assigned(service: Service) -> list[str]:
    balancer = service.status.load_balancer
    return [each.ip for each in (balancer.ingress if balancer else None) or () if each.ip]


async def _give(client: kube.Client, service: Service, addresses: list[str]) -> bool:
    meta = service.metadata
    body = {"status": {"loadBalancer": {"ingress": [{"ip": ip} for ip in addresses]}}}
    try:
        await client.patch(SERVICE, meta.namespace, meta.name, body, subresource="status")
    except kube.NotFound:
        return True  # it went meanwhile, and the watch will say so
    except (Transient, kube.KubeError) as error:
        log.info("no address given", service=f"{meta.namespace}/{meta.name}", why=str(error))
        await asyncio.sleep(AGAIN)
        return False
    return True
