"""A value beyond the bounds of its field costs its own object: everything else of an agent and an operator goes on."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

import msgspec
import pytest
from rows.pipeline import Object, Pipeline, Role

from isthmus.clusterset.records.admission import Admission
from isthmus.clusterset.records.forms import ROWS
from isthmus.model import tables
from isthmus.model.chunked import plain
from isthmus.model.names import ClusterName

ROLES: Final[tuple[Role, ...]] = ("agent", "operator")
DIGITS: Final = "9" * 4400
HUGE: Final = 10**4000
DEEP: Final = b'{"a":' * 5000 + b"1" + b"}" * 5000


def obj(api_version: str, kind: str, name: str = "hostile", /, *, namespace: str = "demo", **fields: Any) -> Object:
    """An object as JSON; ``metadata`` adds to its own."""
    metadata = {
        "name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"
    } | fields.pop("metadata", {})  # fmt: skip
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def service(name: str = "hostile", **spec: Any) -> Object:
    status = spec.pop("status", {})
    usual = {"type": "ClusterIP", "clusterIP": "10.96.0.99", "ports": [{"name": "http", "port": 80}]}
    return obj("v1", "Service", name, spec=usual | spec, status=status)


def endpoint_slice(name: str = "hostile", address: str = "10.1.0.99", **fields: Any) -> Object:
    usual: Object = {
        "addressType": "IPv6" if ":" in address else "IPv4",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}, "nodeName": "n1"}],
    }
    labels = {"kubernetes.io/service-name": name}
    return obj("discovery.k8s.io/v1", "EndpointSlice", name, metadata={"labels": labels}, **usual | fields)


def drain(**spec: Any) -> Object:
    return obj(
        "isthmus.io/v1alpha1", "Drain", spec={"targetRef": {"kind": "Service", "name": "web"}, "rampSeconds": 60} | spec
    )


def service_import(**spec: Any) -> Object:
    usual = {"type": "ClusterSetIP", "ports": [{"port": 80}]}
    return obj("multicluster.x-k8s.io/v1beta1", "ServiceImport", spec=usual | spec)


def local_redirect(port: str, **matcher: Any) -> Object:
    ports = [{"port": port, "protocol": "TCP"}]
    frontend = {"addressMatcher": {"ip": "192.0.2.7", "toPorts": ports} | matcher}
    backend = {"localEndpointSelector": {"matchLabels": {"app": "web"}}, "toPorts": [{"port": "80", "protocol": "TCP"}]}
    return obj(
        "cilium.io/v2", "CiliumLocalRedirectPolicy", spec={"redirectFrontend": frontend, "redirectBackend": backend}
    )


def pod(ip: str = "10.1.0.98", **port: Any) -> Object:
    spec = {"nodeName": "n1", "containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 8080} | port]}]}
    return obj("v1", "Pod", spec=spec, status={"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]})


def policy(**spec: Any) -> Object:
    target = {"kind": "Service", "name": "web"}
    return obj("isthmus.io/v1alpha1", "TrafficPolicy", spec={"targetRef": target} | spec)


def global_policy(**spec: Any) -> Object:
    return obj("flomesh.io/v1alpha1", "GlobalTrafficPolicy", spec=spec)


def route(**rule: Any) -> Object:
    backend = {"name": "web", "port": 80}
    return obj(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        spec={
            "parentRefs": [{"group": "", "kind": "Service", "name": "web", "port": 80}],
            "rules": [{"backendRefs": [backend]} | rule],
        },
    )


def matching(expression: str, kind: str = "RegularExpression") -> Object:
    return route(matches=[{"path": {"type": kind, "value": expression}}])


WEB: Final = (
    obj("v1", "Namespace", "demo", metadata={"namespace": ""}),
    obj("v1", "Node", "n1", metadata={"namespace": ""}, status={"addresses": []}),
    service("web", clusterIP="10.96.0.1"),
    endpoint_slice("web", "10.1.0.1"),
    obj("multicluster.x-k8s.io/v1beta1", "ServiceExport", "web"),
)

HOSTILE: Final[dict[str, Object]] = {
    "a drain that begins in the year 9999 and has a deadline": drain(
        startTime="9999-12-31T23:59:59Z", deadlineSeconds=3600
    ),
    "a drain that begins in the year 999": drain(startTime="0999-01-01T00:00:00Z"),
    "a drain that ends in the year 9999": drain(endTime="9999-12-31T23:59:59Z"),
    "a drain that ends before any clock": drain(endTime="0001-01-01T00:00:00+14:00"),
    "a drain with seconds beyond all": drain(rampSeconds=HUGE, deadlineSeconds=HUGE),
    "a drain created in the year 9999": drain(deadlineSeconds=3600)
    | {"metadata": {"name": "hostile", "namespace": "demo", "creationTimestamp": "9999-12-31T23:59:59Z"}},
    "a drain created at no time": drain(deadlineSeconds=3600)
    | {"metadata": {"name": "hostile", "namespace": "demo", "creationTimestamp": "yesterday"}},
    "an import at an address with a zone": service_import(ips=["fe80::1%eth0"]),
    "an import at a mapped address with a zone": service_import(ips=["::ffff:10.0.0.1%1"]),
    "an import with a huge port": service_import(ports=[{"port": HUGE}]),
    "an import with a huge timeout": service_import(
        sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"timeoutSeconds": HUGE}}
    ),
    "a local redirect of a port with 4,400 digits": local_redirect(DIGITS),
    "a local redirect of port ²": local_redirect("²"),
    "a local redirect of port ٣": local_redirect("٣"),
    "a local redirect at an address with a zone": local_redirect("80", ip="fe80::1%eth0"),
    "a local redirect of a Service with a name of a megabyte": local_redirect("80")
    | {
        "spec": {
            "redirectFrontend": {"serviceMatcher": {"serviceName": "s" * 1_000_000, "namespace": "demo"}},
            "redirectBackend": {"localEndpointSelector": {}, "toPorts": [{"port": "80"}]},
        }
    },
    "an export with annotations of a megabyte": obj(
        "multicluster.x-k8s.io/v1beta1", "ServiceExport", spec={"exportedAnnotations": {"a": "b" * 1_000_000}}
    ),
    "a policy of a Service with a name of a megabyte": obj(
        "isthmus.io/v1alpha1", "TrafficPolicy", spec={"targetRef": {"name": "s" * 1_000_000}}
    ),
    "a drain of a Service with a name of a megabyte": drain(targetRef={"kind": "Service", "name": "s" * 1_000_000}),
    "a Service at an address with a zone": service(clusterIP="fe80::1%eth0", clusterIPs=["fe80::1%eth0"]),
    "an external IP with a zone": service(externalIPs=["fe80::1%eth0"]),
    "a load balancer's address with a zone": service(status={"loadBalancer": {"ingress": [{"ip": "fe80::1%eth0"}]}}),
    "a Service with a huge port": service(ports=[{"port": HUGE}]),
    "a Service with a negative port": service(ports=[{"port": -1}]),
    "a Service with a huge node port": service(type="NodePort", ports=[{"port": 80, "nodePort": HUGE}]),
    "a Service with a node port of 17 bits": service(type="NodePort", ports=[{"port": 80, "nodePort": 70_000}]),
    "a Service with a huge timeout": service(
        sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"timeoutSeconds": HUGE}}
    ),
    "a slice with an address with a zone": endpoint_slice(address="fe80::1%eth0"),
    "a slice with a huge port": endpoint_slice(ports=[{"port": HUGE}]),
    "a slice with a port of 17 bits": endpoint_slice(ports=[{"port": 70_000}]),
    "a pod at an address with a zone": pod("fe80::1%eth0"),
    "a host port beyond all": pod(hostPort=HUGE),
    "a host port at an address with a zone": pod(hostIP="fe80::1%eth0"),
    "a container port beyond all": pod(containerPort=HUGE),
    "a policy with a huge weight": policy(tiers=[{"clusters": [{"name": "c2", "weight": HUGE}]}]),
    "a policy that wants a huge number": policy(tiers=[{"clusters": [{"name": "c2"}], "minHealthy": HUGE}]),
    "a policy that wants a percentage of 4,400 digits": policy(
        tiers=[{"clusters": [{"name": "c2"}], "minHealthy": DIGITS + "%"}]
    ),
    "a policy with a huge timeout": policy(sessionAffinityTimeoutSeconds=HUGE),
    "a policy that ejects for ever": policy(ejection={"consecutiveFailures": HUGE, "baseSeconds": HUGE}),
    "a policy that probes a huge port": policy(healthCheck={"port": HUGE, "intervalSeconds": HUGE}),
    "a global policy with a huge weight": global_policy(
        lbType="ActiveActive", targets=[{"clusterKey": "default/default/default/c2", "weight": HUGE}]
    ),
    "a route with a weight beyond all": route(backendRefs=[{"name": "web", "port": 80, "weight": HUGE}]),
    "a route to a huge port": route(backendRefs=[{"name": "web", "port": HUGE}]),
    "a route with a timeout of 4,400 digits": route(timeouts={"request": DIGITS + "s"}),
    "a route with a timeout in other digits": route(timeouts={"request": "٣s"}),
    "a route that answers from a huge port": route(
        filters=[{"type": "RequestRedirect", "requestRedirect": {"port": HUGE, "statusCode": HUGE}}]
    ),
    "a route whose expression backtracks for ever": matching("/(a|a)*(a|a)*(a|a)*(a|a)*(a|a)*c"),
    "a route whose expression repeats without bound": matching("/(a{1000}){1000}"),
    "a route whose expression has a bound of 4,000 digits": matching("/a{" + "9" * 1000 + "}"),
    "a route whose expression is nested too deep": matching("/" + "(" * 500 + ")" * 500),
}


def healthy(pipeline: Pipeline, role: Role) -> None:
    """What has nothing to do with the hostile object is as it would be without."""
    if role == "agent":
        assert "10.1.0.1" in {each.key.address for each in pipeline.rows(tables.BACKENDS)}
        plans = [row for row in pipeline.rows(tables.PLANS) if row.key.service == "demo/web"]
        assert [target.address for plan in plans for group in plan.groups for target in group.targets]
    else:
        assert "demo/web" in {row.name for row in pipeline.rows(tables.OWN_EXPORTS)}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("what", HOSTILE)
def test_an_object_with_a_value_beyond_its_bounds_costs_no_other_object(role: Role, what: str) -> None:
    pipeline = Pipeline(role).listed(*(each for each in WEB if role == "operator" or each["kind"] != "ServiceExport"))
    pipeline.settle()
    healthy(pipeline, role)
    pipeline.apply(HOSTILE[what]).settle()
    healthy(pipeline, role)
    pipeline.apply(service("web2", clusterIP="10.96.0.2"), endpoint_slice("web2", "10.1.0.2")).settle()
    assert {"demo/web", "demo/web2"} <= {row.name for row in pipeline.rows(tables.SERVICES)}
    healthy(pipeline, role)
    kept = [row for table in pipeline.db.tables.values() for row in pipeline.rows(table)]
    assert max(len(msgspec.json.encode(row, enc_hook=plain)) for row in kept) < 100_000


DESCRIPTIONS: Final[dict[str, Object]] = {
    "a drain of the year 999": {"drains": [{"kind": "Cluster", "target": "c2", "started": "0999-01-01T00:00:00Z"}]},
    "a drain of the year 9999": {
        "drains": [{"kind": "Cluster", "target": "c2", "started": "9999-12-31T23:59:59Z", "ramp": 60, "deadline": 3600}]
    },
    "a drain that ends in the year 999": {"drains": [{"kind": "Node", "target": "n", "ends": "0999-01-01T00:00:00Z"}]},
    "a drain with seconds beyond all": {
        "drains": [{"kind": "Cluster", "target": "c2", "ramp": HUGE, "deadline": HUGE}]
    },
    "a mirror that was away in the year 999": {"away": "0999-01-01T00:00:00Z", "silent": "9999-12-31T23:59:59Z"},
    "a gateway at a port of 4,400 digits": {"network": "n2", "gateways": ["192.0.2.1:" + DIGITS]},
    "a gateway at port ²": {"network": "n2", "gateways": ["192.0.2.1:²"]},
    "a gateway at an address with a zone": {"network": "n2", "gateways": ["[fe80::1%eth0]:443"]},
    "a network of a megabyte": {"network": "n" * 60_000, "region": "r" * 1000},
    "labels with control characters": {"labels": ["a=\x00", "b=" + "c" * 1000]},
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("what", DESCRIPTIONS)
def test_a_peers_description_with_a_value_beyond_its_bounds_costs_no_other_cluster(role: Role, what: str) -> None:
    pipeline = Pipeline(role).listed(*(each for each in WEB if role == "operator" or each["kind"] != "ServiceExport"))
    pipeline.peer(DESCRIPTIONS[what]).settle()
    healthy(pipeline, role)


EXPORT: Final[Object] = {
    "cluster": "c2",
    "name": "echo",
    "namespace": "demo",
    "exportCreationTimestamp": "2026-01-01T00:00:00Z",
    "ports": [{"name": "http", "port": 80}],
}
SERVICE: Final[Object] = {
    "cluster": "c2",
    "name": "echo",
    "namespace": "demo",
    "clusterID": 2,
    "shared": True,
    "backends": {"10.2.0.1": {"http": {"Port": 80, "Protocol": "TCP"}}},
}

COSTS_ITS_FIELD: Final = ("an export of a huge port", "an export with a huge timeout")
"""Where the rest of the record counts."""

RECORDS: Final[dict[str, tuple[Literal["services", "serviceexports"], Object | bytes]]] = {
    "an export of the year 999": ("serviceexports", EXPORT | {"exportCreationTimestamp": "0999-01-01T00:00:00Z"}),
    "an export of the year 9999": ("serviceexports", EXPORT | {"exportCreationTimestamp": "9999-12-31T23:59:59Z"}),
    "an export of a huge port": ("serviceexports", EXPORT | {"ports": [{"port": HUGE}]}),
    "an export with a huge timeout": (
        "serviceexports",
        EXPORT | {"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": HUGE}}},
    ),
    "an export whose port has a long name": (
        "serviceexports",
        EXPORT | {"ports": [{"name": "p" * 100_000, "port": 1}]},
    ),
    "endpoints at an address with a zone": ("services", SERVICE | {"backends": {"fe80::1%eth0": {}}}),
    "endpoints of a huge port": ("services", SERVICE | {"backends": {"10.2.0.1": {"http": {"Port": HUGE}}}}),
    "endpoints of a huge cluster id": ("services", SERVICE | {"clusterID": HUGE}),
    "endpoints on a node with a long name": ("services", SERVICE | {"nodes": {"10.2.0.1": "n" * 100_000}}),
    "an export that is nested too deep": ("serviceexports", DEEP),
    "endpoints that are nested too deep": ("services", json.dumps(SERVICE).encode()[:-1] + b',"x":' + DEEP + b"}"),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("what", RECORDS)
def test_a_record_with_a_value_beyond_its_bounds_costs_no_other_record(role: Role, what: str) -> None:
    pipeline = Pipeline(role).listed(*(each for each in WEB if role == "operator" or each["kind"] != "ServiceExport"))
    pipeline.peer({}).record("services", SERVICE).record("serviceexports", EXPORT).settle()
    before = pipeline.rows(tables.ENDPOINT_SETS), pipeline.rows(tables.EXPORTS)
    pipeline.record(*RECORDS[what]).settle()
    healthy(pipeline, role)
    if what not in COSTS_ITS_FIELD:
        assert (pipeline.rows(tables.ENDPOINT_SETS), pipeline.rows(tables.EXPORTS)) == before
    assert all(len(why) < 500 for why in pipeline.dropped)


def test_a_zone_that_no_record_can_hold_costs_its_slice_and_not_the_export() -> None:
    """Anybody may write it into a slice of a Service of their own; the API server does not validate it."""
    endpoints = [{"addresses": ["10.1.0.2"], "conditions": {"ready": True}, "zone": "z" * 254}]
    written = endpoint_slice("web", endpoints=endpoints)
    written["metadata"] |= {"name": "by-hand", "uid": "by-hand"}
    pipeline = Pipeline("operator").listed(*WEB).apply(written).settle()
    [record] = [row for row in pipeline.rows(tables.RECORDS) if row.kind == "services"]
    admission = Admission(cluster=ClusterName("c1"))
    decoded = ROWS["services"].decode(record.value, admission, 1, record.name)
    assert [endpoint.address for endpoint in decoded.row.endpoints] == ["10.1.0.1"]
