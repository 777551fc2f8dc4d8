"""TCPRoutes and UDPRoutes: rows in, plans out; and what their status says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from rows.balancing_world import ECHO, TABLES, World, make

from isthmus.kube.objects.gateway import TCP_ROUTE
from isthmus.loadbalancer import l4_route_objects, l4_routes
from isthmus.loadbalancer.explain import explain
from isthmus.loadbalancer.selection import Place
from isthmus.loadbalancer.shares import by_cluster, text
from isthmus.model import names, tables
from isthmus.model.balancing import REFUSAL, Plan
from isthmus.model.l4_routes import L4Route
from isthmus.model.names import ServiceName
from isthmus.model.policies import Policy, Share, Tier
from isthmus.model.routes import Attachment, Grant, PortRoutes
from isthmus.model.services import Port
from isthmus.processes.start import tables_of
from isthmus.sources import kubernetes
from isthmus.statedb import Database, Derivations

ROOT = Path(__file__).resolve().parents[2]
DNS = Port("dns", 53, "UDP")
V2 = ServiceName("demo/v2")


def imported(name: ServiceName, ip: str, *addresses: str, cluster: str = "c2", **fields: Any) -> tuple[Any, ...]:
    """An import with its derived Service, and its endpoints in one cluster."""
    service = make.derived(name, cluster_ips=(ip,), **fields)
    endpoints = make.endpoints(cluster, *addresses, service=service.name)
    return service, make.imported(name, ips=(ip,), **fields), endpoints


class Routed(World):
    """The imports demo/echo in c1 and demo/v2 in c2."""

    def __init__(self, *rows: Any) -> None:
        super().__init__()
        self.put(*imported(ECHO, "10.96.0.7", "10.1.0.1", cluster="c1"), *imported(V2, "10.96.0.8", "10.2.0.1"), *rows)

    def plan(self, service: ServiceName = ECHO, number: int = 80) -> Plan:
        """The plan of an import's port."""
        [found] = [row for row in self.plans if row.key.service == names.derived(service) and row.key.port == number]
        return found

    def parts(self, service: ServiceName = ECHO, number: int = 80) -> dict[str, float]:
        """Address → its part of the calls; of those that are refused by 'refused'."""
        plan = self.plan(service, number)
        total = sum(group.weight for group in plan.groups if group.tier == 0)
        found: dict[str, float] = {}
        for group in plan.groups:
            for target in group.targets if group.tier == 0 else ():
                where = "refused" if target == REFUSAL else target.address
                found[where] = found.get(where, 0) + group.weight / total / len(group.targets)
        return found


def test_calls_of_a_parent_are_spread_over_the_backends_by_weight() -> None:
    world = Routed(make.l4(make.backend("echo", 90), make.backend("v2", 10)))
    assert world.parts() == {"10.1.0.1": 0.9, "10.2.0.1": 0.1}
    assert world.plan().redirected_by == "TCPRoute demo/route"
    assert world.parts(V2) == {"10.2.0.1": 1}, "the backend's own calls are left alone"


def test_a_deleted_route_leaves_the_parents_own_backends() -> None:
    route = make.l4(make.backend("v2"))
    world = Routed()
    default = world.plan()
    assert world.put(route).parts() == {"10.2.0.1": 1}
    assert world.delete(route).plan() == default


def test_a_backend_of_weight_0_gets_no_calls_and_none_is_left_means_refused() -> None:
    world = Routed(make.l4(make.backend("echo", 0), make.backend("v2", 1)))
    assert world.parts() == {"10.2.0.1": 1}
    world.put(make.l4(make.backend("echo", 0), make.backend("v2", 0)))
    assert world.parts() == {"refused": 1}
    assert world.put(make.l4()).parts() == {"refused": 1}


@pytest.mark.parametrize(
    "backend",
    [
        make.backend("nothing", 20),
        make.backend("v2", 20, port=81),
        make.backend("v2", 20, reason="InvalidKind"),
        make.backend("other/far", 20),
    ],
    ids=["no such import", "no such port", "another kind", "without a grant"],
)
def test_the_part_of_a_backend_that_cannot_be_used_is_refused(backend: Any) -> None:
    world = Routed(make.l4(make.backend("echo", 80), backend))
    world.put(*imported(ServiceName("other/far"), "10.96.0.9", "10.2.0.9"))
    assert world.parts() == {"10.1.0.1": 0.8, "refused": 0.2}


