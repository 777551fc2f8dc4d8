"""The operator's objects on a real kube-apiserver with our CustomResourceDefinitions: what a stand-in cannot refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_apiserver import KubeApiServer
from operator_world import Operator, has_address, spec

from isthmus import kube
from isthmus.kube.kind import Kind
from isthmus.kube.objects.core import NAMESPACE, SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.kube.objects.meta import Meta, Wire
from isthmus.model import tables
from isthmus.model.names import ServiceName, derived, split
from isthmus.model.services import Endpoint, EndpointSet, Port

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="function")]

CRDS = Path(__file__).resolve().parents[2] / "deploy" / "crds"


class Definition(Wire, frozen=True):
    """A CustomResourceDefinition."""

    metadata: Meta


CRD = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", Definition, namespaced=False
)


@pytest.fixture
async def client(kube_apiserver: KubeApiServer) -> AsyncIterator[kube.Client]:
    await kube_apiserver.ready()
    async with await kube.connect(kube_apiserver.section()) as client:
        for path in sorted(CRDS.glob("service*.yaml")):
            body: dict[str, Any] = yaml.safe_load(path.read_text())
            await client.apply(CRD, "", body["metadata"]["name"], body, field_manager="test")
        async with asyncio.timeout(20):
            while True:
                try:
                    await client.list(SERVICE_IMPORT)
                    await client.list(SERVICE_EXPORT)
                    break
                except kube.KubeError:
                    await asyncio.sleep(0.05)
        yield client


@pytest.fixture
async def operator(client: kube.Client) -> AsyncIterator[Operator]:
    made = await client.create(NAMESPACE, "", {"metadata": {"generateName": "isthmus-test-mcs-"}})
    async with Operator(client, namespace=made.metadata.name).running() as operator:
        yield operator
    await client.delete(NAMESPACE, "", made.metadata.name)


async def test_an_export_of_another_cluster_is_imported_whole(operator: Operator) -> None:
    operator.export("c2", labels=(("team", "red"),), affinity="ClientIP", affinity_timeout=42)
    found = await operator.imported(has_address)
    await operator.settled()
    service = await operator.client.get(SERVICE, operator.derived, operator.namespace)
    assert spec(found).ips == [service.spec.cluster_ip]
    assert service.spec.session_affinity == "ClientIP"
    assert found.metadata.labels == {"team": "red"}
    found = await operator.imported(lambda each: each.status and each.status.conditions)
    assert found.status is not None
    assert [each.cluster for each in found.status.clusters or ()] == ["c2"]
    assert not list(operator.db.snapshot().all(tables.OBJECTS_STATUS))


async def test_own_and_others_endpoints_stand_behind_the_derived_service(operator: Operator) -> None:
    namespace, client = operator.namespace, operator.client
    await operator.export_here()
    operator.export("c2")
    record = EndpointSet(
        service=ServiceName(f"{namespace}/{operator.derived}"),
        cluster=operator.peer,
        source="clusterset",
        part="record",
        endpoints=(Endpoint("10.2.1.5", (Port("http", 8080),), hostname="web-0"),),
    )
    with operator.db.write() as txn:
        txn.put(tables.ENDPOINT_SETS, record)
    await operator.until(
        lambda now: len([e for e in now.by(tables.ENDPOINT_SETS, "service", record.service)]) == 3  # noqa: C416
    )
    await operator.settled()
    listed = await client.list(
        ENDPOINT_SLICE, namespace, label_selector=f"kubernetes.io/service-name={operator.derived}"
    )
    said = {
        (each.metadata.labels or {})["multicluster.kubernetes.io/source-cluster"]: [
            e.addresses for e in each.endpoints or ()
        ]
        for each in listed
    }
    assert said == {"c1": [["10.1.1.5"]], "c2": [["10.2.1.5"]]}


async def test_the_export_is_told_its_conditions(operator: Operator) -> None:
    await operator.export_here()
    operator.export("c2", type="Headless", ports=(Port("http", 81),))
    async with asyncio.timeout(20):
        while True:
            export = await operator.client.get(SERVICE_EXPORT, "echo", operator.namespace)
            told = {c.type: c for c in (export.status.conditions if export.status else None) or ()}
            if "Conflict" in told and told["Conflict"].status == "True":
                break
            await asyncio.sleep(0.02)
    assert told["Conflict"].reason == "PortConflict,TypeConflict"
    assert told["Valid"].observed_generation == export.metadata.generation == 1


async def test_edits_are_undone_types_flip_and_all_goes_in_the_end(operator: Operator) -> None:
    operator.export("c2", labels=(("team", "red"),))
    await operator.imported(has_address)
    edit = {"spec": {"ports": [{"port": 99}]}, "metadata": {"labels": {"theirs": "yes", "team": "blue"}}}
    await operator.client.patch(SERVICE_IMPORT, operator.namespace, "echo", edit)
    found = await operator.imported(lambda each: [p.port for p in spec(each).ports or ()] == [80])
    assert found.metadata.labels == {"theirs": "yes", "team": "red"}
    operator.export("c2", type="Headless")
    await operator.imported(lambda each: spec(each).type == "Headless" and not spec(each).ips)
    await operator.settled()
    service = await operator.client.get(SERVICE, operator.derived, operator.namespace)
    assert service.spec.cluster_ip == "None"
    found = await operator.imported(lambda each: each.metadata.labels == {"theirs": "yes"})
    operator.export("c2", ports=(Port("http", 80), Port("metrics", 81)))
    await operator.imported(has_address)
    operator.withdraw("c2")
    await operator.until(lambda now: not now.by(tables.IMPORTS, "namespace", operator.namespace))
    await operator.until(lambda now: not now.by(tables.SERVICES, "namespace", operator.namespace))


async def test_ports_come_and_go_at_the_derived_service(operator: Operator) -> None:
    operator.export("c2", ports=(Port("http", 80), Port("metrics", 81), Port("dns", 53, "UDP")))
    await operator.imported(has_address)
    operator.export("c2", ports=(Port("web", 80), Port("dns", 53, "UDP"), Port("dns-tcp", 53)))
    await operator.until(
        lambda now: (
            {p.name for s in now.by(tables.SERVICES, "import", operator.name) for p in s.ports}
            == {"web", "dns", "dns-tcp"}
        )
    )
    await operator.settled()
    assert not list(operator.db.snapshot().all(tables.OBJECTS_STATUS))


async def test_a_service_of_two_hundred_ports_is_imported(operator: Operator) -> None:
    operator.export("c2", ports=tuple(Port(f"p{n}", 1000 + n) for n in range(200)))
    found = await operator.imported(has_address)
    assert len(spec(found).ports or ()) == 200


async def test_names_at_their_limits_are_imported(operator: Operator) -> None:
    name = ServiceName(f"{operator.namespace}/{'s' * 63}")
    operator.export("c2", name=name)
    await operator.until(lambda now: any(row.ips for row in now.by(tables.IMPORTS, "namespace", operator.namespace)))
    assert await operator.client.get(SERVICE, split(derived(name))[1], operator.namespace)


async def test_a_namespace_that_ends_is_no_failure(operator: Operator, client: kube.Client) -> None:
    operator.export("c2")
    await operator.imported(has_address)
    await client.delete(NAMESPACE, "", operator.namespace)
    await operator.until(
        lambda now: all(n.terminating for n in now.all(tables.NAMESPACES) if n.name == operator.namespace)
    )
    operator.export("c2", labels=(("team", "red"),))
    await operator.until(lambda now: not now.by(tables.OBJECTS, "service", operator.name))
    assert not list(operator.db.snapshot().all(tables.OBJECTS_STATUS))


async def test_clusters_are_listed_oldest_first_whoever_came_first(operator: Operator) -> None:
    operator.export("c2", created="2026-01-02T00:00:00Z")
    await operator.imported(has_address)
    await operator.settled()
    operator.export("c3", created="2026-01-01T00:00:00Z")
    found = await operator.imported(lambda each: each.status and len(each.status.clusters or ()) == 2)
    assert found.status is not None
    assert [each.cluster for each in found.status.clusters or ()] == ["c3", "c2"]
