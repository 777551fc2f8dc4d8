"""The cases of the upstream conformance suite of the MCS API that need no pod, on a real API server.

The own cluster's objects are real; what the other cluster exports is reported. Those that call or resolve are in
test_conformance_calls.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from clusters.operator_world import Operator, spec

from isthmus import kube
from isthmus.kube.objects.core import SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE, EndpointSlice
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT, ServiceImport
from isthmus.kube.objects.meta import Condition
from isthmus.model import tables
from isthmus.model.services import Endpoint, Port

pytestmark = [
    pytest.mark.kube,
    pytest.mark.parametrize("client", [pytest.param("kube", marks=pytest.mark.kube)], indirect=True),
]
OLDER, NEWER = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"
"""When the other cluster exported: before the own one, or after it."""
PORTS = [
    {"name": "tcp", "port": 42, "protocol": "TCP"},
    {"name": "udp", "port": 42, "protocol": "UDP"},
]
TOLD = (Port("tcp", 42), Port("udp", 42, "UDP"))


async def offer(operator: Operator, *, export: Mapping[str, Any] | None = None, **fields: Any) -> None:
    """A Service of the own cluster with an endpoint, exported."""
    client, namespace = operator.client, operator.namespace
    body = {"metadata": {"name": "echo", "labels": {"app": "echo"}}, "spec": {"ports": PORTS, **fields}}
    await client.create(SERVICE, namespace, body)
    if fields.get("type") != "ExternalName":
        await client.create(ENDPOINT_SLICE, namespace, _slice(body["spec"]["ports"]))
    await client.create(SERVICE_EXPORT, namespace, {"metadata": {"name": "echo"}, "spec": {**(export or {})}})


def _slice(ports: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "echo-abc", "labels": {"kubernetes.io/service-name": "echo"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.1.5"], "conditions": {"ready": True}}],
        "ports": [{**each, "port": each["port"] + 8000} for each in ports],
    }


def other(operator: Operator, created: str = NEWER, **fields: Any) -> None:
    """The other cluster exports it too."""
    operator.export("c2", created=created, **{"ports": TOLD, **fields})


async def imported(operator: Operator, *clusters: str) -> ServiceImport:
    """The import, once it names these clusters as exporting."""

    def names(found: ServiceImport) -> set[str]:
        return {each.cluster for each in (found.status.clusters if found.status else None) or ()}

    ready = lambda found: names(found) == set(clusters or ("c1",))  # noqa: E731
    found = await operator.imported(ready)
    await operator.settled()
    return found


async def conditions(operator: Operator, **reasons: str) -> dict[str, Condition]:
    """The export's conditions, once these have these reasons."""

    def content(now: Any) -> bool:
        mark = now.get(tables.EXPORT_MARKS, operator.name)
        return mark is not None and reasons.items() <= {each.type: each.reason for each in mark.conditions}.items()

    await operator.until(content)
    found = await operator.client.get(SERVICE_EXPORT, "echo", operator.namespace)
    return {each.type: each for each in (found.status.conditions if found.status else None) or ()}


async def slices(operator: Operator) -> list[EndpointSlice]:
    """What stands behind the derived Service."""
    await operator.until(lambda now: now.by(tables.ENDPOINT_SETS, "service", operator.derived_name))
    return await operator.client.list(
        ENDPOINT_SLICE, operator.namespace, label_selector="multicluster.kubernetes.io/service-name=echo"
    )


def ports_of(found: ServiceImport) -> list[tuple[str | None, int, str | None]]:
    return [(each.name, each.port, each.protocol) for each in spec(found).ports or ()]


async def test_required_an_import_exists_while_somebody_exports_and_is_deleted_when_nobody_does(
    operator: Operator,
) -> None:
    await offer(operator)
    other(operator)
    await imported(operator, "c1", "c2")
    await operator.client.delete(SERVICE_EXPORT, operator.namespace, "echo")
    await imported(operator, "c2")
    operator.withdraw("c2")
    await operator.until(lambda now: now.get(tables.IMPORTS, operator.name) is None)
    with pytest.raises(kube.NotFound):
        await operator.client.get(SERVICE_IMPORT, "echo", operator.namespace)


