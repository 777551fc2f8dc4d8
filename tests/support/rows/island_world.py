"""Clusters in which c1 calls demo/echo of the island c2, as rows and statuses, and changes that are faults."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from rows.balancing_world import make

from isthmus.cli.diagnosis.exporters import diagnose
from isthmus.cli.diagnosis.facts import TABLES, Facts, Process
from isthmus.cli.diagnosis.hops import Hop
from isthmus.mcs.words import IMPORTERS
from isthmus.model import tables
from isthmus.model.balancing import Frontend, FrontendKey, PlanKey
from isthmus.model.dns import Name
from isthmus.model.export_policies import Allow, ExportPolicy
from isthmus.model.islands import GatewayCheck, IslandListener, RefusedGateway
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Export, Import, Namespace, Port
from isthmus.model.xds import EnvoyCheck, ServedListener
from isthmus.statedb import Database

ECHO, C1, C2 = make.ECHO, ClusterName("c1"), ClusterName("c2")
SNI = "80.derived-qieggqc27v.tcp.clusterset.local"
AT = "172.30.2.11:15443"
OWN = make.cluster("c1", own=True, network="one")
ISLAND = make.cluster("c2", state="ready", network="two", gateways=(AT,))
EXPORT = Export(cluster=C2, name=ECHO, created="2026-01-01T00:00:00Z", ports=(Port("http", 80),))
LISTENER = IslandListener(
    service=make.DERIVED, cluster=C2, port=80, addresses=("169.254.7.1",), listen_port=19_100, import_of=ECHO
)
HOOKS = {"cgroup": "/sys/fs/cgroup/pods", "attached": True, "detail": "8 programs attached"}
FRONTEND = Frontend(
    FrontendKey("10.96.0.7", 80, "TCP"), make.DERIVED, "http", PlanKey(make.DERIVED, 80, "TCP", "IPv4"), import_of=ECHO
)
CHECK = GatewayCheck(cluster=C2, address=AT, healthy=True)


class Island:
    """c1 calls demo/echo of the island c2; everything is as it should be until a case changes it."""

    def __init__(self) -> None:
        self.calling: dict[str, Any] | None = {
            "domain": "clusterset.local",
            "certificate_ends": "2027-11-22T10:00:00Z",
            "problem": "",
            "members": ["c2"],
        }
        self.imported: Import | None = make.imported(clusters=(C2,))
        self.listener: IslandListener | None = LISTENER
        self.served = True
        self.envoy = EnvoyCheck(healthy=True)
        self.checks = [CHECK]
        self.refused: list[RefusedGateway] = []
        self.export = EXPORT
        self.gateway: dict[str, Any] = {
            "members": ["c1"],
            "problems": [],
            "certificate_ends": "2027-10-21T09:00:00Z",
        }
        self.policies: list[ExportPolicy] = []
        """Those that c2's gateway has read."""
        self.gateway_error = ""
        self.lab = "demo"
        self.island = ISLAND
        self.pod = ""
        self.proving: dict[str, Any] | None = None
        """Status of proven identities of c1's agent; ``None`` if they are not enabled."""
        self.more: list[tuple[Any, Any]] = []

    def facts(self) -> Facts:
        rows: list[tuple[Any, Any]] = [
            *([(tables.IMPORTS, self.imported)] if self.imported is not None else []),
            (tables.SERVICES, make.derived()),
            (tables.ENDPOINT_SETS, make.endpoints("c2", "10.2.0.1")),
            (tables.NAMES, Name("echo.demo.svc.clusterset.local", "A", ("10.96.0.7",))),
            (tables.FRONTENDS, FRONTEND),
            *self.more,
            (tables.CLUSTERS, OWN),
            (tables.ENVOY_CHECKS, self.envoy),
            (tables.CLUSTERS, self.island),
            *((tables.GATEWAY_CHECKS, row) for row in self.checks),
            *((tables.REFUSED_GATEWAYS, row) for row in self.refused),
        ]
        if self.listener is not None:
            rows.append((tables.ISLAND_LISTENERS, self.listener))
        if self.listener is not None and self.served:
            rows.append((tables.XDS_SERVED, ServedListener(self.listener.name)))
        status = {
            "uptime": 1.0,
            "calling": self.calling,
            "unhooked": "",
            "datapath": {"hooks": HOOKS},
            "proving": self.proving,
        }
        exports = [(tables.EXPORTS, self.export)] if self.imported is not None else []
        operator = [*exports, (tables.NAMESPACES, Namespace("demo"))]
        theirs = process("c2", "gateway", [(tables.EXPORT_POLICIES, each) for each in self.policies], self.gateway)
        return Facts(
            process("c1", "agent", rows, status),
            process("c1", "operator", operator, {"uptime": 1.0}),
            (),
            (replace(theirs, error=self.gateway_error),) if self.lab else (),
            lab=self.lab,
            pod=self.pod,
        )

    def hops(self) -> tuple[Hop, ...]:
        return diagnose(self.facts(), ECHO)

    def faults(self) -> list[Hop]:
        return [hop for hop in self.hops() if hop.state == "fault"]

    def gateway_hops(self) -> list[Hop]:
        return [hop for hop in self.hops() if hop.hop in ("gateway", "export") or hop.state == "fault"]


