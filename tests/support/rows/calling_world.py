"""Clusters in which c1 calls demo/echo of c2, as rows and statuses, and changes of them that are faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs
from rows.balancing_world import DERIVED, World, make

from isthmus.cli.diagnosis.exporters import diagnose
from isthmus.cli.diagnosis.facts import TABLES, Facts, Process
from isthmus.cli.diagnosis.hops import Hop
from isthmus.model import tables
from isthmus.model.balancing import Failure
from isthmus.model.clusters import Cluster
from isthmus.model.dns import Name
from isthmus.model.mcs import Conflict, Merged, OverQuota, OwnExport
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Policy, Share, Tier
from isthmus.model.redirects import Listener, ProxyRedirect
from isthmus.model.routes import BackendRef, ParentRef, RefKind, Route, RouteRule, ServiceRef, with_rules
from isthmus.model.services import Condition, Export, Namespace, Port
from isthmus.model.stalls import Stall
from isthmus.model.xds import EnvoyCheck, ServedListener
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
        self.exporters_agent: list[tuple[Any, Any]] = []
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
        self.asked = 0.0
        self.unreadable: dict[str, str] = {}
        """By process: a table with a row that this version cannot read, with the reason."""
        self.stalls: dict[str, tuple[Stall, ...]] = {}
        """Stalled connections that an agent finds."""

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
                self._process("c2", "agent", self.exporters_agent, key="c2-agent"),
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
        status = {"uptime": 1.0} | self.status[key or name]
        unreadable = tuple(filter(None, [self.unreadable.get(key or name, "")]))
        return Process(
            cluster,
            name,
            db.snapshot(),
            status,
            asked=self.asked,
            unreadable=unreadable,
            stalls=self.stalls.get(key or name, ()),
        )

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
    row = Route(
        kind="HTTPRoute",
        name=ServiceName("demo/r"),
        parents=(ParentRef("ServiceImport", ServiceName(parent)),),
        invalid=invalid,
    )
    found = with_rules(row, [RouteRule(backends=backends)])
    listening = ProxyRedirect(service=DERIVED, owner=found.owner, listeners=(Listener("169.254.7.1", 15_100, (80,)),))
    served = ServedListener(cluster_name(DERIVED, 80))
    return lambda it: it.agent.extend(
        ((tables.ROUTES, found), (tables.PROXY_LISTENERS, listening), (tables.XDS_SERVED, served))
    )


def l4_route(*backends: BackendRef, **fields: Any) -> Callable[[Clusters], None]:
    """The TCPRoute demo/route of the import."""

    def change(it: Clusters) -> None:
        it.world.put(make.l4(*backends, **fields))

    return change


def unserved_route(it: Clusters) -> None:
    route(backend("Cluster", "c2", 0))(it)
    it.agent.pop()


def hung_envoy(it: Clusters) -> None:
    route(backend("Cluster", "c2", 0))(it)
    it.agent.append((tables.ENVOY_CHECKS, EnvoyCheck(healthy=False, reason="does not answer: nothing answers")))


def backend(kind: RefKind, name: str, port: int = 80, *, weight: int = 1) -> BackendRef:
    return BackendRef(ServiceRef(kind, ServiceName(name), port), weight)


NOT_READY = make.endpoint("10.2.0.1", condition=Condition.NOT_READY)
NO_PORT = make.endpoint("10.2.0.1", ports=())
