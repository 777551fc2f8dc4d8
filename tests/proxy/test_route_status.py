"""The status of routes: which conditions, with which reasons, and that other controllers' entries are left alone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from clusters.apiserver_world import serving
from meshes.route_definitions import define_routes
from meshes.route_world import grant, route
from msgspec.structs import replace

from isthmus import kube
from isthmus.config import KubernetesSection
from isthmus.desired import ApiTarget
from isthmus.desired.difference import difference
from isthmus.kube.objects.core import NODE, SERVICE
from isthmus.kube.objects.gateway import HTTP_ROUTE, HttpRoute, RouteSpec
from isthmus.kube.objects.meta import Meta
from isthmus.kube.objects.refusals import REFUSED_ROUTES
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.objects import Object
from isthmus.model.routes import NodeRefusals, Route, RouteRefusal
from isthmus.model.services import Import, Node, Port, Service
from isthmus.model.sources import PROXY
from isthmus.model.xds import RefusedResource, Resource
from isthmus.processes import proxying
from isthmus.processes.start import tables_of
from isthmus.proxy import backend_tls_objects, port_routes, route_objects
from isthmus.proxy.attachment import MAX_MATCHES
from isthmus.sources import kubernetes, routes
from isthmus.statedb import Backoff, Database, Derivations, Reconciler
from isthmus_lab.realapi import definitions

RBAC = Path(__file__).resolve().parents[2] / "deploy" / "routes" / "rbac.yaml"
DEFINITION = Path(__file__).resolve().parents[2] / "deploy" / "crds" / "refusedroutes.yaml"
C1 = ClusterName("c1")
TO_ECHO = "parentRefs: [{group: '', kind: Service, name: echo}]\n"
ACCEPTED = ("Accepted", "True", "Accepted", "")
RESOLVED = ("ResolvedRefs", "True", "ResolvedRefs", "")


def service(name: str, *ports: Port) -> Service:
    return Service(
        name=ServiceName(name), source="kubernetes", ports=ports or (Port("http", 80), Port("dns", 53, "UDP"))
    )


class Statuses:
    """The operator's tables of routes, without an API server."""

    def __init__(self, *rows: Any) -> None:
        declared = route_objects.derived()
        self.db = Database(*tables_of(declared))
        self.derivations = Derivations(self.db, *declared)
        self.put(service("demo/echo"), service("other/far"), *rows)

    def put(self, *rows: Any) -> None:
        into: dict[type, Any] = {
            Route: tables.ROUTES,
            Service: tables.SERVICES,
            Import: tables.IMPORTS,
            Cluster: tables.CLUSTERS,
            Node: tables.NODES,
            NodeRefusals: tables.ROUTE_REFUSALS,
        }
        with self.db.write() as txn:
            for row in rows:
                txn.put(into.get(type(row), tables.GRANTS), row)
        while self.derivations.step():
            pass

    def parents(self, name: str = "demo/route", kind: str = "HTTPRoute") -> list[dict[str, Any]]:
        row = self.db.snapshot().get(tables.ROUTE_OBJECTS, (kind, ServiceName(name)))
        assert row is not None
        assert row.body == b""
        found: list[dict[str, Any]] = yaml.safe_load(row.status)["parents"]
        return found

    def conditions(self, name: str = "demo/route", kind: str = "HTTPRoute") -> list[tuple[str, str, str, str]]:
        """Of the only parent."""
        [parent] = self.parents(name, kind)
        assert parent["controllerName"] == "isthmus.io/mesh"
        assert {each["observedGeneration"] for each in parent["conditions"]} == {1}
        return [(each["type"], each["status"], each["reason"], each["message"]) for each in parent["conditions"]]