async def test_required_without_an_export_there_is_no_import(operator: Operator) -> None:
    body = {"metadata": {"name": "echo"}, "spec": {"ports": PORTS}}
    await operator.client.create(SERVICE, operator.namespace, body)
    await operator.until(lambda now: now.get(tables.SERVICES, (operator.name, "kubernetes")))
    assert operator.db.snapshot().get(tables.IMPORTS, operator.name) is None


async def test_required_a_cluster_ip_service_is_imported_as_cluster_set_ip_with_an_ip_per_family(
    operator: Operator,
) -> None:
    await offer(operator)
    await imported(operator)
    found = await operator.imported(lambda each: spec(each).ips)
    assert spec(found).type == "ClusterSetIP"
    assert spec(found).ip_families == ["IPv4"]
    assert [":" in each for each in spec(found).ips or ()] == [False]


async def test_required_the_ports_of_the_import_are_those_of_the_service(operator: Operator) -> None:
    await offer(operator)
    assert ports_of(await imported(operator)) == [("tcp", 42, "TCP"), ("udp", 42, "UDP")]


async def test_required_a_headless_service_is_imported_as_headless_and_has_no_ip(operator: Operator) -> None:
    await offer(operator, clusterIP="None")
    found = await imported(operator)
    assert (spec(found).type, spec(found).ips or []) == ("Headless", [])


async def test_required_session_affinity_and_its_timeout_travel(operator: Operator) -> None:
    config = {"clientIP": {"timeoutSeconds": 10}}
    await offer(operator, sessionAffinity="ClientIP", sessionAffinityConfig=config)
    found = spec(await imported(operator))
    assert found.session_affinity == "ClientIP"
    assert found.session_affinity_config is not None
    assert found.session_affinity_config.client_ip is not None
    assert found.session_affinity_config.client_ip.timeout_seconds == 10


async def test_required_the_internal_traffic_policy_travels(operator: Operator) -> None:
    await offer(operator, internalTrafficPolicy="Local")
    assert spec(await imported(operator)).internal_traffic_policy == "Local"


async def test_required_the_traffic_distribution_travels(operator: Operator) -> None:
    await offer(operator, trafficDistribution="PreferClose")
    assert spec(await imported(operator)).traffic_distribution == "PreferClose"


@pytest.mark.parametrize("created", [OLDER, NEWER], ids=["the other is older", "the own is older"])
async def test_required_ports_are_joined_and_every_export_is_told_of_the_conflict(
    operator: Operator, created: str
) -> None:
    await offer(operator)
    other(operator, created, ports=(*TOLD, Port("web", 80)))
    found = await imported(operator, "c1", "c2")
    assert set(ports_of(found)) == {("tcp", 42, "TCP"), ("udp", 42, "UDP"), ("web", 80, "TCP")}
    reported = await conditions(operator, Conflict="PortConflict")
    assert reported["Conflict"].status == "True"
    assert reported["Conflict"].observed_generation == 1


@pytest.mark.parametrize(("created", "number"), [(OLDER, 43), (NEWER, 42)], ids=["the other is older", "the own is"])
async def test_required_of_one_port_name_with_two_numbers_the_oldest_exports_counts(
    operator: Operator, created: str, number: int
) -> None:
    await offer(operator)
    other(operator, created, ports=(Port("tcp", 43), Port("udp", 42, "UDP")))
    found = await imported(operator, "c1", "c2")
    assert ("tcp", number, "TCP") in ports_of(found)
    await conditions(operator, Conflict="PortConflict")


@pytest.mark.parametrize(("created", "type"), [(OLDER, "Headless"), (NEWER, "ClusterSetIP")])
async def test_required_of_headless_and_not_the_oldest_counts_and_exports_are_told(
    operator: Operator, created: str, type: str
) -> None:
    await offer(operator)
    other(operator, created, type="Headless")
    assert spec(await imported(operator, "c1", "c2")).type == type
    await conditions(operator, Conflict="TypeConflict")


async def test_required_an_external_name_service_is_refused_and_not_imported(operator: Operator) -> None:
    await offer(operator, type="ExternalName", externalName="example.com", ports=[])
    reported = await conditions(operator, Valid="InvalidServiceType")
    assert reported["Valid"].status == "False"
    assert operator.db.snapshot().get(tables.IMPORTS, operator.name) is None


