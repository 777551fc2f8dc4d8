"""The walk of a call: of each fault, the hop and the object that are named, as a pure function of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from balancing_world import DERIVED, World, make
from msgspec import structs

from isthmus.cli.diagnose import all_services
from isthmus.cli.diagnosis.exporters import diagnose
from isthmus.cli.diagnosis.facts import TABLES, Facts, Process
from isthmus.cli.diagnosis.hops import Hop
from isthmus.model import tables
from isthmus.model.balancing import Failure
from isthmus.model.clusters import Cluster
from isthmus.model.dns import Name
from isthmus.model.drains import Drain, Draining
from isthmus.model.mcs import Conflict, Merged, OverQuota, OwnExport
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Policy, Share, Tier
from isthmus.model.routes import BackendRef, ParentRef, RefKind, Route, RouteRule, ServiceRef
from isthmus.model.services import Condition, Export, Namespace, Port
from isthmus.model.xds import ServedListener
from isthmus.proxy.routing import cluster_name
from isthmus.statedb import Database, Status

ECHO, C1, C2 = make.ECHO, ClusterName("c1"), ClusterName("c2")
EXPORT = Export(cluster=C2, name=ECHO, created="2026-01-01T00:00:00Z", ports=(Port("http", 80),))
SOURCES = {"kubernetes/services": {"connected": True, "last_failure": ""}}


class Clusters:
    """c1 calls demo/echo, which c2 exports; everything is as it should be until a case changes it."""

    def __init__(self) -> None:
        self.world = World().put(
            make.imported(clusters=(C2,)), make.derived(), make.endpoints("c2", "10.2.0.1"),
            make.cluster("c1", own=True), make.cluster("c2", state="ready"), make.pod("demo/client"),
        )  # fmt: skip
        self.agent: list[tuple[Any, Any]] = [
            (tables.NAMES, Name("echo.demo.svc.clusterset.local", "A", ("10.96.0.7",))),
        ]
        self.operator: dict[str, tuple[Any, Any]] = {
            "namespace": (tables.NAMESPACES, Namespace("demo")),
            "export": (tables.EXPORTS, EXPORT),
            "own": (tables.CLUSTERS, make.cluster("c1", own=True)),
            "peer": (tables.CLUSTERS, make.cluster("c2", state="ready")),
        }
        self.exporter: dict[str, tuple[Any, Any]] = {
            "own": (tables.OWN_EXPORTS, OwnExport(name=ECHO, export=EXPORT)),
            "service": (tables.SERVICES, make.service(selector=(("app", "echo"),))),
            "endpoints": (tables.ENDPOINT_SETS, make.endpoints("c2", "10.2.0.1", service=ECHO, source="kubernetes")),
        }
        hooks = {"cgroup": "/sys/fs/cgroup/pods", "attached": True, "detail": "8 programs attached"}
        self.status: dict[str, dict[str, Any]] = {
            "agent": {"unhooked": "", "datapath": {"hooks": hooks}, "reflectors": dict(SOURCES)},
            "operator": {"publisher": {"error": ""}, "reflectors": dict(SOURCES)},
            "dns": {"tables": {"names": {"rows": 1}}, "reflectors": {"names": {"connected": True}}, "server": {}},
            "dns-second": {"tables": {"names": {"rows": 1}}, "reflectors": {"names": {"connected": True}}},
            "c2-agent": {"reflectors": dict(SOURCES)},
            "c2": {"publisher": {"error": ""}, "reflectors": dict(SOURCES)},
        }
        self.errors: dict[str, str] = {}
        self.pod, self.hooked = "", None

    def facts(self) -> Facts:
        settled = self.world.settle().db
        agent = [
            (table, row) for table in TABLES if table.name in settled.tables for row in settled.snapshot().all(table)
        ]
        return Facts(
            self._process("c1", "agent", [*agent, *self.agent]),
            self._process("c1", "operator", [*self.operator.values()]),
            tuple(self._process("c1", name, []) for name in ("dns", "dns-second")),
            (
                self._process("c2", "operator", [*self.exporter.values()], key="c2"),
                self._process("c2", "agent", [], key="c2-agent"),
            ),
            lab="demo",
            pod=self.pod,
            pod_hooked=self.hooked,
        )

    def _process(self, cluster: str, name: str, rows: list[tuple[Any, Any]], *, key: str = "") -> Process:
        db = Database(*TABLES)
        if error := self.errors.get(key or name, ""):
            return Process(cluster, name, db.snapshot(), error=error)
        with db.write() as txn:
            for table, row in rows:
                txn.put(table, row)
        return Process(cluster, name, db.snapshot(), {"uptime": 1.0} | self.status[key or name])

    def faults(self) -> list[Hop]:
        return [hop for hop in diagnose(self.facts(), ECHO) if hop.state == "fault"]


def unexported(it: Clusters) -> None:
    """c1 has nothing of the service: neither import nor name nor plan."""
    it.world.delete(make.imported(), make.derived(), make.endpoints("c2"))
    it.agent.clear()
    del it.operator["export"]


def no_process(name: str) -> Callable[[Clusters], None]:
    return lambda it: it.errors.update({name: "the process that served it has ended"})


def peer(state: str, reason: str) -> Callable[[Clusters], None]:
    def change(it: Clusters) -> None:
        row: Cluster = make.cluster("c2", state=state, reason=reason)
        it.operator["peer"] = (tables.CLUSTERS, row)
        it.world.put(row)

    return change


def broken_file(it: Clusters) -> None:
    row: Cluster = structs.replace(make.cluster("c2", state="ready"), file_problem="/peers/c2: endpoints: want a list")
    it.operator["peer"] = (tables.CLUSTERS, row)


def not_joined(it: Clusters) -> None:
    unexported(it)
    it.world.delete(make.cluster("c2"))
    del it.operator["peer"]


def invalid_export(it: Clusters) -> None:
    unexported(it)
    it.exporter["own"] = (tables.OWN_EXPORTS, OwnExport(name=ECHO, reason="NoService", message="no such Service"))


def never_exported(it: Clusters) -> None:
    unexported(it)
    del it.exporter["own"]


def misspelt(it: Clusters) -> None:
    never_exported(it)
    del it.exporter["service"]
    it.exporter["own"] = (tables.OWN_EXPORTS, OwnExport(name=ServiceName("demo/echoo"), export=EXPORT))


def conflict(it: Clusters) -> None:
    found = Conflict("TypeConflict", "c3 disagrees on type")
    it.operator["merged"] = (tables.MERGED, Merged(name=ECHO, type="ClusterSetIP", ports=(), conflicts=(found,)))


def no_namespace(it: Clusters) -> None:
    unexported(it)
    it.operator["export"] = (tables.EXPORTS, EXPORT)
    del it.operator["namespace"]


def endpoints(*found: Any) -> Callable[[Clusters], None]:
    def change(it: Clusters) -> None:
        it.world.put(make.endpoints("c2", *found))
        row = make.endpoints("c2", *found, service=ECHO, source="kubernetes")
        it.exporter["endpoints"] = (tables.ENDPOINT_SETS, row)

    return change


def unhooked(it: Clusters) -> None:
    it.pod, it.hooked = "demo/client", False  # type: ignore[assignment]


def elsewhere(it: Clusters) -> None:
    it.pod = "demo/other"


def no_apiserver_there(it: Clusters) -> None:
    """c2's operator cannot renew its Lease, so it does not lead; its agent goes on."""
    it.status["c2-agent"]["reflectors"] = {"kubernetes/services": {"connected": False, "last_failure": "refused"}}
    it.errors["c2"] = "the process that served it has ended"
    peer("stale", "no heartbeat")(it)


