"""``isthmus top``: rates by agents' counters, times by their records, and how a terminal and a script see them."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rows.admin_world import serving

from isthmus.admin.feed import Feed
from isthmus.admin.query import Socket
from isthmus.cli import output, rates, root, sockets
from isthmus.cli.rates import Connections, Counts, Load
from isthmus.model.flows import Flow, State, Verdict

top = importlib.import_module("isthmus.cli.top")
"""The module, whose name in its package is the command's."""

ECHO = "demo/echo:80"


def connected(took: float, *, service: str = ECHO, verdict: Verdict = "called", state: State = "connected") -> Flow:
    return Flow(
        time=time.time(), id=1, state=state, verdict=verdict, protocol="TCP", node="n1", pod="demo/client",
        source="10.1.0.9", service=service, called="10.96.0.7:80", took=took,
    )  # fmt: skip


def load(before: dict[tuple[str, str], int], now: dict[tuple[str, str], int], **more: Any) -> list[Load]:
    return rates.loads([(Counts(10.0, before), Counts(12.0, now))], more.pop("connections", {}), **more)


def test_every_call_is_counted_once_whatever_came_of_it() -> None:
    now = {(ECHO, verdict): 20 for verdict in ("called", "failed", "rescued", "ejected", "refused", "lost")}
    [row] = load({}, now)
    assert (row.calls, row.failed, row.rescued) == (30.0, 30.0, 10.0)


def test_rates_of_all_nodes_are_added_and_the_busiest_service_is_first() -> None:
    first = Counts(0.0, {}), Counts(2.0, {(ECHO, "called"): 4, ("demo/cart:80", "called"): 20})
    second = Counts(5.0, {(ECHO, "called"): 100}), Counts(6.0, {(ECHO, "called"): 150})
    assert [(row.service, row.calls) for row in rates.loads([first, second], {})] == [
        (ECHO, 52.0),
        ("demo/cart:80", 10.0),
    ]


def test_counters_that_began_anew_are_not_negative_calls() -> None:
    [row] = load({(ECHO, "called"): 1_000}, {(ECHO, "called"): 6})
    assert row.calls == 3.0


def test_a_service_without_calls_has_no_row_and_dns_is_no_service() -> None:
    assert load({(ECHO, "called"): 5}, {(ECHO, "called"): 5}) == []
    assert rates.counts([{"service": "", "cluster": "", "verdict": "steered", "calls": 9}], 1.0).calls == {}


def test_both_families_of_a_port_are_one_service_and_its_protocols_are_not() -> None:
    keys = ("demo/echo:80/TCP/IPv4", "demo/echo:80/TCP/IPv6", "demo/echo:80/UDP/IPv4", "other")
    rows = [{"service": key, "cluster": "", "verdict": "called", "calls": 1} for key in keys]
    counted = rates.counts(rows, 1.0).calls
    assert {service: calls for (service, _), calls in counted.items()} == {ECHO: 2, f"{ECHO}/UDP": 1, "other": 1}


def test_a_namespace_selects_its_own_services_only() -> None:
    now = {(ECHO, "called"): 2, ("demo-two/echo:80", "called"): 2}
    assert [row.service for row in load({}, now, namespace="demo")] == [ECHO]


def test_times_are_of_established_connections_of_the_window() -> None:
    old = connected(0.9)
    flows = [connected(0.001), connected(0.003), connected(7.0, state="ended"), connected(5.0, state="failed")]
    times = rates.connections([(flow, 1) for flow in flows], since=time.time() - 60)
    assert [took for took, _ in times[ECHO].took] == [0.001, 0.003]
    assert rates.connections([(old, 1)], since=time.time() + 60) == {}


def test_rescued_calls_which_are_always_recorded_do_not_outweigh_the_sampled_ones() -> None:
    flows = [(connected(0.001), 256)] * 2 + [(connected(0.2, verdict="rescued"), 256)] * 4
    times = rates.connections(flows, since=0)[ECHO]
    assert (rates.percentile(times, 0.5), rates.percentile(times, 0.99)) == (0.001, 0.001)
    assert rates.percentile(times, 1.0) == 0.2
    assert rates.percentile(Connections(), 0.5) is None


@pytest.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Feed[Flow]]:
    """An agent with ten more calls at each reading, one of ten of which fails, and its feed of flows."""
    readings: Iterator[int] = count()

    def calls() -> list[dict[str, Any]]:
        number = next(readings)
        return [
            {"service": f"{ECHO}/TCP/IPv4", "cluster": "c2", "verdict": "called", "calls": 10 * number},
            {"service": f"{ECHO}/TCP/IPv6", "cluster": "c2", "verdict": "failed", "calls": number},
        ]

    flows = Feed[Flow]()
    async with serving(tmp_path / "agent.sock", counters={"calls": calls}, feeds={"flows": flows}) as process:
        monkeypatch.setenv(sockets.VARIABLE, str(process.socket))
        yield flows


