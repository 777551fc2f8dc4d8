"""Wire objects into rows: what is normalised, what becomes of unknown words, what is refused and with which message."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any, TypeVar

import msgspec
import pytest

from isthmus.bounds import OutOfBounds
from isthmus.kube.objects import core, discovery, mcs
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import (
    Condition,
    Endpoint,
    EndpointSet,
    ExportMark,
    Import,
    Namespace,
    Node,
    Pod,
    Port,
    Service,
)
from isthmus.sources import machines, multicluster, services, slices
from isthmus.sources.sink import Malformed

T = TypeVar("T")

C1 = ClusterName("c1")


def wire(struct: type[T], name: str = "echo", **fields: Any) -> T:
    """An object as the server would send it; a ``metadata`` adds to name and namespace."""
    meta = {"name": name, "namespace": "demo", **fields.pop("metadata", {})}
    return msgspec.json.decode(msgspec.json.encode({"metadata": meta, **fields}), type=struct)


def service(name: str = "echo", **fields: Any) -> Service:
    return services.service(wire(core.Service, name, **fields))


def endpoint_set(*, remote: bool = False, **fields: Any) -> EndpointSet | None:
    labels = {"kubernetes.io/service-name": "echo", **fields.pop("labels", {})}
    found = wire(discovery.EndpointSlice, "echo-x1", metadata={"labels": labels}, **fields)
    return slices.endpoint_set(C1, remote=remote)(found)


# services


def test_a_service_is_read_whole() -> None:
    row = service(
        metadata={
            "uid": "u1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"b": "2", "a": "1"},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
                "service.cilium.io/global": "true",
            },
        },
        spec={
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.9",
            "clusterIPs": ["10.96.0.9", "FD00:0:0::9"],
            "externalIPs": ["203.0.113.2", "203.0.113.1"],
            "ipFamilies": ["IPv4", "IPv6"],
            "selector": {"app": "echo"},
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "internalTrafficPolicy": "Local",
            "externalTrafficPolicy": "Local",
            "trafficDistribution": "PreferClose",
            "publishNotReadyAddresses": True,
            "ports": [{"name": "http", "port": 80, "targetPort": "web", "nodePort": 30080, "appProtocol": "http"}],
        },
        status={"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}, {"ip": "198.51.100.8", "ipMode": "Proxy"}]}},
    )
    assert row == Service(
        name=ServiceName("demo/echo"),
        source="kubernetes",
        type="LoadBalancer",
        ports=(Port("http", 80, "TCP", "http", 30080),),
        cluster_ips=("10.96.0.9", "fd00::9"),
        external_ips=("203.0.113.1", "203.0.113.2"),
        load_balancer_ips=("198.51.100.7",),
        families=("IPv4", "IPv6"),
        selector=(("app", "echo"),),
        affinity="ClientIP",
        affinity_timeout=60,
        internal_policy="Local",
        external_policy="Local",
        distribution="PreferClose",
        publish_not_ready=True,
        labels=(("a", "1"), ("b", "2")),
        annotations=(("service.cilium.io/global", "true"),),
        created="2026-01-01T00:00:00Z",
        uid="u1",
    )


def test_a_service_of_bare_nulls_has_the_defaults() -> None:
    spec = dict.fromkeys(("ports", "clusterIPs", "selector", "sessionAffinityConfig", "ipFamilies"))
    assert service(spec=spec) == Service(name=ServiceName("demo/echo"), source="kubernetes")


def test_a_headless_service_has_no_address() -> None:
    row = service(spec={"clusterIP": "None", "clusterIPs": ["None"]})
    assert row.headless
    assert row.cluster_ips == ()


def test_families_follow_from_addresses_where_nobody_says_them() -> None:
    assert service(spec={"clusterIP": "10.96.0.9"}).families == ("IPv4",)
    assert service(spec={"clusterIPs": ["fd00::9", "10.96.0.9"]}).families == ("IPv6", "IPv4")


def test_an_unknown_word_costs_its_field_only() -> None:
    row = service(
        spec={
            "sessionAffinity": "Cookie",
            "internalTrafficPolicy": "Galaxy",
            "ipFamilies": ["IPv4", "IPv7"],
            "ports": [{"port": 80, "protocol": "QUIC"}, {"port": 81}],
        }
    )
    assert (row.affinity, row.internal_policy, row.families) == ("None", "Cluster", ("IPv4",))
    assert row.ports == (Port("", 81),)


def test_a_service_that_an_import_owns_stands_for_it() -> None:
    owner = {"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport", "name": "echo", "uid": "u"}
    assert service("derived-x", metadata={"ownerReferences": [owner]}).import_of == "demo/echo"
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "echo", "uid": "u"}
    assert service("x", metadata={"ownerReferences": [other]}).import_of == ""


def test_a_label_makes_a_derived_service_only_where_the_hash_agrees() -> None:
    label = {"labels": {"multicluster.kubernetes.io/service-name": "my-svc"}}
    assert service("derived-b8s174v3sn", metadata={"namespace": "default", **label}).import_of == "default/my-svc"
    assert service("derived-0000000000", metadata={"namespace": "default", **label}).import_of == ""


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"clusterIPs": ["10.96.0.900"]}, "spec.clusterIPs: '10.96.0.900' is not an IP address"),
        (
            {"externalIPs": ["fe80::1%eth0x/64"]},
            "spec.externalIPs: 'fe80::1%eth0x/64' is not an IP address without a zone",
        ),
        ({"ports": [{"port": 70000}]}, "spec.ports: 70000 is not a port, 1 to 65535"),
        ({"ports": [{"port": 0}]}, "spec.ports: 0 is not a port, 1 to 65535"),
    ],
)
def test_a_service_that_cannot_be_says_which_field(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(OutOfBounds) as caught:
        service(spec=spec)
    assert str(caught.value) == message


# slices


def test_a_slice_is_read_whole() -> None:
    row = endpoint_set(
        addressType="IPv4",
        ports=[{"name": "https", "port": 8443}, {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "all"}],
        endpoints=[
            {"addresses": ["10.1.1.9", "10.1.1.10"]},
            {
                "addresses": ["10.1.1.5"],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "hostname": "echo-0",
                "nodeName": "n1",
                "zone": "z1",
                "hints": {"forZones": [{"name": "z2"}, {"name": "z1"}]},
                "targetRef": {"kind": "Pod", "name": "echo-abc"},
            },
            {"addresses": ["10.1.1.9"], "conditions": {"ready": False}},
        ],
    )
    ports = (Port("dns", 53, "UDP"), Port("https", 8443))
    assert row == EndpointSet(
        service=ServiceName("demo/echo"),
        cluster=C1,
        source="kubernetes",
        part="echo-x1",
        endpoints=(
            Endpoint("10.1.1.5", ports, Condition.READY, "echo-0", "n1", "z1", ("z1", "z2"), "demo/echo-abc"),
            Endpoint("10.1.1.9", ports),
        ),
    )


@pytest.mark.parametrize(
    ("conditions", "means"),
    [
        (None, Condition.READY),
        ({}, Condition.READY),
        ({"ready": None}, Condition.READY),
        ({"ready": True}, Condition.READY),
        ({"ready": True, "serving": True, "terminating": True}, Condition.READY),
        ({"ready": False, "serving": True, "terminating": True}, Condition.TERMINATING),
        ({"ready": False, "serving": False, "terminating": True}, Condition.GONE),
        ({"ready": False, "terminating": True}, Condition.GONE),
        ({"ready": False, "serving": False, "terminating": False}, Condition.NOT_READY),
        ({"ready": False}, Condition.NOT_READY),
    ],
)
def test_conditions_mean_what_kube_proxy_takes_them_for(conditions: Any, means: Condition) -> None:
    row = endpoint_set(endpoints=[{"addresses": ["10.1.1.5"], "conditions": conditions}])
    assert row is not None
    assert row.endpoints[0].condition is means


def test_the_order_in_a_slice_does_not_matter() -> None:
    one, two = {"addresses": ["10.1.1.5"]}, {"addresses": ["10.1.1.6"]}
    http, dns = {"name": "http", "port": 80}, {"name": "dns", "port": 53}
    assert endpoint_set(endpoints=[one, two], ports=[http, dns]) == endpoint_set(
        endpoints=[two, one], ports=[dns, http]
    )


@pytest.mark.parametrize("order", [1, -1])
def test_an_address_that_is_twice_in_a_slice_has_its_best_condition_in_either_order(order: int) -> None:
    """kubernetes#135266: a pod that ended and its successor have one address for a while."""
    gone = {"addresses": ["10.1.1.5"], "conditions": {"ready": False, "terminating": True}, "nodeName": "n1"}
    ready = {"addresses": ["10.1.1.5"], "conditions": {"ready": True}, "nodeName": "n2"}
    row = endpoint_set(endpoints=[gone, ready][::order])
    assert row is not None
    assert [(each.condition, each.node) for each in row.endpoints] == [(Condition.READY, "n2")]