def test_the_part_of_a_backend_without_endpoints_is_refused_until_it_has_one() -> None:
    world = Routed(make.l4(make.backend("echo", 80), make.backend("v2", 20)))
    empty = make.endpoints("c2", service=names.derived(V2))
    assert world.put(empty).parts() == {"10.1.0.1": 0.8, "refused": 0.2}
    back = make.endpoints("c2", "10.2.0.2", service=names.derived(V2))
    assert world.put(back).parts() == {"10.1.0.1": 0.8, "10.2.0.2": 0.2}


def test_while_a_peer_is_awaited_a_backend_without_endpoints_refuses_nothing() -> None:
    world = Routed(make.l4(make.backend("echo", 80), make.backend("v2", 20), make.backend("nothing", 20)))
    arrived = world.db.initializer(tables.ENDPOINT_SETS, "clusterset/c2")
    world.put(make.endpoints("c2", service=names.derived(V2)))
    parts = world.parts()
    assert parts == {"10.1.0.1": pytest.approx(0.8), "refused": pytest.approx(0.2)}
    assert world.plan().awaited == ("clusterset/c2",)
    with world.db.write() as txn:
        arrived.complete(txn)
    assert world.parts() == {"10.1.0.1": pytest.approx(80 / 120), "refused": pytest.approx(40 / 120)}


def test_a_grant_permits_a_backend_of_another_namespace_while_it_is_there() -> None:
    far = ServiceName("other/far")
    world = Routed(make.l4(make.backend("other/far")), *imported(far, "10.96.0.9", "10.2.0.9"))
    permits = Grant(
        name=ServiceName("other/grant"),
        sources=frozenset({("TCPRoute", "demo")}),
        targets=frozenset({("ServiceImport", "far")}),
    )
    assert world.put(permits).parts() == {"10.2.0.9": 1}
    assert world.delete(permits).parts() == {"refused": 1}
    http = msgspec.structs.replace(permits, sources=frozenset({("HTTPRoute", "demo")}))
    assert world.put(http).parts() == {"refused": 1}, "a grant is for the kinds that it names"


def test_a_plain_service_is_parent_and_backend_as_an_import_is() -> None:
    world = World().put(
        make.service("demo/plain", cluster_ips=("10.96.1.1",)),
        make.service("demo/canary", cluster_ips=("10.96.1.2",)),
        make.endpoints("c1", "10.1.1.1", service="demo/plain"),
        make.endpoints("c1", "10.1.1.2", service="demo/canary"),
    )
    assert world.plans == []
    backends = make.backend("plain", 3, kind="Service"), make.backend("canary", 1, kind="Service")
    route = make.l4(*backends, parent="Service", to="demo/plain")
    [plan] = world.put(route).plans
    assert [(group.weight, [t.address for t in group.targets]) for group in plan.groups] == [
        (3, ["10.1.1.1"]),
        (1, ["10.1.1.2"]),
    ]
    assert plan.frontends[0].address == "10.96.1.1"
    assert world.delete(route).plans == [], "its calls are kube-proxy's again"


def test_a_udp_route_is_for_ports_of_udp_and_a_tcp_route_for_those_of_tcp() -> None:
    ports, serving = (Port("http", 80), DNS), (Port("http", 8080), Port("dns", 5353, "UDP"))
    world = World().put(*imported(ECHO, "10.96.0.7", ports=ports), *imported(V2, "10.96.0.8", ports=ports))
    world.delete(make.endpoints("c2"))
    world.put(make.endpoints("c1", make.endpoint("10.1.0.1", ports=serving)))
    world.put(make.endpoints("c2", make.endpoint("10.2.0.1", ports=serving), service=names.derived(V2)))
    world.put(make.l4(make.backend("v2", port=53), kind="UDPRoute"))
    assert world.reached() == {
        f"{names.derived(ECHO)}:53/UDP/IPv4": ["c2/10.2.0.1:5353"],
        f"{names.derived(ECHO)}:80/TCP/IPv4": ["c1/10.1.0.1:8080"],
        f"{names.derived(V2)}:53/UDP/IPv4": ["c2/10.2.0.1:5353"],
        f"{names.derived(V2)}:80/TCP/IPv4": ["c2/10.2.0.1:8080"],
    }
    world.put(make.l4(make.backend("v2")))
    assert world.reached()[f"{names.derived(ECHO)}:80/TCP/IPv4"] == ["c2/10.2.0.1:8080"]


