"""Derived tables: whatever happens in whatever order, they are what computing everything anew would give."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from isthmus.statedb import Database, Derivations, Derived, DerivedTogether, Dirty, Reader, StateError, Table, WriteTxn


class Service(Struct, frozen=True, gc=False):
    name: str
    address: str


class Pod(Struct, frozen=True, gc=False):
    name: str
    service: str
    ready: bool = True


class Backends(Struct, frozen=True, gc=False):
    service: str
    pods: tuple[str, ...]


class Frontend(Struct, frozen=True, gc=False):
    address: str
    service: str
    pods: tuple[str, ...]


SERVICES = Table[str, Service](
    "services", Service, key=lambda row: row.name, indexes={"address": lambda row: (row.address,)}
)
PODS = Table[str, Pod]("pods", Pod, key=lambda row: row.name, indexes={"service": lambda row: (row.service,)})
BACKENDS = Table[str, Backends]("backends", Backends, key=lambda row: row.service)
FRONTENDS = Table[tuple[str, str], Frontend](
    "frontends",
    Frontend,
    key=lambda row: (row.address, row.service),
    indexes={"address": lambda row: (row.address,)},
)


def backends(reader: Reader, service: str) -> Iterator[Backends]:
    """The ready pods of a service, where there are any."""
    if pods := sorted(pod.name for pod in reader.by(PODS, "service", service) if pod.ready):
        yield Backends(service, tuple(pods))


def services_of(reader: Reader, old: Pod | None, new: Pod | None) -> Iterable[str]:
    return {pod.service for pod in (old, new) if pod}


def frontends(reader: Reader, address: str) -> Iterator[Frontend]:
    """Every service that claims an address, with its backends."""
    for service in reader.by(SERVICES, "address", address):
        behind = reader.get(BACKENDS, service.name)
        yield Frontend(address, service.name, behind.pods if behind else ())


def addresses_of(reader: Reader, old: Service | None, new: Service | None) -> Iterable[str]:
    return {service.address for service in (old, new) if service}


def address_of(reader: Reader, old: Backends | None, new: Backends | None) -> Iterable[str]:
    row = new or old
    service = reader.get(SERVICES, row.service) if row else None
    return (service.address,) if service else ()


OF_PODS = Derived(BACKENDS, compute=backends, reads={PODS: services_of})
OF_BOTH = Derived(FRONTENDS, compute=frontends, reads={SERVICES: addresses_of, BACKENDS: address_of}, unit="address")


def database() -> Database:
    return Database(SERVICES, PODS, BACKENDS, FRONTENDS)


def put(db: Database, *rows: Service | Pod) -> None:
    with db.write() as txn:
        for row in rows:
            match row:
                case Service():
                    txn.put(SERVICES, row)
                case Pod():
                    txn.put(PODS, row)


def settle(derivations: Derivations) -> int:
    """Passes until nothing is left; how many it took."""
    passes = 1
    while derivations.step():
        passes += 1
    return passes


def contents(db: Database) -> dict[str, set[Any]]:
    tables: list[Table[Any, Any]] = [BACKENDS, FRONTENDS]
    return {table.name: set(db.snapshot().all(table)) for table in tables}


def anew(db: Database) -> dict[str, set[Any]]:
    """The derived rows of another database with the same input."""
    other = database()
    put(other, *db.snapshot().all(SERVICES))
    put(other, *db.snapshot().all(PODS))
    settle(Derivations(other, OF_BOTH, OF_PODS))
    return contents(other)


NAMES = st.sampled_from(["x", "y", "z"])
WRITE = (
    st.builds(Service, NAMES, st.sampled_from(["1", "2"]))
    | st.builds(Pod, st.sampled_from("pqrs"), NAMES, st.booleans())
    | st.tuples(st.just(SERVICES), NAMES)
    | st.tuples(st.just(PODS), st.sampled_from("pqrs"))
)
STEPS = st.lists(st.lists(WRITE, max_size=6) | st.just("pass"), max_size=20)


@given(steps=STEPS, limit=st.sampled_from([1, 2, 1000]))
@settings(max_examples=300, deadline=None)
def test_after_any_interleaving_derived_rows_are_those_of_computing_anew(steps: list[Any], limit: int) -> None:
    db = database()
    derivations = Derivations(db, OF_BOTH, OF_PODS, units_per_pass=limit)
    for step in steps:
        if step == "pass":
            derivations.step()
            continue
        with db.write() as txn:
            for write in step:
                if isinstance(write, tuple):
                    txn.delete(*write)
                else:
                    txn.put(SERVICES if isinstance(write, Service) else PODS, write)
    settle(derivations)
    assert contents(db) == anew(db)


class Failing:
    """Computes a unit, or raises: the n-th computation from now on."""

    def __init__(self, compute: Callable[[Reader, str], Iterator[Any]]) -> None:
        self._compute = compute
        self.after: int | None = None

    def __call__(self, reader: Reader, unit: str) -> list[Any]:
        if self.after is not None:
            self.after -= 1
            if self.after < 0:
                raise ZeroDivisionError("a bug")
        return list(self._compute(reader, unit))


@given(
    steps=st.lists(st.lists(WRITE, max_size=6) | st.integers(0, 5), max_size=20), limit=st.sampled_from([1, 2, 1000])
)
@settings(max_examples=300, deadline=None)
def test_after_passes_that_raised_derived_rows_are_those_of_computing_anew(steps: list[Any], limit: int) -> None:
    db, failing = database(), [Failing(backends), Failing(frontends)]
    of_pods = Derived(BACKENDS, compute=failing[0], reads={PODS: services_of})
    of_both = Derived(
        FRONTENDS, compute=failing[1], reads={SERVICES: addresses_of, BACKENDS: address_of}, unit="address"
    )
    derivations = Derivations(db, of_both, of_pods, units_per_pass=limit)
    for step in steps:
        if isinstance(step, int):
            failing[step % 2].after = step // 2
            with suppress(ZeroDivisionError):
                derivations.step()
            failing[step % 2].after = None
            continue
        with db.write() as txn:
            for write in step:
                if isinstance(write, tuple):
                    txn.delete(*write)
                else:
                    txn.put(SERVICES if isinstance(write, Service) else PODS, write)
    settle(derivations)
    assert contents(db) == anew(db)


def test_what_depends_on_what_is_seen_whole_or_not_at_all() -> None:
    db = database()
    derivations = Derivations(db, OF_BOTH, OF_PODS)
    seen: list[tuple[int, int]] = []
    put(db, Service("x", "1"), Pod("p", "x"))
    watcher = db.changes(FRONTENDS)
    derivations.step()
    snapshot, _ = watcher.next()
    seen.append((snapshot.count(BACKENDS), snapshot.count(FRONTENDS)))
    assert seen == [(1, 1)]
    assert db.snapshot().get(FRONTENDS, ("1", "x")) == Frontend("1", "x", ("p",))


def test_what_does_not_change_is_neither_computed_nor_written() -> None:
    db = database()
    derivations = Derivations(db, OF_BOTH, OF_PODS)
    put(db, Service("x", "1"), Service("y", "2"), Pod("p", "x"))
    settle(derivations)
    units, revision = derivations.units, db.snapshot().revision(FRONTENDS)
    put(db, Pod("q", "x", ready=False))
    settle(derivations)
    assert derivations.units == units + 1  # the backends of x, which are as they were, so its frontend is left alone
    assert db.snapshot().revision(FRONTENDS) == revision


def test_a_pass_takes_a_bounded_number_of_units_of_each_table() -> None:
    db = database()
    derivations = Derivations(db, OF_BOTH, OF_PODS, units_per_pass=3)
    put(db, *(Service(f"s{n}", str(n)) for n in range(7)), *(Pod(f"p{n}", f"s{n}") for n in range(7)))
    assert derivations.step()
    assert (db.snapshot().count(BACKENDS), db.snapshot().count(FRONTENDS)) == (3, 3)
    settle(derivations)
    assert contents(db) == anew(db)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 10))
def test_of_units_that_count_for_more_a_pass_takes_fewer_and_one_at_least(costs: list[int], limit: int) -> None:
    db = database()
    taken: list[list[int]] = [[]]

    def compute(reader: Reader, service: str) -> Iterator[Backends]:
        taken[-1].append(int(service))
        return backends(reader, service)

    costly = Derived(
        BACKENDS, compute=compute, reads={PODS: services_of}, cost=lambda reader, service: costs[int(service)]
    )
    derivations = Derivations(db, costly, units_per_pass=limit)
    put(db, *(Pod(f"p{n}", str(n)) for n in range(len(costs))))
    while derivations.step():
        taken.append([])
    assert [each for units in taken for each in units] == list(range(len(costs)))
    assert all(sum(costs[each] for each in units) <= limit or len(units) == 1 for units in taken)


def test_under_a_steady_stream_of_changes_of_one_unit_the_others_have_their_turn() -> None:
    db = database()
    derivations = Derivations(db, OF_PODS, units_per_pass=1)
    put(db, *(Pod(f"p{n}", f"s{n}") for n in range(5)))
    for n in range(5):
        put(db, Pod("noisy", "s0", ready=bool(n % 2)))
        derivations.step()
    assert db.snapshot().count(BACKENDS) == 5


def test_derived_tables_that_depend_on_each_other_in_a_circle_are_refused() -> None:
    circle = Derived(BACKENDS, compute=backends, reads={FRONTENDS: lambda reader, old, new: ()})
    with pytest.raises(StateError, match=r"in a circle: .*backends"):
        Derivations(database(), circle, OF_BOTH)


def test_misdeclared_tables_are_refused() -> None:
    with pytest.raises(StateError, match="its unit 'colour' is not an index"):
        Derived(FRONTENDS, compute=frontends, reads={}, unit="colour")
    with pytest.raises(StateError, match="'backends' is declared twice"):
        Derivations(database(), OF_PODS, OF_PODS)


async def test_running_it_follows_changes_and_lets_the_loop_breathe_between_passes() -> None:
    db = database()
    derivations = Derivations(db, OF_BOTH, OF_PODS, units_per_pass=2)
    running = asyncio.create_task(derivations.run())
    put(db, *(Service(f"s{n}", str(n)) for n in range(20)))
    turns = 0
    while db.snapshot().count(FRONTENDS) < 20:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 10
    put(db, Pod("p", "s0"))
    await db.until(lambda now: now.get(FRONTENDS, ("0", "s0")) == Frontend("0", "s0", ("p",)))
    running.cancel()


def test_its_repr_tells_what_waits() -> None:
    db = database()
    derivations = Derivations(db, OF_BOTH, OF_PODS, units_per_pass=1)
    put(db, Pod("p", "x"), Pod("q", "y"))
    derivations.step()
    assert repr(derivations) == "<Derivations of backends 1 dirty, frontends; 1 passes, 1 units>"
    assert repr(OF_BOTH) == "<Derived frontends from services, backends>"


def test_a_unit_of_which_members_alone_have_changed_is_given_those_and_any_other_is_computed_whole() -> None:
    db, given = database(), []

    def renew(txn: WriteTxn, units: Dirty) -> None:
        given.append(dict(units))

    together = DerivedTogether(
        BACKENDS,
        renew=renew,
        members=(PODS, lambda row: row.service),
        reads={SERVICES: lambda reader, changed: [row.name for pair in changed for row in pair if row is not None]},
    )
    derivations = Derivations(db, together)
    put(db, Service("x", "1"), Pod("p", "x"), Pod("q", "y"))
    settle(derivations)
    before, after = Pod("q", "y"), Pod("q", "y", ready=False)
    put(db, after, Service("x", "2"), Pod("r", "x"))
    settle(derivations)
    with db.write() as txn:
        txn.delete(PODS, "q")
    settle(derivations)
    assert [each for each in given if each] == [
        {"x": None, "y": [(None, before)]},
        {"y": [(before, after)], "x": None},
        {"y": [(after, None)]},
    ]


def test_tables_that_are_computed_together_await_what_each_table_that_is_read_does() -> None:
    db = database()
    source = db.initializer(SERVICES, "s")
    together = DerivedTogether(BACKENDS, renew=lambda txn, units: None, reads={SERVICES: lambda reader, changed: ()})
    derivations = Derivations(db, together)
    settle(derivations)
    assert db.snapshot().pending(BACKENDS) == {"s"}
    with db.write() as txn:
        source.complete(txn)
    settle(derivations)
    assert db.snapshot().pending(BACKENDS) == frozenset()
