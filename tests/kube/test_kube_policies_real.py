"""The definition of TrafficPolicy on a real kube-apiserver: its schema, its rules (CEL) and its columns."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.definitions import new_namespace, serving
from clusters.kube_apiserver import KubeApiServer
from clusters.refused_policies import REFUSED, clusters
from machine import programs

from isthmus import kube
from isthmus.kube.objects.policies import TRAFFIC_POLICY

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="function")]

ROOT = Path(__file__).parents[2]
BY_ISTHMUS_ALONE = ("is not a label, key=value",)
"""What the schema does not ask for: the keys of labels."""
FULL: dict[str, Any] = {
    "targetRef": {"name": "echo"},
    "tiers": [
        clusters({"name": "c1", "weight": 90}, {"name": "."}, minHealthy=3),
        clusters({"region": "eu", "zone": "a", "matchLabels": {"class": "gold"}, "weight": 0}, minHealthy="50%"),
        clusters({"name": "*"}),
    ],
    "sessionAffinity": "ClientIP",
    "sessionAffinityTimeoutSeconds": 60,
    "loadBalancing": "ConsistentHash",
    "whenNothingUsable": "Refuse",
    "ejection": {"consecutiveFailures": 5, "baseSeconds": 60, "maxSeconds": 90},
    "healthCheck": {
        "type": "HTTP",
        "port": 8080,
        "path": "/ready",
        "host": "echo.example:8080",
        "service": "",
        "intervalSeconds": 2,
        "timeoutSeconds": 2,
        "healthyThreshold": 1,
        "unhealthyThreshold": 5,
    },
}


@pytest.fixture
async def client(kube_apiserver: KubeApiServer) -> AsyncIterator[kube.Client]:
    """One of a server that has the definition."""
    async with serving(kube_apiserver, TRAFFIC_POLICY) as client:
        yield client


@pytest.fixture
async def namespace(client: kube.Client) -> str:
    return await new_namespace(client, "isthmus-policies-")


async def test_every_field_is_taken_and_comes_back(client: kube.Client, namespace: str) -> None:
    spec = FULL | {"healthCheck": {key: value for key, value in FULL["healthCheck"].items() if value != ""}}
    await client.create(TRAFFIC_POLICY, namespace, {"metadata": {"name": "full"}, "spec": spec})
    found = (await client.get(TRAFFIC_POLICY, "full", namespace)).spec
    assert found.target_ref.kind == "ServiceImport", "the default"
    assert [len(tier.clusters or ()) for tier in found.tiers or ()] == [2, 1, 1]
    assert [tier.min_healthy for tier in found.tiers or ()] == [3, "50%", None]
    assert found.health_check is not None
    assert (found.health_check.unhealthy_threshold, found.ejection and found.ejection.max_seconds) == (5, 90)


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "policies").glob("*.yaml")), ids=lambda each: each.stem)
async def test_the_examples_are_taken(client: kube.Client, namespace: str, file: Path) -> None:
    await client.create(
        TRAFFIC_POLICY, namespace, {"metadata": {"name": "echo"}, "spec": yaml.safe_load(file.read_text())["spec"]}
    )


@pytest.mark.parametrize(("spec", "why"), [each for each in REFUSED if not each[1].endswith(BY_ISTHMUS_ALONE)])
async def test_what_isthmus_refuses_the_server_refuses(
    client: kube.Client, namespace: str, spec: dict[str, Any], why: str
) -> None:
    body = {"metadata": {"name": "bad"}, "spec": {"targetRef": {"name": "echo"}} | spec}
    with pytest.raises(kube.Invalid) as refused:
        await client.create(TRAFFIC_POLICY, namespace, body)
    field = ".".join(re.split(r"[.:\[]", why)[:2])
    said = str(refused.value)
    assert field in said or "exclude each other" in said, "it names the field, or both"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"tiers": [clusters({"name": "."})], "locality": "Node"}, "tiers and locality exclude each other"),
        ({"tiers": [clusters({"name": ".", "zone": "a"})]}, "want either name, or region, zone or matchLabels"),
        ({"tiers": [clusters({})]}, "want either name, or region, zone or matchLabels"),
        ({"tiers": [clusters({"name": "."}, minHealthy=0)]}, "want a count of at least 1, or a percentage"),
        ({"tiers": [clusters({"name": "."}, minHealthy="101%")]}, "want a count of at least 1, or a percentage"),
        ({"sessionAffinityTimeoutSeconds": 60}, "sessionAffinityTimeoutSeconds needs sessionAffinity ClientIP"),
        ({"healthCheck": {"timeoutSeconds": 6}}, "timeoutSeconds may not be more than intervalSeconds"),
        ({"healthCheck": {"intervalSeconds": 2, "timeoutSeconds": 3}}, "timeoutSeconds may not be more than"),
    ],
)
async def test_each_rule_refuses_with_its_message(
    client: kube.Client, namespace: str, spec: dict[str, Any], message: str
) -> None:
    body = {"metadata": {"name": "bad"}, "spec": {"targetRef": {"name": "echo"}} | spec}
    with pytest.raises(kube.Invalid, match=message):
        await client.create(TRAFFIC_POLICY, namespace, body)


async def test_an_update_that_breaks_a_rule_leaves_the_object_as_it_was(client: kube.Client, namespace: str) -> None:
    good = {"targetRef": {"name": "echo"}, "tiers": [clusters({"name": "c1"})]}
    await client.create(TRAFFIC_POLICY, namespace, {"metadata": {"name": "echo"}, "spec": good})
    with pytest.raises(kube.Invalid):
        await client.patch(TRAFFIC_POLICY, namespace, "echo", {"spec": {"locality": "Zone"}})
    found = await client.get(TRAFFIC_POLICY, "echo", namespace)
    assert (found.spec.locality, len(found.spec.tiers or ()), found.metadata.generation) == (None, 1, 1)


async def test_kubectl_shows_the_columns(client: kube.Client, namespace: str, kube_apiserver: KubeApiServer) -> None:
    await client.create(
        TRAFFIC_POLICY, namespace, {"metadata": {"name": "mine"}, "spec": {"targetRef": {"name": "echo"}}}
    )
    accepted = {"type": "Accepted", "status": "True", "reason": "Accepted", "observedGeneration": 1}
    status = {"status": {"conditions": [accepted], "shares": "c1 90%, c2 10%"}}
    await client.patch(TRAFFIC_POLICY, namespace, "mine", status, subresource="status")
    command = [programs.path("kubectl"), "--kubeconfig", kube_apiserver.section().kubeconfig, "-n", namespace]
    done = await asyncio.to_thread(
        subprocess.run, [*command, "get", "tpol"], capture_output=True, text=True, timeout=60, check=True
    )
    heading, line = done.stdout.splitlines()
    assert heading.split() == ["NAME", "KIND", "TARGET", "ACCEPTED", "REASON", "EFFECTIVE", "SHARES", "AGE"]
    assert line.split()[:5] == ["mine", "ServiceImport", "echo", "True", "Accepted"]
    assert "c1 90%, c2 10%" in line
