"""Records byte by byte: the shapes of ClusterMesh, read and written."""

from __future__ import annotations

import base64
import gc
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.records import decoding, endpoints, exports, identity, keys
from isthmus.clusterset.records.signing import Next, Signing
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Export, Port

C1, C3 = ClusterName("cluster1"), ClusterName("cluster3")
BASIC, ECHO = ServiceName("default/basic"), ServiceName("ns-alpha/echo-service")

EXPORT = (
    b'{"cluster":"cluster1","name":"basic","namespace":"default","annotations":{"a":"1"},"labels":{"l":"2"},'
    b'"Labels":{"l":"2"},"Annotations":{"a":"1"},'
    b'"exportCreationTimestamp":"2026-01-01T00:00:00Z","ports":[{"name":"my-port-1","protocol":"TCP","port":80}],'
    b'"type":"ClusterSetIP","sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":42}},'
    b'"ipFamilies":["IPv4"],"internalTrafficPolicy":"Local","trafficDistribution":"PreferClose"}'
)
EXPORTED = Export(
    cluster=C1,
    name=BASIC,
    created="2026-01-01T00:00:00Z",
    ports=(Port("my-port-1", 80),),
    affinity="ClientIP",
    affinity_timeout=42,
    families=("IPv4",),
    internal_policy="Local",
    distribution="PreferClose",
    labels=(("l", "2"),),
    annotations=(("a", "1"),),
)
SERVICE = (
    b'{"cluster":"cluster3","namespace":"ns-alpha","name":"echo-service",'
    b'"frontends":{"10.96.0.10":{"http":{"Protocol":"TCP","Port":80}}},'
    b'"backends":{"10.244.1.10":{"http":{"Protocol":"TCP","Port":8080}}},'
    b'"labels":{},"selector":{"app":"echo"},"includeExternal":true,"shared":true,"clusterID":3}'
)
SERVED = EndpointSet(
    service=ECHO,
    cluster=C3,
    source="clusterset",
    part="record",
    endpoints=(Endpoint("10.244.1.10", (Port("http", 8080),)),),
    service_ports=(Port("http", 80),),
)


def changed(value: bytes, **fields: Any) -> bytes:
    """The record with other fields; None takes one away."""
    record = json.loads(value) | fields
    return json.dumps({key: field for key, field in record.items() if field is not None}).encode()


def read_export(**fields: Any) -> Export:
    return exports.decode(changed(EXPORT, **fields), cluster=C1, name=BASIC)


def read_service(**fields: Any) -> EndpointSet | None:
    return endpoints.decode(changed(SERVICE, **fields), cluster=C3, cluster_id=3, name=ECHO)


def test_the_export_record_is_written_to_the_byte() -> None:
    assert exports.encode(EXPORTED) == EXPORT


def test_the_export_record_is_read() -> None:
    assert exports.decode(EXPORT, cluster=C1, name=BASIC) == EXPORTED


def test_what_an_export_does_not_have_is_not_written() -> None:
    record = json.loads(exports.encode(Export(cluster=C1, name=BASIC, created="2026-01-01T00:00:00Z")))
    assert record == {
        "cluster": "cluster1",
        "name": "basic",
        "namespace": "default",
        "exportCreationTimestamp": "2026-01-01T00:00:00Z",
        "ports": [],
        "type": "ClusterSetIP",
        "sessionAffinity": "None",
    }


def test_the_spelling_of_older_writers_is_read() -> None:
    old = read_export(labels=None, annotations=None)
    assert (old.labels, old.annotations) == (EXPORTED.labels, EXPORTED.annotations)


