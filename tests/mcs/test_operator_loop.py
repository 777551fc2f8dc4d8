"""Tables, derived rows and target together, against the lab's API server and against a real kube-apiserver.

Each test has a namespace of its own, and sees what others left as an operator on a real cluster does.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from clusters.operator_world import Operator, has_address, spec

from isthmus import kube
from isthmus.kube.objects.core import NAMESPACE, SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT, ServiceImport
from isthmus.kube.objects.meta import Meta
from isthmus.mcs import words
from isthmus.model import tables
from isthmus.model.names import ClusterName, ServiceName, derived, split
from isthmus.model.services import Endpoint, Export, Port, Service
from isthmus.statedb import Snapshot


async def test_an_export_becomes_an_import_with_the_derived_services_address(operator: Operator) -> None:
    operator.export("c2")
    found = await operator.imported(has_address)
    service = await operator.client.get(SERVICE, operator.derived, operator.namespace)
    assert spec(found).ips == [service.spec.cluster_ip]
    [owner] = service.metadata.owner_references or []
    assert (owner.kind, owner.uid, owner.controller) == ("ServiceImport", found.metadata.uid, True)


@pytest.mark.slow
async def test_an_import_costs_a_bounded_number_of_requests_whatever_else_there_is(operator: Operator) -> None:
    for number in range(20):
        operator.export("c2", name=ServiceName(f"{operator.namespace}/other-{number}"))
    await operator.settled()
    before = operator.requests
    operator.export("c2")
    await operator.imported(has_address)
    await operator.settled()
    # Import and Service are made, and the import's status; then import and status once more with the address that the
    # Service was given: five. A watch that lags behind our own writes costs a look and a write more.
    assert operator.requests - before <= 8


async def test_an_operator_that_begins_where_all_is_as_it_should_be_only_looks_for_leftovers(
    client: kube.Client, namespace: str
) -> None:
    for life in range(2):
        beginning = Operator(client, namespace=namespace)
        beginning.export("c2")
        beginning.publish(Endpoint("10.2.1.5", (Port("http", 8080),)), service=beginning.derived_name)
        async with beginning.running() as operator:
            if not life:
                await operator.export_here()
            await operator.imported(has_address)
            await operator.until(lambda now: "c1" in {row.cluster for row in now.all(tables.ENDPOINT_SETS)})
            await operator.settled()
            lists = 3 + 2  # imports, Services and slices, to prune; which versions the server has
            assert not life or operator.requests <= lists


async def test_a_change_costs_a_bounded_number_of_requests(operator: Operator) -> None:
    operator.export("c2")
    await operator.imported(has_address)
    await operator.settled()
    before = operator.requests
    operator.export("c2", labels=(("team", "red"),))
    await operator.imported(lambda each: each.metadata.labels)
    await operator.settled()
    assert operator.requests - before <= 4, "one for the import, one for its Service, again where a watch lags"


async def test_own_endpoints_stand_behind_the_derived_service(operator: Operator) -> None:
    await operator.export_here()
    await operator.until(
        lambda now: now.get(
            tables.ENDPOINT_SETS, (operator.derived_name, operator.own, "kubernetes", f"{operator.derived}-abc")
        )
    )
    await operator.settled()
    found = await operator.client.get(ENDPOINT_SLICE, f"{operator.derived}-abc", operator.namespace)
    assert (found.metadata.labels or {})["kubernetes.io/service-name"] == operator.derived
    assert [each.addresses for each in found.endpoints or []] == [["10.1.1.5"]]


async def test_the_export_has_its_conditions(operator: Operator) -> None:
    await operator.export_here()
    operator.export("c2", type="Headless", ports=(Port("http", 81),))
    async with asyncio.timeout(60):
        while True:
            export = await operator.client.get(SERVICE_EXPORT, "echo", operator.namespace)
            reported = {c.type: c for c in (export.status.conditions if export.status else None) or ()}
            if "Conflict" in reported and reported["Conflict"].status == "True":
                break
            await asyncio.sleep(0.01)
    assert {name: each.status for name, each in reported.items()} == {
        "Valid": "True",
        "Ready": "True",
        "Conflict": "True",
    }
    assert reported["Conflict"].reason == "PortConflict,TypeConflict"
    assert reported["Conflict"].observed_generation == export.metadata.generation


async def test_an_edit_of_what_is_ours_is_undone_and_others_fields_stay(operator: Operator) -> None:
    operator.export("c2")
    await operator.imported(has_address)
    edit = {"spec": {"ports": [{"port": 99}]}, "metadata": {"labels": {"theirs": "yes"}}}
    await operator.client.patch(SERVICE_IMPORT, operator.namespace, "echo", edit)
    found = await operator.imported(lambda each: [p.port for p in spec(each).ports or ()] == [80])
    assert found.metadata.labels == {"theirs": "yes"}


async def labelled(operator: Operator) -> None:
    """An import with two labels and two annotations of its export and one slice, which the tables show as wanted."""
    both = (("team", "red"), ("tier", "1"))
    operator.export("c2", labels=both, annotations=both)
    operator.publish(Endpoint("10.2.1.5", (Port("http", 8080),)), service=operator.derived_name)
    await operator.until(lambda now: operator.written(now))
    await operator.settled()


async def one_is_left(operator: Operator) -> None:
    """The import, its derived Service and the slice carry no ``tier`` any more."""

    async def carrying() -> list[str]:
        found: list[Any] = [await operator.client.get(SERVICE_IMPORT, "echo", operator.namespace)]
        found.append(await operator.client.get(SERVICE, operator.derived, operator.namespace))
        found += await operator.client.list(ENDPOINT_SLICE, operator.namespace)
        metas: list[Meta] = [each.metadata for each in found]
        assert len(metas) == 3
        assert all((meta.labels or {}).get("team") == "red" for meta in metas)
        return [meta.name for meta in metas if "tier" in {**(meta.labels or {}), **(meta.annotations or {})}]

    async with asyncio.timeout(60):
        while await carrying():  # noqa: ASYNC110 the server is asked
            await asyncio.sleep(0.01)


async def test_labels_and_annotations_no_longer_exported_go(operator: Operator) -> None:
    await labelled(operator)
    operator.export("c2", labels=(("team", "red"),), annotations=(("team", "red"),))
    await one_is_left(operator)


async def test_labels_no_longer_exported_go_where_an_earlier_process_wrote_them(operator: Operator) -> None:
    await labelled(operator)
    operator.forget()
    operator.export("c2", labels=(("team", "red"),), annotations=(("team", "red"),))
    await one_is_left(operator)


async def whole(operator: Operator) -> Service:
    """The derived Service, once it stands and the import has its address."""
    now = await operator.until(
        lambda now: (
            {s.cluster_ips for s in now.by(tables.SERVICES, "import", operator.name)}
            == {i.ips for i in now.by(tables.IMPORTS, "namespace", operator.namespace)}
            != set()
        )
    )
    [service] = now.by(tables.SERVICES, "import", operator.name)
    return service


async def test_a_removed_import_comes_back_with_a_service_of_its_own(operator: Operator) -> None:
    operator.export("c2")
    before = await operator.imported(has_address)
    await operator.client.delete(SERVICE_IMPORT, operator.namespace, "echo")
    after = await operator.imported(lambda each: each.metadata.uid != before.metadata.uid and spec(each).ips)
    async with asyncio.timeout(60):
        while True:  # the old one may stand until the garbage collector comes
            await operator.settled()
            await whole(operator)
            try:
                service = await operator.client.get(SERVICE, operator.derived, operator.namespace)
            except kube.NotFound:
                continue
            if [owner.uid for owner in service.metadata.owner_references or []] == [after.metadata.uid]:
                break


async def test_a_removed_derived_service_comes_back(operator: Operator) -> None:
    operator.export("c2")
    await operator.imported(has_address)
    gone = await whole(operator)
    await operator.client.delete(SERVICE, operator.namespace, operator.derived, uid=gone.uid)
    await operator.until(lambda now: {s.uid for s in now.by(tables.SERVICES, "import", operator.name)} - {gone.uid})
    assert (await whole(operator)).uid != gone.uid


async def test_a_type_that_flips_makes_the_service_headless_and_back(operator: Operator) -> None:
    operator.export("c2")
    await operator.imported(has_address)
    operator.export("c2", type="Headless")
    await operator.imported(lambda each: spec(each).type == "Headless" and not spec(each).ips)
    await operator.settled()
    assert (await operator.client.get(SERVICE, operator.derived, operator.namespace)).spec.cluster_ip == "None"
    operator.export("c2")
    await operator.imported(lambda each: spec(each).type == "ClusterSetIP" and spec(each).ips)


async def test_unexported_everywhere_nothing_is_left(operator: Operator) -> None:
    await operator.export_here()
    operator.export("c2")
    await operator.imported(has_address)
    await operator.settled()
    operator.withdraw("c2")
    await operator.client.delete(SERVICE_EXPORT, operator.namespace, "echo")
    await operator.until(
        lambda now: not now.get(tables.IMPORTS, operator.name) and not now.by(tables.SERVICES, "import", operator.name)
    )
    await operator.until(lambda now: not now.by(tables.ENDPOINT_SETS, "service", operator.derived_name))


async def test_a_namespace_that_appears_later_gets_its_imports(operator: Operator) -> None:
    later = f"{operator.namespace}-later"
    name = ServiceName(f"{later}/echo")
    with operator.db.write() as txn:
        txn.put(tables.EXPORTS, Export(cluster=ClusterName("c2"), name=name, created="2026-01-01T00:00:00Z"))
    await operator.client.create(NAMESPACE, "", {"metadata": {"name": later}})
    await operator.until(lambda now: now.get(tables.IMPORTS, name))


async def test_somebody_elses_import_is_left_until_it_goes(operator: Operator) -> None:
    theirs = {"metadata": {"name": "echo"}, "spec": {"type": "Headless", "ports": []}}
    await operator.client.create(SERVICE_IMPORT, operator.namespace, theirs)
    operator.export("c2")
    now = await operator.until(lambda now: now.count(tables.OBJECTS_STATUS))
    [failing] = now.all(tables.OBJECTS_STATUS)
    assert failing.error == (
        f"ServiceImport {operator.name} exists and is not managed by isthmus-operator: left as it is"
    )
    found = await operator.client.get(SERVICE_IMPORT, "echo", operator.namespace)
    assert spec(found).type == "Headless"
    assert not now.by(tables.SERVICES, "import", operator.name)
    await operator.client.delete(SERVICE_IMPORT, operator.namespace, "echo")
    await operator.imported(has_address)


async def test_what_an_earlier_operator_left_is_pruned_and_nothing_else(client: kube.Client, namespace: str) -> None:
    async with Operator(client, namespace=namespace).running() as first:
        first.export("c2")
        await first.imported(has_address)
        await first.settled()
    theirs = {"metadata": {"name": "theirs"}, "spec": {"type": "Headless", "ports": []}}
    await client.create(SERVICE_IMPORT, namespace, theirs)
    async with Operator(client, namespace=namespace).running() as second:
        await second.until(lambda now: now.get(tables.IMPORTS, second.name) is None)
        await second.until(lambda now: not now.by(tables.SERVICES, "import", second.name))
        assert await client.get(SERVICE_IMPORT, "theirs", namespace)


async def test_a_restarted_operator_writes_nothing_new(client: kube.Client, namespace: str) -> None:
    async with Operator(client, namespace=namespace).running() as first:
        first.export("c2")
        await first.imported(has_address)
        await first.settled()
    before = await client.get(SERVICE_IMPORT, "echo", namespace)
    second = Operator(client, namespace=namespace)
    second.export("c2")
    async with second.running():
        await second.settled()
        after = await client.get(SERVICE_IMPORT, "echo", namespace)
        assert after.metadata.resource_version == before.metadata.resource_version


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
    await operator.nothing_fails()


async def test_own_and_others_endpoints_stand_behind_the_derived_service(operator: Operator) -> None:
    namespace, client = operator.namespace, operator.client
    await operator.export_here()
    operator.export("c2")
    operator.publish(Endpoint("10.2.1.5", (Port("http", 8080),), hostname="web-0"), service=operator.derived_name)
    await operator.until(lambda now: len(now.by(tables.ENDPOINT_SETS, "service", operator.derived_name)) == 3)
    await operator.settled()
    listed = await client.list(
        ENDPOINT_SLICE, namespace, label_selector=f"kubernetes.io/service-name={operator.derived}"
    )
    content = {
        (each.metadata.labels or {})["multicluster.kubernetes.io/source-cluster"]: [
            e.addresses for e in each.endpoints or ()
        ]
        for each in listed
    }
    assert content == {"c1": [["10.1.1.5"]], "c2": [["10.2.1.5"]]}


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
    await operator.nothing_fails()


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
    await operator.nothing_fails()


@pytest.mark.parametrize("client", [pytest.param("kube", marks=pytest.mark.kube)], indirect=True)
async def test_clusters_are_listed_oldest_first_whoever_came_first(operator: Operator) -> None:
    operator.export("c2", created="2026-01-02T00:00:00Z")
    await operator.imported(has_address)
    await operator.settled()
    operator.export("c3", created="2026-01-01T00:00:00Z")
    found = await operator.imported(lambda each: each.status and len(each.status.clusters or ()) == 2)
    assert found.status is not None
    assert [each.cluster for each in found.status.clusters or ()] == ["c3", "c2"]


async def test_an_import_is_stale_while_its_cluster_is_away_and_no_longer(operator: Operator) -> None:
    def conditions(found: ServiceImport) -> dict[str, str]:
        return {c.type: c.status for c in (found.status.conditions if found.status else None) or ()}

    operator.export("c2")
    operator.publish(Endpoint("10.2.1.5", (Port("http", 8080),)), service=operator.derived_name)
    await operator.imported(has_address)
    operator.cluster(state="stale")
    await operator.imported(lambda each: conditions(each) == {"Ready": "True", "Stale": "True"})
    operator.cluster(state="ready")
    await operator.imported(lambda each: conditions(each) == {"Ready": "True"})


async def test_others_endpoints_stand_behind_a_service_that_is_global_by_annotation(operator: Operator) -> None:
    annotations = {"service.cilium.io/global": "true"}
    body = {
        "metadata": {"name": "echo", "annotations": annotations, "labels": {"app": "echo"}},
        "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]},
    }
    made = await operator.client.create(SERVICE, operator.namespace, body)
    operator.publish(Endpoint("10.2.1.5", (Port("http", 8080),), hostname="web-0"), service=operator.name)
    await operator.until(lambda now: any(o.kind == "EndpointSlice" and o.seen == "=" for o in now.all(tables.OBJECTS)))
    [found] = await operator.client.list(ENDPOINT_SLICE, operator.namespace, label_selector="app=echo")
    assert [(e.addresses, e.hostname) for e in found.endpoints or ()] == [(["10.2.1.5"], "web-0")]
    assert [owner.uid for owner in found.metadata.owner_references or ()] == [made.metadata.uid]


async def test_a_hundred_and_one_endpoints_are_two_slices_and_one_less_rewrites_few(operator: Operator) -> None:
    many = [Endpoint(f"10.2.{n // 100}.{n % 100}", (Port("http", 8080),)) for n in range(250)]
    operator.export("c2")
    operator.publish(*many, service=operator.derived_name)
    await operator.until(lambda now: sum(len(row.endpoints) for row in operator.written(now)) == 250)
    await operator.settled()
    before = operator.requests
    operator.publish(*many[:-1], service=operator.derived_name)
    await operator.until(lambda now: sum(len(row.endpoints) for row in operator.written(now)) == 249)
    assert operator.requests - before <= 2, "one for the slice that differs, again where a watch lags"


async def test_a_type_that_flips_and_comes_back_has_the_address_it_had(operator: Operator) -> None:
    operator.export("c2")
    before = spec(await operator.imported(has_address)).ips
    operator.export("c9", created="1970-01-01T00:00:00Z", type="Headless")
    await operator.imported(lambda found: spec(found).type == "Headless" and not spec(found).ips)
    await operator.settled()
    operator.withdraw("c9")
    after = await operator.imported(has_address)
    assert spec(after).ips == before
    await operator.settled()
    annotations = (await operator.imported(has_address)).metadata.annotations or {}
    assert words.CLUSTER_IPS not in annotations


async def test_a_derived_service_deleted_by_hand_comes_back_with_its_address(operator: Operator) -> None:
    operator.export("c2")
    before = spec(await operator.imported(has_address)).ips
    await operator.settled()
    uid = (await operator.client.get(SERVICE, operator.derived, operator.namespace)).metadata.uid
    await operator.client.delete(SERVICE, operator.namespace, operator.derived)
    await operator.until(lambda now: (row := _service(now, operator)) is not None and row.uid != uid)
    after = await operator.client.get(SERVICE, operator.derived, operator.namespace)
    assert after.spec.cluster_ips == before


async def test_an_address_that_somebody_took_meanwhile_is_not_insisted_on(operator: Operator) -> None:
    operator.export("c2")
    [address] = spec(await operator.imported(has_address)).ips or [""]
    operator.export("c9", created="1970-01-01T00:00:00Z", type="Headless")
    await operator.imported(lambda found: spec(found).type == "Headless" and not spec(found).ips)
    await operator.settled()
    taken = {"metadata": {"name": "taker"}, "spec": {"clusterIP": address, "ports": [{"port": 80}]}}
    await operator.client.create(SERVICE, operator.namespace, taken)
    operator.withdraw("c9")
    after = await operator.imported(has_address)
    assert spec(after).ips != [address]
    await operator.nothing_fails()


def _service(now: Snapshot, operator: Operator) -> Service | None:
    return now.get(tables.SERVICES, (operator.derived_name, "kubernetes"))