def test_ipv6_addresses_are_written_in_one_way() -> None:
    row = endpoint_set(addressType="IPv6", endpoints=[{"addresses": ["2001:DB8:0:0::1"]}])
    assert row is not None
    assert row.endpoints[0].address == "2001:db8::1"


def test_ports_of_slices_that_are_gone_take_no_memory() -> None:
    """A tenant may rewrite a slice as often as it likes, each time with other ports."""

    def take(number: int) -> None:
        endpoint_set(ports=[{"name": f"p{n}", "port": 1 + n} for n in range(401) if n != number])

    take(400)  # the cache of single ports has all of them now
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(400):
            take(number)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 400_000  # 3 KB a tuple


def test_slices_of_names_or_of_no_service_are_no_rows() -> None:
    assert endpoint_set(addressType="FQDN", endpoints=[{"addresses": ["example.org"]}]) is None
    assert endpoint_set(labels={"kubernetes.io/service-name": ""}) is None


def test_slices_of_another_cluster_are_rows_only_where_wanted() -> None:
    of = {"multicluster.kubernetes.io/source-cluster": "c2"}
    assert endpoint_set(labels=of) is None
    row = endpoint_set(labels=of, remote=True)
    assert row is not None
    assert row.cluster == "c2"
    own = endpoint_set(labels={"multicluster.kubernetes.io/source-cluster": "c1"})
    assert own is not None
    assert own.cluster == "c1"


