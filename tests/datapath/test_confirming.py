"""The agent connects to backends that callers cannot connect to; what it finds counts for all callers of the node."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from datapath_worlds.bpf_world import group, plan, programmed

from isthmus.datapath import Datapath, view
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.failures import codecs, confirming
from isthmus.datapath.failures.confirming import (
    Confirmation,
    ProbeState,
    Suspect,
    controls,
    find_suspects,
    record_result,
    select_due,
    update_states,
)
from isthmus.datapath.failures.watch import FailureWatch
from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey, CallerFailure, Ejection, Target
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Condition, Pod
from isthmus.statedb import Database

ECHO, OTHER, THIRD = (ServiceName(f"demo/{name}") for name in ("echo", "other", "third"))
TIMES = Ejection(after=3, first=1.0, longest=8.0)


def target(address: str, port: int = 8080, cluster: str = "c2") -> Target:
    return Target(address, port, "TCP", ClusterName(cluster))


def key(of: Target, service: ServiceName = ECHO) -> BackendKey:
    return BackendKey(service, of.cluster, of.address, of.port, of.protocol)


def suspect(of: Target, *callers: int, services: tuple[ServiceName, ...] = (ECHO,), reported: float = 1.0) -> Suspect:
    return Suspect(of, frozenset(services), frozenset(callers), reported)


def failure(caller: int, of: Target, *, service: ServiceName = ECHO, since: float = 1.0) -> CallerFailure:
    return CallerFailure(caller=caller, key=key(of, service), reason="silent", failures=3, since=since, until=9.0)


def database(*rows: Any) -> Database:
    found: dict[type, Any] = {Backend: tables.BACKENDS, CallerFailure: tables.CALLER_FAILURES, Pod: tables.PODS}
    db = Database(*found.values(), tables.FAILURES, tables.DENIALS)
    with db.write() as txn:
        for row in rows:
            txn.put(found[type(row)], row)
    return db


def test_a_backend_is_suspect_once_however_many_callers_and_services_it_has() -> None:
    one = target("10.2.0.1")
    db = database(failure(7, one), failure(8, one, since=5.0), failure(8, one, service=OTHER))
    assert find_suspects(db.snapshot()) == {one: suspect(one, 7, 8, services=(ECHO, OTHER), reported=5.0)}


def test_a_caller_that_reports_many_backends_delays_none_that_another_reports() -> None:
    many = [target(f"10.2.{n // 250}.{n % 250}") for n in range(1_000)]
    late = target("10.3.0.1")
    present = {each: suspect(each, 7) for each in many} | {late: suspect(late, 8)}
    tried = {each: ProbeState(due=0.0) for each in many} | {late: ProbeState(due=1.0)}
    assert late in select_due(tried, present, 2.0, room=2)
    assert len(select_due(tried, present, 2.0, room=50)) == 50
    assert select_due(tried, present, -1.0, room=50) == []


def test_what_is_reported_anew_is_tried_at_once_but_no_more_than_once_in_a_second() -> None:
    one = target("10.2.0.1")
    tried: dict[Target, ProbeState] = {}
    update_states(tried, {one: suspect(one, 7)}, 100.0)
    assert select_due(tried, {one: suspect(one, 7)}, 100.0, room=1) == [one]
    tried[one].began = 100.0
    record_result(tried[one], True, reachable=True, now=100.2, times=TIMES)
    update_states(tried, {one: suspect(one, 7)}, 100.3)
    assert tried[one].due == 100.2 + confirming.AGAIN
    update_states(tried, {one: suspect(one, 7, reported=2.0)}, 100.3)
    assert tried[one].due == 101.0
    update_states(tried, {}, 100.4)
    assert tried == {}


def test_a_dead_backend_is_tried_again_after_a_time_that_doubles_and_counts_as_dead_until_then() -> None:
    each, now = ProbeState(due=0.0), 0.0
    pauses = []
    for _ in range(5):
        counts = record_result(each, False, reachable=True, now=now, times=TIMES)
        assert counts == each.due - now + confirming.MARGIN
        pauses.append(each.due - now)
        now = each.due
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert (each.verdict, each.changed) == (codecs.DEAD, 0.0)
    assert (
        record_result(each, True, reachable=False, now=now, times=TIMES)
        == confirming.ANSWERS_LIFETIME
        > confirming.AGAIN
    )
    assert (each.verdict, each.changed, each.due) == (codecs.ANSWERS, now, now + confirming.AGAIN)


def test_of_a_backend_that_the_agent_may_be_denied_nothing_is_known() -> None:
    each = ProbeState(due=0.0)
    assert record_result(each, False, reachable=False, now=0.0, times=TIMES) == 0.0
    assert (each.verdict, each.due > 0.0) == (0, True)


def backend(of: Target, service: ServiceName = ECHO, **fields: Any) -> Backend:
    return Backend(key=key(of, service), port_names=("",), **fields)


def test_a_control_is_another_backend_of_the_service_and_cluster_as_far_away() -> None:
    """Most networks let a node connect to its own pods whatever a policy denies."""
    far, sick, here, elsewhere = (target(each) for each in ("10.2.0.2", "10.2.0.3", "10.2.9.1", "10.3.0.1"))
    one, unready = target("10.2.0.1"), target("10.2.0.4")
    db = database(
        *(backend(each) for each in (one, far, sick, here)),
        backend(Target(elsewhere.address, 8080, "TCP", ClusterName("c3"))),
        backend(unready, condition=Condition.NOT_READY),
        Pod(name="demo/here", uid="1", addresses=(here.address,)),
    )
    present = {one: suspect(one, 7), sick: suspect(sick, 7)}
    assert controls(db.snapshot(), present[one], present) == [[far]]
    assert controls(db.snapshot(), suspect(here, 7), present) == [[]], "those far away show nothing of a pod here"


def test_each_service_of_a_backend_needs_a_control_of_its_own() -> None:
    """Anybody can make a service that has another's pod, which the agent is denied, and an own one."""
    one, own, theirs = target("10.2.0.1"), target("10.2.0.2"), target("10.2.0.3")
    rows = [backend(one), backend(theirs), backend(one, OTHER), backend(own, OTHER), backend(one, THIRD)]
    reader = database(*rows).snapshot()
    assert controls(reader, suspect(one, 7, services=(ECHO, OTHER)), {one: suspect(one)}) == [[theirs], [own]]
    assert controls(reader, suspect(one, 7, services=(ECHO, OTHER, THIRD)), {}) == [], "too many"