@pytest.mark.parametrize("kind", ["HTTPRoute", "GRPCRoute"])
def test_a_field_that_is_not_followed_is_a_condition_of_the_route_and_the_rest_of_it_counts(kind: str) -> None:
    rule = "{name: first, backendRefs: [{name: echo, port: 80}], sessionPersistence: {idleTimeout: 1h}}"
    world = Statuses(route(f"{TO_ECHO}rules: [{{}}, {rule}]", kind=kind))
    text = "not followed, the rest of the route is: spec.rules[1].sessionPersistence.idleTimeout"
    assert world.conditions(kind=kind) == [
        ACCEPTED, RESOLVED, ("isthmus.io/Effective", "False", "UnsupportedValue", text)
    ]  # fmt: skip
    world.put(route(f"{TO_ECHO}rules: [{{}}]", kind=kind))
    assert world.conditions(kind=kind) == [ACCEPTED, RESOLVED]


def test_fields_of_a_newer_gateway_api_are_named_wherever_they_are() -> None:
    found = route(
        TO_ECHO + "hostnames: [a.example]\nrules: [{matches: [{path: {value: /x, caseless: true}}], "
        "backendRefs: [{name: echo, port: 80, priority: 2}], timeouts: {request: 1s, idle: 9s}, retry: {}}]"
    )
    assert found.unread == (
        "spec.hostnames",
        "spec.rules[0].matches[0].path.caseless",
        "spec.rules[0].backendRefs[0].priority",
        "spec.rules[0].timeouts.idle",
    )
    many = ", ".join(f"f{n}: 1" for n in range(100))
    assert len(route(f"{TO_ECHO}rules: [{{{many}}}]").unread) == 16
    assert route(f'{TO_ECHO}rules: [{{"a\\e[2J\\n": 1}}]').unread == ("spec.rules[0].a?[2J?",)


@pytest.mark.parametrize("value", [b"1e999", b"[" * 9000 + b"]" * 9000])
def test_a_value_that_nothing_reads_and_that_cannot_be_decoded_costs_the_route_nothing(value: bytes) -> None:
    rules = msgspec.Raw(b'[{"backendRefs":[{"name":"echo","port":80}],"more":' + value + b"}]")
    wire = HttpRoute(metadata=Meta(name="r", namespace="demo"), spec=RouteSpec(rules=rules))
    assert routes.http_route(wire).invalid == ""


@pytest.mark.parametrize(
    ("rules", "want"),
    [
        ("rules: [{backendRefs: [{name: echo, port: 80}]}]", RESOLVED),
        ("rules: [{}]", RESOLVED),
        (
            "rules: [{backendRefs: [{name: none, port: 80}]}]",
            ("ResolvedRefs", "False", "BackendNotFound", "Service demo/none with TCP port 80 does not exist"),
        ),
        (
            "rules: [{backendRefs: [{name: echo, port: 53}]}]",
            ("ResolvedRefs", "False", "BackendNotFound", "Service demo/echo with TCP port 53 does not exist"),
        ),
        (
            "rules: [{backendRefs: [{name: echo, port: 80}, {name: far, namespace: other, port: 80}]}]",
            (
                "ResolvedRefs",
                "False",
                "RefNotPermitted",
                "no ReferenceGrant in other lets it refer to Service other/far",
            ),
        ),
        (
            "rules: [{backendRefs: [{kind: Secret, name: echo, port: 80}]}]",
            (
                "ResolvedRefs",
                "False",
                "InvalidKind",
                "spec.rules[0].backendRefs[0]: kind 'Secret' is none of Service, ServiceImport and Cluster",
            ),
        ),
        (
            "rules: [{filters: [{type: RequestMirror, requestMirror: {backendRef: {name: none, port: 80}}}]}]",
            ("ResolvedRefs", "False", "BackendNotFound", "Service demo/none with TCP port 80 does not exist"),
        ),
        (
            "rules: [{backendRefs: [" + "".join(f"{{name: n{number}, port: 1}}," for number in range(6)) + "]}]",
            (
                "ResolvedRefs",
                "False",
                "BackendNotFound",
                "; ".join(f"Service demo/n{number} with TCP port 1 does not exist" for number in range(4))
                + "; and 2 more",
            ),
        ),
    ],
)
def test_references_that_do_not_hold_are_named(rules: str, want: tuple[str, str, str, str]) -> None:
    assert Statuses(route(TO_ECHO + rules)).conditions() == [ACCEPTED, want]