def test_a_slice_that_cannot_be_says_where() -> None:
    with pytest.raises(OutOfBounds, match=r"endpoints\[1\].addresses: 'nowhere' is not an IP address"):
        endpoint_set(endpoints=[{"addresses": ["10.1.1.5"]}, {"addresses": ["nowhere"]}])
    with pytest.raises(Malformed, match=r"endpoints\[0\].addresses: empty"):
        endpoint_set(endpoints=[{"addresses": []}])


# multi-cluster objects


def test_an_export_carries_what_travels_and_not_its_own_labels() -> None:
    found = wire(
        mcs.ServiceExport,
        metadata={"uid": "u", "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"own": "1"}},
        spec={"exportedLabels": {"b": "2", "a": "1"}, "exportedAnnotations": None},
    )
    assert multicluster.export_mark(found) == ExportMark(
        name=ServiceName("demo/echo"),
        created="2026-01-01T00:00:00Z",
        uid="u",
        generation=3,
        labels=(("a", "1"), ("b", "2")),
    )
    assert multicluster.export_mark(wire(mcs.ServiceExport)).labels == ()


def test_an_import_is_read_whole() -> None:
    found = wire(
        mcs.ServiceImport,
        metadata={"uid": "u", "annotations": {"multicluster.kubernetes.io/derived-service": "derived-h"}},
        spec={
            "type": "ClusterSetIP",
            "ips": ["10.96.0.7"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 42}},
            "ipFamilies": ["IPv4"],
            "internalTrafficPolicy": "Local",
            "trafficDistribution": "PreferSameZone",
        },
        status={"clusters": [{"cluster": "c2"}, {"cluster": "c1"}]},
    )
    assert multicluster.service_import(found) == Import(
        name=ServiceName("demo/echo"),
        ports=(Port("http", 80),),
        ips=("10.96.0.7",),
        affinity="ClientIP",
        affinity_timeout=42,
        families=("IPv4",),
        internal_policy="Local",
        distribution="PreferSameZone",
        clusters=(ClusterName("c2"), ClusterName("c1")),
        derived="derived-h",
        annotations=(("multicluster.kubernetes.io/derived-service", "derived-h"),),
        uid="u",
    )