@asynccontextmanager
async def serving(of: Target) -> AsyncIterator[None]:
    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(accept, of.address, of.port, reuse_address=True):
        yield


@asynccontextmanager
async def silent(of: Target) -> AsyncIterator[None]:
    """A server whose queue is full: what comes is dropped."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((of.address, of.port))
        server.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            with suppress(BlockingIOError):
                each.connect((of.address, of.port))
        await asyncio.sleep(0.1)
        try:
            yield
        finally:
            for each in waiting:
                each.close()


async def test_a_backend_that_accepts_refuses_or_is_silent() -> None:
    one = target("127.77.0.1", 18077)
    async with serving(one):
        assert await confirming.connect(one) == ""
    assert await confirming.connect(one) == "refused"
    async with silent(one):
        assert await confirming.connect(one) == "silent"


class Node:
    """An agent's part of a datapath, with rows in the place of callers."""

    def __init__(self, datapath: Datapath, *backends: Target) -> None:
        self.datapath = datapath
        self.db = database(*map(backend, backends))
        self.watch = FailureWatch(datapath.maps, datapath.state, self.db, longest=30.0)
        self.confirmation = Confirmation(datapath.maps, datapath.state, self.db, self.watch)
        names = [f"{each.address}:{each.port}" for each in backends]
        programmed(datapath.target(), plan("echo", "10.96.7.7", group(*names, cluster="c2")))

    def report(self, of: Target, since: float = 1.0) -> None:
        """What the kernel has when the connects of one caller have failed, and its row."""
        entry = self.datapath.state.by_target[of]
        state = codecs.FAILING.pack(entry.generation, 3, 0, 0, 2**62, 0, 1, 0, 0, 0, 0, 0, 0)
        self.datapath.maps.put("failing", [(ID.pack(entry.id), state)])
        with self.db.write() as txn:
            txn.put(tables.CALLER_FAILURES, failure(7, of, since=since))

    def verdicts(self) -> dict[str, str]:
        rows = view.rows(self.datapath.maps, "probed")
        return {row["backend"].partition(":")[0]: row["verdict"] for row in rows}

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 of maps of the kernel
                await asyncio.sleep(0.02)