def test_a_cluster_that_is_no_member_is_named_until_it_joins() -> None:
    world = Statuses(route(TO_ECHO + "rules: [{backendRefs: [{group: isthmus.io, kind: Cluster, name: c2}]}]"))
    missing = ("ResolvedRefs", "False", "BackendNotFound", "no cluster of the clusterset is called 'c2'")
    assert world.conditions() == [ACCEPTED, missing]
    world.put(Cluster(name=ClusterName("c2")))
    assert world.conditions() == [ACCEPTED, RESOLVED]


@pytest.mark.parametrize(
    ("parent", "reason", "message"),
    [
        ("name: none", "NoMatchingParent", "its parent does not exist"),
        ("name: echo, port: 81", "NoMatchingParent", "its parent has no TCP port 81"),
        ("name: echo, port: 53", "NoMatchingParent", "its parent has no TCP port 53"),
        ("name: echo, sectionName: https", "NoMatchingParent", "its parent has no TCP port named 'https'"),
        ("name: echo, sectionName: http, port: 81", "NoMatchingParent", "its parent has no TCP port 81 named 'http'"),
    ],
)
def test_a_parent_that_a_route_does_not_match_is_named(parent: str, reason: str, message: str) -> None:
    found = Statuses(route(f"parentRefs: [{{group: '', kind: Service, {parent}}}]\nrules: [{{}}]"))
    assert found.conditions() == [("Accepted", "False", reason, message), RESOLVED]