@pytest.mark.parametrize("limit", [{"port": 443}, {"section": "tls"}, {"port": 443, "section": "tls"}])
def test_port_and_section_name_limit_a_route_to_a_port(limit: dict[str, Any]) -> None:
    ports = Port("http", 80), Port("tls", 443)
    world = World().put(*imported(ECHO, "10.96.0.7", cluster="c1", ports=ports), *imported(V2, "10.96.0.8", "10.2.0.1"))
    world.put(make.endpoints("c1", make.endpoint("10.1.0.1", ports=(Port("http", 8080), Port("tls", 8443)))))
    world.put(make.l4(make.backend("v2"), **limit))
    assert world.reached()[f"{names.derived(ECHO)}:443/TCP/IPv4"] == ["c2/10.2.0.1:8080"]
    assert world.reached()[f"{names.derived(ECHO)}:80/TCP/IPv4"] == ["c1/10.1.0.1:8080"]


def test_the_oldest_route_has_the_port_and_the_next_one_takes_over() -> None:
    old = make.l4(make.backend("v2"), name="demo/z", created="2026-01-01T00:00:00Z")
    new = make.l4(make.backend("echo"), name="demo/a", created="2026-01-02T00:00:00Z")
    world = Routed(new, old)
    assert world.plan().redirected_by == "TCPRoute demo/z"
    assert world.delete(old).plan().redirected_by == "TCPRoute demo/a"


def test_a_backends_policy_splits_its_part() -> None:
    halves = Tier((Share(names.ClusterName("c1"), 1), Share(names.ClusterName("c2"), 3)))
    world = Routed(make.l4(make.backend("echo", 80), make.backend("nothing", 20)))
    world.put(make.endpoints("c2", "10.2.0.5"), Policy(name=ECHO, target=ECHO, tiers=(halves,)))
    assert world.parts() == {"10.1.0.1": 0.2, "10.2.0.5": pytest.approx(0.6), "refused": 0.2}


def test_the_backends_of_later_tiers_stand_behind() -> None:
    tiers = Tier((Share(names.ClusterName("c1")),)), Tier((Share(names.ClusterName("c2")),))
    world = Routed(make.l4(make.backend("echo", 1), make.backend("v2", 1)))
    world.put(make.endpoints("c2", "10.2.0.5"), Policy(name=ECHO, target=ECHO, tiers=tiers))
    assert [(group.tier, group.targets[0].address) for group in world.plan().groups] == [
        (0, "10.1.0.1"),
        (0, "10.2.0.1"),
        (1, "10.2.0.5"),
    ]


def test_a_route_whose_backends_have_many_groups_keeps_its_weights() -> None:
    clusters = [names.ClusterName(f"c{n}") for n in range(2, 22)]
    world = Routed(make.l4(make.backend("echo", 90), make.backend("v2", 10)))
    for target, net in ((ECHO, 3), (V2, 4)):
        tier = Tier(tuple(Share(each, n + 1) for n, each in enumerate(clusters)))
        world.put(Policy(name=target, target=target, tiers=(tier,)))
        world.put(
            *(make.endpoints(each, f"10.{net}.{n}.1", service=names.derived(target)) for n, each in enumerate(clusters))
        )
    parts = world.parts()
    assert sum(part for where, part in parts.items() if where.startswith("10.3.")) == pytest.approx(0.9)
    assert len(world.plan().groups) <= 32


def test_a_route_of_another_namespace_changes_no_calls() -> None:
    world = Routed()
    default = world.plan()
    assert world.put(make.l4(make.backend("demo/v2"), name="other/route")).plan() == default


