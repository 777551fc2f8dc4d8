"""Whatever a client sends is taken or refused with a reason: nothing in it makes the server stumble."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_network
from typing import Any

import pytest
from clusters.apiserver_session import config, deployment, pod, service
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus_lab.apiserver import definitions, fields, kinds, patches, rules, selectors, tables
from isthmus_lab.apiserver.addresses import Addresses
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.fields import Manager
from isthmus_lab.apiserver.kinds import Kind
from isthmus_lab.apiserver.objects import Object, clone

SELECTED = {"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}]}
PROBE = {"httpGet": {"port": 80, "path": "/"}, "periodSeconds": 1}
CONTAINER = {
    "name": "main",
    "image": "x:1",
    "ports": [{"containerPort": 80, "name": "http"}],
    "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "readinessProbe": PROBE,
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
}
RICH = {
    "containers": [CONTAINER],
    "volumes": [{"name": "v", "configMap": {"name": "c"}}],
    "tolerations": [{"key": "k"}],
}
CONDITION = {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
STATUS = {"conditions": [CONDITION], "containerStatuses": [{"ready": True, "state": {"waiting": {"reason": "x"}}}]}
TIMES = {"creationTimestamp": "2020-01-01T00:00:00Z", "ownerReferences": [{"uid": "u"}], "finalizers": ["a/b"]}
VERSION = {"name": "v1", "served": True, "storage": True, "additionalPrinterColumns": [{"name": "A", "jsonPath": ".a"}]}
SCHEMA = {"openAPIV3Schema": {"properties": {"l": {"items": {}, "x-kubernetes-list-type": "map"}}}}
DEFINITION = {
    "metadata": {"name": "as.b.c"},
    "spec": {
        "group": "b.c",
        "scope": "Cluster",
        "names": {"plural": "as", "kind": "A", "shortNames": ["a"]},
        "versions": [VERSION | {"schema": SCHEMA}],
    },
}
ENDPOINT = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
SLICE = {"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [ENDPOINT], "ports": [{"port": 1}]}
IMPORT = {"type": "ClusterSetIP", "ips": ["1.1.1.1"], "ports": [{"port": 1}]}
SAMPLES: list[tuple[Kind, Object]] = [
    (kinds.NAMESPACE, {"metadata": {"name": "a"}}),
    (kinds.CONFIG_MAP, config("a", x="1")),
    (kinds.SECRET, {"metadata": {"name": "a"}, "stringData": {"a": "b"}, "data": {"c": "ZA=="}}),
    (kinds.SERVICE, service("a", selector={"a": "b"}, type="LoadBalancer", clusterIP="10.96.1.1", ipFamilies=["IPv4"])),
    (kinds.POD, pod("a", **RICH) | {"status": STATUS}),
    (kinds.DEPLOYMENT, deployment("a", selector=SELECTED, strategy={"rollingUpdate": {"maxSurge": "10%"}})),
    (kinds.STATEFUL_SET, deployment("a") | {"kind": "StatefulSet"}),
    (kinds.DAEMON_SET, deployment("a") | {"kind": "DaemonSet"}),
    (kinds.JOB, {"metadata": {"name": "a"}, "spec": {"template": {"spec": RICH | {"restartPolicy": "Never"}}}}),
    (kinds.NODE, {"metadata": {"name": "a"}, "spec": {"taints": [{"key": "k"}]}, "status": STATUS}),
    (kinds.EVENT, {"metadata": {"name": "a"}, "involvedObject": {"kind": "Pod", "name": "p"}, "message": "m"}),
    (kinds.ENDPOINT_SLICE, SLICE),
    (kinds.SERVICE_IMPORT, {"metadata": {"name": "a"}, "spec": IMPORT, "status": {"clusters": [{"cluster": "c"}]}}),
    (kinds.SERVICE_EXPORT, {"metadata": {"name": "a"}, "status": {"conditions": [CONDITION]}}),
    (kinds.CUSTOM_RESOURCE_DEFINITION, DEFINITION),
]
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 70000), st.just(1 << 70), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["name", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path in a value."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(deeper for key, each in inner for deeper in places(each, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    """The value with something else at a path."""
    if not path:
        return junk
    value = clone(value)
    at = value
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = junk
    return value


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[Kind, Object, Any]:
    """A kind, a good object of it, and one with junk in a place or two."""
    kind, good = draw(st.sampled_from(SAMPLES))
    good = good | {"metadata": TIMES | {"labels": {"a": "b"}, "annotations": {"c": "d"}} | good["metadata"]}
    bad = put(good, draw(st.sampled_from(places(good)[1:])), draw(JUNK))
    return kind, good, put(bad, draw(st.sampled_from(places(bad)[1:])), draw(JUNK))


def created(kind: Kind, body: Any) -> Object:
    """Return the object as creating it stores it."""
    obj = rules.born(kind, rules.addressed(kind, "ns", "", body))
    if kind is kinds.SERVICE:
        with Addresses([ip_network("10.96.0.0/16")]).allocated(obj, []):
            pass
    if kind is kinds.CUSTOM_RESOURCE_DEFINITION:
        definitions.kind_of(obj)
    return fields.updated(None, obj, kind.lists, Manager("m", "Update", "v1"))


@settings(max_examples=200, deadline=None)
@given(spoilt())
@pytest.mark.slow
def test_a_spoilt_object_is_stored_and_shown_or_refused(case: tuple[Kind, Object, Any]) -> None:
    kind, _, bad = case
    with suppress(ApiError):
        stored = created(kind, bad)
        tables.table(kind, [stored], include="Object", meta={})


@settings(max_examples=200, deadline=None)
@given(spoilt())
def test_a_spoilt_change_is_stored_or_refused(case: tuple[Kind, Object, Any]) -> None:
    kind, good, bad = case
    old = created(kind, good | {"metadata": {k: v for k, v in good["metadata"].items() if k != "creationTimestamp"}})
    old["metadata"]["resourceVersion"] = "1"
    with suppress(ApiError):
        rules.renewed(kind, old, rules.addressed(kind, "ns", "", bad))
    with suppress(ApiError):
        rules.renewed(kind, old, rules.addressed(kind, "ns", "", patches.merge(old, bad)))
    with suppress(ApiError):
        rules.renewed(kind, old, rules.addressed(kind, "ns", "", patches.strategic(old, bad, kind.lists)))
    with suppress(ApiError):
        fields.applied(old, rules.addressed(kind, "ns", "", bad), kind.lists, Manager("n", "Apply", "v1"), force=False)


@given(st.text(max_size=20))
def test_a_selector_selects_or_is_refused(text: str) -> None:
    for parse in (selectors.labels, selectors.fields):
        with suppress(ApiError):
            parse(text)({"metadata": {"labels": {"a": "b"}}})
