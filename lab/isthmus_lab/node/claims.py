"""PersistentVolumeClaims: each is a directory of the cluster, the same on all its nodes, for as long as the claim is.

What a provisioner does on another cluster: it makes a PersistentVolume for a claim. That claim and volume are bound is
written here as well, since not every API server has a controller for it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus import kube, logs
from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Meta, Wire
from isthmus.reflector import Reflector, Transient
from isthmus_lab.layout import Cluster
from isthmus_lab.object_cache import ObjectCache

AGAIN: Final = 1.0
MANAGER: Final = "isthmus-lab-claims"

log = logs.get("node")


class Whole(Wire, frozen=True):
    """A claim or a volume."""

    metadata: Meta
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


CLAIM: Final = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", Whole)
VOLUME: Final = Kind("", "v1", "persistentvolumes", "PersistentVolume", Whole, namespaced=False)


def directory(cluster: Cluster, namespace: str, claim: str) -> Path:
    """Directory of a claim's files."""
    return cluster.directory / "claims" / f"{namespace}_{claim}"


async def run(client: kube.Client, cluster: Cluster) -> None:
    """For ever; on one node of the cluster."""
    changed = asyncio.Event()
    claims: ObjectCache[Whole] = ObjectCache(changed)
    async with asyncio.TaskGroup() as group:
        group.create_task(Reflector(client.store(CLAIM), claims, name="claims").run())
        made: dict[str, str] = {}
        while True:
            await changed.wait()
            changed.clear()
            if not claims.complete:
                continue
            try:
                await _round(client, cluster, claims.items, made)
            except (Transient, kube.KubeError) as error:
                log.info("claims wait", why=str(error))
                await asyncio.sleep(AGAIN)
                changed.set()


async def _round(client: kube.Client, cluster: Cluster, claims: Mapping[str, Whole], made: dict[str, str]) -> None:
    """Make what claims want, remove what belonged to those that are gone. ``made``: volumes of claims, by key."""
    for key in made.keys() - claims.keys():
        await _remove(client, cluster, key, made)
    for key, claim in sorted(claims.items()):
        volume = f"pvc-{claim.metadata.uid}"
        if made.get(key, volume) != volume:
            await _remove(client, cluster, key, made)
        if claim.spec.get("volumeName", volume) == volume and claim.status.get("phase") != "Bound":
            directory(cluster, *key.split("/")).mkdir(parents=True, exist_ok=True)
            await _bind(client, cluster, claim, volume)
        made[key] = volume


async def _bind(client: kube.Client, cluster: Cluster, claim: Whole, volume: str) -> None:
    meta, spec = claim.metadata, claim.spec
    status = {"capacity": spec.get("resources", {}).get("requests", {}), "accessModes": spec.get("accessModes", [])}
    whose = {"apiVersion": "v1", "kind": CLAIM.kind, "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
    body = {
        **status,
        "claimRef": whose,
        "hostPath": {"path": str(directory(cluster, meta.namespace, meta.name))},
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": spec.get("storageClassName", ""),
        "volumeMode": spec.get("volumeMode", "Filesystem"),
    }
    bound = {"status": {"phase": "Bound"}}
    await client.apply(VOLUME, "", volume, {"spec": body}, field_manager=MANAGER)
    await client.patch(VOLUME, "", volume, bound, subresource="status")
    await client.patch(CLAIM, meta.namespace, meta.name, {"spec": {"volumeName": volume}})
    patch = {"status": {"phase": "Bound", **status}}
    await client.patch(CLAIM, meta.namespace, meta.name, patch, subresource="status")


async def _remove(client: kube.Client, cluster: Cluster, key: str, made: dict[str, str]) -> None:
    try:
        await client.delete(VOLUME, "", made[key])
    except kube.NotFound:
        pass
    shutil.rmtree(directory(cluster, *key.split("/")), ignore_errors=True)
    del made[key]