def test_a_local_redirect_comes_first() -> None:
    world = Routed(make.l4(make.backend("v2")))
    world.put(make.pod("demo/near", "10.1.1.9"), make.local(service="demo/echo"))
    assert world.plan().redirected_by == "CiliumLocalRedirectPolicy demo/near"


def test_a_port_with_http_routes_follows_them_and_their_own_backends_without_envoy() -> None:
    world = Routed(make.l4(make.backend("v2")))
    http = PortRoutes(80, "", (("HTTPRoute", ServiceName("demo/web")),), "HTTPRoute demo/web", "", 1)
    with world.db.write() as txn:
        txn.put(tables.ATTACHMENTS, Attachment(names.derived(ECHO), (http,)))
    assert world.parts() == {"10.1.0.1": 1}
    with world.db.write() as txn:
        txn.put(tables.ATTACHMENTS, Attachment(names.derived(ECHO), (msgspec.structs.replace(http, callers="shop"),)))
    assert world.parts() == {"10.2.0.1": 1}, "routes of consumers are for these"


def test_a_change_of_a_backend_that_no_route_has_computes_no_route() -> None:
    world = Routed(make.l4(make.backend("v2"))).settle()
    before = world.db.snapshot().revision(tables.ROUTED_PORTS)
    world.put(*imported(ServiceName("demo/third"), "10.96.0.10", "10.2.0.7")).settle()
    assert world.db.snapshot().revision(tables.ROUTED_PORTS) == before


def affected_by(world: Routed, table: Any, old: Any, new: Any) -> set[Any]:
    """The services whose routes are computed when a row changes."""
    dirty: dict[Any, Any] = {}
    declared = l4_routes.derived(names.ClusterName("c1"), "n1")
    declared.mark(dirty, world.db.snapshot(), {table: [(old, new)]})
    return set(dirty)


def test_a_cluster_affects_routes_as_it_affects_plans() -> None:
    world = Routed(make.l4(make.backend("v2")), make.cluster("c2"))
    before = make.cluster("c2")
    failed = make.cluster("c2", state="stale", failures=7, since="2026-01-01T00:00:00Z")
    assert affected_by(world, tables.CLUSTERS, before, failed) == set(), "each failed attempt to reach it is a change"
    assert affected_by(world, tables.CLUSTERS, before, make.cluster("c2", network="two")) == {names.derived(ECHO)}
    world.put(Policy(name=V2, target=V2))
    assert affected_by(world, tables.CLUSTERS, before, make.cluster("c2", region="east")) == {names.derived(ECHO)}


def test_routes_of_other_namespaces_cost_a_parent_nothing() -> None:
    world = Routed(foreign := make.l4(make.backend("v2"), name="other/route"))
    assert affected_by(world, tables.L4_ROUTES, None, foreign) == set()
    sets = make.endpoints("c2", "10.2.0.2", service=names.derived(V2))
    assert affected_by(world, tables.ENDPOINT_SETS, None, sets) == set()
    world.put(make.l4(make.backend("v2")))
    assert affected_by(world, tables.ENDPOINT_SETS, None, sets) == {names.derived(ECHO)}


def test_shares_name_the_refused_part() -> None:
    world = Routed(make.l4(make.backend("echo", 80), make.backend("nothing", 20)))
    assert text(by_cluster(world.plan())) == "c1 80%, refused 20%"


def test_a_backend_of_another_namespace_affects_the_routes_that_a_grant_permits() -> None:
    """Without a grant its endpoints make no difference, however many routes of other namespaces name it."""
    far = ServiceName("other/far")
    world = Routed(make.l4(make.backend("other/far")), *imported(far, "10.96.0.9", "10.2.0.9"))
    sets = make.endpoints("c2", "10.2.0.10", service=names.derived(far))
    assert affected_by(world, tables.ENDPOINT_SETS, None, sets) == set()
    targets = frozenset({("ServiceImport", "")})
    world.put(Grant(name=ServiceName("other/udp"), sources=frozenset({("UDPRoute", "demo")}), targets=targets))
    assert affected_by(world, tables.ENDPOINT_SETS, None, sets) == set()
    world.put(Grant(name=ServiceName("other/grant"), sources=frozenset({("TCPRoute", "demo")}), targets=targets))
    assert affected_by(world, tables.ENDPOINT_SETS, None, sets) == {names.derived(ECHO)}


