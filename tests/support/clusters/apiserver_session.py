"""One session of requests, for the lab's server and a real one, and what of their answers is to be compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

Json = Any

VOLATILE = {
    "uid": "UID",
    "resourceVersion": "REVISION",
    "creationTimestamp": "TIME",
    "deletionTimestamp": "TIME",
    "lastTransitionTime": "TIME",
    "lastUpdateTime": "TIME",
    "time": "TIME",
    "clusterIP": "IP",
    "clusterIPs": ["IP"],
    "nodePort": "PORT",
    "continue": "TOKEN",
    "selfLink": None,
}
CONTROLLED = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job")
"""Kinds whose status comes from a controller, which the real server alone has none of."""

KNOWN = {
    "another kind than the path's": "the words",
    "a resourceVersion on create": "400: it is the client's mistake, not the server's",
    "no JSON": "the words",
    "a bad selector": "the words",
    "ports of one number": "ours shows the port as the API spells it",
    "status": "a status is not validated: only nodes and controllers write any",
    "a pod's container renamed": "theirs prints the difference of two Go structs",
    "a pod's status": "podIPs are the node's to write",
}
"""Where the two differ on purpose, and why."""

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Step(NamedTuple):
    """A request and what it is about."""

    about: str
    method: str
    path: str
    body: Json = None
    type: str = "application/json"


CORE = "/api/v1/namespaces/diff"
APPS = "/apis/apps/v1/namespaces/diff"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/diff/endpointslices"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/diff/leases"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "?as-table"


def config(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def service(name: str, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"ports": [{"port": 80}], **spec},
    }


def deployment(name: str, image: str = "one", **spec: Any) -> Json:
    container = {"name": "main", "image": image, "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "1"}]}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    body = {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": body}


def pod(name: str, **spec: Any) -> Json:
    body = {"containers": [{"name": "main", "image": "x:1"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def steps() -> Iterator[Step]:
    """The session."""
    yield Step("a namespace", "POST", "/api/v1/namespaces", {"metadata": {"name": "diff"}})
    yield Step("the same again", "POST", "/api/v1/namespaces", {"metadata": {"name": "diff"}})
    yield Step("a namespace with a bad name", "POST", "/api/v1/namespaces", {"metadata": {"name": "No_Name"}})
    yield from _objects()
    yield from _patches()
    yield from _services()
    yield from _workloads()
    yield from _applies()
    yield from _deletions()


def _objects() -> Iterator[Step]:
    yield Step("create", "POST", f"{CORE}/configmaps", config("a", x="1"))
    yield Step("get", "GET", f"{CORE}/configmaps/a")
    yield Step("get nothing", "GET", f"{CORE}/configmaps/none")
    yield Step("an unknown resource", "GET", f"{CORE}/dinosaurs")
    yield Step("an unknown group", "GET", "/apis/nowhere/v1/things")
    yield Step("no namespace", "POST", "/api/v1/namespaces/not-there/configmaps", config("a"))
    yield Step(
        "another namespace than the path's", "POST", f"{CORE}/configmaps", {"metadata": {"name": "b", "namespace": "x"}}
    )
    yield Step("another kind than the path's", "POST", f"{CORE}/configmaps", service("b"))
    yield Step("no name", "POST", f"{CORE}/configmaps", {"metadata": {}})
    yield Step(
        "a resourceVersion on create", "POST", f"{CORE}/configmaps", {"metadata": {"name": "b", "resourceVersion": "1"}}
    )
    yield Step("no JSON", "POST", f"{CORE}/configmaps", "text")
    yield Step("a bad label", "POST", f"{CORE}/configmaps", {"metadata": {"name": "b", "labels": {"a b": "c"}}})
    yield Step("a bad label value", "POST", f"{CORE}/configmaps", {"metadata": {"name": "b", "labels": {"a": "c d"}}})
    yield Step("replace with another name", "PUT", f"{CORE}/configmaps/a", config("b"))
    yield Step(
        "replace an old version",
        "PUT",
        f"{CORE}/configmaps/a",
        config("a") | {"metadata": {"name": "a", "resourceVersion": "1"}},
    )
    yield Step("replace", "PUT", f"{CORE}/configmaps/a", config("a", x="2"))
    yield Step("replace nothing", "PUT", f"{CORE}/configmaps/none", config("none"))
    yield Step("list as a table", "GET", f"{CORE}/configmaps?fieldSelector=metadata.name=a{TABLE.replace('?', '&')}")
    yield Step("list by label", "GET", f"{CORE}/configmaps?labelSelector=nothing=here")
    yield Step("a bad selector", "GET", f"{CORE}/configmaps?labelSelector=a in b")
    yield Step("a method that is not allowed", "POST", f"{CORE}/configmaps/a", config("a"))
    yield Step("a secret from text", "POST", f"{CORE}/secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    yield Step("a lease", "POST", LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}})
    yield Step("an account", "POST", f"{CORE}/serviceaccounts", {"metadata": {"name": "sa"}})


def _patches() -> Iterator[Step]:
    path = f"{CORE}/configmaps/a"
    yield Step("merge", "PATCH", path, {"data": {"x": None, "y": "3"}}, MERGE)
    yield Step("strategic", "PATCH", path, {"metadata": {"finalizers": ["example.com/a"]}}, STRATEGIC)
    yield Step("JSON", "PATCH", path, [{"op": "remove", "path": "/metadata/finalizers"}], JSON_PATCH)
    yield Step("a JSON test that fails", "PATCH", path, [{"op": "test", "path": "/data/y", "value": "no"}], JSON_PATCH)
    yield Step("a JSON path that is not there", "PATCH", path, [{"op": "remove", "path": "/data/none"}], JSON_PATCH)
    yield Step("an unknown kind of patch", "PATCH", path, {}, "application/x-patch")
    yield Step("a merge of nothing", "PATCH", f"{CORE}/configmaps/none", {}, MERGE)
    yield Step("a merge that names an old version", "PATCH", path, {"metadata": {"resourceVersion": "1"}}, MERGE)


def _services() -> Iterator[Step]:
    path = f"{CORE}/services"
    yield Step("a service", "POST", path, service("s", selector={"a": "b"}))
    yield Step("a headless service", "POST", path, service("headless", clusterIP="None"))
    yield Step("a headless service without selector", "POST", path, service("bare", clusterIP="None", ports=[]))
    yield Step("an alias", "POST", path, service("alias", type="ExternalName", externalName="example.com", ports=None))
    yield Step("a node port", "POST", path, service("np", type="NodePort"))
    yield Step("a load balancer", "POST", path, service("lb", type="LoadBalancer"))
    yield Step("affinity", "POST", path, service("sticky", sessionAffinity="ClientIP"))
    yield Step("no ports", "POST", path, service("none", ports=[]))
    yield Step("a bad port", "POST", path, service("none", ports=[{"port": 0}]))
    yield Step("unnamed ports", "POST", path, service("none", ports=[{"port": 1}, {"port": 2}]))
    yield Step(
        "ports of one name", "POST", path, service("none", ports=[{"port": 1, "name": "a"}, {"port": 2, "name": "a"}])
    )
    yield Step(
        "ports of one number", "POST", path, service("none", ports=[{"port": 1, "name": "a"}, {"port": 1, "name": "b"}])
    )
    yield Step("an unknown type", "POST", path, service("none", type="Other"))
    yield Step("an unknown protocol", "POST", path, service("none", ports=[{"port": 1, "protocol": "X"}]))
    yield Step("a bad name", "POST", path, service("1none"))
    yield Step("an address outside", "POST", path, service("none", clusterIP="10.97.0.1"))
    yield Step("no address", "POST", path, service("none", clusterIP="x"))
    yield Step(
        "another address",
        "PATCH",
        f"{path}/s",
        {"spec": {"clusterIP": "10.96.9.9", "clusterIPs": ["10.96.9.9"]}},
        MERGE,
    )
    yield Step(
        "to an alias", "PATCH", f"{path}/s", {"spec": {"type": "ExternalName", "externalName": "example.com"}}, MERGE
    )
    yield Step("and back", "PATCH", f"{path}/s", {"spec": {"type": "ClusterIP", "externalName": None}}, MERGE)
    yield Step(
        "ports merged by number",
        "PATCH",
        f"{path}/s",
        {"spec": {"ports": [{"port": 81, "name": "b"}, {"port": 80, "name": "a"}]}},
        STRATEGIC,
    )
    yield Step("a table", "GET", f"{path}/s{TABLE}")
    yield Step(
        "status", "PATCH", f"{path}/s/status", {"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}, MERGE
    )
    slice_ = {
        "metadata": {"name": "e"},
        "addressType": "IPv4",
        "ports": [{"port": 80}],
        "endpoints": [{"addresses": ["10.0.0.1"]}],
    }
    yield Step("a slice", "POST", SLICES, slice_)
    yield Step("a slice of another family", "POST", SLICES, slice_ | {"metadata": {"name": "f"}, "addressType": "IPv6"})
    yield Step("a slice without family", "POST", SLICES, {"metadata": {"name": "f"}, "endpoints": []})
    yield Step("a slice's table", "GET", f"{SLICES}/e{TABLE}")


def _workloads() -> Iterator[Step]:
    path = f"{APPS}/deployments"
    yield Step("a deployment", "POST", path, deployment("d"))
    yield Step("no selector", "POST", path, deployment("none", selector=None))
    yield Step("a selector that does not match", "POST", path, deployment("none", selector={"matchLabels": {"b": "c"}}))
    yield Step(
        "no containers",
        "POST",
        path,
        deployment("none", template={"metadata": {"labels": {"app": "none"}}, "spec": {}}),
    )
    yield Step("negative replicas", "POST", path, deployment("none", replicas=-1))
    yield Step("another selector", "PATCH", f"{path}/d", {"spec": {"selector": {"matchLabels": {"b": "c"}}}}, MERGE)
    changed = {"containers": [{"name": "main", "image": "two", "env": [{"name": "B", "value": "2"}]}]}
    yield Step("a strategic image", "PATCH", f"{path}/d", {"spec": {"template": {"spec": changed}}}, STRATEGIC)
    yield Step("scale", "GET", f"{path}/d/scale")
    yield Step("scaled", "PATCH", f"{path}/d/scale", {"spec": {"replicas": 0}}, MERGE)
    stateful = deployment("ss", serviceName="ss") | {"kind": "StatefulSet"}
    yield Step("a stateful set", "POST", f"{APPS}/statefulsets", stateful)
    daemon = deployment("ds") | {"kind": "DaemonSet"}
    del daemon["spec"]["replicas"]
    yield Step("a daemon set", "POST", f"{APPS}/daemonsets", daemon)
    yield Step("a replica set", "POST", f"{APPS}/replicasets", deployment("rs") | {"kind": "ReplicaSet"})
    yield Step("a pod", "POST", f"{CORE}/pods", pod("p", nodeSelector={"no": "where"}))
    yield Step(
        "a pod with probes and volumes", "POST", f"{CORE}/pods", pod("q", nodeSelector={"no": "where"}, **_rich())
    )
    yield Step("a pod without image", "POST", f"{CORE}/pods", pod("none", containers=[{"name": "a"}]))
    yield Step(
        "a pod with two of one name", "POST", f"{CORE}/pods", pod("none", containers=[{"name": "a", "image": "x"}] * 2)
    )
    yield Step(
        "a pod's container renamed",
        "PATCH",
        f"{CORE}/pods/p",
        [{"op": "replace", "path": "/spec/containers/0/name", "value": "b"}],
        JSON_PATCH,
    )
    yield Step(
        "a pod's image changed",
        "PATCH",
        f"{CORE}/pods/p",
        {"spec": {"containers": [{"name": "main", "image": "y"}]}},
        STRATEGIC,
    )
    yield Step(
        "a pod's status", "PATCH", f"{CORE}/pods/p/status", {"status": {"phase": "Running", "podIP": "10.0.0.9"}}, MERGE
    )
    yield Step("a pod's table", "GET", f"{CORE}/pods/p{TABLE}")
    template = {"spec": {"containers": [{"name": "a", "image": "x"}], "restartPolicy": "Never"}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"suspend": True, "template": template},
    }
    yield Step("a job", "POST", "/apis/batch/v1/namespaces/diff/jobs", job)


def _rich() -> Json:
    probe = {"httpGet": {"port": 80}}
    container: Json = {
        "name": "main",
        "image": "x:1",
        "livenessProbe": probe,
        "readinessProbe": {"tcpSocket": {"port": 80}},
    }
    container["env"] = [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    volumes = [{"name": "a"}, {"name": "c", "configMap": {"name": "a"}}, {"name": "h", "hostPath": {"path": "/tmp"}}]
    return {"containers": [container], "volumes": volumes, "restartPolicy": "OnFailure"}


def _applies() -> Iterator[Step]:
    path, two = f"{CORE}/configmaps/applied", {"x": "1", "y": "2"}
    yield Step("apply without manager", "PATCH", path, config("applied", **two), APPLY)
    yield Step("apply", "PATCH", f"{path}?fieldManager=alice", config("applied", **two), APPLY)
    yield Step("apply less", "PATCH", f"{path}?fieldManager=alice", config("applied", x="1"), APPLY)
    yield Step("apply against", "PATCH", f"{path}?fieldManager=bob", config("applied", x="9"), APPLY)
    yield Step("apply by force", "PATCH", f"{path}?fieldManager=bob&force=true", config("applied", x="9"), APPLY)
    yield Step(
        "a change between",
        "PATCH",
        f"{path}?fieldManager=carol",
        {"data": {"z": "1"}, "metadata": {"labels": {"a": "b"}}},
        MERGE,
    )
    yield Step("apply nothing", "PATCH", f"{path}?fieldManager=bob", config("applied"), APPLY)
    unwritten = config("made", a="b")
    unwritten["metadata"]["resourceVersion"] = "1"
    yield Step("apply what must not be there", "PATCH", f"{CORE}/configmaps/made?fieldManager=alice", unwritten, APPLY)
    yield Step("and now it is", "PATCH", f"{CORE}/configmaps/made?fieldManager=alice&force=true", unwritten, APPLY)
    where = f"{CORE}/services/applied"
    body = service("applied", selector={"a": "b"})
    yield Step("apply a service", "PATCH", f"{where}?fieldManager=alice", body, APPLY)
    more = service("applied", ports=[{"port": 81, "name": "b", "protocol": "TCP"}])
    yield Step("apply another port", "PATCH", f"{where}?fieldManager=bob", more, APPLY)
    named = service("applied", ports=[{"port": 80, "name": "a"}])
    yield Step("apply a name", "PATCH", f"{where}?fieldManager=alice", named, APPLY)
    yield Step(
        "apply a deployment", "PATCH", f"{APPS}/deployments/applied?fieldManager=alice", deployment("applied"), APPLY
    )
    less = deployment("applied")
    del less["spec"]["template"]["spec"]["containers"][0]["env"]
    yield Step("apply it without env", "PATCH", f"{APPS}/deployments/applied?fieldManager=alice", less, APPLY)


def _deletions() -> Iterator[Step]:
    path = f"{CORE}/configmaps"
    yield Step("delete another one", "DELETE", f"{path}/a", {"preconditions": {"uid": "wrong"}})
    yield Step("delete", "DELETE", f"{path}/a")
    yield Step("delete nothing", "DELETE", f"{path}/a")
    yield Step("held", "POST", path, {"metadata": {"name": "held", "finalizers": ["example.com/x"]}})
    yield Step("delete what is held", "DELETE", f"{path}/held")
    yield Step("let go", "PATCH", f"{path}/held", {"metadata": {"finalizers": None}}, MERGE)
    yield Step("and it is gone", "GET", f"{path}/held")
    yield Step("delete a pod", "DELETE", f"{CORE}/pods/q")
    yield Step("delete in the foreground", "DELETE", f"{APPS}/replicasets/rs", {"propagationPolicy": "Foreground"})
    yield Step("delete a collection", "DELETE", f"{CORE}/services?fieldSelector=metadata.name=np")


def normal(value: Json) -> Json:
    """An answer without what differs from run to run."""
    if isinstance(value, dict):
        value = value | ({"description": "TEXT"} if "format" in value and "priority" in value else {})
        if value.get("kind") in CONTROLLED:
            meta = {key: each for key, each in value.get("metadata", {}).items() if key != "annotations"}
            value = {key: each for key, each in value.items() if key != "status"} | {"metadata": meta}
        if value.get("serviceAccountName") == "default":  # given by a plugin that the tests' real server is without
            value = {key: each for key, each in value.items() if key != "serviceAccountName"}
        value = value | ({"cells": [*map(_cell, value["cells"])]} if "cells" in value else {})
        return {k: VOLATILE[k] if k in VOLATILE and v else normal(v) for k, v in value.items() if k != "managedFields"}
    if isinstance(value, list):
        return [normal(each) for each in value]
    return _UID.sub("UID", value) if isinstance(value, str) else value


def _cell(value: Json) -> Json:
    """A cell without ages and addresses."""
    return re.sub(r"^\d+s$", "AGE", re.sub(r"^10\.96\.\d+\.\d+$", "IP", value)) if isinstance(value, str) else value


def differences(ours: Json, theirs: Json, path: str = "") -> Iterator[str]:
    """Where two answers differ, a line each."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from differences(ours.get(key), theirs.get(key), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(a, b, f"{path}[{index}]")
    elif (
        ours != theirs
        and (ours or theirs or type(ours) is not type(theirs))
        and not (ours in (None, {}, []) and theirs in (None, {}, []))
    ):
        yield f"{path}: ours {ours!r}, theirs {theirs!r}"