def test_each_parent_has_an_entry_named_as_the_route_names_it() -> None:
    world = Statuses(
        route(
            """
parentRefs:
- {kind: Gateway, name: edge}
- {group: '', kind: Service, name: echo, sectionName: http}
- {group: '', kind: Service, name: echo, namespace: demo, port: 81}
- {group: multicluster.x-k8s.io, kind: ServiceImport, name: far}
rules: [{}]
"""
        )
    )
    section, port, imported = world.parents()
    assert section["parentRef"] == {"group": "", "kind": "Service", "name": "echo", "sectionName": "http"}
    assert port["parentRef"] == {"group": "", "kind": "Service", "name": "echo", "namespace": "demo", "port": 81}
    assert imported["parentRef"] == {"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "far"}
    assert [each["conditions"][0]["reason"] for each in (section, port, imported)] == [
        "Accepted",
        "NoMatchingParent",
        "NoMatchingParent",
    ]
    world.put(Import(name=ServiceName("demo/far"), ports=(Port("http", 80),), derived=derived(ServiceName("demo/far"))))
    assert world.parents()[2]["conditions"][0]["reason"] == "Accepted"


def test_a_route_that_cannot_be_followed_is_not_accepted_and_says_why() -> None:
    world = Statuses(route(TO_ECHO + "rules: [{filters: [{type: ExtensionRef}]}]"))
    [(*found, message)] = world.conditions()
    assert found == ["Accepted", "False", "UnsupportedValue"]
    assert message == "spec.rules[0].filters[0].type: 'ExtensionRef' is not supported, or its field is missing"


def test_a_grant_or_a_service_that_comes_resolves_references() -> None:
    world = Statuses(
        route(TO_ECHO + "rules: [{backendRefs: [{name: far, namespace: other, port: 80}, {name: late, port: 80}]}]")
    )
    assert world.conditions()[1][2] == "RefNotPermitted"
    world.put(grant("other", of="demo"))
    assert world.conditions()[1][2] == "BackendNotFound"
    world.put(service("demo/late"))
    assert world.conditions() == [ACCEPTED, RESOLVED]


def test_a_route_may_send_calls_of_another_namespaces_service_to_that_service_without_a_grant() -> None:
    parents = "parentRefs: [{group: '', kind: Service, name: far, namespace: other}]\n"
    world = Statuses(service("other/next"))
    world.put(route(parents + "rules: [{backendRefs: [{name: far, namespace: other, port: 80}]}]"))
    assert world.conditions() == [ACCEPTED, RESOLVED]
    world.put(route(parents + "rules: [{backendRefs: [{name: next, namespace: other, port: 80}]}]"))
    assert world.conditions()[1][2] == "RefNotPermitted"


def test_kinds_of_one_name_have_statuses_of_their_own() -> None:
    spec = TO_ECHO + "rules: [{backendRefs: [{name: far, namespace: other, port: 80}]}]"
    world = Statuses(route(spec), route(spec, kind="GRPCRoute"), grant("other", of="demo", kind="GRPCRoute"))
    assert world.conditions()[1][2] == "RefNotPermitted"
    assert world.conditions(kind="GRPCRoute")[1] == RESOLVED


def test_a_route_beyond_the_bound_is_not_accepted_until_an_older_one_goes() -> None:
    one = route(TO_ECHO + "rules: [{}]")
    rows = [replace(one, name=ServiceName(f"demo/r{number:05}")) for number in range(MAX_MATCHES + 1)]
    world = Statuses(*rows)
    last = f"demo/r{MAX_MATCHES:05}"
    assert world.conditions(last)[0] == (
        "Accepted",
        "False",
        "TooManyRoutes",
        f"older routes have {MAX_MATCHES} of {MAX_MATCHES} matches",
    )
    with world.db.write() as txn:
        txn.delete(tables.ROUTES, ("HTTPRoute", ServiceName("demo/r00000")))
    world.put()
    assert world.conditions(last)[0] == ACCEPTED


DB = service("demo/db", Port("tcp", 5432), Port("http", 80))
UNDECLARED = (
    "passed on unchanged, for want of a declaration as HTTP: name the Service's port http, http2 or grpc (or http-…), "
    "or set its appProtocol"
)


@pytest.mark.parametrize(
    ("parent", "want"),
    [
        ("name: db, port: 80", ACCEPTED),
        ("name: db", ("Accepted", "True", "Accepted", f"port 5432 {UNDECLARED}")),
        ("name: db, port: 5432", ("Accepted", "False", "UnsupportedProtocol", f"port 5432 {UNDECLARED}")),
    ],
)
def test_a_port_that_nothing_declares_as_http_is_in_the_status(parent: str, want: tuple[str, str, str, str]) -> None:
    world = Statuses(DB, route(f"parentRefs: [{{group: '', kind: Service, {parent}}}]\nrules: [{{}}]"))
    assert world.conditions() == [want, RESOLVED]


def test_a_route_for_the_api_servers_service_is_not_accepted_from_another_namespace() -> None:
    parent = "parentRefs: [{group: '', kind: Service, name: kubernetes, namespace: default}]\nrules: [{}]"
    world = Statuses(service("default/kubernetes", Port("https", 443)), route(parent))
    message = "the API server's Service and those of kube-system take routes of their own namespace"
    assert world.conditions() == [("Accepted", "False", "NotAllowedByParent", message), RESOLVED]


def test_a_route_that_nodes_have_no_port_for_names_the_first_node_and_the_reason() -> None:
    world = Statuses(route(TO_ECHO + "rules: [{}]"), Node("n1"), Node("n2"))
    why = "port 80: namespace demo has its share of the 10 ports of the node's Envoy, 8"
    row = RouteRefusal("HTTPRoute", ServiceName("demo/route"), ServiceName("demo/echo"), why, "NoPortLeft")
    world.put(*(NodeRefusals(name=node, routes=(row,)) for node in ("n2", "n1")))
    text = f"calls pass it by on node n1 (and of 1 other): {why}"
    assert world.conditions()[-1] == ("isthmus.io/Programmed", "False", "NoPortLeft", text)


def test_a_route_of_a_service_that_is_refused_or_taken_again_leaves_the_others_as_they_are() -> None:
    """Hundreds of routes may be for one Service: the status of each that nothing changed for is not computed again."""
    rows = [route(TO_ECHO + "rules: [{}]", name=f"demo/r{number}") for number in range(20)]
    world = Statuses(*rows)
    before = world.derivations.units
    world.put(replace(rows[5], generation=2))
    assert world.derivations.units - before == 2, "the Service's routes, and the status of one"


def refusal(node: str, message: str = "no", *, route: str = "demo/route", service: str = "demo/echo") -> NodeRefusals:
    return NodeRefusals(
        name=node, routes=(RouteRefusal("HTTPRoute", ServiceName(route), ServiceName(service), message),)
    )


def refused(by: str, message: str = "no") -> tuple[str, str, str, str]:
    text = f"the Envoy of node {by} refused it, and keeps what it took before: {message}"
    return ("isthmus.io/Programmed", "False", "RefusedByEnvoy", text)


def test_a_route_that_envoys_refuse_names_the_first_node_and_how_many_until_none_does() -> None:
    world = Statuses(route(TO_ECHO + "rules: [{}]"), *(Node(f"n{number}") for number in range(3)))
    world.put(refusal("n1"), refusal("n2"), refusal("n0", route="demo/other"))
    assert world.conditions() == [ACCEPTED, RESOLVED, refused("n1 (and of 1 other)")]
    world.put(refusal("n0", "no argument for repetition operator"))
    assert world.conditions()[2] == refused("n0 (and of 2 others)", "no argument for repetition operator")
    world.put(NodeRefusals(name="n0"), NodeRefusals(name="n2"))
    assert world.conditions()[2] == refused("n1")
    with world.db.write() as txn:
        txn.delete(tables.ROUTE_REFUSALS, "n1")
    world.put()
    assert world.conditions() == [ACCEPTED, RESOLVED]


def test_a_report_of_a_node_that_is_gone_does_not_count() -> None:
    world = Statuses(route(TO_ECHO + "rules: [{}]"), refusal("n1"))
    assert world.conditions() == [ACCEPTED, RESOLVED]
    world.put(Node("n1"))
    assert world.conditions() == [ACCEPTED, RESOLVED, refused("n1")]
    with world.db.write() as txn:
        txn.delete(tables.NODES, "n1")
    world.put()
    assert world.conditions() == [ACCEPTED, RESOLVED]


def test_only_the_parent_whose_envoy_resources_were_refused_has_the_condition() -> None:
    parents = "parentRefs: [{group: '', kind: Service, name: echo}, {group: '', kind: Service, name: next}]\n"
    world = Statuses(service("demo/next"), route(parents + "rules: [{}]"), Node("n1"), refusal("n1"))
    assert [len(each["conditions"]) for each in world.parents()] == [3, 2]


def test_a_refusal_that_spreads_over_many_nodes_changes_the_status_a_few_times_only() -> None:
    world = Statuses(route(TO_ECHO + "rules: [{}]"))
    seen = set()
    for number in range(300):
        world.put(Node(f"n{number:03}"), refusal(f"n{number:03}"))
        seen.add(world.conditions()[2])
    assert refused("n000 (and of 100 others or more)") in seen
    assert len(seen) == 12


OURS: dict[str, Any] = {
    "parentRef": {"group": "", "kind": "Service", "name": "echo"},
    "controllerName": "isthmus.io/mesh",
    "conditions": [
        {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "observedGeneration": 1}
    ],
}
THEIRS: dict[str, Any] = {**OURS, "controllerName": "example.com/other", "unknown": {"kept": [1]}}


def timed(entry: dict[str, Any], time: str, **changed: str) -> dict[str, Any]:
    return {**entry, "conditions": [{**each, "lastTransitionTime": time, **changed} for each in entry["conditions"]]}


@pytest.mark.parametrize(
    ("wanted", "found", "after"),
    [
        ([OURS], [], [OURS]),
        ([OURS], [timed(OURS, "t1")], None),
        ([OURS], [THEIRS, timed(OURS, "t1")], None),
        ([OURS], [THEIRS], [THEIRS, OURS]),
        ([], [THEIRS, timed(OURS, "t1")], [THEIRS]),
        ([], [THEIRS], None),
        ([OURS], [timed(OURS, "t1", reason="Old"), THEIRS], [THEIRS, timed(OURS, "t1")]),
        ([OURS], [timed(OURS, "t1", status="False")], [OURS]),
        ([OURS], [timed({**OURS, "parentRef": {**OURS["parentRef"], "port": 80}}, "t1")], [OURS]),
    ],
    ids=["new", "as wanted", "beside", "added", "no parent", "never ours", "reason", "status", "another port"],
)
def test_entries_of_other_controllers_stay_as_they_are(
    wanted: list[Any], found: list[Any], after: list[Any] | None
) -> None:
    patch = difference(
        {"status": {"parents": wanted}}, {"status": {"parents": found}}, route_objects.KINDS["HTTPRoute"]
    )
    assert patch == ({} if after is None else {"status": {"parents": after}})


@pytest.mark.parametrize("process", ["operator", "agent"])
def test_the_rights_for_routes_are_those_that_are_used(process: str) -> None:
    objects = yaml.safe_load_all(RBAC.read_text())
    [role] = [each for each in objects if each["metadata"]["name"] == f"isthmus-{process}-routes" and "rules" in each]
    given = {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if rule["apiGroups"] == [HTTP_ROUTE.group]
    }
    feeds = kubernetes.feeds(cluster=C1)
    read = [*feeds[tables.ROUTES.name], *feeds[tables.GRANTS.name], *feeds[tables.BACKEND_TLS.name]]
    used = {(feed.kind.resource, verb) for feed in read for verb in ("list", "watch")}
    kinds = {**route_objects.KINDS, **backend_tls_objects.KINDS}
    written = [ownership.kind.resource for ownership in kinds.values()] if process == "operator" else []
    used |= {each for resource in written for each in ((resource, "get"), (f"{resource}/status", "patch"))}
    assert given == used
    [authorities] = [rule for rule in role["rules"] if rule["apiGroups"] == [""]]
    assert (authorities["resources"], authorities["verbs"]) == (["configmaps"], ["get"])
    [reports] = [rule for rule in role["rules"] if rule["apiGroups"] == [REFUSED_ROUTES.group]]
    assert reports["resources"] == [REFUSED_ROUTES.resource]
    assert set(reports["verbs"]) == ({"list", "watch"} if process == "operator" else {"create", "patch", "delete"})


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    with serving(tmp_path / "kubernetes") as server:
        yield server.kubeconfig


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[kube.Client]:
    async with await kube.connect(KubernetesSection(kubeconfig=str(kubeconfig))) as found:
        yield found


class Operator:
    """What the leader runs for routes."""

    def __init__(self, client: kube.Client) -> None:
        declared = route_objects.derived()
        self.db = db = Database(*tables_of(declared, tables.ROUTE_OBJECTS_STATUS))
        read = ["services", "imports", "routes", "grants", "nodes", "route_refusals", "observed"]
        self.target = ApiTarget(client, route_objects.KINDS)
        reconciler = Reconciler(
            db, tables.ROUTE_OBJECTS, self.target, status=tables.ROUTE_OBJECTS_STATUS, backoff=Backoff(0.1, 1.0)
        )
        reflectors = kubernetes.reflectors(db, client, tables=read, cluster=C1)
        self.parts = [Derivations(db, *declared).run(), reconciler.run(), *(each.run() for each in reflectors)]

    async def __aenter__(self) -> Operator:
        self.tasks = [asyncio.ensure_future(each) for each in self.parts]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        assert all(task.cancelled() for task in self.tasks), self.tasks


async def entries(client: kube.Client) -> list[dict[str, Any]]:
    status = (await client.get(HTTP_ROUTE, "route", "default")).status
    return (status.parents if status is not None else None) or []


async def test_a_cluster_without_the_gateway_api_has_no_routes_and_nothing_waits_for_them(client: kube.Client) -> None:
    async with Operator(client) as operator, asyncio.timeout(60):
        await operator.db.until(lambda now: now.initialized(tables.ROUTE_OBJECTS))
        assert list(operator.db.snapshot().all(tables.ROUTES)) == []


async def test_an_entry_that_comes_while_ours_is_written_is_not_lost(client: kube.Client, kubeconfig: Path) -> None:
    await define_routes(client)
    await client.create(HTTP_ROUTE, "default", {"metadata": {"name": "route"}, "spec": {}})
    theirs = timed(THEIRS, "2026-01-01T00:00:00Z")

    async def other() -> None:
        async with await kube.connect(KubernetesSection(kubeconfig=str(kubeconfig))) as another:
            await another.patch(HTTP_ROUTE, "default", "route", {"status": {"parents": [theirs]}}, subresource="status")

    def write_between() -> str:
        """What stamps the time runs after the object is read, and before its status is written."""
        thread = threading.Thread(target=asyncio.run, args=[other()])
        thread.start()
        thread.join()
        return "2026-01-03T00:00:00Z"

    wanted = Object(
        kind="HTTPRoute", name=ServiceName("default/route"), body=b"", status=json.dumps({"parents": [OURS]}).encode()
    )
    target = ApiTarget(client, route_objects.KINDS, timestamp=write_between)
    [failure] = (await target.update([wanted])).values()
    assert "conflict" in failure.lower()
    assert await entries(client) == [theirs]
    target = ApiTarget(client, route_objects.KINDS, timestamp=lambda: "2026-01-03T00:00:00Z")
    assert await target.update([wanted]) == {}
    assert await entries(client) == [theirs, timed(OURS, "2026-01-03T00:00:00Z")]


async def test_the_status_is_written_beside_that_of_another_controller(client: kube.Client) -> None:
    await define_routes(client)
    ports = [{"name": "http", "port": 80}]
    await client.create(SERVICE, "default", {"metadata": {"name": "echo"}, "spec": {"ports": ports}})
    parent = {"group": "", "kind": "Service", "name": "echo"}
    spec: dict[str, Any] = {"parentRefs": [parent], "rules": [{"backendRefs": [{"name": "echo", "port": 80}]}]}
    await client.create(HTTP_ROUTE, "default", {"metadata": {"name": "route"}, "spec": spec})
    theirs = timed(THEIRS, "2026-01-01T00:00:00Z")
    await client.patch(HTTP_ROUTE, "default", "route", {"status": {"parents": [theirs]}}, subresource="status")

    async def until(*want: tuple[str, list[tuple[str, int]]]) -> list[dict[str, Any]]:
        """The entries, once they have these controllers, and reasons with generations."""
        while True:
            found = await entries(client)
            seen = [
                (each["controllerName"], [(one["reason"], one["observedGeneration"]) for one in each["conditions"]])
                for each in found
            ]
            if seen == list(want):
                return found
            await asyncio.sleep(0.05)

    other = ("example.com/other", [("Accepted", 1)])
    async with Operator(client), asyncio.timeout(60):
        first, ours = await until(other, ("isthmus.io/mesh", [("Accepted", 1), ("ResolvedRefs", 1)]))
        assert first == theirs
        assert ours["parentRef"] == parent
        assert all(each["lastTransitionTime"] for each in ours["conditions"])
        spec["rules"][0]["backendRefs"][0]["port"] = 81
        await client.patch(HTTP_ROUTE, "default", "route", {"spec": spec})
        await until(other, ("isthmus.io/mesh", [("Accepted", 2), ("BackendNotFound", 2)]))
        moved = timed(THEIRS, "2026-01-02T00:00:00Z")
        await client.patch(HTTP_ROUTE, "default", "route", {"status": {"parents": [moved]}}, subresource="status")
        first, _ = await until(other, ("isthmus.io/mesh", [("Accepted", 2), ("BackendNotFound", 2)]))
        assert first == moved
        edge = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}
        await client.patch(HTTP_ROUTE, "default", "route", {"spec": {"parentRefs": [edge]}})
        assert await until(other) == [moved]