async def test_required_a_valid_export_is_told_that_it_is_valid_and_ready(operator: Operator) -> None:
    await offer(operator)
    reported = await conditions(operator, Valid="Valid", Ready="Ready", Conflict="NoConflicts")
    assert {kind: each.status for kind, each in reported.items()} == {
        "Valid": "True",
        "Ready": "True",
        "Conflict": "False",
    }


async def test_optional_exported_labels_and_annotations_travel_and_no_others(operator: Operator) -> None:
    await offer(operator, export={"exportedLabels": {"team": "red"}, "exportedAnnotations": {"note": "hi"}})
    found = await imported(operator)
    assert found.metadata.labels == {"team": "red"}
    assert (found.metadata.annotations or {})["note"] == "hi"


@pytest.mark.parametrize(("created", "wins"), [(OLDER, "blue"), (NEWER, "red")])
async def test_optional_of_labels_and_annotations_that_differ_the_oldest_exports_count_whole(
    operator: Operator, created: str, wins: str
) -> None:
    await offer(operator, export={"exportedLabels": {"team": "red"}, "exportedAnnotations": {"note": "red"}})
    reported = (("note", "blue"),)
    other(operator, created, labels=(("team", "blue"), ("more", "blue")), annotations=reported)
    found = await imported(operator, "c1", "c2")
    assert found.metadata.labels == ({"team": "red"} if wins == "red" else {"team": "blue", "more": "blue"})
    assert (found.metadata.annotations or {})["note"] == wins
    await conditions(operator, Conflict="AnnotationsConflict,LabelsConflict")


async def test_optional_slices_have_the_labels_of_the_mcs_api_and_a_manager_that_is_not_kubernetes(
    operator: Operator,
) -> None:
    await offer(operator)
    other(operator)
    operator.publish(Endpoint("10.2.1.5", (Port("tcp", 8042), Port("udp", 8042, "UDP"))), service=operator.derived_name)
    await imported(operator, "c1", "c2")
    await operator.until(lambda now: len(now.by(tables.ENDPOINT_SETS, "service", operator.derived_name)) == 3)
    found = await slices(operator)
    labels = [each.metadata.labels or {} for each in found]
    assert {each["multicluster.kubernetes.io/source-cluster"] for each in labels} == {"c1", "c2"}
    managers = {each["endpointslice.kubernetes.io/managed-by"] for each in labels}
    assert managers == {"endpointslice-mcs-controller.isthmus.io"}
    assert {each["kubernetes.io/service-name"] for each in labels} == {operator.derived}


async def test_optional_strict_port_conflict_an_endpoint_stands_behind_the_ports_that_agree_only(
    operator: Operator,
) -> None:
    await offer(operator)
    other(operator, OLDER, ports=(Port("tcp", 43), Port("udp", 42, "UDP")))
    operator.publish(Endpoint("10.2.1.5", (Port("tcp", 8043), Port("udp", 8042, "UDP"))), service=operator.derived_name)
    await imported(operator, "c1", "c2")
    await operator.until(lambda now: len(now.by(tables.ENDPOINT_SETS, "service", operator.derived_name)) == 3)
    offered = {
        (each.metadata.labels or {})["multicluster.kubernetes.io/source-cluster"]: {p.name for p in each.ports or ()}
        for each in await slices(operator)
    }
    assert offered == {"c1": {"udp"}, "c2": {"tcp", "udp"}}


async def test_optional_strict_port_conflict_an_exporter_that_agrees_in_nothing_has_no_endpoint(
    operator: Operator,
) -> None:
    await offer(operator, ports=[{"name": "tcp", "port": 42, "protocol": "TCP"}])
    other(operator, OLDER, ports=(Port("tcp", 43),))
    operator.publish(Endpoint("10.2.1.5", (Port("tcp", 8043),)), service=operator.derived_name)
    await imported(operator, "c1", "c2")
    await operator.until(lambda now: operator.written(now))
    found = await slices(operator)
    assert [(each.metadata.labels or {})["multicluster.kubernetes.io/source-cluster"] for each in found] == ["c2"]