def test_ports_that_are_null_are_none() -> None:
    assert read_export(ports=None).ports == ()
    assert exports.decode(EXPORT.replace(b'[{"name"', b'null,"x":[{"name"'), cluster=C1, name=BASIC).ports == ()


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"type": "Mesh"}, "type", "ClusterSetIP"),
        ({"ports": [{"name": "\x1b[31m", "port": 80}, {"name": "a", "port": 81}]}, "ports", (Port("a", 81),)),
        ({"ports": [{"name": "Http", "port": 80}, {"name": "a" * 64, "port": 81}]}, "ports", ()),
        ({"ports": [{"port": 80, "appProtocol": "a b"}]}, "ports", (Port("", 80),)),
        ({"sessionAffinity": ""}, "affinity", "None"),
        ({"sessionAffinity": "Cookie"}, "affinity", "None"),
        ({"internalTrafficPolicy": "Zone"}, "internal_policy", None),
        ({"trafficDistribution": "PreferMoon"}, "distribution", None),
        ({"ipFamilies": ["IPv6", "IPv9"]}, "families", ("IPv6",)),
        ({"ports": [{"port": 1, "protocol": "QUIC"}, {"port": 2, "protocol": "UDP"}]}, "ports", (Port("", 2, "UDP"),)),
        ({"ports": [{"port": 0}, {"port": 65536}, {"port": 7}]}, "ports", (Port("", 7),)),
        ({"sessionAffinityConfig": {"clientIP": None}}, "affinity_timeout", None),
        ({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": -1}}}, "affinity_timeout", None),
        ({"new": {"deep": [1, 2]}}, "type", "ClusterSetIP"),
        ({"exportCreationTimestamp": "2026-01-01T01:00:00.9+01:00"}, "created", "2026-01-01T00:00:00Z"),
    ],
)
def test_an_unknown_value_costs_the_field_and_not_the_export(fields: dict[str, Any], field: str, value: Any) -> None:
    export = read_export(**fields)
    assert getattr(export, field) == value
    assert export.name == BASIC


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"cluster": "cluster2"}, "speaks for cluster 'cluster2'"),
        ({"name": "other"}, "speaks for default/other"),
        ({"namespace": ""}, "speaks for /basic"),
        ({"exportCreationTimestamp": "0001-01-01T00:00:00Z"}, "from 1970 until 2200"),
        ({"exportCreationTimestamp": "yesterday"}, "not a time"),
        ({"exportCreationTimestamp": None}, "exportCreationTimestamp"),
        ({"labels": ["a"]}, "labels"),
        ({"annotations": {"a": "x" * 300_000}}, "at most"),
    ],
)
def test_an_unusable_export_is_refused_with_the_reason(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(RecordError, match=why):
        read_export(**fields)


def test_the_service_record_is_written_to_the_byte() -> None:
    written = endpoints.encode(
        ECHO,
        cluster=C3,
        cluster_id=3,
        endpoints=SERVED.endpoints,
        frontends={"10.96.0.10": (Port("http", 80),)},
        selector=(("app", "echo"),),
    )
    assert written == SERVICE


def test_the_service_record_is_read() -> None:
    assert read_service() == SERVED


def test_hostnames_and_zones_are_read() -> None:
    row = read_service(
        hostnames={"10.244.1.10": "web-0"}, zones={"10.244.1.10": {"zone": "a", "forZones": [{"name": "b"}]}}
    )
    assert row is not None
    assert (row.endpoints[0].hostname, row.endpoints[0].zone, row.endpoints[0].for_zones) == ("web-0", "a", ("b",))


def test_addresses_are_canonical_and_sorted() -> None:
    row = read_service(backends={"fd00:0::2": {}, "::ffff:10.0.0.1": {}, "10.0.0.2": {}})
    assert row is not None
    assert [endpoint.address for endpoint in row.endpoints] == ["10.0.0.1", "10.0.0.2", "fd00::2"]


def test_a_record_that_is_not_shared_is_none() -> None:
    assert read_service(shared=False) is None


def test_a_record_for_claimed_services_alone_is_one_that_is_not_shared() -> None:
    assert read_service(shared=False, claimed=True) == structs.replace(SERVED, shared=False)
    given: dict[str, Any] = {"cluster": C3, "cluster_id": 3, "endpoints": SERVED.endpoints, "frontends": {}}
    written = json.loads(endpoints.encode(ECHO, **given, shared=False))
    assert (written["shared"], written["claimed"]) == (False, True)
    assert "claimed" not in json.loads(endpoints.encode(ECHO, **given))


def test_a_record_without_backends_is_one() -> None:
    assert read_service(backends=None) == structs.replace(SERVED, endpoints=())


def test_frontends_that_cannot_be_read_cost_nothing_else() -> None:
    frontends = {"10.96.0.10": {"http": {"Protocol": "QUIC", "Port": 80}}}
    assert read_service(frontends=frontends) == read_service(frontends=7) == structs.replace(SERVED, service_ports=())


def test_the_order_of_an_endpoints_ports_is_that_of_their_fields_whatever_they_are() -> None:
    """Names of slices are hashes of it: every process must come to the same."""
    numbers = {f"p{n}": {"Protocol": "TCP", "Port": 80} for n in range(12)}
    more = {name: [{"Protocol": "UDP", "Port": 80}, {"Protocol": "SCTP", "Port": 80}] for name in numbers}
    record = changed(SERVICE, backends={"10.1.1.1": numbers}, morePorts={"10.1.1.1": more})
    found = endpoints.decode(record, cluster=C3, cluster_id=3, name=ECHO)
    assert found is not None
    ports = [(port.name, port.port, port.protocol) for port in found.endpoints[0].ports]
    assert len(ports) == 36
    assert ports == sorted(ports)


@pytest.mark.parametrize("field", ["backends", "frontends"])
def test_ports_of_records_that_are_gone_take_no_memory(field: str) -> None:
    """A peer may rewrite a record as often as it likes, each time with other ports."""

    def take(number: int, ports: int) -> None:
        named = {f"p{number}-{n}": {"Protocol": "TCP", "Port": 1 + n} for n in range(ports)}
        endpoints.decode(changed(SERVICE, **{field: {"10.1.1.1": named}}), cluster=C3, cluster_id=3, name=ECHO)

    take(0, 200)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1, 41):
            take(number, 200)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 500_000  # a twentieth of what was read