def test_an_import_without_spec_is_an_import_still() -> None:
    assert multicluster.service_import(wire(mcs.ServiceImport)) == Import(name=ServiceName("demo/echo"))


# machines


def test_a_namespace_that_goes_is_terminating() -> None:
    meta = {"namespace": "", "annotations": {"clustermesh.cilium.io/global": "true"}}
    found = wire(core.Namespace, "demo", metadata=meta, status={"phase": "Active"})
    assert machines.namespace(found) == Namespace("demo", (("clustermesh.cilium.io/global", "true"),))
    assert machines.namespace(wire(core.Namespace, "demo", status={"phase": "Terminating"})).terminating


def test_a_node_has_addresses_and_a_place() -> None:
    labels = {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"}
    found = [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "172.30.1.11"}]
    row = machines.node(wire(core.Node, "n1", metadata={"labels": labels}, status={"addresses": found}))
    assert row == Node("n1", ("172.30.1.11",), "z1", "r1")


def test_a_pod_is_ready_when_its_condition_says_so() -> None:
    found = wire(
        core.Pod,
        metadata={"uid": "u"},
        spec={"nodeName": "n1", "containers": [{"ports": [{"name": "http", "containerPort": 8080}]}, {"ports": None}]},
        status={
            "phase": "Running",
            "podIP": "10.1.1.5",
            "podIPs": [{"ip": "10.1.1.5"}, {"ip": "FD00::5"}],
            "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
        },
    )
    assert machines.pod(found) == Pod(
        name="demo/echo",
        uid="u",
        node="n1",
        addresses=("10.1.1.5", "fd00::5"),
        ready=True,
        ports=(Port("http", 8080),),
        phase="Running",
    )


@pytest.mark.parametrize(
    ("fields", "mesh"),
    [
        ({"spec": {"containers": [{"name": "app"}, {"name": "istio-proxy"}]}}, "container istio-proxy"),
        (
            {"spec": {"initContainers": [{"name": "linkerd-proxy"}]}},
            "container linkerd-proxy",
        ),
        ({"spec": {"containers": [{"name": "kuma-sidecar"}]}}, "container kuma-sidecar"),
        (
            {"metadata": {"annotations": {"ambient.istio.io/redirection": "enabled"}}},
            "annotation ambient.istio.io/redirection",
        ),
        ({"spec": {"containers": [{"name": "app"}], "initContainers": [{"name": "istio-init"}]}}, ""),
    ],
)
def test_a_pod_shows_the_mesh_that_redirects_its_calls(fields: dict[str, Any], mesh: str) -> None:
    assert machines.pod(wire(core.Pod, **fields)).mesh == mesh


@pytest.mark.parametrize("place", ["annotations", "labels"])
def test_pods_and_namespaces_choose_by_annotation_or_label(place: str) -> None:
    for choice, expected in (("ignore", "ignore"), ("translate", "translate"), ("Ignore!", "")):
        meta = {place: {"isthmus.io/datapath": choice}}
        assert machines.pod(wire(core.Pod, metadata=meta)).datapath == expected
        assert machines.namespace(wire(core.Namespace, "demo", metadata=meta)).datapath == expected


def test_a_pod_without_address_has_none() -> None:
    assert machines.pod(wire(core.Pod, status={"phase": "Pending"})).addresses == ()


@pytest.mark.parametrize(
    ("written", "account"),
    [("front", "front"), ("team.front-1", "team.front-1"), (None, ""), ("../kube-system", ""), ("a" * 254, "")],
)
def test_a_pod_has_the_account_that_it_runs_as(written: str | None, account: str) -> None:
    assert machines.pod(wire(core.Pod, spec={"serviceAccountName": written})).service_account == account