def detached(it: Clusters) -> None:
    it.status["agent"]["unhooked"] = "calls are not translated: the cgroup is gone"


def no_apiserver(it: Clusters) -> None:
    it.status["operator"]["reflectors"] = {"kubernetes/services": {"connected": False, "last_failure": "refused"}}


def no_etcd(process: str) -> Callable[[Clusters], None]:
    return lambda it: it.status[process].update({"publisher": {"error": "no route"}})


def deaf_resolver(it: Clusters) -> None:
    it.status["dns"]["reflectors"] = {"names": {"connected": False}}


def other_zone(it: Clusters) -> None:
    it.status["dns"]["server"] = {"zone": "other.local"}


def full_map(it: Clusters) -> None:
    [plan] = it.world.plans
    it.agent.append((tables.PLANS_STATUS, Status(plan.key, "map slots is full", 3, 1.0)))


def dead_backend(it: Clusters) -> None:
    [backend] = it.world.backends
    failure = Failure(backend.key, "3 connects were refused", "refused", 3, 1.0, 2.0)
    it.agent.append((tables.FAILURES, failure))


def over_quota(it: Clusters) -> None:
    it.operator["quota"] = (tables.OVER_QUOTA, OverQuota(ECHO, 10))


def policy(cluster: str, *, invalid: str = "") -> Callable[[Clusters], None]:
    tiers = (Tier((Share(ClusterName(cluster)),)),)
    row = Policy(name=ServiceName("demo/p"), target=ECHO, tiers=tiers, invalid=invalid)

    def change(it: Clusters) -> None:
        it.world.put(row)

    return change