class Agent:
    """What the agent of a node runs to report what its Envoy refuses; tests are the Envoy."""

    def __init__(self, client: kube.Client, node: str) -> None:
        self.db = Database(
            *(tables.SERVICES, tables.IMPORTS, tables.ROUTES, tables.NODES, tables.XDS, tables.ATTACHMENTS),
            *(tables.PROXY_LISTENERS, tables.ROUTE_PARTS, tables.XDS_REFUSED, tables.XDS_SERVED, *proxying.REPORTED),
        )
        self.served = self.db.initializer(tables.XDS_SERVED, PROXY)
        reflectors = kubernetes.reflectors(
            self.db, client, tables=["services", "imports", "routes", "nodes"], cluster=C1
        )
        attachments = Derivations(self.db, port_routes.derived())
        reporting = proxying.Reporting(self.db, client, node)
        self.parts = [reporting.run(), attachments.run(), *(each.run() for each in reflectors)]

    async def __aenter__(self) -> Agent:
        self.tasks = [asyncio.ensure_future(each) for each in self.parts]
        await self.db.until(lambda now: now.initialized(tables.ROUTES, tables.SERVICES, tables.NODES))
        await self.db.until(lambda now: bool(list(now.all(tables.ATTACHMENTS))))
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        assert all(task.cancelled() for task in self.tasks), self.tasks

    def answers(self, error: str = "") -> None:
        """Its Envoy takes the routes of default/echo, port 80, or refuses them."""
        row = Resource(type="routes", name="default/echo:80", version="1", body=b"", unit="default/echo:80")
        with self.db.write() as txn:
            txn.put(tables.XDS, row)
            txn.delete(tables.XDS_REFUSED, ("routes", row.name))
            if error:
                refusal = RefusedResource(type="routes", name=row.name, version="1", owner="", error=error)
                txn.put(tables.XDS_REFUSED, refusal)
            if not self.db.snapshot().initialized(tables.XDS_SERVED):
                self.served.complete(txn)


