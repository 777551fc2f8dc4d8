"""What one change costs three clusters on real API servers, by their audit logs, whatever else exists."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.chaos_clusters import CLUSTERS, Cluster, Served, clusterset, real_server
from clusters.operator_process import until
from peers.etcd_server import EtcdServer

from isthmus import kube
from isthmus.etcd import binary
from isthmus.kube.objects.core import SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.mcs import words

pytestmark = pytest.mark.kube

POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
OTHERS = 30
"""Exports of each cluster that do not change."""
SINGLE = ("get", "create", "update", "patch", "delete")
QUIET = 3.0
"""Seconds without a request after which a change has had its effect."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[list[Served]]:
    """Three clusters whose API servers write down who asked for what."""
    policy = tmp_path / "audit.yaml"
    policy.write_text(yaml.safe_dump(POLICY | {"rules": [{"level": "Metadata"}]}))
    with ExitStack() as stack:
        made = []
        for name in CLUSTERS:
            etcd = EtcdServer(binary.find(), tmp_path / f"{name}-etcd")
            etcd.start()
            stack.callback(etcd.stop)
            flags = [f"--audit-policy-file={policy}", f"--audit-log-path={tmp_path / name}.audit"]
            made.append(Served(etcd, real_server(etcd, tmp_path / f"{name}-apiserver", stack, *flags)))
        yield made


def asked(folder: Path, cluster: str) -> Counter[tuple[str, str]]:
    """Verb and resource of all requests for a single object but leases."""
    found: Counter[tuple[str, str]] = Counter()
    for line in (folder / f"{cluster}.audit").read_text().splitlines():
        event: dict[str, Any] = json.loads(line)
        what = event.get("objectRef", {})
        if event["verb"] in SINGLE and what.get("namespace") == "costs" and what.get("resource") != "leases":
            found[event["verb"], "/".join(p for p in (what["resource"], what.get("subresource")) if p)] += 1
    return found


async def offer(cluster: Cluster, name: str) -> None:
    await cluster.client.create(
        SERVICE, "costs", {"metadata": {"name": name}, "spec": {"ports": [{"name": "http", "port": 80}]}}
    )
    await endpoints(cluster, name, 1)
    await cluster.client.create(SERVICE_EXPORT, "costs", {"metadata": {"name": name}})


async def endpoints(cluster: Cluster, name: str, count: int) -> None:
    body = {
        "metadata": {"labels": {words.SLICE_SERVICE: name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [f"10.{cluster.number}.0.{n + 1}"]} for n in range(count)],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }
    await cluster.client.apply(ENDPOINT_SLICE, "costs", f"{name}-abc", body, field_manager="people")


async def costs(folder: Path, change: Callable[[], Awaitable[Any]]) -> dict[str, Counter[tuple[str, str]]]:
    """The requests that a change costs each cluster's API server, the change itself included."""
    before = await quiet(folder)
    await change()
    after = await quiet(folder)
    return {cluster: after[cluster] - before[cluster] for cluster in CLUSTERS}


async def quiet(folder: Path) -> dict[str, Counter[tuple[str, str]]]:
    """All that was asked, once nothing more is."""
    found = {cluster: asked(folder, cluster) for cluster in CLUSTERS}
    while True:
        await asyncio.sleep(QUIET)
        now = {cluster: asked(folder, cluster) for cluster in CLUSTERS}
        if now == found:
            return now
        found = now


async def imports(client: kube.Client) -> int:
    """How many imports can be called and name all clusters."""
    found = await client.list(SERVICE_IMPORT, "costs")
    return sum(
        bool(each.spec and each.spec.ips and each.status and len(each.status.clusters or ()) == 3) for each in found
    )


async def test_a_change_costs_each_cluster_the_same_few_requests_whatever_else_exists(
    served: list[Served], tmp_path: Path
) -> None:
    async with clusterset(served, tmp_path / "operators", namespace="costs") as clusters:
        for cluster in clusters:
            await asyncio.gather(*(offer(cluster, f"other-{n}") for n in range(OTHERS)))
            await offer(cluster, "echo")

        async def whole() -> bool:
            return [await imports(cluster.client) for cluster in clusters] == [OTHERS + 1] * 3

        await until(whole, seconds=90)
        c1 = clusters[0]

        scaled = await costs(tmp_path, lambda: endpoints(c1, "echo", 2))
        assert {name: sum(each.values()) for name, each in scaled.items()} == {"c1": 2, "c2": 1, "c3": 1}, scaled

        port = [{"op": "replace", "path": "/spec/ports/0/port", "value": 81}]
        changed = await costs(tmp_path, lambda: c1.client.patch(SERVICE, "costs", "echo", port, type="json"))
        assert all(sum(each.values()) <= 10 for each in changed.values()), changed

        gone = await costs(tmp_path, lambda: c1.client.delete(SERVICE_EXPORT, "costs", "echo"))
        assert all(sum(each.values()) <= 10 for each in gone.values()), gone
        assert all(resource != "serviceimports" or verb == "patch" for each in gone.values() for verb, resource in each)
        print(scaled, changed, gone, sep="\n")
