"""Commands display whatever rows the processes have: no row of any table makes one fall over."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import field
from rows.row_strategies import every_table, json_of, rows

from isthmus.admin import Server
from isthmus.admin.protocol import ProcessStatus
from isthmus.admin.query import Socket
from isthmus.cli import root
from isthmus.cli.diagnosis import facts
from isthmus.loadbalancer.selection import Place
from isthmus.model import tables
from isthmus.model.balancing import PlanKey
from isthmus.model.names import ClusterName, ServiceName
from isthmus.statedb import Database, Status, Table

TABLES = every_table()


class Agent(ProcessStatus, frozen=True, kw_only=True):
    """The fields of an agent's status that commands read."""

    place: Place = Place(ClusterName("c1"), "n1")
    unhooked: str = ""
    datapath: None = None
    reflectors: dict[str, Any] = field(default_factory=dict)


class Served:
    """Every table behind one admin socket, served in a thread of its own since commands block."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def show(self, *contents: tuple[Table[Any, Any], Any]) -> None:
        """Serve these rows and no others."""
        asyncio.run_coroutine_threadsafe(self._show(contents), self._loop).result(60)

    async def _show(self, contents: tuple[tuple[Table[Any, Any], Any], ...]) -> None:
        await self._stop()
        db = Database(*TABLES)
        with db.write() as txn:
            for table, row in contents:
                txn.put(table, row)
        server = Server(db, self.socket, status=Agent)
        self._task = asyncio.create_task(server.run())
        await server.listening()

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def close(self) -> None:
        """End the server and its thread."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    it = Served(tmp_path_factory.mktemp("any") / "agent.sock")
    yield it
    it.close()


def commands(table: Table[Any, Any], folder: Path) -> list[list[str]]:
    return [
        ["diagnose"], ["diagnose", "demo/echo"], ["diagnose", "demo/echo", "-o", "json"], ["explain", "demo/echo"],
        ["status"], ["get", table.name, "-A"], ["get", table.name, "-A", "-o", "wide"],
        ["get", table.name, "-A", "-o", "yaml"],
        ["gather", "-f", str(folder / "report.tar.gz")],
    ]  # fmt: skip


def fallen_over(result: Result) -> bool:
    return result.exception is not None and not isinstance(result.exception, SystemExit)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_no_row_of_any_table_makes_a_command_fall_over(served: Served, data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(TABLES))
    served.show(*[(table, row) for row in data.draw(st.lists(rows(table), min_size=1, max_size=3))])
    for command in commands(table, served.socket.parent):
        (served.socket.parent / "report.tar.gz").unlink(missing_ok=True)
        result = CliRunner().invoke(root, [*command, "--socket", str(served.socket)])
        assert not fallen_over(result), (command, result.exception, result.output[-400:])


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
@given(st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_row_is_the_same_after_json(table: Table[Any, Any], data: st.DataObject) -> None:
    row = data.draw(rows(table))
    read = msgspec.convert(json_of(row), table.row)
    assert (in_order(json_of(read)), table.key(read)) == (in_order(json_of(row)), table.key(row))


def in_order(value: Any) -> Any:
    """Lists sorted, since sets have no order."""
    if isinstance(value, list):
        return sorted(map(in_order, value), key=repr)
    return {key: in_order(each) for key, each in value.items()} if isinstance(value, dict) else value


def test_a_plan_that_cannot_be_written_is_a_fault_of_its_service(served: Served) -> None:
    key = PlanKey(ServiceName("demo/echo"), 80, "TCP", "IPv4")
    served.show(
        (tables.PLANS_STATUS, Status(key, "map backends is full (1 entries): raise datapath.max_entries", 3, 1.0))
    )
    result = CliRunner().invoke(root, ["diagnose", "demo/echo", "--socket", str(served.socket)])
    assert not fallen_over(result)
    assert "map backends is full (1 entries)" in result.output


def test_processes_that_hang_are_asked_at_once_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "HUNG", 0.3)
    with ExitStack() as stack:
        sockets = {}
        for name in ("agent", "operator", "dns"):
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(str(tmp_path / name))
            listening.listen()  # and nothing accepts, as of a process that was stopped
            sockets[name] = Socket(tmp_path / name)
        found = facts.collect(sockets, cluster="c1", others=(), service=None)
    assert all("no answer in time" in each.error for each in (found.agent, found.operator, *found.name_servers))