def route(*backends: BackendRef, parent: str = "demo/echo", invalid: str = "") -> Callable[[Clusters], None]:
    found = Route(
        kind="HTTPRoute",
        name=ServiceName("demo/r"),
        parents=(ParentRef("ServiceImport", ServiceName(parent)),),
        rules=(RouteRule(backends=backends),),
        invalid=invalid,
    )
    served = ServedListener(cluster_name(DERIVED, 80))
    return lambda it: it.agent.extend(((tables.ROUTES, found), (tables.XDS_SERVED, served)))


def unserved_route(it: Clusters) -> None:
    route(backend("Cluster", "c2", 0))(it)
    it.agent.pop()


def backend(kind: RefKind, name: str, port: int = 80, *, weight: int = 1) -> BackendRef:
    return BackendRef(ServiceRef(kind, ServiceName(name), port), weight)


NOT_READY = make.endpoint("10.2.0.1", condition=Condition.NOT_READY)
NO_PORT = make.endpoint("10.2.0.1", ports=())

CASES: dict[str, tuple[Callable[[Clusters], None], str, str]] = {
    "agent down": (no_process("agent"), "process", "c1/agent"),
    "operator down": (no_process("operator"), "process", "c1/operator"),
    "dns down": (no_process("dns"), "process", "c1/dns"),
    "API server down": (no_apiserver, "process", "API server of c1"),
    "own etcd down": (no_etcd("operator"), "process", "etcd of c1"),
    "resolver without the agent's names": (deaf_resolver, "resolver", "c1/dns"),
    "resolver of another zone": (other_zone, "resolver", "c1/dns"),
    "programs detached": (detached, "hook", "c1/agent"),
    "pod outside the hooked cgroup": (unhooked, "hook", "pod demo/client"),
    "pod of another node": (elsewhere, "hook", "pod demo/other"),
    "policy without effect": (policy("c2", invalid="spec.tiers: wrong"), "policy", "TrafficPolicy demo/p"),
    "policy that leaves nobody": (policy("c9"), "policy", "TrafficPolicy demo/p"),
    "route without effect": (route(invalid="spec.rules: wrong"), "route", "HTTPRoute demo/r"),
    "route that the Envoy does not serve": (unserved_route, "route", "HTTPRoute demo/r"),
    "route to no Service": (route(backend("Service", "demo/nothere")), "route", "HTTPRoute demo/r"),
    "route to no cluster": (route(backend("Cluster", "c9", 0)), "route", "HTTPRoute demo/r"),
    "route that may not refer": (route(backend("Service", "other/x")), "route", "HTTPRoute demo/r"),
    "maps full": (full_map, "plan", "plan of demo/echo"),
    "backend that refuses": (dead_backend, "endpoints", "backend c2 10.2.0.1:8080"),
    "quota of imports": (over_quota, "conflict", "ServiceImport demo/echo"),
    "peer cut off": (peer("stale", "timed out"), "peer", "cluster c2"),
    "peer with a broken file": (broken_file, "peer", "cluster c2"),
    "exporter that has not joined": (not_joined, "peer", "cluster c2"),
    "peer refused": (peer("refused", "another id"), "peer", "cluster c2"),
    "exporter's operator down": (no_process("c2"), "peer", "c2/operator"),
    "exporter's API server down": (no_apiserver_there, "peer", "API server of c2"),
    "exporter's etcd down": (no_etcd("c2"), "peer", "etcd of c2"),
    "export without Service": (invalid_export, "export", "ServiceExport demo/echo in c2"),
    "never exported": (never_exported, "export", "Service demo/echo in c2"),
    "typo": (misspelt, "export", "demo/echo"),
    "conflict": (conflict, "conflict", "ServiceImport demo/echo"),
    "namespace missing": (no_namespace, "namespace", "namespace demo in c1"),
    "no pod": (endpoints(), "pods", "pods of demo/echo in c2"),
    "no ready pod": (endpoints(NOT_READY), "pods", "pods of demo/echo in c2"),
    "target port missing": (endpoints(NO_PORT), "pods", "pods of demo/echo in c2"),
}