def test_a_port_name_with_more_numbers_than_peers_take_is_written_with_those_that_they_take() -> None:
    ports = tuple(Port("http", 8000 + number) for number in range(20))
    given: dict[str, Any] = {"cluster": C3, "cluster_id": 3, "frontends": {}}
    raw = endpoints.encode(ECHO, endpoints=[Endpoint("10.1.1.1", ports)], **given)
    row = endpoints.decode(raw, cluster=C3, cluster_id=3, name=ECHO)
    assert row is not None
    assert row.endpoints[0].ports == ports[: 1 + endpoints.MAX_MORE_PORTS]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"backends": {"fe80::1%eth0": {}}}, "without a zone"),
        ({"backends": {"10.1.1.300": {}, "10.1.1.1": {}}}, "not an IP address"),
        ({"backends": {"127.0.0.1": {}}}, "cannot be an endpoint's"),
        ({"backends": {"169.254.7.1": {}}}, "cannot be an endpoint's"),
        ({"backends": {"0.0.0.0": {}}}, "cannot be an endpoint's"),
        ({"backends": {"::ffff:127.0.0.1": {}}}, "cannot be an endpoint's"),
        ({"backends": {"10.1.1.1": {"http": {"Protocol": "TCP", "Port": 0}}}}, "is not a port"),
        ({"backends": {"10.1.1.1": {"http": {"Protocol": "QUIC", "Port": 1}}}}, "is not a protocol"),
        ({"backends": {"10.1.1.1": {"http": {"protocol": "TCP", "port": 1}}}}, "Port"),
        ({"morePorts": {"10.244.1.10": {"http": [{"Protocol": "TCP", "Port": 0}]}}}, "is not a port"),
        ({"morePorts": {"10.244.1.10": {"http": [{"Port": 80}] * 9}}}, "length"),
        ({"clusterID": 4}, "its clusterID is 4"),
        ({"cluster": "cluster1"}, "speaks for cluster"),
    ],
)
def test_an_unusable_service_record_is_refused_with_the_reason(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(RecordError, match=why):
        read_service(**fields)


def test_the_cluster_configuration_is_read_and_written() -> None:
    raw = (
        b'{"id":5,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255,'
        b'"serviceExportsEnabled":false,"endpointSlicesExportMode":"endpoints-only"}}'
    )
    config = identity.decode_config(raw)
    assert config.capabilities.service_exports_enabled is False
    assert identity.encode(config) == raw


def test_an_old_configuration_has_only_an_id() -> None:
    config = identity.decode_config(b'{"id":7}')
    assert (config.id, config.capabilities) == (7, identity.Capabilities())
    assert identity.decode_config(b'{"id":7,"capabilities":{"quantum":{"a":[1]}},"x":1}') == config


def test_keys_are_where_clustermesh_has_them() -> None:
    assert keys.record("serviceexports", C1, BASIC) == "cilium/state/serviceexports/v1/cluster1/default/basic"
    assert keys.prefix("services", C3, cached=True) == "cilium/cache/services/v1/cluster3/"
    assert keys.canary("services", C3) == "cilium/synced/cluster3/cilium/state/services/v1"
    assert keys.config(C3) == "cilium/cluster-config/cluster3"


names = st.from_regex(r"[a-z]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
ports = st.builds(Port, st.sampled_from(["", "http", "grpc"]), st.integers(1, 65535), st.sampled_from(["TCP", "UDP"]))
unique_ports = st.lists(ports, unique_by=lambda port: (port.name, port.port), max_size=9).map(
    lambda each: tuple(sorted(each, key=lambda p: (p.name, p.port)))
)
addresses = st.ip_addresses(v=4, network="10.0.0.0/8").map(str) | st.ip_addresses(v=6, network="fd00::/8").map(str)
labels = st.dictionaries(names, names).map(lambda each: tuple(sorted(each.items())))


@given(st.lists(st.builds(Endpoint, addresses, unique_ports), unique_by=lambda endpoint: endpoint.address))
def test_every_service_record_reads_as_it_was_written(given_endpoints: list[Endpoint]) -> None:
    raw = endpoints.encode(ECHO, cluster=C3, cluster_id=3, endpoints=given_endpoints, frontends={})
    row = endpoints.decode(raw, cluster=C3, cluster_id=3, name=ECHO)
    assert row is not None
    assert row.endpoints == tuple(sorted(given_endpoints, key=lambda endpoint: endpoint.address))


@given(
    st.builds(
        Export,
        cluster=st.just(C1),
        name=st.just(BASIC),
        created=st.just("2026-01-01T00:00:00Z"),
        type=st.sampled_from(["ClusterSetIP", "Headless"]),
        ports=st.lists(ports).map(tuple),
        affinity=st.sampled_from(["None", "ClientIP"]),
        affinity_timeout=st.none() | st.integers(1, 86_400),
        families=st.sampled_from([(), ("IPv4",), ("IPv6", "IPv4")]),
        internal_policy=st.sampled_from([None, "Cluster", "Local"]),
        distribution=st.sampled_from([None, "PreferClose"]),
        labels=labels,
        annotations=labels,
    )
)
def test_every_export_reads_as_it_was_written(export: Export) -> None:
    assert exports.decode(exports.encode(export), cluster=C1, name=BASIC) == export


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_raise_a_record_error(raw: bytes) -> None:
    for read in (
        lambda: exports.decode(raw, cluster=C1, name=BASIC),
        lambda: endpoints.decode(raw, cluster=C3, cluster_id=3, name=ECHO),
        lambda: identity.decode_config(raw),
    ):
        try:
            read()
        except RecordError:
            pass


@pytest.mark.parametrize(
    ("gateway", "taken"),
    [
        ("10.0.0.1:15443", True), ("gw.c2.example:15443", True), ("[fd00::1]:15443", True), ("gw:1", True),
        ("127.0.0.1:80", True), ("0.0.0.0:80", True), ("[fe80::1%eth0]:80", False), ("fd00::1:80", False),
        ("10.0.0.1", False), ("10.0.0.1:0", False), ("10.0.0.1:65536", False), ("10.0.0:80", False), ("a b:80", False),
        (":80", False), ("x" * 254 + ":80", False), ("gw:٣", False),
    ],
)  # fmt: skip
def test_a_gateway_is_a_name_or_an_address_and_a_port(gateway: str, taken: bool) -> None:
    decoded = identity.decode_description(
        json.dumps({"gateways": [gateway, "good:1"], "new": {}}).encode(), now=decoding.wall_clock()
    )
    assert decoded.gateways == ((gateway, "good:1") if taken else ("good:1",))


PUBLIC_KEY = base64.b64encode(bytes(range(32))).decode()
NEXT_KEY = base64.b64encode(bytes(range(1, 33))).decode()
NEXT = {"key": NEXT_KEY, "day": 20_787}


@pytest.mark.parametrize(
    ("signing", "read"),
    [
        ({"key": PUBLIC_KEY, "verifies": True, "new": 1}, Signing(PUBLIC_KEY, True)),
        ({"key": PUBLIC_KEY}, Signing(PUBLIC_KEY)),
        ({"verifies": True}, Signing("", True)),
        ({"key": PUBLIC_KEY[:-4], "verifies": True}, Signing("", True)),
        ({"key": PUBLIC_KEY + "AAAA"}, Signing()),
        ({"key": base64.b64encode(bytes(31)).decode()}, Signing()),
        ({"key": "é" * 44}, Signing()),
        ({"key": "?" * 44}, Signing()),
        ({"key": base64.b64encode(bytes(32)).decode()}, Signing()),
        ({"key": base64.b64encode((1).to_bytes(32, "little")).decode(), "verifies": True}, Signing("", True)),
        ({"key": 5, "verifies": True}, Signing()),
        ({"key": PUBLIC_KEY, "verifies": "yes"}, Signing()),
        ({"key": PUBLIC_KEY, "next": NEXT | {"new": 1}}, Signing(PUBLIC_KEY, next=Next(NEXT_KEY, 20_787))),
        ({"key": PUBLIC_KEY, "next": NEXT | {"key": "?" * 44}}, Signing(PUBLIC_KEY)),
        ({"key": PUBLIC_KEY, "next": NEXT | {"key": base64.b64encode(bytes(32)).decode()}}, Signing(PUBLIC_KEY)),
        ({"key": PUBLIC_KEY, "next": NEXT | {"day": -1}}, Signing(PUBLIC_KEY)),
        ({"key": PUBLIC_KEY, "next": NEXT | {"day": 10**9}}, Signing(PUBLIC_KEY)),
        ({"key": PUBLIC_KEY, "next": {"key": PUBLIC_KEY}}, Signing(PUBLIC_KEY)),
        ({"key": PUBLIC_KEY, "next": "soon"}, Signing(PUBLIC_KEY)),
        ({"next": NEXT, "verifies": True}, Signing("", True)),
        ("x", Signing()),
        (None, Signing()),
        ([{"key": PUBLIC_KEY}], Signing()),
    ],
)
def test_a_key_of_signatures_that_can_be_none_is_left_out_alone(signing: object, read: Signing) -> None:
    """Too short, too long, no base64, a point of low order, another type: the description keeps its other values."""
    value = json.dumps({"region": "r1", "signing": signing}).encode()
    decoded = identity.decode_description(value, now=decoding.wall_clock())
    assert (decoded.signing, decoded.region) == (read, "r1")
    assert identity.decode_description(identity.encode(decoded), now=decoding.wall_clock()) == decoded


def test_labels_that_cannot_be_any_are_left_out_and_the_others_count() -> None:
    labels = ["class=gold", "a b=c", "bare", "empty=", "x=" + "y" * 64, "example.com/place=eu", "=v"]
    value = json.dumps({"labels": labels + [f"k{n}=v" for n in range(1000)]}).encode()
    decoded = identity.decode_description(value, now=decoding.wall_clock())
    assert decoded.labels[:4] == ("class=gold", "empty=", "example.com/place=eu", "k0=v")
    assert len(decoded.labels) == identity.MOST_LABELS
    assert identity.label_pairs(("b=2", "a=1", "b=3")) == (("a", "1"), ("b", "3"))


def test_a_cluster_has_so_many_gateways_and_no_more() -> None:
    value = json.dumps({"gateways": [f"gw-{n}:443" for n in range(1000)]}).encode()
    assert len(identity.decode_description(value, now=decoding.wall_clock()).gateways) == identity.MOST_GATEWAYS