def test_what_if_a_cluster_had_nothing_ready_says_where_a_route_is_shown_as_it_is_now() -> None:
    world = Routed(make.l4(make.backend("v2"))).settle()
    place, c2 = Place(names.ClusterName("c1"), "n1", ""), names.ClusterName("c2")

    def notes(*without: names.ClusterName) -> list[str]:
        found = explain(world.db.snapshot(), names.derived(ECHO), place=place, without=without)
        return [each for each in found.notes if "TCPRoute" in each]

    assert notes() == []
    assert notes(c2) == ["port 80 follows TCPRoute demo/route: its backends are shown as they are, not without c2"]


class Statuses:
    """The operator's table of these routes, without an API server."""

    def __init__(self, *rows: Any) -> None:
        declared = [l4_route_objects.derived()]
        self.db = Database(*tables_of(declared))
        self.derivations = Derivations(self.db, *declared)
        self.put(make.service("demo/echo", ports=(Port("http", 80), Port("tls", 443), DNS)), *rows)

    def put(self, *rows: Any) -> Statuses:
        with self.db.write() as txn:
            for row in rows:
                txn.put(tables.ATTACHMENTS if isinstance(row, Attachment) else TABLES[type(row)], row)
        return self._settled()

    def delete(self, row: L4Route) -> Statuses:
        with self.db.write() as txn:
            txn.delete(tables.L4_ROUTES, row.key)
        return self._settled()

    def _settled(self) -> Statuses:
        while self.derivations.step():
            pass
        return self

    def conditions(self, name: str = "demo/route", kind: str = "TCPRoute") -> list[tuple[str, str, str, str]]:
        """Of the only parent: type, status, reason, message."""
        row = self.db.snapshot().get(tables.L4_ROUTE_OBJECTS, (kind, ServiceName(name)))
        assert row is not None
        [parent] = yaml.safe_load(row.status)["parents"]
        assert parent["controllerName"] == "isthmus.io/mesh"
        assert {each["observedGeneration"] for each in parent["conditions"]} == {1}
        return [(each["type"], each["status"], each["reason"], each["message"]) for each in parent["conditions"]]


ACCEPTED = ("Accepted", "True", "Accepted", "")
RESOLVED = ("ResolvedRefs", "True", "ResolvedRefs", "")
SELF = make.backend("echo", kind="Service")


def route(*backends: Any, **fields: Any) -> L4Route:
    return make.l4(*(backends or (SELF,)), **({"parent": "Service", "to": "demo/echo"} | fields))


def test_a_route_that_is_followed_is_accepted_and_resolved() -> None:
    assert Statuses(route()).conditions() == [ACCEPTED, RESOLVED]


@pytest.mark.parametrize(
    ("found", "reason", "message"),
    [
        (route(port=81), "NoMatchingParent", "its parent has no TCP port 81"),
        (route(port=53), "NoMatchingParent", "its parent has no TCP port 53"),
        (route(section="web"), "NoMatchingParent", "its parent has no TCP port named 'web'"),
        (route(to="demo/none"), "NoMatchingParent", "its parent does not exist"),
        (
            route(name="other/route"),
            "NotAllowedByParent",
            "a TCPRoute is followed for a parent of its own namespace alone, and this one's is demo",
        ),
    ],
    ids=lambda each: "" if isinstance(each, L4Route) else each,
)
def test_a_route_without_effect_says_why(found: L4Route, reason: str, message: str) -> None:
    assert Statuses(found).conditions(found.name)[0] == ("Accepted", "False", reason, message)


def test_the_younger_route_of_a_port_is_accepted_without_effect_until_the_older_one_goes() -> None:
    old = route(name="demo/old", created="2026-01-01T00:00:00Z", port=80)
    new = route(name="demo/new", created="2026-01-02T00:00:00Z", port=80)
    world = Statuses(new, old)
    assert world.conditions("demo/old")[0] == ACCEPTED
    text = "port 80 follows TCPRoute demo/old"
    assert world.conditions("demo/new") == [
        ("Accepted", "True", "Accepted", text),
        RESOLVED,
        ("isthmus.io/Effective", "False", "Conflicted", text),
    ]
    assert world.delete(old).conditions("demo/new") == [ACCEPTED, RESOLVED]