def test_a_healthy_path_is_ok_at_every_hop() -> None:
    hops = diagnose(Clusters().facts(), ECHO)
    assert [hop for hop in hops if hop.state != "ok"] == []
    assert {hop.hop for hop in hops} == {
        "process", "name", "resolver", "hook", "frontend", "plan", "endpoints", "peer", "export", "namespace", "pods",
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_named_with_its_hop_its_object_and_a_command(case: str) -> None:
    change, hop, thing = CASES[case]
    it = Clusters()
    change(it)
    [fault] = it.faults()
    assert (fault.hop, fault.object) == (hop, thing)
    assert fault.text
    assert fault.cure


def test_a_missing_name_server_is_named_with_the_one_that_answers_in_its_place() -> None:
    it = Clusters()
    no_process("dns-second")(it)
    assert [fault.text.partition("; ")[2] for fault in it.faults()] == ["c1/dns answers in its place"]
    no_process("dns")(it)
    assert [(fault.object, fault.text.partition("; ")[2]) for fault in it.faults()] == [
        ("c1/dns", ""), ("c1/dns-second", "")
    ]  # fmt: skip


def test_the_policy_in_force_is_a_hop_with_its_shares() -> None:
    it = Clusters()
    policy("c2")(it)
    [found] = [hop for hop in diagnose(it.facts(), ECHO) if hop.hop == "policy"]
    assert (found.object, found.text, found.state) == ("TrafficPolicy demo/p", "in force: c2 100%", "ok")


def test_a_route_to_a_cluster_is_well_and_one_to_nothing_names_the_part_of_the_calls() -> None:
    it = Clusters()
    route(backend("Cluster", "c2", 0))(it)
    assert it.faults() == []
    it = Clusters()
    route(backend("Cluster", "c2", 0, weight=3), backend("Service", "demo/nothere"))(it)
    [fault] = it.faults()
    missing = "500: Service demo/nothere with TCP port 80 does not exist"
    assert fault.text == f"25% of the calls of rule 1 are answered with {missing}"


def test_a_cluster_that_a_policy_names_and_that_does_not_exist_is_named() -> None:
    it = Clusters()
    policy("c9")(it)
    [fault] = it.faults()
    assert fault.text == "leaves none of 1 ready backends to be called; no cluster is called c9"


def test_a_policy_or_a_route_for_what_does_not_exist_has_no_effect() -> None:
    typo = ServiceName("demo/ecko")
    it = Clusters()
    row = Policy(name=ServiceName("demo/p"), target=typo, tiers=(Tier((Share(C2),)),))
    it.agent.append((tables.POLICIES, row))
    route(backend("Cluster", "c2", 0), parent=typo)(it)
    assert typo in all_services(it.facts())
    found = {hop.object: hop.text for hop in diagnose(it.facts(), typo) if hop.hop in ("policy", "route")}
    assert found == {
        "TrafficPolicy demo/p": "has no effect: ServiceImport demo/ecko does not exist in c1",
        "HTTPRoute demo/r": "has no effect: its parent does not exist",
    }


@pytest.mark.parametrize(
    ("why", "cure"),
    [
        ("etcd https://c2: etcdserver: permission denied", "its etcd does not admit the user in its file: "),
        ("etcd https://c2: its certificate is refused: expired", "the authority in its file is not that of its etcd: "),
        ("etcd https://c2: it refuses the client's certificate: bad", "the certificate in its file has ended, or "),
        ("etcd https://c2: timed out", "isthmus clusters status; its etcd is "),
    ],
)
def test_the_cure_for_a_peer_fits_the_reason(why: str, cure: str) -> None:
    it = Clusters()
    peer("stale", why)(it)
    [fault] = it.faults()
    assert fault.cure.startswith(cure)


@pytest.mark.parametrize(
    ("why", "cure"),
    [
        ("list services: 401 Unauthorized", "the token of c1/operator is not valid: "),
        ("list services: 403 Forbidden", "c1/operator lacks that right: "),
        ("list services: no route to host", "kubectl --context c1 get --raw /readyz"),
    ],
)
def test_the_cure_for_an_api_server_fits_the_reason(why: str, cure: str) -> None:
    it = Clusters()
    it.status["operator"]["reflectors"] = {"kubernetes/services": {"connected": False, "last_failure": why}}
    [fault] = it.faults()
    assert fault.cure.startswith(cure)


def test_what_waits_for_an_api_server_is_no_fault_of_its_own() -> None:
    it = Clusters()
    away = {"kubernetes/services": {"connected": False, "last_failure": "list services: 401 Unauthorized"}}
    pending = {name: {"pending": ["kubernetes"]} for name in ("names", "plans")}
    it.status["agent"] |= {"reflectors": away, "tables": pending, "unhooked": "plans are not programmed yet"}
    it.status["dns"]["reflectors"] = {"names": {"connected": False}}
    assert [fault.object for fault in it.faults()] == ["API server of c1"]


def test_an_etcd_that_is_away_is_a_fault_also_where_the_operator_has_ended_for_it() -> None:
    it = Clusters()
    peer("stale", "etcd https://c2: failed to connect")(it)
    it.errors["c2"] = "no process serves its socket"
    assert [fault.object for fault in it.faults()] == ["cluster c2", "c2/operator"]


def test_that_no_cluster_exports_follows_from_a_peer_whose_exports_are_not_known() -> None:
    it = Clusters()
    unexported(it)
    it.world.put(make.service())
    it.operator["service"] = (tables.SERVICES, make.service())
    del it.exporter["own"]
    peer("refused", "its cluster id is 2, but it joined with 1")(it)
    assert [fault.object for fault in it.faults()] == ["cluster c2"]


def drained(target: str, *, kind: str = "Cluster", reason: str) -> Callable[[Clusters], None]:
    drain = Drain(kind=kind, target=target, reason=reason, started="2026-11-22T07:00:00Z")

    def change(it: Clusters) -> None:
        it.world.put(Draining(by=C2, drain=drain))

    return change


OWN, OTHER = "Drain isthmus-system/cluster-c2", "Drain isthmus-system/maintenance"
SERVICE = "Drain demo/service-echo"
DRAINS: dict[str, tuple[Callable[[Clusters], None], str, str]] = {
    "a cluster": (drained("c2", reason=OWN), "cluster c2", "isthmus clusters undrain c2 --context c2"),
    "a service": (drained("demo/echo", kind="Service", reason=SERVICE), "service demo/echo",
                  "isthmus services undrain demo/echo --context c2"),
    "by an object of another name": (drained("c2", reason=OTHER), "cluster c2",
                                     "kubectl --context c2 -n isthmus-system delete drain maintenance"),
    "a peer's reason is no command": (drained("c2", reason="Drain a/b; reboot"), "cluster c2", "ends with its reason"),
}  # fmt: skip


@pytest.mark.parametrize("case", DRAINS)
def test_a_drain_is_a_hop_with_its_object_and_what_ends_it(case: str) -> None:
    change, thing, command = DRAINS[case]
    it = Clusters()
    it.world.put(make.endpoints("c1", "10.1.0.1"))
    change(it)
    [found] = [hop for hop in diagnose(it.facts(), ECHO) if hop.hop == "drain"]
    assert (found.object, found.state) == (thing, "ok")
    assert found.text.startswith("is drained since 2026-11-22T07:00:00Z (Drain ")
    assert found.text.endswith(command)
    assert "1 of 2 backends;" in found.text


def test_a_drain_that_leaves_nothing_else_names_what_is_still_called() -> None:
    it = Clusters()
    drained("c2", reason=OWN)(it)
    [found] = [hop for hop in diagnose(it.facts(), ECHO) if hop.hop == "drain"]
    assert "1 of 1 backends, 1 of them still called as nothing else is there;" in found.text


def test_a_drain_of_something_else_is_no_hop() -> None:
    it = Clusters()
    drained("c3", reason=OWN)(it)
    assert "drain" not in {hop.hop for hop in diagnose(it.facts(), ECHO)}


def test_a_typo_is_answered_with_the_nearest_name() -> None:
    it = Clusters()
    misspelt(it)
    [fault] = it.faults()
    assert "demo/echoo" in fault.text


def test_endpoints_of_a_peer_that_is_not_ready_say_as_of_when_they_are() -> None:
    it = Clusters()
    row: Cluster = structs.replace(make.cluster("c2", state="stale"), since="2026-01-01T10:00:00Z")
    it.world.put(row)
    [found] = [hop for hop in diagnose(it.facts(), ECHO) if hop.hop == "endpoints"]
    assert (found.state, found.text) == ("follows", "1 of 1 ready, from clusterset, as of 2026-01-01T10:00:00Z: stale")


def test_where_nothing_names_a_cause_the_first_hop_that_fails_is_the_fault() -> None:
    it = Clusters()
    it.agent.clear()
    [fault] = it.faults()
    assert (fault.hop, fault.object, fault.cure) == ("name", "demo/echo", "isthmus explain demo/echo")


def test_a_fault_that_follows_from_another_is_no_fault_of_its_own() -> None:
    it = Clusters()
    endpoints(NOT_READY)(it)
    assert {hop.hop for hop in diagnose(it.facts(), ECHO) if hop.state == "follows"} == {"plan", "endpoints"}
