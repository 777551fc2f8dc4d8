"""Imports in a cluster of both families, on each API server: addresses, derived Services, slices, and their changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from clusters.operator_world import Operator, spec

from isthmus import kube
from isthmus.kube.objects.core import SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, ServiceImport
from isthmus.model import tables
from isthmus.model.services import Endpoint, Family, Port
from isthmus.statedb import Snapshot

BOTH: tuple[Family, ...] = ("IPv4", "IPv6")
HTTP = (Port("http", 8080),)


@pytest.fixture
async def dual(client: kube.Client, namespace: str) -> AsyncIterator[Operator]:
    async with Operator(client, namespace=namespace, families=BOTH).running() as operator:
        yield operator
        assert not list(operator.db.snapshot().all(tables.OBJECTS_STATUS)), "nothing was refused"


def of(addresses: Iterable[str]) -> list[str]:
    return ["IPv6" if ":" in address else "IPv4" for address in addresses]


async def derived_spec(operator: Operator) -> Any:
    return (await operator.client.get(SERVICE, operator.derived, operator.namespace)).spec


async def left_with(operator: Operator, address: str) -> None:
    """Return when the derived Service has this address and no other: none is left where nothing answers."""

    def condition(now: Snapshot) -> bool:
        row = now.get(tables.SERVICES, (operator.derived_name, "kubernetes"))
        return row is not None and row.cluster_ips == (address,)

    await operator.until(condition)


async def answering(operator: Operator, *families: Family) -> list[str]:
    """The import's addresses, once they are of these families."""

    def condition(found: ServiceImport) -> bool:
        return of(spec(found).ips or ()) == list(families)

    return list(spec(await operator.imported(condition)).ips or ())


@pytest.mark.slow
async def test_an_import_has_an_address_of_each_family_in_its_own_order(dual: Operator) -> None:
    dual.export("c2", families=("IPv6", "IPv4"))
    ips = await answering(dual, "IPv6", "IPv4")
    found = await derived_spec(dual)
    assert (found.ip_families, found.cluster_ips) == (["IPv6", "IPv4"], ips)


async def test_slices_of_both_families_stand_behind_it_mirrored_and_remote(dual: Operator) -> None:
    client, namespace = dual.client, dual.namespace
    service = {"ipFamilyPolicy": "RequireDualStack", "ports": [{"name": "http", "port": 80}]}
    await client.create(SERVICE, namespace, {"metadata": {"name": "echo"}, "spec": service})
    for family, address in zip(BOTH, ("10.1.1.5", "fd00:10:1:1::5"), strict=True):
        labels = {"kubernetes.io/service-name": "echo"}
        body = {
            "metadata": {"name": f"echo-{family.lower()}", "labels": labels},
            "addressType": family,
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }
        await client.create(ENDPOINT_SLICE, namespace, body)
    dual.export("c2", families=BOTH)
    dual.publish(Endpoint("10.2.1.5", HTTP), Endpoint("fd00:10:2:1::5", HTTP), service=dual.derived_name)
    await client.create(SERVICE_EXPORT, namespace, {"metadata": {"name": "echo"}})
    await dual.until(lambda now: len(now.by(tables.ENDPOINT_SETS, "service", dual.derived_name)) >= 5)
    slices = await client.list(ENDPOINT_SLICE, namespace, label_selector=f"kubernetes.io/service-name={dual.derived}")
    found = sorted(
        ((each.metadata.labels or {})["multicluster.kubernetes.io/source-cluster"], each.address_type, e.addresses)
        for each in slices
        for e in each.endpoints or ()
    )
    assert found == [
        ("c1", "IPv4", ["10.1.1.5"]),
        ("c1", "IPv6", ["fd00:10:1:1::5"]),
        ("c2", "IPv4", ["10.2.1.5"]),
        ("c2", "IPv6", ["fd00:10:2:1::5"]),
    ]


async def test_what_an_exporter_of_one_family_offers_has_one_address_and_endpoints_of_that(dual: Operator) -> None:
    dual.export("c2", families=("IPv4",))
    dual.publish(Endpoint("10.2.1.5", HTTP), Endpoint("fd00:10:2:1::5", HTTP), service=dual.derived_name)
    await answering(dual, "IPv4")
    found = await derived_spec(dual)
    assert (found.ip_families, of(found.cluster_ips)) == (["IPv4"], ["IPv4"])
    now = await dual.until(dual.written)
    assert [e.address for each in dual.written(now) for e in each.endpoints] == ["10.2.1.5"]


async def test_a_family_that_comes_and_goes_takes_its_address_with_it_and_leaves_the_other(dual: Operator) -> None:
    dual.export("c2", families=("IPv4",))
    [first] = await answering(dual, "IPv4")
    dual.export("c2", families=("IPv6", "IPv4"))
    both = await answering(dual, "IPv6", "IPv4")
    assert both[1] == first
    dual.export("c2", families=("IPv4",))
    assert await answering(dual, "IPv4") == [first]
    await left_with(dual, first)


async def test_a_newer_export_of_one_family_takes_no_address_away(dual: Operator) -> None:
    dual.export("c2", families=("IPv4", "IPv6"))
    both = await answering(dual, "IPv4", "IPv6")
    dual.export("c3", families=("IPv6",), created="2026-02-01T00:00:00Z")
    found = await dual.imported(lambda row: row.status is not None and len(row.status.clusters or ()) == 2)
    assert list(spec(found).ips or ()) == both


async def test_an_import_that_turns_to_the_other_family_alone_gets_another_address(dual: Operator) -> None:
    dual.export("c2", families=("IPv4",))
    await answering(dual, "IPv4")
    dual.export("c2", families=("IPv6",))
    [address] = await answering(dual, "IPv6")
    found = await derived_spec(dual)
    assert (found.ip_families, found.cluster_ips) == (["IPv6"], [address])


async def test_a_second_family_that_somebody_gives_a_derived_service_is_taken_back(dual: Operator) -> None:
    dual.export("c2", families=("IPv4",))
    [address] = await answering(dual, "IPv4")
    edit = {"spec": {"ipFamilyPolicy": "RequireDualStack"}}
    given = await dual.client.patch(SERVICE, dual.namespace, dual.derived, edit)
    assert of(given.spec.cluster_ips or ()) == list(BOTH)
    await left_with(dual, address)
