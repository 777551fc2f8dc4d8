"""Reads from an API server what the facts of an installation come from. What cannot be read is named, and left out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from isthmus import kube
from isthmus.installation import SYSTEM, reading
from isthmus.installation.facts import KUBE_SYSTEM, ApiObject, Facts, Observed, kind
from isthmus.kube.objects.about import CLUSTER_PROPERTY
from isthmus.sources.identity import PROPERTY

NODES: Final = kind("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES: Final = kind("", "v1", "namespaces", "Namespace", namespaced=False)
PODS: Final = kind("", "v1", "pods", "Pod")
SERVICES: Final = kind("", "v1", "services", "Service")
CONFIG_MAPS: Final = kind("", "v1", "configmaps", "ConfigMap")
SECRETS: Final = kind("", "v1", "secrets", "Secret")
CLAIMS: Final = kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
DAEMON_SETS: Final = kind("apps", "v1", "daemonsets", "DaemonSet")
DEPLOYMENTS: Final = kind("apps", "v1", "deployments", "Deployment")
STATEFUL_SETS: Final = kind("apps", "v1", "statefulsets", "StatefulSet")
WORKLOADS: Final = (DEPLOYMENTS, DAEMON_SETS, STATEFUL_SETS)
DEFINITIONS: Final = kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
SERVICE_CIDRS: Final = kind("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", namespaced=False)
IP_POOLS: Final = kind("crd.projectcalico.org", "v1", "ippools", "IPPool", namespaced=False)
MARKERS: Final = (
    kind("cluster.karmada.io", "v1alpha1", "clusters", "Cluster", namespaced=False),
    kind("net.gke.io", "v1", "serviceexports", "ServiceExport"),
)
"""Kinds whose presence alone is a fact."""


class Reader:
    """Reads of one API server; reasons of those that were refused are kept in ``unread``."""

    def __init__(self, client: kube.Client) -> None:
        self._client = client
        self.unread: list[str] = []

    async def list(
        self, resource: kube.Kind[ApiObject], namespace: str = "", **selectors: str
    ) -> tuple[ApiObject, ...]:
        """Objects of a kind; none where it is not served, or may not be read."""
        try:
            return tuple(await self._client.list(resource, namespace, **selectors))
        except kube.NotFound:
            return ()
        except (kube.Forbidden, kube.Unauthorized) as error:
            self.unread.append(f"not read: {error}")
            return ()

    async def get(self, resource: kube.Kind[ApiObject], name: str, namespace: str = "") -> ApiObject | None:
        """An object; ``None`` where there is none, or it may not be read."""
        try:
            return await self._client.get(resource, name, namespace)
        except kube.NotFound:
            return None
        except (kube.Forbidden, kube.Unauthorized) as error:
            self.unread.append(f"not read: {error}")
            return None


async def survey(client: kube.Client) -> Facts:
    """Read an API server and return the facts of its cluster."""
    return reading.read(await observe(client))


async def observe(client: kube.Client) -> Observed:
    """Read everything that facts come from, at once."""
    reader = Reader(client)
    version = await client.version()
    async with asyncio.TaskGroup() as group:
        system = group.create_task(reader.get(NAMESPACES, KUBE_SYSTEM))
        nodes = group.create_task(reader.list(NODES))
        daemon_sets = group.create_task(reader.list(DAEMON_SETS))
        deployments = [
            group.create_task(reader.list(DEPLOYMENTS, field_selector=f"metadata.name={name}"))
            for name in reading.DEPLOYMENTS
        ]
        services = [group.create_task(reader.list(SERVICES, each)) for each in reading.DNS_NAMESPACES]
        maps = [group.create_task(reader.get(CONFIG_MAPS, name, where)) for where, name in reading.MAPS]
        own_maps = group.create_task(reader.list(CONFIG_MAPS, SYSTEM))
        control = group.create_task(reader.list(PODS, KUBE_SYSTEM, label_selector="tier=control-plane"))
        cidrs = group.create_task(reader.list(SERVICE_CIDRS))
        pools = group.create_task(reader.list(IP_POOLS))
        definitions = [
            group.create_task(reader.get(DEFINITIONS, name)) for name in (reading.EXPORTS, reading.HTTP_ROUTES)
        ]
        served = group.create_task(_served(client))
        named = group.create_task(_property(client))
        own = [group.create_task(reader.list(each, SYSTEM)) for each in WORKLOADS]
    namespace = system.result()
    config_maps = [item for task in maps if (item := task.result()) is not None]
    return Observed(
        version=version,
        uid=namespace.metadata.uid if namespace is not None else "",
        nodes=nodes.result(),
        daemon_sets=daemon_sets.result(),
        deployments=_joined(deployments),
        services=_joined(services),
        config_maps={
            (each.metadata.namespace, each.metadata.name): each.data or {}
            for each in (*config_maps, *own_maps.result())
        },
        control_plane=control.result(),
        service_cidrs=cidrs.result(),
        ip_pools=pools.result(),
        definitions={item.metadata.name: item for task in definitions if (item := task.result()) is not None},
        served=served.result(),
        cluster_property=named.result(),
        own=_joined(own),
        unread=tuple(dict.fromkeys(reader.unread)),
    )


def _joined(tasks: Sequence[asyncio.Task[tuple[ApiObject, ...]]]) -> tuple[ApiObject, ...]:
    return tuple(each for task in tasks for each in task.result())


async def _served(client: kube.Client) -> frozenset[str]:
    return frozenset([str(each) for each in MARKERS if await client.serves(each)])


async def _property(client: kube.Client) -> str:
    try:
        return (await client.get(CLUSTER_PROPERTY, PROPERTY)).spec.value.strip()
    except (kube.NotFound, kube.Forbidden):
        return ""
