"""What the page shows: rows of processes in, the expected view out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rows.ui_world import ECHO, backend, backend_key, counted, imported, peer, process

from isthmus.cli.ui.services import ServiceView
from isthmus.cli.ui.sources import Process
from isthmus.cli.ui.view import View, difference, view
from isthmus.model import tables
from isthmus.model.balancing import CallerFailure, Failure, FrontendKey, Plan, PlanKey, Probe
from isthmus.model.clusters import Cluster
from isthmus.model.drains import Drain, Draining
from isthmus.model.islands import GatewayCheck
from isthmus.model.mcs import OverQuota, OwnExport, RefusedRecord
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Condition, Node
from isthmus.statedb import Table

C1, C2, C3 = "10.1.0.1", "10.2.0.1", "10.3.0.1"


def agent(cluster: str, rows: dict[Table[Any, Any], list[Any]] | None = None, **more: Any) -> Process:
    """An agent of c1, c2 and c3, each of which has a backend of demo/echo."""
    usual: dict[Table[Any, Any], list[Any]] = {
        tables.IMPORTS: [imported(ECHO, "c1", "c2", "c3")],
        tables.BACKENDS: [backend("c1", C1), backend("c2", C2), backend("c3", C3)],
    }
    peers = more.pop("peers", [peer(name) for name in ("c1", "c2", "c3") if name != cluster])
    return process(cluster, usual | (rows or {}), peers=peers, **more)


def echo(*processes: Process) -> ServiceView:
    return view(processes).services[ECHO]


def failure(cluster: str, address: str, reason: str = "refused") -> Failure:
    return Failure(backend_key(cluster, address), f"3 connects: {reason}", reason, 3, 1.0, 2.0)


def stale(name: str) -> Cluster:
    return peer(name, state="stale", since="2026-11-27T01:02:03Z", reason="no answer")


def cut_off() -> list[Process]:
    """c2 is cut off from c1 and c3, so it finds both of them stale, and dead."""
    here = [
        agent(name, {tables.PROBES: [Probe(backend_key("c2", C2), False, "no answer within 1 s")]}, peers=peers)
        for name, peers in (("c1", [stale("c2"), peer("c3")]), ("c3", [peer("c1"), stale("c2")]))
    ]
    probes = [Probe(backend_key(name, address), False, "no answer") for name, address in (("c1", C1), ("c3", C3))]
    return [*here, agent("c2", {tables.PROBES: probes}, peers=[stale("c1"), stale("c3")])]


# Clusters


def test_a_clusterset_without_fault_is_well() -> None:
    shown = view([agent("c1"), agent("c2"), agent("c3")])
    assert {name: each.level for name, each in shown.clusters.items()} == {"c1": "ok", "c2": "ok", "c3": "ok"}
    assert (shown.summary["all"].level, dict(shown.problems)) == ("ok", {})
    assert echo(agent("c1")).cells["c2"].usable == 1


def test_the_cluster_that_the_others_cannot_reach_fails_and_not_those_that_it_cannot_reach() -> None:
    shown = view(cut_off())
    assert {name: each.level for name, each in shown.clusters.items()} == {"c1": "ok", "c2": "failing", "c3": "ok"}
    cells = shown.services[ECHO].cells
    assert {name: cell.level for name, cell in cells.items()} == {"c1": "ok", "c2": "failing", "c3": "ok"}
    first = shown.problems["00000"]
    assert (first.level, first.cluster) == ("failing", "c2")
    assert "c1 cannot reach it since 2026-11-27T01:02:03Z, and uses what it last knew of it: no answer" in first.why


def test_of_two_clusters_that_cannot_reach_each_other_neither_is_well() -> None:
    shown = view([agent("c1", peers=[stale("c2")]), agent("c2", peers=[stale("c1")])])
    assert {shown.clusters[name].level for name in ("c1", "c2")} == {"failing"}


def test_a_cluster_that_one_of_several_cannot_reach_is_degraded() -> None:
    shown = view([agent("c1", peers=[peer("c2"), stale("c3")]), agent("c2")])
    assert shown.clusters["c3"].level == "degraded"


def test_a_cluster_whose_processes_do_not_answer_is_unknown_and_its_rows_are_as_of_then() -> None:
    silent = agent("c2", error="no answer in time", since=61.0)
    shown = view([silent])
    assert shown.clusters["c2"].level == "unknown"
    assert "does not answer" in shown.clusters["c2"].why[0]
    cell = shown.services[ECHO].cells["c2"]
    assert (cell.level, cell.why) == ("unknown", ("as of 00:01:01 UTC: its agent does not answer",))
    assert shown.summary["all"].level == "unknown"


def test_a_cluster_that_never_answered_has_no_time_of_its_last_answer() -> None:
    silent = process("c2", name="agent", tables={}, error="no answer in time", since=0.0)
    cell = view([agent("c1"), silent]).services[ECHO].cells["c2"]
    assert (cell.level, cell.why) == ("unknown", ("as others know it: its agent does not answer",))


def test_a_backend_that_its_own_cluster_has_no_more_is_not_shown_as_ready_because_another_one_lags() -> None:
    shown = view([agent("c1"), agent("c2", {tables.BACKENDS: []})])
    assert "c2" not in shown.services[ECHO].cells or not shown.services[ECHO].cells["c2"].usable


def test_a_process_that_was_never_read_is_unknown() -> None:
    shown = view([Process(cluster="c1", name="agent")])
    assert shown.clusters["c1"].level == "unknown"
    assert shown.clusters["c1"].why == ("its agent: it has not answered yet",)


def test_no_process_at_all_is_unknown() -> None:
    assert view([]).summary["all"].level == "unknown"


def test_a_table_that_waits_for_a_source_makes_its_cluster_unknown() -> None:
    shown = view([agent("c1", pending={"backends": ("clusterset/c2",)})])
    assert shown.clusters["c1"].level == "unknown"
    assert "clusterset/c2" in shown.clusters["c1"].why[0]


def test_problems_of_a_process_are_its_clusters() -> None:
    status = {"problems": ["calls are not translated: no cgroup"], "warnings": ["a certificate ends soon"]}
    shown = view([agent("c1", status=status)])
    assert shown.clusters["c1"].level == "degraded"
    assert "calls are not translated: no cgroup" in shown.clusters["c1"].why[0]
    assert [each.why for each in shown.problems.values()][-1] == ("a certificate ends soon",)


def test_a_cluster_that_is_not_asked_is_shown_as_others_find_it() -> None:
    shown = view([agent("c1", peers=[peer("c2"), stale("c3")])])
    assert (shown.clusters["c2"].asked, shown.clusters["c2"].level) == (False, "ok")
    assert (shown.clusters["c3"].asked, shown.clusters["c3"].level) == (False, "failing")
    assert shown.services[ECHO].cells["c3"].level == "unknown"
    assert not shown.clusters["c2"].counted


def test_a_cluster_all_of_whose_backends_are_ejected_fails_although_its_etcd_answers() -> None:
    shown = view([agent("c1", {tables.FAILURES: [failure("c2", C2, "silent")]}), agent("c2"), agent("c3")])
    assert shown.clusters["c2"].level == "failing"
    assert shown.clusters["c2"].why == (
        "1 of its 1 backends cannot be called (demo/echo): c1: ejected: 3 connects: silent",
    )


def test_nodes_that_are_not_asked_are_counted() -> None:
    shown = view([agent("c1", {tables.NODES: [Node("n1"), Node("n2"), Node("n3")]})])
    assert (shown.clusters["c1"].nodes, shown.clusters["c1"].nodes_asked) == (3, 1)


def test_gateways_of_an_island_have_the_state_in_which_nodes_find_them() -> None:
    island = peer("c2", network="n2", gateways=("172.30.2.11:15443", "172.30.2.12:15443", "172.30.2.13:15443"))
    checks = [
        GatewayCheck(cluster=ClusterName("c2"), address="172.30.2.11:15443", healthy=True),
        GatewayCheck(cluster=ClusterName("c2"), address="172.30.2.12:15443", healthy=False, reason="timeout"),
    ]
    found = view([agent("c1", {tables.GATEWAY_CHECKS: checks}, peers=[island])]).clusters["c2"]
    assert [(each.healthy, each.why) for each in found.gateways] == [(True, ""), (False, "c1: timeout"), (None, "")]
    assert (found.level, found.why) == ("degraded", ("gateway 172.30.2.12:15443: c1: timeout",))


def test_an_island_none_of_whose_gateways_is_healthy_fails() -> None:
    island = peer("c2", network="n2", gateways=("172.30.2.11:15443",))
    check = GatewayCheck(cluster=ClusterName("c2"), address="172.30.2.11:15443", healthy=False, reason="timeout")
    assert view([agent("c1", {tables.GATEWAY_CHECKS: [check]}, peers=[island])]).clusters["c2"].level == "failing"


# Services and backends


@pytest.mark.parametrize(
    ("rows", "states", "level"),
    [
        ({tables.FAILURES: [failure("c2", C2)]}, {"ejected": 1}, "failing"),
        ({tables.FAILURES: [failure("c2", C2, "silent")]}, {"silent": 1}, "failing"),
        ({tables.PROBES: [Probe(backend_key("c2", C2), False, "x")]}, {"dead": 1}, "failing"),
        ({tables.PROBES: [Probe(backend_key("c2", C2), True)]}, {}, "ok"),
        ({tables.FAILURES: [failure("c2", "10.2.0.9")]}, {}, "ok"),
    ],
)
def test_what_one_cluster_finds_of_a_backend_of_another_is_its_state(
    rows: dict[Table[Any, Any], list[Any]], states: dict[str, int], level: str
) -> None:
    cell = echo(agent("c1", rows), agent("c2"), agent("c3")).cells["c2"]
    assert (cell.states, cell.level) == (states, level)


def test_a_backend_that_is_ejected_for_one_caller_alone_is_ready() -> None:
    row = CallerFailure(
        caller=1, key=backend_key("c2", C2), pod="demo/client", reason="refused", failures=3, since=1.0, until=2.0
    )
    assert echo(agent("c1", {tables.CALLER_FAILURES: [row]}), agent("c2")).cells["c2"].states == {}


def test_drained_backends_are_no_fault() -> None:
    drain = Drain(kind="Cluster", target="c2", reason="Drain isthmus-system/c2")
    row = Draining(by=ClusterName("c2"), drain=drain, left=0)
    shown = view([agent("c1", {tables.DRAINING: [row]}), agent("c2"), agent("c3")])
    cell = shown.services[ECHO].cells["c2"]
    assert (cell.states, cell.usable, cell.level) == ({"drained": 1}, 0, "ok")
    assert shown.clusters["c2"].drains == ("Cluster c2: 0% of its calls are left: Drain isthmus-system/c2",)


def test_its_own_cluster_knows_which_backends_there_are() -> None:
    outdated = agent("c1", {tables.BACKENDS: [backend("c1", C1), backend("c2", "10.2.0.7")]})
    cell = echo(outdated, agent("c2"))
    assert (cell.cells["c2"].backends, cell.cells["c2"].usable) == (1, 1)


def test_ports_of_one_address_are_one_backend() -> None:
    rows = [backend("c1", C1, port=80), backend("c1", C1, port=81)]
    assert echo(agent("c1", {tables.BACKENDS: rows})).cells["c1"].backends == 1


def test_a_service_without_any_usable_backend_fails() -> None:
    rows = [backend("c1", C1, condition=Condition.NOT_READY)]
    found = echo(agent("c1", {tables.BACKENDS: rows, tables.IMPORTS: [imported(ECHO, "c1")]}))
    assert (found.level, found.why[0]) == ("failing", "no backend in any cluster can be called")


def test_an_island_seen_from_outside_stands_for_its_endpoints() -> None:
    rows = [backend("c1", C1), backend("c2", "127.1.0.2", stands_for=4)]
    found = echo(agent("c1", {tables.BACKENDS: rows, tables.IMPORTS: [imported(ECHO, "c1", "c2")]}))
    assert (found.cells["c2"].backends, found.cells["c2"].usable) == (4, 4)


def test_a_failure_on_the_way_to_an_island_is_that_of_all_its_backends() -> None:
    rows = [backend("c1", C1), backend("c2", "127.1.0.2", stands_for=2)]
    ejected = Failure(backend_key("c2", "127.1.0.2"), "reset", "refused", 3, 1.0, 2.0)
    inside = agent("c2", {tables.BACKENDS: [backend("c2", C2), backend("c2", "10.2.0.2")]})
    cell = echo(agent("c1", {tables.BACKENDS: rows, tables.FAILURES: [ejected]}), inside).cells["c2"]
    assert (cell.backends, cell.states) == (2, {"ejected": 2})


def test_refused_exports_records_and_imports_are_told_with_their_cluster() -> None:
    rows: dict[Table[Any, Any], list[Any]] = {
        tables.OWN_EXPORTS: [OwnExport(name=ServiceName(ECHO), reason="NoService", message="there is no Service")],
        tables.REFUSED_RECORDS: [
            RefusedRecord(
                cluster=ClusterName("c2"),
                kind="services",
                name=ServiceName(ECHO),
                reason="Invalid",
                message="port 0",
            )
        ],
        tables.OVER_QUOTA: [OverQuota(ServiceName("demo/more"), 10)],
    }
    shown = view([agent("c1"), process("c1", rows, name="operator"), agent("c2")])
    why = shown.services[ECHO].why
    assert "c1: it is not exported: there is no Service" in why
    assert "c2: c1 refuses a record of it: port 0" in why
    assert shown.services["demo/more"].why[-1] == "c1: it is not imported: the limit of 10 services is reached"


def test_calls_that_nobody_answers_are_the_callers_clusters_fault() -> None:
    key = PlanKey(derived(ServiceName(ECHO)), 80, "TCP", "IPv4")
    plan = Plan(key, (FrontendKey("10.96.0.1", 80, "TCP"),), (), import_of=ServiceName(ECHO))
    cell = echo(agent("c1", {tables.PLANS: [plan]})).cells["c1"]
    assert (cell.level, cell.why) == ("degraded", ("calls made here are refused: no backend can be used",))


# Calls


def test_edges_have_calls_a_second_by_caller_service_and_target() -> None:
    counts = counted(
        (10.0, {("demo/echo:80", "c2", "called"): 100, ("demo/echo:80", "c2", "failed"): 5}),
        (20.0, {("demo/echo:80", "c2", "called"): 200, ("demo/echo:80", "c2", "failed"): 25, (":", "", "steered"): 9}),
    )
    shown = view([agent("c1", counts=counts)])
    [edge] = shown.edges.values()
    assert (edge.source, edge.service, edge.target, edge.rate, edge.failed) == ("c1", ECHO, "c2", 10.0, 2.0)
    assert shown.services[ECHO].level == "failing"
    assert shown.clusters["c1"].counted


def test_calls_that_were_moved_are_no_failures_and_are_shown() -> None:
    counts = counted((10.0, {}), (20.0, {("demo/echo:80", "c3", "rescued"): 40, ("demo/echo:80", "c3", "called"): 10}))
    [edge] = view([agent("c1", counts=counts)]).edges.values()
    assert (edge.rate, edge.failed, edge.moved) == (1.0, 0.0, 4.0)


def test_refused_calls_have_no_target() -> None:
    counts = counted((10.0, {}), (20.0, {("demo/echo:80", "", "refused"): 10}))
    [edge] = view([agent("c1", counts=counts)]).edges.values()
    assert (edge.target, edge.rate, edge.failed) == ("", 1.0, 1.0)


def test_calls_of_an_agent_that_does_not_answer_are_unknown_and_not_none() -> None:
    counts = counted((10.0, {}), (20.0, {("demo/echo:80", "c2", "called"): 10}))
    shown = view([agent("c1", counts=counts, error="gone")])
    assert (dict(shown.edges), shown.summary["all"].uncounted) == ({}, ("c1", "c2", "c3"))


def test_a_counter_that_fell_is_of_another_map_and_counts_nothing() -> None:
    counts = counted((10.0, {("demo/echo:80", "c2", "called"): 90}), (20.0, {("demo/echo:80", "c2", "called"): 10}))
    assert dict(view([agent("c1", counts=counts)]).edges) == {}


# What the page gets


def test_the_first_difference_has_everything_and_the_next_what_changed() -> None:
    before, after = view([agent("c1"), agent("c2")]), view([agent("c1"), agent("c2", error="gone", since=5.0)])
    assert set(difference(View(), before)["put"]) == {"clusters", "services", "processes", "summary"}
    assert difference(before, before) == {}
    changed = difference(before, after)
    assert changed["put"]["clusters"]["c2"].level == "unknown"
    assert set(changed["put"]["processes"]) == {"c2/agent/"}
    assert difference(after, View())["gone"]["clusters"] == ["c1", "c2", "c3"]


def test_a_view_is_the_json_that_the_page_expects() -> None:
    [cluster] = msgspec.to_builtins(view([process("c1")]))["clusters"].values()
    assert cluster == {
        "name": "c1",
        "network": "",
        "region": "",
        "zone": "",
        "version": "",
        "asked": True,
        "counted": False,
        "nodes": 0,
        "nodes_asked": 1,
        "gateways": (),
        "findings": (),
        "drains": (),
        "level": "ok",
        "why": (),
    } | {key: [] for key in ("gateways", "findings", "drains", "why") if isinstance(cluster[key], list)}
