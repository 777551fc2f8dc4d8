"""The walk of a call into an island: of each fault, the hop and the object that are named, as a function of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from balancing_world import make
from msgspec.structs import replace

from isthmus.cli.diagnosis.exporters import diagnose
from isthmus.cli.diagnosis.facts import TABLES, Facts, Process
from isthmus.cli.diagnosis.hops import Hop
from isthmus.mcs.words import IMPORTERS
from isthmus.model import tables
from isthmus.model.islands import GatewayCheck, IslandListener
from isthmus.model.names import ClusterName
from isthmus.model.services import Export, Import, Namespace, Port
from isthmus.model.xds import ServedListener
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
CHECK = GatewayCheck(cluster=C2, address=AT, healthy=True)


class World:
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
        self.checks = [CHECK]
        self.export = EXPORT
        self.gateway: dict[str, Any] = {
            "members": ["c1"],
            "problems": [],
            "certificate_ends": "2027-10-21T09:00:00Z",
        }
        self.gateway_error = ""
        self.lab = "demo"
        self.island = ISLAND

    def hops(self) -> tuple[Hop, ...]:
        rows: list[tuple[Any, Any]] = [
            *([(tables.IMPORTS, self.imported)] if self.imported is not None else []),
            (tables.SERVICES, make.derived()),
            (tables.CLUSTERS, OWN),
            (tables.CLUSTERS, self.island),
            *((tables.GATEWAY_CHECKS, row) for row in self.checks),
        ]
        if self.listener is not None:
            rows.append((tables.ISLAND_LISTENERS, self.listener))
        if self.listener is not None and self.served:
            rows.append((tables.XDS_SERVED, ServedListener(self.listener.name)))
        status = {"uptime": 1.0, "calling": self.calling, "unhooked": "", "datapath": None}
        exports = [(tables.EXPORTS, self.export)] if self.imported is not None else []
        operator = [*exports, (tables.NAMESPACES, Namespace("demo"))]
        theirs = process("c2", "gateway", [], self.gateway)
        facts = Facts(
            process("c1", "agent", rows, status),
            process("c1", "operator", operator, {"uptime": 1.0}),
            (),
            (replace(theirs, error=self.gateway_error),) if self.lab else (),
            lab=self.lab,
        )
        return diagnose(facts, ECHO)

    def gateway_hops(self) -> list[Hop]:
        return [hop for hop in self.hops() if hop.hop in ("gateway", "export")]


def process(cluster: str, name: str, rows: list[tuple[Any, Any]], status: dict[str, Any]) -> Process:
    db = Database(*TABLES)
    with db.write() as txn:
        for table, row in rows:
            txn.put(table, row)
    return Process(cluster, name, db.snapshot(), status)


def dead(it: World) -> None:
    it.checks = [replace(CHECK, healthy=False, reason="its checks fail")]


def expired(it: World) -> None:
    assert it.calling is not None
    it.calling["problem"] = "/etc/isthmus/pki/node.crt: it ended at 2026-11-21 10:00 UTC"
    dead(it)


def expired_there(it: World) -> None:
    it.gateway["problems"] = ["/etc/isthmus/pki/gateway.crt: it ended at 2026-11-21 10:00 UTC"]
    dead(it)


def unknown_here(it: World) -> None:
    assert it.calling is not None
    it.calling["members"] = []
    dead(it)


def unknown_there(it: World) -> None:
    it.gateway["members"] = ["c3"]
    dead(it)


def ended_there(it: World) -> None:
    it.gateway_error = "the process that served it has ended"


def unserved(it: World) -> None:
    it.served = False


def unconfigured(it: World) -> None:
    it.calling = it.listener = None
    it.checks = []


def not_for_us(it: World) -> None:
    it.export = replace(EXPORT, annotations=((IMPORTERS, "c3"),))


CASES: dict[str, tuple[Callable[[World], None], str, str, str]] = {
    "gateway down": (dead, "gateway", f"gateway {AT} of c2", f"its checks fail; SNI {SNI}"),
    "own certificate ended": (expired, "gateway", "certificate of c1/agent", "ended at 2026-11-21 10:00 UTC"),
    "its certificate ended": (expired_there, "gateway", "certificate of c2/gateway", "ended at 2026-11-21 10:00 UTC"),
    "its authority is not known": (unknown_here, "gateway", "cluster c2", "c1/agent has no authority of it"),
    "our authority is not known": (unknown_there, "gateway", "c2/gateway", "has no authority of c1"),
    "its process has ended": (ended_there, "gateway", "c2/gateway", "has ended"),
    "listener not served": (unserved, "gateway", "listener of port 80", "not served by this node's Envoy"),
    "no Envoy on this node": (unconfigured, "gateway", "c1/agent", "calls no gateways"),
    "export for others": (not_for_us, "export", "export of c2", "for c3 only"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_hop_that_fails_on_the_way_to_an_island_is_the_one_fault(case: str) -> None:
    change, hop, thing, text = CASES[case]
    it = World()
    change(it)
    [fault] = [each for each in it.gateway_hops() if each.state == "fault"]
    assert (fault.hop, fault.object) == (hop, thing)
    assert text in fault.text
    assert fault.cure


def test_what_is_well_on_the_way_has_its_sni_and_the_end_of_both_certificates() -> None:
    found = [(hop.object, hop.text) for hop in World().gateway_hops() if hop.hop == "gateway"]
    assert found == [
        ("certificate of c1/agent", "ends 2027-11-22 10:00 UTC"),
        (f"gateway {AT} of c2", f"answers; SNI {SNI}; its certificate ends 2027-10-21 09:00 UTC"),
    ]


def stale(it: World) -> None:
    it.island = replace(ISLAND, state="stale", endpoints=(f"https://{AT}",), reason="cannot be reached")


def test_an_etcd_that_is_followed_through_gateways_of_which_none_answers_is_no_second_fault() -> None:
    it = World()
    stale(it)
    dead(it)
    assert [each.object for each in it.hops() if each.state == "fault"] == [f"gateway {AT} of c2"]
    [peer] = [each for each in it.hops() if each.hop == "peer"]
    assert (peer.object, peer.state) == ("cluster c2", "follows")
    assert "cannot be reached" in peer.text


def test_an_export_that_does_not_arrive_for_want_of_a_gateway_is_that_gateways_fault() -> None:
    """As in a cluster that has not heard of the service before."""
    it = World()
    stale(it)
    dead(it)
    it.imported = it.listener = None
    assert [each.object for each in it.hops() if each.state == "fault"][:1] == [f"gateway {AT} of c2"]
    assert "cluster c2" not in [each.object for each in it.hops() if each.state == "fault"]


def test_an_etcd_behind_a_gateway_that_answers_is_a_fault_with_the_way_to_it() -> None:
    it = World()
    stale(it)
    [fault] = [each for each in it.hops() if each.state == "fault"]
    assert (fault.hop, fault.object) == ("peer", "cluster c2")
    assert fault.cure == f"isthmus clusters status; its etcd is behind its gateways, https://{AT}"


def test_an_etcd_that_is_reached_without_gateways_is_a_fault_of_its_own() -> None:
    it = World()
    stale(it)
    it.island = replace(it.island, endpoints=("https://172.30.2.2:2379",))
    dead(it)
    faults = [each for each in it.hops() if each.state == "fault"]
    assert [each.object for each in faults] == [f"gateway {AT} of c2", "cluster c2"]
    assert faults[1].cure == "isthmus clusters status; its etcd is https://172.30.2.2:2379"


def test_where_the_gateway_cannot_be_asked_its_checks_are_what_is_known() -> None:
    it = World()
    it.lab = ""
    dead(it)
    [fault] = [each for each in it.gateway_hops() if each.state == "fault"]
    assert fault.object == f"gateway {AT} of c2"
    assert fault.cure.startswith("kubectl --context c2 -n isthmus-system get pods")


def test_a_cluster_of_this_network_has_no_gateway_on_its_way() -> None:
    it = World()
    it.island = replace(ISLAND, network=OWN.network)
    assert "gateway" not in {hop.hop for hop in it.hops()}
