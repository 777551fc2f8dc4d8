"""Rows and tables: what every declaration promises."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import msgspec
import pytest

from isthmus.admin.protocol import key_text
from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey, Frontend, FrontendKey, Group, Plan, PlanKey, Scope, Target
from isthmus.model.clusters import Cluster
from isthmus.model.dns import Name
from isthmus.model.mcs import Merged, OverQuota, OwnExport, PeerRefusal, Record, Refusals, RefusedRecord
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.objects import Object, Observed
from isthmus.model.services import (
    Endpoint,
    EndpointSet,
    Export,
    ExportMark,
    Import,
    Namespace,
    Node,
    Pod,
    Port,
    Service,
)
from isthmus.statedb import Database, Status, Table

ECHO, C1 = ServiceName("demo/echo"), ClusterName("c1")
PLAN = PlanKey(ECHO, 80, "TCP", "IPv4")
FRONTEND = FrontendKey("10.96.0.7", 80, "TCP")
PORT = Port("http", 80)

SAMPLES: list[Any] = [
    Service(name=ECHO, source="kubernetes", ports=(PORT,), cluster_ips=("10.96.0.7",), import_of=ServiceName("demo/x")),
    EndpointSet(service=ECHO, cluster=C1, source="s", part="p", endpoints=(Endpoint("10.1.1.1", (PORT,)),)),
    Import(name=ECHO, ips=("10.96.0.7",), derived="derived-x"),
    ExportMark(name=ECHO, created="2026-01-01T00:00:00Z"),
    Export(cluster=C1, name=ECHO, created="2026-01-01T00:00:00Z", ports=(PORT,)),
    Cluster(name=C1),
    Namespace("demo"),
    Node("n1", addresses=("172.30.1.11",)),
    Pod(name="demo/p", uid="u", ports=(PORT,)),
    Frontend(key=FRONTEND, service=ECHO, port_name="http", plan=PLAN),
    Backend(key=BackendKey(ECHO, C1, "10.1.1.1", 80, "TCP"), port_names=("http",)),
    Plan(key=PLAN, frontends=(FRONTEND,), groups=(Group((Target("10.1.1.1", 80, "TCP", C1),)),)),
    Name("echo.demo.svc.clusterset.local", "A", ("10.96.0.7",)),
    Merged(name=ECHO, type="ClusterSetIP", ports=(PORT,), clusters=(C1,)),
    Record("services", ECHO, b"{}"),
    Object(kind="Service", name=ECHO, body=b"{}"),
    Observed(kind="Service", name=ECHO, uid="u", version="1", body=b"{}"),
    OwnExport(name=ECHO, reason="NoService"),
    OverQuota(ECHO, 5),
    RefusedRecord(cluster=C1, kind="services", name=ECHO, reason="QuotaExceeded", message="no room"),
    PeerRefusal(cluster=C1, kind="serviceexports", name=ECHO, reason="Invalid", message="it is not UTF-8"),
    Refusals(C1, b"{}"),
]


def test_what_an_imports_derived_service_is_called_follows_from_its_name_whatever_is_given() -> None:
    echo = Import(name=ECHO)
    assert echo.derived_service == derived(ECHO)
    assert Import(name=ECHO, derived_service=ServiceName("demo/other")) == echo
    assert msgspec.json.decode(b'{"name": "demo/echo"}', type=Import) == echo


DECLARED = [table for table in vars(tables).values() if isinstance(table, Table)]


def the_table_of(row: Any) -> Table[Any, Any]:
    return next(table for table in DECLARED if table.row is type(row))


def test_every_table_has_a_name_of_its_own() -> None:
    assert len({table.name for table in DECLARED}) == len(DECLARED)
    Database(*DECLARED)


@pytest.mark.parametrize("table", DECLARED, ids=lambda table: table.name)
def test_rows_are_immutable_and_the_collector_leaves_them_alone(table: Table[Any, Any]) -> None:
    config = (get_origin(table.row) or table.row).__struct_config__
    assert (config.frozen, config.gc) == (True, False)


@pytest.mark.parametrize("row", SAMPLES, ids=lambda row: type(row).__name__)
def test_a_row_can_be_put_found_under_each_value_of_each_index_and_deleted(row: Any) -> None:
    table = the_table_of(row)
    db = Database(table)
    with db.write() as txn:
        txn.put(table, row)
    for name, values in table.indexes.items():
        assert all(db.snapshot().by(table, name, value) == [row] for value in values(row))
    with db.write() as txn:
        assert txn.delete(table, table.key(row)) == row


@pytest.mark.parametrize("row", SAMPLES, ids=lambda row: type(row).__name__)
def test_a_row_and_its_key_go_over_the_wire_and_back(row: Any) -> None:
    text = msgspec.json.encode(row)
    assert msgspec.json.decode(text, type=type(row)) == row
    key = key_text(the_table_of(row).key(row))
    assert key
    assert key == key_text(the_table_of(row).key(msgspec.json.decode(text, type=type(row))))


def test_keys_that_people_see_read_well() -> None:
    assert str(PLAN) == "demo/echo:80/TCP/IPv4"
    assert str(PlanKey(ECHO, 80, "UDP", "IPv6", Scope.INTERNAL)) == "demo/echo:80/UDP/IPv6/i"
    assert str(FRONTEND) == "10.96.0.7:80/TCP"
    assert str(FrontendKey("fd00::7", 53, "UDP", Scope.INTERNAL)) == "[fd00::7]:53/UDP/i"


def test_a_status_table_has_the_keys_of_its_table() -> None:
    for table in DECLARED:
        if table.row is Status:
            assert table.name.removesuffix("_status") in {other.name for other in DECLARED}


def test_closed_sets_are_closed() -> None:
    from isthmus.model.services import Family, Protocol

    assert (get_args(Protocol), get_args(Family)) == (("TCP", "UDP", "SCTP"), ("IPv4", "IPv6"))
