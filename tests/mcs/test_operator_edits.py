"""What people and other controllers do to objects of ours, or to those that ours follow, on each API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from clusters.operator_world import Operator, has_address, spec

from isthmus import kube
from isthmus.desired.contention import CORRECTIONS_AT_ONCE
from isthmus.kube.objects.core import SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.kube.objects.meta import Condition
from isthmus.model import tables
from isthmus.model.names import ServiceName, derived, split
from isthmus.model.objects import Object
from isthmus.model.services import Endpoint, EndpointSet, ExportMark, Import, Port, Service
from isthmus.statedb import Snapshot

LIE = {"type": "Valid", "status": "False", "reason": "Lie", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
THEIRS = {**LIE, "type": "Theirs", "status": "True"}


def _mark(now: Snapshot, operator: Operator) -> dict[str, str]:
    mark: ExportMark | None = now.get(tables.EXPORT_MARKS, operator.name)
    return {each.type: each.reason for each in mark.conditions} if mark is not None else {}


@pytest.mark.slow
async def test_edits_of_an_exports_status_are_undone_and_others_conditions_stay(operator: Operator) -> None:
    await operator.export_here()
    fine = {"Valid": "Valid", "Ready": "Ready", "Conflict": "NoConflicts"}
    await operator.until(lambda now: _mark(now, operator) == fine)
    before = await operator.client.get(SERVICE_EXPORT, "echo", operator.namespace)
    edit = {"status": {"conditions": [LIE, THEIRS]}}
    await operator.client.patch(SERVICE_EXPORT, operator.namespace, "echo", edit, subresource="status")
    await operator.until(lambda now: _mark(now, operator) == {**fine, "Theirs": "Lie"})
    row = operator.db.snapshot().get(tables.OBJECTS, ("ServiceExport", operator.name))
    assert row is not None
    await operator.until(lambda now: _seen(now, operator) == {"="})
    sent = operator.requests
    await operator.settled()
    assert operator.requests - sent == 0
    assert before.status is not None


def _seen(now: Snapshot, operator: Operator) -> set[str]:
    rows: list[Object] = now.by(tables.OBJECTS, "service", operator.name)
    return {row.seen for row in rows}


async def test_edits_of_an_imports_status_are_undone(operator: Operator) -> None:
    operator.export("c2")
    operator.publish(Endpoint("10.2.1.5", (Port("http", 8080),)), service=operator.derived_name)
    await operator.imported(has_address)
    await operator.until(lambda now: _seen(now, operator) == {"="})
    lie: dict[str, Any] = {**LIE, "type": "Ready"}
    edit = {"status": {"clusters": [{"cluster": "nowhere"}], "conditions": [lie]}}

    def right(now: Snapshot) -> bool:
        found: Import | None = now.get(tables.IMPORTS, operator.name)
        return found is not None and found.clusters == ("c2",) and {c.reason for c in found.conditions} == {"Ready"}

    await operator.until(right)
    edited = asyncio.create_task(operator.until(lambda now: not right(now)))
    await asyncio.sleep(0)  # it waits already: the edit may be undone before its answer is here
    await operator.client.patch(SERVICE_IMPORT, operator.namespace, "echo", edit, subresource="status")
    await edited
    await operator.until(right)


async def test_a_selector_given_to_a_derived_service_goes(operator: Operator) -> None:
    operator.export("c2")
    await operator.imported(has_address)
    edit = {"spec": {"selector": {"app": "evil"}, "externalIPs": ["192.0.2.1"]}}
    await operator.client.patch(SERVICE, operator.namespace, operator.derived, edit)

    def service(now: Snapshot) -> Service:
        found: Service | None = now.get(tables.SERVICES, (operator.derived_name, "kubernetes"))
        assert found is not None
        return found

    await operator.until(lambda now: service(now).external_ips)
    await operator.until(lambda now: not service(now).selector and _seen(now, operator) == {"="})
    found = await operator.client.get(SERVICE, operator.derived, operator.namespace)
    assert not found.spec.selector
    assert found.spec.external_ips == ["192.0.2.1"], "what we never say is left as others say it"


async def test_a_port_that_loses_its_name_and_protocol_loses_them_in_the_derived_service(operator: Operator) -> None:
    def ports(now: Snapshot) -> tuple[Port, ...]:
        found: Service | None = now.get(tables.SERVICES, (operator.derived_name, "kubernetes"))
        return found.ports if found is not None else ()

    for port in (Port("http", 80, app_protocol="http"), Port("", 80)):
        operator.export("c2", ports=(port,))
        await operator.until(lambda now, port=port: ports(now) == (port,))  # type: ignore[misc]
        await operator.until(lambda now: _seen(now, operator) == {"="})
    found = await operator.client.get(SERVICE, operator.derived, operator.namespace)
    assert [(each.name or "", each.app_protocol or "") for each in found.spec.ports or ()] == [("", "")]


@pytest.mark.parametrize(
    "edit",
    [
        {"ports": [{"name": "http", "port": 81, "protocol": "TCP"}]},
        {"ports": [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "mine", "port": 81, "protocol": "TCP"}]},
        {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}},
        {"type": "NodePort"},
    ],
    ids=["another port", "one port more", "affinity", "a type"],
)
@pytest.mark.parametrize("restarted", [False, True], ids=["", "while nobody leads"])
@pytest.mark.slow
async def test_edits_of_a_derived_service_are_undone(operator: Operator, edit: dict[str, Any], restarted: bool) -> None:
    operator.export("c2")
    await operator.imported(has_address)
    await operator.until(lambda now: _seen(now, operator) == {"="})
    if restarted:
        operator.forget()
    before = await operator.client.get(SERVICE, operator.derived, operator.namespace)
    edited = asyncio.create_task(operator.until(lambda now: _seen(now, operator) != {"="}))
    await asyncio.sleep(0)  # it waits already: the edit may be undone before its answer is here
    await operator.client.patch(SERVICE, operator.namespace, operator.derived, {"spec": edit})
    await edited
    await operator.until(lambda now: _seen(now, operator) == {"="})
    after = await operator.client.get(SERVICE, operator.derived, operator.namespace)
    assert after.spec == before.spec
    await operator.nothing_fails()


async def test_somebody_who_undoes_every_write_of_ours_costs_a_bounded_number_and_loses_in_the_end(
    operator: Operator,
) -> None:
    operator.export("c2")
    await operator.imported(has_address)
    await operator.until(lambda now: _seen(now, operator) == {"="})
    theirs = {"spec": {"ips": [], "ports": [{"name": "http", "port": 81, "protocol": "TCP"}]}}
    sent = operator.requests
    reverts = 0

    def is_contested() -> bool:
        return operator.db.snapshot().get(tables.OBJECTS_STATUS, ("ServiceImport", operator.name)) is not None

    async with asyncio.timeout(60):
        while not is_contested() and reverts < 2 * CORRECTIONS_AT_ONCE:
            await operator.client.patch(SERVICE_IMPORT, operator.namespace, "echo", theirs)
            reverts += 1
            while not is_contested():
                if spec(await operator.client.get(SERVICE_IMPORT, "echo", operator.namespace)).ips:
                    break
                await asyncio.sleep(0.01)
    assert reverts > CORRECTIONS_AT_ONCE, "corrected at once, a few times"
    assert operator.requests - sent <= 4 * reverts
    await operator.until(lambda now: now.get(tables.OBJECTS_STATUS, ("ServiceImport", operator.name)))
    [why] = [row.error for row in operator.db.snapshot().all(tables.OBJECTS_STATUS)]
    assert "is written by somebody else again and again" in why
    await operator.imported(has_address)
    await operator.until(lambda now: _seen(now, operator) == {"="})


@pytest.fixture
async def dual(client: kube.Client, namespace: str) -> Any:
    async with Operator(client, namespace=namespace, families=("IPv4", "IPv6")).running() as operator:
        yield operator


async def test_a_slice_made_anew_with_another_family_is_mirrored_anew(dual: Operator) -> None:
    client, namespace = dual.client, dual.namespace
    spec = {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]}
    await client.create(SERVICE, namespace, {"metadata": {"name": "echo"}, "spec": spec})
    dual.export("c2", type="Headless", families=("IPv4", "IPv6"), created="2020-01-01T00:00:00Z")
    await client.create(SERVICE_EXPORT, namespace, {"metadata": {"name": "echo"}})

    def mirrored(now: Snapshot) -> set[str]:
        rows: list[EndpointSet] = now.by(tables.ENDPOINT_SETS, "service", dual.derived_name)
        return {each.address for row in rows for each in row.endpoints}

    for family, address in (("IPv4", "10.1.1.5"), ("IPv6", "fd00::5"), ("IPv4", "10.1.1.6")):
        await client.create(ENDPOINT_SLICE, namespace, _slice(family, address))
        await dual.until(lambda now, address=address: mirrored(now) == {address})  # type: ignore[misc]
        await client.delete(ENDPOINT_SLICE, namespace, "echo-abc")
    await dual.until(lambda now: mirrored(now) == set())
    await dual.nothing_fails()


def _slice(family: str, address: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "echo-abc", "labels": {"kubernetes.io/service-name": "echo"}},
        "addressType": family,
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


async def test_a_derived_name_that_is_taken_is_reported_and_left_until_it_is_free(operator: Operator) -> None:
    foreign = {"metadata": {"name": operator.derived}, "spec": {"ports": [{"port": 7777}]}}
    before = await operator.client.create(SERVICE, operator.namespace, foreign)
    await operator.until(lambda now: now.get(tables.SERVICES, (operator.derived_name, "kubernetes")))
    operator.export("c2")
    operator.publish(Endpoint("10.2.1.5", (Port("http", 8080),)), service=operator.derived_name)

    def reason(now: Snapshot) -> str:
        found: Import | None = now.get(tables.IMPORTS, operator.name)
        return found.conditions[0].reason if found is not None and found.conditions else ""

    await operator.until(lambda now: reason(now) == "ServiceNameTaken")
    assert not list(operator.db.snapshot().all(tables.OBJECTS_STATUS)), "nothing is tried again and again"
    after = await operator.client.get(SERVICE, operator.derived, operator.namespace)
    assert (after.spec, after.metadata.uid) == (before.spec, before.metadata.uid)
    await operator.client.delete(SERVICE, operator.namespace, operator.derived)
    await operator.until(lambda now: reason(now) == "Ready" and operator.written(now))


async def test_an_own_service_of_two_hundred_ports_is_exported_whole(operator: Operator) -> None:
    client, namespace = operator.client, operator.namespace
    numbers = range(1000, 1200)
    ports = [{"name": f"p{number}", "port": number} for number in numbers]
    await client.create(SERVICE, namespace, {"metadata": {"name": "echo"}, "spec": {"ports": ports}})
    body = {**_slice("IPv4", "10.1.1.5"), "ports": ports}
    await client.create(ENDPOINT_SLICE, namespace, body)
    await client.create(SERVICE_EXPORT, namespace, {"metadata": {"name": "echo"}})
    now = await operator.until(lambda now: now.by(tables.ENDPOINT_SETS, "service", operator.derived_name))
    [mirror] = now.by(tables.ENDPOINT_SETS, "service", operator.derived_name)
    assert [port.port for port in mirror.endpoints[0].ports] == list(numbers)
    await operator.until(lambda now: _mark(now, operator).get("Ready") == "Ready")
    await operator.nothing_fails()


async def test_names_at_their_length_limits_are_exported_and_imported(operator: Operator) -> None:
    client, namespace = operator.client, operator.namespace
    short, port, cluster = "s" * 63, "p" * 15, "c" * 32
    name = ServiceName(f"{namespace}/{short}")
    ports = [{"name": port, "port": 80}]
    await client.create(SERVICE, namespace, {"metadata": {"name": short}, "spec": {"ports": ports}})
    for source in (f"{short}-{'x' * 189}", f"{short}-{'x' * 188}y"):
        body = {**_slice("IPv4", "10.1.1.5"), "ports": ports}
        body["metadata"] = {"name": source, "labels": {"kubernetes.io/service-name": short}}
        await client.create(ENDPOINT_SLICE, namespace, body)
    labels = {f"{'l' * 63}": "v" * 63}
    export = {"metadata": {"name": short}, "spec": {"exportedLabels": labels}}
    await client.create(SERVICE_EXPORT, namespace, export)
    operator.export(cluster, name=name, ports=(Port(port, 80),), labels=tuple(labels.items()))
    there = derived(name)
    row = EndpointSet(
        service=there,
        cluster=operator.peer.__class__(cluster),
        source="clusterset",
        part="record",
        endpoints=(Endpoint("10.2.1.5", (Port(port, 8080),), hostname="h" * 63),),
    )
    with operator.db.write() as txn:
        txn.put(tables.ENDPOINT_SETS, row)

    def whole(now: Snapshot) -> bool:
        found = now.get(tables.IMPORTS, name)
        behind = [each for each in now.by(tables.ENDPOINT_SETS, "service", there) if each.source == "kubernetes"]
        return bool(found is not None and found.ips and len(behind) == 3)

    await operator.until(whole)
    assert await client.get(SERVICE, split(there)[1], namespace)
    await operator.nothing_fails()


async def test_a_message_longer_than_the_api_takes_is_cut(operator: Operator) -> None:
    await operator.export_here()
    for number in range(300):
        labels = ((f"example.org/{'k' * 60}", f"{'v' * 50}{number}"),)
        operator.export(f"c{number:031}", labels=labels, created=f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z")
    await operator.until(lambda now: "LabelsConflict" in _mark(now, operator).get("Conflict", ""))
    found = await operator.client.get(SERVICE_EXPORT, "echo", operator.namespace)
    conditions: list[Condition] = (found.status.conditions if found.status else None) or []
    assert max(len(each.message) for each in conditions) <= 32768
