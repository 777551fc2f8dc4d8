"""Tables, derived rows and target together, against the lab's API server over a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from etcd_server import EtcdServer
from operator_world import Operator, has_address, serving, spec

from isthmus import kube
from isthmus.etcd import Session
from isthmus.kube.objects.core import NAMESPACE, SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.kube.transport import Transport
from isthmus.model import tables
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Export

NAME = ServiceName("demo/echo")
DERIVED = "derived-qieggqc27v"
DERIVED_NAME = ServiceName(f"demo/{DERIVED}")


@pytest.fixture
async def client(shared_etcd: EtcdServer) -> AsyncIterator[kube.Client]:
    """A client of an API server of this test alone, with the namespace demo."""
    async with Session([shared_etcd.endpoint]) as session:
        await shared_etcd.ready(session)
        await session.delete_prefix("")
        async with serving(session) as access, kube.Client(Transport(access)) as client:
            await client.create(NAMESPACE, "", {"metadata": {"name": "demo"}})
            yield client


@pytest.fixture
async def operator(client: kube.Client) -> AsyncIterator[Operator]:
    async with Operator(client).running() as operator:
        yield operator


async def test_an_export_becomes_an_import_with_the_derived_services_address(operator: Operator) -> None:
    operator.export("c2")
    found = await operator.imported(has_address)
    service = await operator.client.get(SERVICE, DERIVED, "demo")
    assert spec(found).ips == [service.spec.cluster_ip]
    [owner] = service.metadata.owner_references or []
    assert (owner.kind, owner.uid, owner.controller) == ("ServiceImport", found.metadata.uid, True)


async def test_an_import_costs_a_bounded_number_of_requests(operator: Operator) -> None:
    before = operator.transport.requests
    operator.export("c2")
    await operator.until(lambda now: any(row.ips for row in now.all(tables.IMPORTS)))
    await operator.settled()
    # Two versions asked for once, a look before import and Service are made, each applied; then the import with its
    # address, and its status before and after.
    assert operator.transport.requests - before <= 10


async def test_own_endpoints_stand_behind_the_derived_service(operator: Operator) -> None:
    await operator.export_here()
    await operator.until(
        lambda now: now.get(tables.ENDPOINT_SETS, (DERIVED_NAME, ClusterName("c1"), "kubernetes", f"{DERIVED}-abc"))
    )
    await operator.settled()
    found = await operator.client.get(ENDPOINT_SLICE, f"{DERIVED}-abc", "demo")
    assert (found.metadata.labels or {})["kubernetes.io/service-name"] == DERIVED
    assert [each.addresses for each in found.endpoints or []] == [["10.1.1.5"]]


async def test_the_export_is_told_how_it_is(operator: Operator) -> None:
    await operator.export_here()
    operator.export("c2", type="Headless")
    async with asyncio.timeout(10):
        while True:
            export = await operator.client.get(SERVICE_EXPORT, "echo", "demo")
            told = {c.type: c for c in (export.status.conditions if export.status else None) or ()}
            if "Conflict" in told and told["Conflict"].status == "True":
                break
            await asyncio.sleep(0.01)
    assert {name: each.status for name, each in told.items()} == {"Valid": "True", "Ready": "True", "Conflict": "True"}
    assert told["Conflict"].reason == "TypeConflict"
    assert told["Conflict"].observed_generation == export.metadata.generation


async def test_an_edit_of_what_is_ours_is_undone_and_what_others_say_stays(operator: Operator) -> None:
    operator.export("c2")
    await operator.imported(has_address)
    edit = {"spec": {"ports": [{"port": 99}]}, "metadata": {"labels": {"theirs": "yes"}}}
    await operator.client.patch(SERVICE_IMPORT, "demo", "echo", edit)
    found = await operator.imported(lambda each: [p.port for p in spec(each).ports or ()] == [80])
    assert found.metadata.labels == {"theirs": "yes"}


async def test_labels_no_longer_exported_go(operator: Operator) -> None:
    operator.export("c2", labels=(("team", "red"), ("tier", "1")))
    await operator.imported(lambda each: each.metadata.labels == {"team": "red", "tier": "1"})
    operator.export("c2", labels=(("team", "red"),))
    await operator.imported(lambda each: each.metadata.labels == {"team": "red"})


async def test_a_removed_import_and_a_removed_service_come_back(operator: Operator) -> None:
    operator.export("c2")
    before = await operator.imported(has_address)
    await operator.client.delete(SERVICE_IMPORT, "demo", "echo")
    after = await operator.imported(lambda each: each.metadata.uid != before.metadata.uid and spec(each).ips)
    gone = await operator.client.get(SERVICE, DERIVED, "demo")
    await operator.client.delete(SERVICE, "demo", DERIVED, uid=gone.metadata.uid)
    await operator.until(lambda now: {s.uid for s in now.by(tables.SERVICES, "import", NAME)} - {gone.metadata.uid})
    service = await operator.client.get(SERVICE, DERIVED, "demo")
    assert [owner.uid for owner in service.metadata.owner_references or []] == [after.metadata.uid]
    await operator.imported(lambda each: spec(each).ips == [service.spec.cluster_ip])


async def test_a_type_that_flips_makes_the_service_headless_and_back(operator: Operator) -> None:
    operator.export("c2")
    await operator.imported(has_address)
    operator.export("c2", type="Headless")
    await operator.imported(lambda each: spec(each).type == "Headless" and not spec(each).ips)
    await operator.settled()
    assert (await operator.client.get(SERVICE, DERIVED, "demo")).spec.cluster_ip == "None"
    operator.export("c2")
    await operator.imported(lambda each: spec(each).type == "ClusterSetIP" and spec(each).ips)


async def test_unexported_everywhere_nothing_is_left(operator: Operator) -> None:
    await operator.export_here()
    operator.export("c2")
    await operator.imported(has_address)
    await operator.settled()
    operator.withdraw("c2")
    await operator.client.delete(SERVICE_EXPORT, "demo", "echo")
    await operator.until(lambda now: not now.count(tables.IMPORTS) and not now.by(tables.SERVICES, "import", NAME))
    await operator.until(lambda now: not now.by(tables.ENDPOINT_SETS, "service", f"demo/{DERIVED}"))


async def test_a_namespace_that_appears_later_gets_its_imports(operator: Operator) -> None:
    with operator.db.write() as txn:
        name = ServiceName("later/echo")
        txn.put(tables.EXPORTS, Export(cluster=ClusterName("c2"), name=name, created="2026-01-01T00:00:00Z"))
    await operator.client.create(NAMESPACE, "", {"metadata": {"name": "later"}})
    await operator.until(lambda now: now.get(tables.IMPORTS, name))


async def test_somebody_elses_import_is_left_until_it_goes(operator: Operator) -> None:
    theirs = {"metadata": {"name": "echo"}, "spec": {"type": "Headless", "ports": []}}
    await operator.client.create(SERVICE_IMPORT, "demo", theirs)
    operator.export("c2")
    now = await operator.until(lambda now: now.count(tables.OBJECTS_STATUS))
    [failing] = now.all(tables.OBJECTS_STATUS)
    assert failing.error == "ServiceImport demo/echo exists and is not managed by isthmus-operator: left as it is"
    found = await operator.client.get(SERVICE_IMPORT, "echo", "demo")
    assert spec(found).type == "Headless"
    assert not now.by(tables.SERVICES, "import", NAME)
    await operator.client.delete(SERVICE_IMPORT, "demo", "echo")
    await operator.imported(has_address)


async def test_what_an_earlier_operator_left_is_pruned_and_nothing_else(client: kube.Client) -> None:
    async with Operator(client).running() as first:
        first.export("c2")
        await first.imported(has_address)
        await first.settled()
    await client.create(SERVICE_IMPORT, "demo", {"metadata": {"name": "theirs"}, "spec": {"type": "Headless"}})
    async with Operator(client).running() as second:
        await second.until(lambda now: now.get(tables.IMPORTS, NAME) is None)
        await second.until(lambda now: not now.by(tables.SERVICES, "import", NAME))
        assert await client.get(SERVICE_IMPORT, "theirs", "demo")


async def test_a_restarted_operator_writes_nothing_new(client: kube.Client) -> None:
    async with Operator(client).running() as first:
        first.export("c2")
        await first.imported(has_address)
        await first.settled()
    before = await client.get(SERVICE_IMPORT, "echo", "demo")
    second = Operator(client)
    second.export("c2")
    async with second.running():
        await second.settled()
        after = await client.get(SERVICE_IMPORT, "echo", "demo")
        assert after.metadata.resource_version == before.metadata.resource_version
