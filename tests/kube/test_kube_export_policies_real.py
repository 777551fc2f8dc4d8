"""The definition of ExportPolicy on a real kube-apiserver: its schema and its columns."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest
from clusters.definitions import new_namespace, serving
from clusters.kube_apiserver import KubeApiServer
from clusters.refused_export_policies import REFUSED
from machine import programs

from isthmus import kube
from isthmus.kube.objects.policies import EXPORT_POLICY

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="function")]

BY_ISTHMUS_ALONE = ("is not a label, key=value",)
"""What the schema does not ask for: the keys of labels."""


@pytest.fixture
async def client(kube_apiserver: KubeApiServer) -> AsyncIterator[kube.Client]:
    """One of a server that has the definition."""
    async with serving(kube_apiserver, EXPORT_POLICY) as client:
        yield client


@pytest.fixture
async def namespace(client: kube.Client) -> str:
    return await new_namespace(client, "isthmus-callers-")


async def test_every_field_is_taken_and_comes_back_and_kubectl_shows_the_columns(
    client: kube.Client, namespace: str, kube_apiserver: KubeApiServer
) -> None:
    rule = {"cluster": "c2", "clusterLabels": {"class": "gold"}, "namespace": "shop", "serviceAccount": "web.v2"}
    spec = {"target": {"name": "echo"}, "allow": [rule, {}], "audit": True, "enforce": "all", "unsigned": "address"}
    spec |= {"established": "cut"}
    await client.create(EXPORT_POLICY, namespace, {"metadata": {"name": "callers"}, "spec": spec})
    found = (await client.get(EXPORT_POLICY, "callers", namespace)).spec
    assert found.allow is not None
    assert (found.target and found.target.name, len(found.allow)) == ("echo", 2)
    assert found.allow[0].cluster_labels == {"class": "gold"}
    assert (found.allow[0].service_account, found.audit, found.enforce, found.unsigned) == (
        "web.v2",
        True,
        "all",
        "address",
    )
    assert found.established == "cut"
    accepted = {"type": "Accepted", "status": "True", "reason": "Accepted", "observedGeneration": 1}
    enforced = {"type": "Enforced", "status": "False", "reason": "GatewaysOnly", "observedGeneration": 1}
    await client.patch(
        EXPORT_POLICY, namespace, "callers", {"status": {"conditions": [accepted, enforced]}}, subresource="status"
    )
    command = [programs.path("kubectl"), "--kubeconfig", kube_apiserver.section().kubeconfig, "-n", namespace]
    done = await asyncio.to_thread(
        subprocess.run, [*command, "get", "epol"], capture_output=True, text=True, timeout=60, check=True
    )
    heading, line = done.stdout.splitlines()
    assert heading.split() == ["NAME", "EXPORT", "AUDIT", "ACCEPTED", "REASON", "ENFORCED", "AGE"]
    assert line.split()[:6] == ["callers", "echo", "true", "True", "Accepted", "GatewaysOnly"]


async def test_nobody_is_allowed_by_an_empty_list(client: kube.Client, namespace: str) -> None:
    await client.create(EXPORT_POLICY, namespace, {"metadata": {"name": "nobody"}, "spec": {"allow": []}})


@pytest.mark.parametrize(("spec", "why"), [each for each in REFUSED if not each[1].endswith(BY_ISTHMUS_ALONE)])
async def test_what_isthmus_refuses_the_server_refuses(
    client: kube.Client, namespace: str, spec: dict[str, Any], why: str
) -> None:
    with pytest.raises(kube.Invalid) as refused:
        await client.create(EXPORT_POLICY, namespace, {"metadata": {"name": "bad"}, "spec": spec})
    assert why.partition(":")[0].partition("[")[0] in str(refused.value), "it names the field"