@pytest.fixture
async def running(datapath: Datapath) -> AsyncIterator[Callable[..., Node]]:
    tasks: list[asyncio.Task[None]] = []

    def run(*backends: Target) -> Node:
        node = Node(datapath, *backends)
        tasks.append(asyncio.create_task(node.confirmation.run()))
        return node

    yield run
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


DEAD, LIVES = target("127.77.0.1", 18077), target("127.77.0.2", 18077)


@pytest.mark.bpf
async def test_a_backend_that_refuses_the_agent_while_another_accepts_is_ejected_for_all_until_it_accepts(
    running: Callable[..., Node],
) -> None:
    async with serving(LIVES):
        node = running(DEAD, LIVES)
        node.report(DEAD)
        await node.until(lambda: node.verdicts() == {DEAD.address: "dead"})
        assert node.watch.step() == 1
        [row] = node.db.snapshot().all(tables.FAILURES)
        assert (row.key, row.confirmed) == (key(DEAD), True)
        assert "the agent cannot connect either" in row.error
        async with serving(DEAD):
            await node.until(lambda: node.verdicts() == {DEAD.address: "answers"})
        assert node.watch.step() == 0
        assert sum(node.watch.counts.values()) == 2


@pytest.mark.bpf
async def test_a_backend_that_accepts_the_agent_is_ejected_for_its_caller_alone(running: Callable[..., Node]) -> None:
    async with serving(LIVES):
        node = running(DEAD, LIVES)
        node.report(LIVES)
        await node.until(lambda: node.verdicts() == {LIVES.address: "answers"})
        assert node.watch.step() == 0


@pytest.mark.bpf
async def test_where_the_agent_could_never_connect_its_failure_is_no_verdict(running: Callable[..., Node]) -> None:
    """A policy may deny the node what it allows pods, and refuse or drop alike."""
    node = running(DEAD, LIVES)
    node.report(DEAD)
    await node.until(lambda: node.confirmation.probes >= 2)
    assert node.verdicts() == {}


@pytest.mark.bpf
async def test_a_backend_without_others_is_dead_where_the_agent_could_connect_before(
    running: Callable[..., Node],
) -> None:
    node = running(DEAD)
    async with serving(DEAD):
        node.report(DEAD)
        await node.until(lambda: node.verdicts() == {DEAD.address: "answers"})
    node.report(DEAD, since=2.0)
    await node.until(lambda: node.verdicts() == {DEAD.address: "dead"})


@pytest.mark.bpf
async def test_probes_that_were_interrupted_begin_again_when_their_task_does(
    datapath: Datapath, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: Target) -> str:
        raise RuntimeError("a bug")

    node = Node(datapath, DEAD, LIVES)
    node.report(DEAD)
    with monkeypatch.context() as patched:
        patched.setattr(confirming, "connect", broken)
        with pytest.raises(ExceptionGroup):
            await node.confirmation.run()
    async with serving(LIVES):
        again = asyncio.create_task(node.confirmation.run())
        await node.until(lambda: node.verdicts() == {DEAD.address: "dead"})
        again.cancel()
        with suppress(asyncio.CancelledError):
            await again


@pytest.mark.bpf
async def test_an_agent_that_starts_again_knows_that_a_backend_was_found_dead(
    datapath: Datapath, running: Callable[..., Node]
) -> None:
    node = Node(datapath, DEAD)
    entry = datapath.state.by_target[DEAD]
    past = codecs.PROBED.pack(entry.generation, codecs.DEAD, 1, 2)
    datapath.maps.put("probed", [(ID.pack(entry.id), past)])
    node = running(DEAD)
    node.report(DEAD)
    await node.until(lambda: node.confirmation.probes >= 1 and node.watch.step() == 1)
