"""Without a service the agents of all nodes are asked, and a fault of any of them is a fault of the cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs
from rows.admin_world import serving
from rows.calling_world import C2, ECHO, Clusters, peer
from rows.fault_cases import NOW, stalls

from isthmus.admin.query import Socket
from isthmus.cli.diagnosis import facts as collecting
from isthmus.cli.diagnosis.exporters import cluster_faults, diagnose
from isthmus.cli.diagnosis.facts import TABLES, Facts, Process
from isthmus.model import tables
from isthmus.model.names import ClusterName
from isthmus.model.stalls import Stall
from isthmus.statedb import Database


def agent(node: str, *rows: tuple[Any, Any], error: str = "", **status: Any) -> Process:
    db = Database(*TABLES)
    with db.write() as txn:
        for table, row in rows:
            txn.put(table, row)
    healthy = {"uptime": 1.0, "unhooked": "", "reflectors": {}, "place": {"node": node}}
    return Process("c1", f"{node}/agent", db.snapshot(), healthy | status, error=error)


def faults(*nodes: Process, it: Clusters | None = None) -> list[tuple[str, str]]:
    facts: Facts = structs.replace((it or Clusters()).facts(), nodes=nodes)
    return [(hop.code, hop.object) for hop in cluster_faults(facts)]


FULL = {"time": NOW, "conntrack": {"used": 9, "limit": 9}}


def test_a_fault_of_another_node_is_named_with_that_node() -> None:
    assert faults(agent("n2"), agent("n3")) == []
    assert faults(agent("n2", machine=FULL), agent("n3")) == [("conntrack-full", "machine of c1/n2/agent")]
    assert faults(agent("n2"), agent("n3", unhooked="calls are not translated: no BPF")) == [
        ("programs-detached", "c1/n3/agent")
    ]
    assert faults(agent("n2", error="no answer in time")) == [("process-hung", "c1/n2/agent")]


def test_a_peer_that_one_node_alone_does_not_reach_is_named_with_that_node() -> None:
    it = Clusters()
    peer("stale", "etcd https://c2: timed out")(it)
    cut_off = (tables.CLUSTERS, it.operator["peer"][1])
    assert faults(agent("n2", cut_off)) == [("peer-unreachable", "cluster c2 (of c1/n2/agent)")]
    assert faults(agent("n2", cut_off), it=it) == [("peer-unreachable", "cluster c2")]


def test_of_a_fault_that_many_nodes_have_a_few_are_named_and_the_others_counted() -> None:
    found = faults(*(agent(f"n{number}", unhooked="two agents run on this node: …") for number in range(2, 42)))
    assert [each for _, each in found] == ["c1/n2/agent", "c1/n3/agent", "c1/n4/agent", "37 more nodes"]


async def test_each_node_but_the_one_that_was_asked_is_asked_once(tmp_path: Path) -> None:
    async with serving(tmp_path / "agent.sock"), serving(tmp_path / "n2.sock"):
        nodes = {"n2": Socket(tmp_path / "n2.sock"), "n3": Socket(tmp_path / "n3.sock")}
        sockets = {"agent": Socket(tmp_path / "agent.sock")}
        found = await asyncio.to_thread(
            collecting.collect, sockets, cluster="c1", others=(), nodes=nodes, service=None, context="c1"
        )
    assert [(str(each), bool(each.error)) for each in found.nodes] == [("c1/n2/agent", False), ("c1/n3/agent", True)]


async def test_agents_alone_are_asked_for_stalled_connections_and_an_earlier_version_has_none(tmp_path: Path) -> None:
    stall = Stall(
        service=ECHO, cluster=C2, sends="calls", by_size=True, connections=1, since=1.0, segment=1448, path_mtu=1500
    )

    async def found() -> list[Any]:
        return [msgspec.to_builtins(stall)]

    paths = {name: tmp_path / f"{name}.sock" for name in ("agent", "operator", "n2")}
    async with (
        serving(paths["agent"], counters={"stalls": found}),
        serving(paths["operator"], counters={"stalls": found}),
        serving(paths["n2"]),
    ):
        sockets = {name: Socket(paths[name]) for name in ("agent", "operator")}
        nodes = {"n2": Socket(paths["n2"])}
        facts = await asyncio.to_thread(
            collecting.collect, sockets, cluster="c1", others=(), nodes=nodes, service=None, context="c1"
        )
    assert (facts.agent.stalls, facts.operator.stalls) == ((stall,), ())
    assert [(each.stalls, each.error) for each in facts.nodes] == [((), "")]


async def test_an_agent_that_cannot_look_at_sockets_is_asked_for_all_else(tmp_path: Path) -> None:
    async def failing() -> list[Any]:
        raise PermissionError(1, "Operation not permitted")

    async with serving(tmp_path / "agent.sock", counters={"stalls": failing}):
        sockets = {"agent": Socket(tmp_path / "agent.sock")}
        found = await asyncio.to_thread(
            collecting.collect, sockets, cluster="c1", others=(), nodes={}, service=None, context="c1"
        )
    assert (found.agent.error, found.agent.stalls) == ("", ())


def test_a_peer_that_the_agent_does_not_reach_and_the_operator_does_is_a_fault_of_the_cluster() -> None:
    it = Clusters()
    it.world.put(structs.replace(it.operator["peer"][1], state="stale", reason="etcd https://c2: timed out"))
    assert faults(it=it) == [("peer-unreachable", "cluster c2")]


def test_connections_that_stall_on_another_node_are_named_with_it_and_those_of_a_peer_that_is_away_follow() -> None:
    it = Clusters()
    stalls("agent")(it)
    [stall] = it.stalls.pop("agent")
    other = structs.replace(agent("n2"), stalls=(stall,))
    hops = [hop for hop in diagnose(structs.replace(it.facts(), nodes=(other,)), ECHO) if hop.hop == "path"]
    assert [(hop.code, hop.object) for hop in hops] == [("path-mtu", "calls of demo/echo to c2 (of c1/n2/agent)")]
    peer("stale", "etcd https://c2: timed out")(it)
    hops = [hop for hop in diagnose(structs.replace(it.facts(), nodes=(other,)), ECHO) if hop.hop == "path"]
    assert [(hop.state, hop.code) for hop in hops] == [("follows", "")]


def test_connections_to_gateways_that_stall_concern_what_their_cluster_exports() -> None:
    it = Clusters()
    stalls("agent", "")(it)
    assert [(hop.code, hop.object) for hop in it.faults()] == [("path-mtu", "calls to gateways of c2")]
    stalls("agent", "", cluster=ClusterName("c3"))(it)
    assert it.faults() == []