async def isthmus(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, root, arguments)


async def test_once_prints_one_table_and_ends(agent: Feed[Flow]) -> None:
    agent.add([connected(0.0012), connected(0.0034)])
    result = await isthmus("top", "--once", "--every", "0.5")
    assert (result.exit_code, result.stderr) == (0, "")
    head, _, heads, row = result.stdout.splitlines()
    assert "1 node " in head
    assert heads.split() == ["SERVICE", "CALLS/S", "FAILED/S", "RESCUED/S", "P50", "P99", "RECORDED"]
    assert (row.split()[0], row.split()[3:]) == (ECHO, ["0", "1.2ms", "3.4ms", "2"])


async def test_json_has_rates_in_calls_per_second_and_times_in_seconds(agent: Feed[Flow]) -> None:
    result = await isthmus("top", "--once", "--every", "0.5", "-o", "json", "-n", "demo")
    [row] = json.loads(result.stdout)["services"]
    assert row["service"] == ECHO
    assert 0 < row["failed"] == pytest.approx(row["calls"] / 10, abs=0.01)
    assert (row["p50"], row["p99"], row["recorded"]) == (None, None, 0)


async def test_a_process_that_counts_no_calls_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path / "operator.sock") as process:
        result = await isthmus("top", "--once", "--socket", str(process.socket))
    assert result.exit_code == 1
    assert "operator.sock counts no calls" in result.stderr


class Nodes:
    """Sockets of two agents, of which only the first answers."""

    def __init__(self, directory: Path) -> None:
        self.paths = directory / "agent.sock", directory / "other.sock"

    def sockets(self, **_: Any) -> list[Socket]:
        return [Socket(path, name=name) for name, path in zip(("n1", "n2"), self.paths, strict=True)]


@pytest.fixture
def node_agents(agent: Feed[Flow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    node_agents = Nodes(tmp_path)
    monkeypatch.setattr(sockets, "agents", node_agents.sockets)
    return node_agents


async def test_an_agent_that_does_not_answer_is_named_beside_the_services_of_the_others(node_agents: Nodes) -> None:
    result = await isthmus("top", "--once", "--every", "0.5")
    assert result.exit_code == 0, result.stderr
    head, silent, _, _, row = result.stdout.splitlines()
    assert "1 of 2 nodes" in head
    assert silent.startswith("n2 does not answer: no process serves")
    assert row.split()[0] == ECHO
    answer = json.loads((await isthmus("top", "--once", "--every", "0.5", "-o", "json")).stdout)
    assert [row["service"] for row in answer["services"]] == [ECHO]
    assert answer["silent"].keys() == {"n2"}


async def test_an_agent_that_hangs_does_not_hold_up_the_others(
    node_agents: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "PATIENCE", 0.3)
    with socket.socket(socket.AF_UNIX) as hung:  # it accepts, and never answers
        hung.bind(str(node_agents.paths[1]))
        hung.listen()
        loads = top._loads(node_agents.sockets(), 0.2, "")
        first, second = await asyncio.to_thread(next, loads), await asyncio.to_thread(next, loads)
    assert [row.service for row in first.services] == [row.service for row in second.services] == [ECHO]
    assert first.silent == second.silent == {"n2": "it has not answered yet"}
    await asyncio.to_thread(loads.close)


async def test_calls_of_an_agent_that_answers_again_count_from_its_second_answer(node_agents: Nodes) -> None:
    loads = top._loads(node_agents.sockets(), 0.2, "")
    assert (await asyncio.to_thread(next, loads)).silent.keys() == {"n2"}
    rows = [{"service": "demo/cart:80/TCP/IPv4", "cluster": "c2", "verdict": "called", "calls": 1_000_000}]
    async with serving(node_agents.paths[1], counters={"calls": lambda: rows}):
        again = await asyncio.to_thread(next, loads)
        assert again.silent == {}
        assert [row.service for row in again.services] == [ECHO]
    assert (await asyncio.to_thread(next, loads)).silent.keys() == {"n2"}
    await asyncio.to_thread(loads.close)


def test_a_terminal_of_80_columns_has_the_whole_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "width", lambda: 80)
    row = Load(
        service=f"a-namespace/{'long-name-' * 5}:8080", calls=12_345.6, failed=123.4, rescued=0.0, p50=0.0012, p99=1.5,
        recorded=2_000,
    )  # fmt: skip
    lines = top._lines(top.Period([row], {}), 12)
    assert max(map(len, lines)) <= 80
    assert [cell for cell in top._cells(row)[1:6] if cell not in lines[-1]] == []
