"""Backends that a node ejected: metrics of bounded cardinality, Events at a bounded rate."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey, CallerFailure, CallerVerdict, Failure
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Import, Pod, Service
from isthmus.processes.ejections import (
    BURST,
    MOST_SERIES,
    OTHER,
    QUIET,
    WINDOW,
    Ejected,
    Pace,
    ejected,
    families,
    troubles,
    write,
    write_trouble,
)
from isthmus.statedb import Database, Snapshot

TABLES = (
    tables.FAILURES, tables.CALLER_FAILURES, tables.BACKENDS, tables.IMPORTS, tables.SERVICES, tables.PODS,
)  # fmt: skip
ECHO = ServiceName("demo/echo")


def failing(*failures: tuple[str, str, str]) -> Snapshot:
    """(service, cluster, address) of each ejected backend."""
    db = Database(*TABLES)
    with db.write() as txn:
        for service, cluster, address in failures:
            of = ServiceName(service)
            key = BackendKey(derived(of), ClusterName(cluster), address, 80, "TCP")
            txn.put(tables.BACKENDS, Backend(key=key, port_names=("",), import_of=of))
            txn.put(tables.FAILURES, Failure(key, "", "refused", 3, 0.0, 1.0))
    return db.snapshot()


def samples(snapshot: Snapshot) -> dict[tuple[str, ...], float]:
    found, single, moved = families("isthmus_agent", snapshot, moved=7)
    assert [(each.name, each.value) for each in single.samples] == [("isthmus_agent_caller_ejections", 0)]
    assert [(each.name, each.value) for each in moved.samples] == [("isthmus_agent_moved_connections", 7)]
    return {(each.name, *each.labels.values()): each.value for each in found.samples}


def test_what_is_ejected_now_is_counted_by_service_and_cluster() -> None:
    now = failing(("demo/echo", "c2", "10.2.0.1"), ("demo/echo", "c2", "10.2.0.2"), ("demo/echo", "c3", "10.3.0.1"))
    assert samples(now) == {
        ("isthmus_agent_ejected_backends", "demo/echo", "c2"): 2,
        ("isthmus_agent_ejected_backends", "demo/echo", "c3"): 1,
    }


def test_however_many_services_fail_there_is_so_much_series_and_no_backend_is_lost() -> None:
    rows = [(f"demo/s{n}", f"c{n % 3}", f"10.2.{n // 250}.{n % 250 + 1}") for n in range(1_000)]
    found = samples(failing(*rows))
    assert len(found) == MOST_SERIES + 3
    assert sum(found.values()) == 1_000
    assert {key[1] for key in found} >= {OTHER}


def test_a_failure_of_a_backend_that_has_gone_is_nobodys() -> None:
    db = Database(*TABLES)
    with db.write() as txn:
        key = BackendKey(ECHO, ClusterName("c2"), "10.2.0.1", 80, "TCP")
        txn.put(tables.FAILURES, Failure(key, "", "refused", 3, 0.0, 1.0))
    assert ejected(db.snapshot()) == {}


def kinds(count: int) -> list[Ejected]:
    return [Ejected(ServiceName(f"demo/s{n:03}"), True, "c2", "refused") for n in range(count)]


def test_the_same_is_written_once_in_a_while() -> None:
    pace, [one] = Pace[Ejected](), kinds(1)
    assert [pace.allowed([one], at) for at in (0.0, QUIET - 1, QUIET + 1)] == [[one], [], [one]]


def test_what_there_was_no_room_for_is_written_later() -> None:
    pace, found = Pace[Ejected](), kinds(BURST + 1)
    assert pace.allowed(found, 0.0) == found[:BURST]
    assert pace.allowed(found, WINDOW - 1) == []
    assert pace.allowed(found, WINDOW + 1) == found[BURST:]


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 60)), max_size=40))
def test_no_storm_writes_more_than_a_burst_in_any_window(rounds: list[tuple[float, int]]) -> None:
    pace, now, written = Pace[Ejected](), 0.0, list[float]()
    for after, count in rounds:
        now += after
        written += [now] * len(pace.allowed(kinds(count), now))
    for at in written:
        assert sum(at - WINDOW < each <= at for each in written) <= BURST


class Recorded:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def record(self, kind: Any, **fields: Any) -> None:
        self.events.append({"kind": kind.kind, **fields})


def test_an_event_is_about_the_import_or_the_service_and_names_no_backend() -> None:
    db = Database(*TABLES)
    with db.write() as txn:
        txn.put(tables.IMPORTS, Import(name=ECHO, uid="of import"))
        txn.put(tables.SERVICES, Service(name=ECHO, source="kubernetes", uid="of service"))
    recorded = Recorded()
    for is_import in (True, False):
        write(recorded, db.snapshot(), Ejected(ECHO, is_import, "c2", "silent"))  # type: ignore[arg-type]
    gone = Ejected(ServiceName("demo/gone"), True, "c2", "silent")
    write(recorded, db.snapshot(), gone)  # type: ignore[arg-type]
    assert [(each["kind"], each["uid"], each["reason"]) for each in recorded.events] == [
        ("ServiceImport", "of import", "BackendsEjected"),
        ("Service", "of service", "BackendsEjected"),
    ]
    text = "backends in cluster c2 fail connects (silent) of two pods or more: calls go to others meanwhile"
    assert {each["message"] for each in recorded.events} == {text}
    write(recorded, db.snapshot(), Ejected(ECHO, True, "c2", "silent", confirmed=True))  # type: ignore[arg-type]
    assert "of pods and of their node" in recorded.events[-1]["message"]


def alone(service: str, address: str, *, pod: str = "shop/web", verdict: CallerVerdict = "", since: float = 0.0) -> Any:
    """A backend that the connects of one pod fail with."""
    key = BackendKey(derived(ServiceName(service)), ClusterName("c2"), address, 80, "TCP")
    return CallerFailure(
        caller=7, key=key, pod=pod, reason="silent", failures=3, since=since, until=9.0, verdict=verdict
    )


def test_what_fails_for_one_pod_alone_is_an_event_about_that_pod_and_blames_no_backend() -> None:
    db = Database(*TABLES)
    with db.write() as txn:
        txn.put(tables.PODS, Pod(name="shop/web", uid="of pod"))
        for service, address in (("demo/echo", "10.2.0.1"), ("demo/echo", "10.2.0.2"), ("demo/db", "10.2.0.3")):
            row = alone(service, address, verdict="answers")
            txn.put(tables.BACKENDS, Backend(key=row.key, port_names=("",), import_of=ServiceName(service)))
            txn.put(tables.CALLER_FAILURES, row)
    [(trouble, extent)] = troubles(db.snapshot(), 100.0).items()
    recorded = Recorded()
    write_trouble(recorded, db.snapshot(), trouble, extent)  # type: ignore[arg-type]
    [event] = recorded.events
    assert [event[field] for field in ("kind", "namespace", "name", "uid", "reason")] == [
        "Pod",
        "shop",
        "web",
        "of pod",
        "ConnectsFail",
    ]
    assert event["message"].startswith("connects of this pod to backends of demo/db, demo/echo fail (silent), and no ")
    assert "its node connects to them" in event["message"]


def test_a_pods_trouble_waits_for_the_agent_to_try_and_is_none_where_the_backend_is_dead() -> None:
    db = Database(*TABLES)
    with db.write() as txn:
        txn.put(tables.CALLER_FAILURES, alone("demo/echo", "10.2.0.1", since=100.0))
        txn.put(tables.CALLER_FAILURES, alone("demo/db", "10.2.0.2", since=1.0, pod="shop/b", verdict="dead"))
        txn.put(tables.CALLER_FAILURES, alone("demo/x", "10.2.0.3", since=1.0, pod=""))
    assert troubles(db.snapshot(), 101.0) == {}
    [extent] = troubles(db.snapshot(), 110.0).values()
    assert not extent.answers
