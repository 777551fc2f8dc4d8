"""Cilium's own reader (1.20.2, built by `make cilium-reader`) reads our records, and we read what it encodes."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any

import pytest
from machine import programs
from msgspec import structs

from isthmus.clusterset.records import addresses, endpoints, exports, identities, identity, slices
from isthmus.config import ClusterSection, PublishedEndpoints
from isthmus.model.identities import Identity, numbers
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Condition, Endpoint, Export, Port

C2, NAME = ClusterName("c2"), ServiceName("demo/echo")
DERIVED = derived(NAME)

pytestmark = pytest.mark.cilium


def read(kind: str, value: bytes, *, key: str, cluster: str = "c2", number: int = 2) -> dict[str, Any]:
    """What Cilium makes of a value: {"ok", "error", "seen": as it would write it}."""
    text = base64.b64encode(value).decode() if kind == "endpointslices" else value.decode()
    line = json.dumps({"kind": kind, "cluster": cluster, "id": number, "key": key, "value": text})
    command = [programs.path("cilium-reader"), "codecs"]
    ran = subprocess.run(command, input=line + "\n", capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def service() -> bytes:
    http, named = Port("http", 8080), Port("dns", 53, "UDP")
    published = [
        Endpoint("10.2.1.1", (http, named), hostname="echo-0", zone="eu-1"),
        Endpoint("fd00::1", (Port("", 9000, "SCTP"),)),
    ]
    frontends = {"10.96.0.7": (Port("http", 80),)}
    return endpoints.encode(DERIVED, cluster=C2, cluster_id=2, endpoints=published, frontends=frontends)


def export(**more: Any) -> Export:
    plain = Export(cluster=C2, name=NAME, created="2026-01-01T00:00:00Z", ports=(Port("http", 80),))
    return structs.replace(plain, **more)


FULL: dict[str, Any] = {
    "type": "Headless",
    "affinity": "ClientIP",
    "affinity_timeout": 42,
    "families": ("IPv6", "IPv4"),
    "internal_policy": "Local",
    "distribution": "PreferClose",
    "labels": (("a", "b"),),
    "annotations": (("c", "d"),),
    "ports": (Port("http", 80, app_protocol="h2c"), Port("dns", 53, "UDP")),
}


def test_it_reads_our_service_record_and_we_read_what_it_makes_of_it() -> None:
    found = read("services", service(), key=DERIVED)
    assert found["ok"], found
    encoded_again = json.dumps(found["seen"]).encode()
    decoded, decoded_again = (
        endpoints.decode(each, cluster=C2, cluster_id=2, name=DERIVED) for each in (service(), encoded_again)
    )
    assert decoded == decoded_again
    assert decoded is not None
    assert len(decoded.endpoints) == 2


def test_it_ignores_further_numbers_of_a_port_and_takes_the_rest() -> None:
    published = [Endpoint("172.30.1.7", (Port("http", 8080), Port("http", 9090)))]
    value = endpoints.encode(DERIVED, cluster=C2, cluster_id=2, endpoints=published, frontends={})
    found = read("services", value, key=DERIVED)
    assert found["ok"], found
    assert found["seen"]["backends"] == {"172.30.1.7": {"http": {"Protocol": "TCP", "Port": 8080}}}


def test_it_sees_a_record_for_claimed_services_alone_as_not_shared() -> None:
    published = [Endpoint("10.2.1.1", (Port("http", 8080),))]
    value = endpoints.encode(NAME, cluster=C2, cluster_id=2, endpoints=published, frontends={}, shared=False)
    found = read("services", value, key=NAME)
    assert found["ok"], found
    assert found["seen"]["shared"] is False


@pytest.mark.parametrize("fields", [{}, FULL])
def test_it_reads_our_export_and_we_read_what_it_makes_of_it(fields: dict[str, Any]) -> None:
    row = export(**fields)
    found = read("serviceexports", exports.encode(row), key=NAME)
    assert found["ok"], found
    assert exports.decode(json.dumps(found["seen"]).encode(), cluster=C2, name=NAME) == row


def test_our_export_has_every_field_of_its_record_and_no_other() -> None:
    ours = json.loads(exports.encode(export(**FULL)))
    found = read("serviceexports", json.dumps(ours).encode(), key=NAME)
    assert found["seen"] | {"Labels": ours["labels"], "Annotations": ours["annotations"]} == ours
    assert {*ours} == {*found["fields"]}


def wide() -> list[Endpoint]:
    """Endpoints of both families, with different ports and in each condition that is published."""
    ports = (Port("dns", 53, "UDP"), Port("http", 8080, app_protocol="kubernetes.io/h2c"))
    more: dict[str, Any] = {"hostname": "echo-0", "node": "n1", "zone": "eu-1", "for_zones": ("eu-1", "eu-2")}
    return [
        Endpoint("10.2.1.1", ports, **more),
        Endpoint("10.2.1.2", ports, Condition.TERMINATING),
        Endpoint("10.2.1.3", (Port("", 9000, "SCTP"),)),
        Endpoint("fd00::1", ports),
        *(Endpoint(f"10.3.{n // 250}.{n % 250 + 1}", (Port("http", 80),), node=f"n{n % 50}") for n in range(500)),
    ]


def test_it_reads_our_endpoint_slices_and_we_read_what_it_writes_of_them() -> None:
    read_back: list[Endpoint] = []
    for name, value in slices.encode(DERIVED, cluster=C2, cluster_id=2, endpoints=wide()):
        found = read("endpointslices", value, key=name)
        assert found["ok"], found
        again = read("write", json.dumps(found["seen"]).encode(), key=name)
        written = base64.b64decode(again["seen"])
        decoded, decoded_again = (slices.decode(each, cluster=C2, cluster_id=2, name=name) for each in (value, written))
        assert decoded == decoded_again
        assert decoded.row is not None
        assert decoded.row.service == DERIVED
        read_back += decoded.row.endpoints
    assert sorted(read_back, key=lambda each: each.address) == sorted(wide(), key=lambda each: each.address)


def test_we_read_the_largest_slice_that_kubernetes_allows() -> None:
    plain = {"cluster": "c2", "clusterID": 2, "namespace": "demo", "name": "large", "addressType": "IPv4"}
    there = [
        {"addresses": [f"10.2.{n // 250}.{n % 250 + 1}"], "nodeName": f"node-{n}.eu.example", "zone": f"eu-{n % 3}"}
        | {"conditions": {"ready": True}, "hostname": f"echo-{n}", "hints": {"forZones": [{"name": f"eu-{n % 3}"}]}}
        for n in range(1_000)
    ]
    labels = {"kubernetes.io/service-name": "echo"}
    plain |= {"endpoints": there, "labels": labels, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}
    value = base64.b64decode(read("write", json.dumps(plain).encode(), key="")["seen"])
    decoded = slices.decode(value, cluster=C2, cluster_id=2, name=ServiceName("demo/large"))
    assert decoded.row is not None
    assert len(decoded.row.endpoints) == 1_000


@pytest.mark.parametrize("publish", identity.MODES)
def test_it_accepts_our_configuration_and_sees_all_of_it(publish: PublishedEndpoints) -> None:
    own = identity.own_config(ClusterSection(name="c2", id=2), most=255, publish_endpoints=publish)
    row = identity.encode(own)
    found = read("config", row, key="")
    assert found["ok"], found
    assert found["seen"] == json.loads(row)
    assert identity.decode_config(json.dumps(found["seen"]).encode()) == identity.decode_config(row)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [("services", {"cluster": "c3"}), ("services", {"key": "demo/other"}), ("services", {"number": 3}),
     ("serviceexports", {"cluster": "c3"}), ("serviceexports", {"key": "demo/other"}),
     ("endpointslices", {"cluster": "c3"}), ("endpointslices", {"key": "demo/other"}),
     ("endpointslices", {"number": 3}),
    ],
)  # fmt: skip
def test_it_refuses_records_of_another_cluster_as_we_do(kind: str, fields: dict[str, Any]) -> None:
    [(part, in_slice)] = slices.encode(DERIVED, cluster=C2, cluster_id=2, endpoints=wide()[:1])
    of = {"services": (service(), DERIVED), "serviceexports": (exports.encode(export()), NAME)}
    value, key = of.get(kind, (in_slice, part))
    assert not read(kind, value, **{"key": key} | fields)["ok"]


def front() -> bytes:
    number = numbers(2, 255)[0]
    return identities.encode(Identity(cluster=C2, number=number, namespace="demo", service_account="front"))


@pytest.mark.parametrize("number", [numbers(2, 255)[0], numbers(2, 255)[-1]])
def test_it_reads_our_identities_and_would_write_them_as_we_do(number: int) -> None:
    found = read("identities", front(), key=str(number))
    assert found["ok"], found
    assert found["seen"]["key"] == front().decode()
    assert found["seen"]["labels"] == {
        "k8s:io.cilium.k8s.policy.cluster": "c2",
        "k8s:io.cilium.k8s.policy.serviceaccount": "front",
        "k8s:io.kubernetes.pod.namespace": "demo",
    }
    assert identities.decode(found["seen"]["key"].encode(), cluster=C2, cluster_id=2, number=str(number), most=255)


@pytest.mark.parametrize("fields", [{"cluster": "c3"}, {"number": 3}, {"key": "65792"}, {"key": "x"}])
def test_it_refuses_identities_of_another_cluster_as_we_do(fields: dict[str, Any]) -> None:
    assert not read("identities", front(), **{"key": str(numbers(2, 255)[0])} | fields)["ok"]


def address(at: str, number: int) -> bytes:
    return addresses.encode(at, number, namespace="demo", pod="front-0", service_account="front")


@pytest.mark.parametrize("at", ["10.2.1.7", "fd00:2::7"])
def test_its_watcher_of_addresses_takes_ours_for_the_number_and_no_tunnel(at: str) -> None:
    number = numbers(2, 255)[0]
    found = read("ip", address(at, number), key=at)
    assert found["ok"], found
    assert found["seen"]["entry"] == {"Address": at, "HostIP": "", "Number": number, "Pod": "demo/front-0"}
    assert found["seen"]["record"].encode() == address(at, number), "it would write it as we do"


@pytest.mark.parametrize("fields", [{"number": 3}, {"key": "10.2.1.8"}, {"key": "10.2.1.7/32"}])
def test_its_watcher_of_addresses_refuses_those_of_another_cluster_as_we_do(fields: dict[str, Any]) -> None:
    assert not read("ip", address("10.2.1.7", numbers(2, 255)[0]), **{"key": "10.2.1.7"} | fields)["ok"]
