"""The loop with the rights of ``examples/karmada/join`` alone, on a real kube-apiserver that enforces them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.karmada_control import ControlPlane, until
from clusters.kube_apiserver import KubeApiServer
from clusters.rights import KINDS, until_allowed, user

from isthmus import kube
from isthmus.karmada import Control
from isthmus.kube.lease import Election
from isthmus.kube.objects.core import NAMESPACE, SECRET
from isthmus.kube.objects.karmada import CLUSTER, RESOURCE_BINDING

RIGHTS = Path(__file__).resolve().parents[2] / "examples" / "karmada" / "join" / "rights.yaml"

pytestmark = pytest.mark.kube


@pytest.fixture
async def karmada(kube_apiserver: KubeApiServer, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    """A control plane whose loop may do what the rights allow."""
    await kube_apiserver.ready()
    async with (
        await kube.connect(kube_apiserver.section()) as client,
        await kube.connect(kube_apiserver.section("karmada")) as limited,
    ):
        made = ControlPlane(client, tmp_path, "c1", "c2")
        await made.install()
        for body in yaml.safe_load_all(RIGHTS.read_text()):
            if body["kind"] in KINDS:
                bound = {"subjects": [user("karmada")]} if body["kind"].endswith("Binding") else {}
                at = (KINDS[body["kind"]], body["metadata"].get("namespace", ""), body["metadata"]["name"])
                await client.apply(*at, {**body, **bound}, field_manager="test")
        await until_allowed(limited, CLUSTER)
        await until_allowed(limited, SECRET, "karmada-system")
        made.control = Control(limited)
        yield made
        await made.end()


async def test_the_rights_are_enough_to_join_to_drain_and_to_let_go(karmada: ControlPlane) -> None:
    for name in ("c1", "c2"):
        await karmada.register(name)
    await karmada.place(["c1", "c2"])
    assert (await karmada.settle()).problems == ()
    assert set(karmada.members["c1"].peers()) == {"c2"}
    await karmada.client.apply(NAMESPACE, "", "demo", {}, field_manager="test")
    resource = {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "demo", "name": "shop"}
    tasks = [{"fromCluster": "c1", "gracePeriodSeconds": 300}]
    spec: dict[str, Any] = {"resource": resource, "gracefulEvictionTasks": tasks}
    await karmada.client.apply(RESOURCE_BINDING, "demo", "shop", {"spec": spec}, field_manager="test")
    assert (await karmada.settle()).drained == ("c1: Deployment demo/shop",)
    await karmada.client.delete(CLUSTER, "", "c2")
    assert (await karmada.settle()).problems == ()
    assert set(karmada.members["c1"].peers()) == set()


async def test_the_rights_are_enough_to_be_elected_and_to_follow(karmada: ControlPlane) -> None:
    await karmada.register("c1")
    client = karmada.control._client  # the one with these rights
    election = Election(client, name="isthmus-karmada", namespace="karmada-system", identity="test")
    running = asyncio.create_task(election.run(karmada.control.run))
    try:
        await karmada.place(["c1"])

        async def brought() -> bool:
            await karmada.carry_out()
            return bool(karmada.members["c1"].objects)

        await until(brought)
    finally:
        running.cancel()
        await asyncio.wait([running])
