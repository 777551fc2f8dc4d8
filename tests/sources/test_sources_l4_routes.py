"""TCPRoutes and UDPRoutes as rows: what of an object counts, and that a bad one costs itself alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from isthmus.kube.objects import gateway
from isthmus.model.l4_routes import L4Route
from isthmus.model.names import derived, service_name
from isthmus.model.routes import ParentRef
from isthmus.sources import routes

ECHO = service_name("demo", "echo")
TO_ECHO = "parentRefs: [{group: '', kind: Service, name: echo}]\n"


def route(spec: str, kind: str = "TCPRoute") -> L4Route:
    meta = {"namespace": "demo", "name": "route", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 3}
    written = msgspec.json.encode({"metadata": meta, "spec": yaml.safe_load(spec)})
    if kind == "UDPRoute":
        return routes.udp_route(msgspec.json.decode(written, type=gateway.UdpRoute))
    return routes.tcp_route(msgspec.json.decode(written, type=gateway.TcpRoute))


def rules(*backends: str) -> str:
    return f"{TO_ECHO}rules: [{{backendRefs: [{', '.join(backends)}]}}]"


@pytest.mark.parametrize(("kind", "protocol"), [("TCPRoute", "TCP"), ("UDPRoute", "UDP")])
def test_a_route_has_its_parents_and_the_backends_of_its_rule(kind: str, protocol: str) -> None:
    imported = "{group: multicluster.x-k8s.io, kind: ServiceImport, name: v2, namespace: far, port: 80, weight: 9}"
    row = route(rules("{name: echo, port: 80}", imported), kind)
    assert (row.key, row.protocol, row.generation, row.invalid) == ((kind, "demo/route"), protocol, 3, "")
    assert row.parents == (ParentRef("Service", ECHO),)
    assert [(each.to.service, each.to.port, each.weight, each.reason) for each in row.backends] == [
        (ECHO, 80, 1, ""),
        (derived(service_name("far", "v2")), 80, 9, ""),
    ]


def test_parents_that_are_gateways_are_others_business() -> None:
    row = route("parentRefs: [{name: gateway}]\nrules: [{backendRefs: [{name: echo, port: 80}]}]")
    assert row.parents == ()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (TO_ECHO, "spec.rules: 0 rules, a TCPRoute has one"),
        (TO_ECHO + "rules: [{}, {}]", "spec.rules: 2 rules, a TCPRoute has one"),
        (rules("{name: echo, port: 80, weight: 1000001}"), "spec.rules[0].backendRefs[0].weight: "),
        (rules("{name: echo, port: 80, weight: -1}"), "spec.rules[0].backendRefs[0].weight: "),
        (rules("{name: echo, port: 99999}"), "spec.rules[0].backendRefs[0].port: "),
        (rules(*["{name: echo, port: 80}"] * 17), "spec.rules[0].backendRefs: "),
        (rules("{name: " + "n" * 300 + ", port: 80}"), "spec.rules[0].backendRefs[0].name: "),
        (TO_ECHO + "rules: nonsense", "spec.rules: "),
        (TO_ECHO + "rules: [{name: " + "x" * 140_000 + "}]", "spec.rules: 1400"),
    ],
    ids=["none", "two", "weight", "negative", "port", "many", "name", "type", "large"],
)
def test_a_route_beyond_a_bound_is_a_row_without_effect_that_names_the_field(spec: str, problem: str) -> None:
    row = route(spec)
    assert row.invalid.startswith(problem), row.invalid
    assert (row.backends, len(row.parents)) == ((), 1)


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("{group: isthmus.io, kind: Cluster, name: c2}", "InvalidKind"),
        ("{group: example.org, kind: Bucket, name: b, port: 1}", "InvalidKind"),
        ("{name: echo}", "BackendNotFound"),
    ],
)
def test_a_reference_that_cannot_be_followed_is_marked_alone(backend: str, reason: str) -> None:
    row = route(rules("{name: echo, port: 80}", backend))
    assert (row.invalid, [each.reason for each in row.backends]) == ("", ["", reason])


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("{group: isthmus.io, kind: Cluster, name: c2}", "isthmus.io/Cluster"),
        ("{group: apps, name: b, port: 1}", "apps/Service"),
        ("{kind: Secret, name: b, port: 1}", "Secret"),
    ],
)
def test_a_kind_that_cannot_be_followed_is_named_with_its_group(backend: str, kind: str) -> None:
    message = f"spec.rules[0].backendRefs[0]: kind '{kind}' is none of Service and ServiceImport"
    assert route(rules(backend)).backends[0].message == message, "routes of HTTP alone may refer to a Cluster"


@pytest.mark.parametrize("more", ["sessionPersistence: {type: Cookie}", "timeouts: {request: 1s}"])
def test_fields_that_nothing_follows_are_named(more: str) -> None:
    name = more.partition(":")[0]
    row: Any = route(f"{TO_ECHO}rules: [{{backendRefs: [{{name: echo, port: 80}}], {more}}}]")
    assert row.unread == (f"spec.rules[0].{name}",)