def test_a_route_that_loses_one_of_its_ports_is_accepted_and_names_it() -> None:
    old = route(name="demo/old", created="2026-01-01T00:00:00Z", port=80)
    world = Statuses(route(created="2026-01-02T00:00:00Z"), old)
    assert world.conditions()[0] == ("Accepted", "True", "Accepted", "port 80 follows TCPRoute demo/old")


def test_the_more_specific_kind_wins_a_port() -> None:
    http = PortRoutes(80, "", (("HTTPRoute", ServiceName("demo/web")),), "HTTPRoute demo/web", "", 1)
    world = Statuses(route(port=80), Attachment(ServiceName("demo/echo"), (http,)))
    assert world.conditions()[0] == ("Accepted", "False", "Conflicted", "port 80 follows HTTPRoute demo/web")


def test_routes_of_tcp_and_udp_of_one_number_are_not_in_conflict() -> None:
    both = make.service("demo/echo", ports=(Port("dns-tcp", 53), DNS))
    world = Statuses(both, route(make.backend("echo", port=53, kind="Service")))
    world.put(route(make.backend("echo", port=53, kind="Service"), kind="UDPRoute"))
    assert world.conditions() == [ACCEPTED, RESOLVED]
    assert world.conditions(kind="UDPRoute") == [ACCEPTED, RESOLVED]


@pytest.mark.parametrize(
    ("backend", "reason", "message"),
    [
        (make.backend("none", kind="Service"), "BackendNotFound", "Service demo/none with TCP port 80 does not exist"),
        (
            make.backend("echo", port=53, kind="Service"),
            "BackendNotFound",
            "Service demo/echo with TCP port 53 does not exist",
        ),
        (
            make.backend("other/far", kind="Service"),
            "RefNotPermitted",
            "no ReferenceGrant in other lets it refer to Service other/far",
        ),
        (make.backend("x", kind="Service", reason="InvalidKind"), "InvalidKind", "InvalidKind"),
    ],
)
def test_a_reference_that_does_not_hold_is_a_condition(backend: Any, reason: str, message: str) -> None:
    world = Statuses(route(SELF, backend), make.service("other/far"))
    assert world.conditions() == [ACCEPTED, ("ResolvedRefs", "False", reason, message)]


def test_a_route_that_cannot_be_read_has_no_resolved_refs() -> None:
    world = Statuses(route(invalid="spec.rules: 2 rules, a TCPRoute has one"))
    assert world.conditions() == [("Accepted", "False", "UnsupportedValue", "spec.rules: 2 rules, a TCPRoute has one")]


@pytest.mark.parametrize("process", ["operator", "agent"])
def test_the_rights_for_these_routes_are_those_that_are_used(process: str) -> None:
    roles = yaml.safe_load_all((ROOT / "deploy" / process / "rbac.yaml").read_text())
    [rules] = [each["rules"] for each in roles if each["kind"] == "ClusterRole"]
    given = {
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if rule["apiGroups"] == [TCP_ROUTE.group]
    }
    feeds = kubernetes.feeds(cluster=names.ClusterName("c1"))
    read = [*feeds[tables.L4_ROUTES.name], *feeds[tables.GRANTS.name]]
    used = {(feed.kind.resource, verb) for feed in read for verb in ("list", "watch")}
    for each in l4_route_objects.KINDS.values() if process == "operator" else ():
        used |= {(each.kind.resource, "get"), (f"{each.kind.resource}/status", "patch")}
    assert given == used


def test_a_field_that_nothing_follows_is_named() -> None:
    world = Statuses(route(unread=("spec.rules[0].sessionPersistence",)))
    text = "not followed, the rest of the route is: spec.rules[0].sessionPersistence"
    assert world.conditions()[2] == ("isthmus.io/Effective", "False", "UnsupportedValue", text)