async def test_what_an_envoy_refuses_is_in_the_status_of_its_route_until_it_is_not_or_the_node_goes(
    client: kube.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxying, "SETTLED", 0.01)
    await define_routes(client)
    definition = yaml.safe_load(DEFINITION.read_text())
    await client.apply(definitions.DEFINITION, "", definition["metadata"]["name"], definition, field_manager="test")
    while not await client.serves(REFUSED_ROUTES):
        client.forget(REFUSED_ROUTES)
        await asyncio.sleep(0.05)
    ports = [{"name": "http", "port": 80}]
    await client.create(SERVICE, "default", {"metadata": {"name": "echo"}, "spec": {"ports": ports}})
    await client.create(NODE, "", {"metadata": {"name": "n1"}})
    spec: dict[str, Any] = {"parentRefs": [{"group": "", "kind": "Service", "name": "echo"}], "rules": [{}]}
    await client.create(HTTP_ROUTE, "default", {"metadata": {"name": "route"}, "spec": spec})

    async def until(message: str) -> None:
        """The message of our condition; empty: there is none."""
        while True:
            found = await entries(client)
            types = {one["type"]: one for each in found for one in each["conditions"]}
            if "Accepted" in types and types.get("isthmus.io/Programmed", {"message": ""})["message"] == message:
                return
            await asyncio.sleep(0.05)

    async def reports() -> list[str]:
        return [each.metadata.name for each in await client.list(REFUSED_ROUTES)]

    async def until_none_is_left() -> None:
        while await reports():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    first, second = (refused("n1", f"routes default/echo:80: {why}")[3] for why in ("one", "two"))
    async with Operator(client), asyncio.timeout(120):
        async with Agent(client, "n1") as agent:
            agent.answers("one")
            await until(first)
            agent.answers("two")
            await until(second)
        async with Agent(client, "n1") as agent:  # what it reported before it ended stays until its Envoy has answered
            await asyncio.sleep(0.2)
            assert await reports() == ["n1"]
            await until(second)
            agent.answers()
            await until("")
            await until_none_is_left()
            agent.answers("one")
            await until(first)
        await client.delete(NODE, "", "n1")
        await until("")
        await until_none_is_left()