def process(cluster: str, name: str, rows: list[tuple[Any, Any]], status: dict[str, Any]) -> Process:
    db = Database(*TABLES)
    with db.write() as txn:
        for table, row in rows:
            txn.put(table, row)
    return Process(cluster, name, db.snapshot(), status)


def dead(it: Island) -> None:
    it.checks = [replace(CHECK, healthy=False, reason="its checks fail")]


def expired(it: Island) -> None:
    assert it.calling is not None
    it.calling["problem"] = "/etc/isthmus/pki/node.crt: it ended at 2026-11-21 10:00 UTC"
    dead(it)


def expired_there(it: Island) -> None:
    it.gateway["problems"] = ["/etc/isthmus/pki/gateway.crt: it ended at 2026-11-21 10:00 UTC"]
    dead(it)


def unknown_here(it: Island) -> None:
    assert it.calling is not None
    it.calling["members"] = []
    dead(it)


def unknown_there(it: Island) -> None:
    it.gateway["members"] = ["c3"]
    dead(it)


def ended_there(it: Island) -> None:
    it.gateway_error = "the process that served it has ended"


def hung_there(it: Island) -> None:
    it.gateway_error = "/run/isthmus/gateway.sock: no answer in time: the process is busy or stopped"


def unserved(it: Island) -> None:
    it.served = False


def hung(it: Island) -> None:
    """Envoy has its listeners; the checks of gateways are those that it made last."""
    it.envoy = EnvoyCheck(healthy=False, reason="does not answer: its listeners accept connections and nothing answers")


def refused(it: Island) -> None:
    message = "172.30.1.2 is an address of an API server of this cluster"
    it.refused = [RefusedGateway(cluster=C2, address="172.30.1.2:6443", message=message)]


def unconfigured(it: Island) -> None:
    it.calling = it.listener = None
    it.checks = []


def not_for_us(it: Island) -> None:
    it.export = replace(EXPORT, annotations=((IMPORTERS, "c3"),))


def for_us(it: Island) -> None:
    it.export = replace(EXPORT, annotations=((IMPORTERS, "c1,c3"),))


def not_allowed(it: Island) -> None:
    it.policies = [ExportPolicy(name=ServiceName("demo/callers"), allow=(Allow(cluster=ClusterName("c3")),))]


def allowed(it: Island) -> None:
    rules = (Allow(cluster=ClusterName("c3")), Allow(cluster=ClusterName("c1"), namespace="shop"))
    it.policies = [ExportPolicy(name=ServiceName("demo/callers"), allow=rules)]
