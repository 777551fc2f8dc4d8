"""A change of the endpoints of a large service, passed on as it came: what it costs does not grow with the service.

What :mod:`.backends` and :mod:`.plans` compute of all endpoints of a service is, for nearly every service, the sum of
what follows from each endpoint by itself. ``large`` recognises such a service when all of it has been computed, and
``follow`` then takes endpoints in and out of its backends and its plans. Where more depends on the set as a whole (a
policy, zones, an endpoint in two slices, nothing that is ready), there is nothing to follow and all is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress, count, islice, pairwise
from operator import ne
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from isthmus.loadbalancer import backends, policies, selection, tiers
from isthmus.loadbalancer.backends import Viewpoint
from isthmus.loadbalancer.drains import WHOLE
from isthmus.loadbalancer.plans import Outlook
from isthmus.loadbalancer.services import ResolvedService
from isthmus.model import chunked
from isthmus.model.balancing import Backend, BackendKey, Group, Plan, PlanKey, Target
from isthmus.model.chunked import Chunked
from isthmus.model.names import ClusterName
from isthmus.model.services import Endpoint, EndpointSet
from isthmus.model.tables import BACKENDS, ENDPOINT_SETS, PLANS, PROBES
from isthmus.statedb import Reader, WriteTxn

LARGE: Final = 64
"""Backends above which a service is followed: of fewer, computing all of them costs no more."""

MAX_STEPS: Final = 4
"""Endpoints of a set up to which those that differ are looked for one by one: it takes half the time."""

Sets = dict[tuple[ClusterName, str], int]
"""How many sets of endpoints there are, by cluster and source."""
Changed = Sequence[tuple[EndpointSet | None, EndpointSet | None]]
"""Sets of endpoints before and after, in the order in which they changed; None: not there."""


class Large(Struct, gc=False):
    """A service whose backends count each by itself.

    Invariant: its rows of ``backends`` are those of the endpoints in the sets that count, each in one of them, none of
    them probed or drained; each of its plans has exactly those that serve it, and one at least unless none is for it.
    """

    subject: ResolvedService
    counting: frozenset[tuple[ClusterName, str]]
    """The source that counts of each cluster."""
    sets: Sets
    ports: Mapping[PlanKey, str]
    """The port name of each plan."""


class Moved(NamedTuple):
    """Backends that have gone from a service, and that have come to it. One that has changed is both."""

    gone: Mapping[BackendKey, Backend]
    come: Mapping[BackendKey, Backend]


def large(
    reader: Reader,
    subject: ResolvedService,
    *,
    found: Collection[Backend],
    plans: Sequence[Plan],
    ports: Mapping[PlanKey, str],
    at: Viewpoint,
    by: Outlook,
) -> Large | None:
    """What is to be known of a service to follow it, when its backends and plans have just been computed.

    ``found``: its backends, of endpoints that are each in one set. ``ports``: the port name of each of its plans.
    """
    if any(row.stands_for for row in found):
        return None  # it counts for as many as the endpoints of an island, which are no backends themselves
    sets: Sets = {}
    counting = frozenset({(row.key.cluster, row.source) for row in found})
    for row in reader.by(ENDPOINT_SETS, "service", subject.name):
        of = (row.cluster or at.cluster, row.source)
        sets[of] = sets.get(of, 0) + 1
        if of in counting and not _counts(row, subject, at):
            return None
    if reader.by(PROBES, "service", subject.name) or policies.of_service(reader, subject) is not None:
        return None
    if _drained(found, by):
        return None
    for plan in plans:
        if plan.redirected_by or not selection.each_by_itself(subject, plan.key.scope):
            return None
        callable_ = [each for each in found if _is_for(plan.key, ports[plan.key], each)]
        if callable_ and not any(map(selection.serves, callable_)):
            return None  # whatever else there is serves, until one of them is ready
    return Large(subject, counting, sets, dict(ports))


def follow(txn: WriteTxn, of: Large, changed: Changed, *, at: Viewpoint, by: Outlook) -> bool:  # hot:
    """Take a change of endpoints into the backends and plans of a service. False: all of it has to be computed."""
    moved = _moved(txn, of, changed, at=at)
    if moved is None or _drained(moved.come.values(), by):
        return False
    present: list[Plan] = txn.by(PLANS, "service", of.subject.name)
    plans: list[Plan] = []
    for row in present:
        groups = _groups(row, of.ports[row.key], moved)
        if groups is None:
            return False
        if groups is not row.groups:
            plans.append(replace(row, groups=groups))
    txn.delete_all(BACKENDS, [key for key in moved.gone if key not in moved.come])
    come = [row for key, row in moved.come.items() if moved.gone.get(key) != row]
    txn.put_all(BACKENDS, come, compared=True)
    txn.put_all(PLANS, plans, compared=True)
    return True


def _moved(reader: Reader, of: Large, changed: Changed, *, at: Viewpoint) -> Moved | None:  # hot:
    """What became of the backends; None where it does not follow from these sets alone. Takes the sets' numbers in."""
    gone: dict[BackendKey, Backend] = {}
    come: dict[BackendKey, Backend] = {}
    for old, new in _by_set(changed):
        row = new or old
        assert row is not None
        whose = (row.cluster or at.cluster, row.source)
        if whose not in of.counting or not all(
            _counts(each, of.subject, at) for each in (old, new) if each is not None
        ):
            return None
        if old is None or new is None:
            of.sets[whose] += 1 if old is None else -1
            if of.sets[whose] == 0:
                return None  # another source may count now
        parted = _difference(old.endpoints if old is not None else (), new.endpoints if new is not None else ())
        if parted is None:
            return None
        gone.update(backends.of_endpoints(of.subject, row, parted[0], at=at))
        for key, each in backends.of_endpoints(of.subject, row, parted[1], at=at).items():
            if key in come:
                return None  # in two sets
            come[key] = each
    for key in come:
        if key not in gone and reader.get(BACKENDS, key) is not None:
            return None  # in a set that has not changed, too
    return Moved(gone, come)


def _drained(rows: Iterable[Backend], by: Outlook) -> bool:
    drained = by.drained
    return drained is not None and any(drained.left(each) != WHOLE for each in rows)


def _counts(row: EndpointSet, subject: ResolvedService, at: Viewpoint) -> bool:
    """Whether the endpoints of a set are backends as they are, if its source counts."""
    return not row.lapsed and backends.is_for(subject, row, at.cluster)


def _by_set(changed: Changed) -> Iterable[tuple[EndpointSet | None, EndpointSet | None]]:
    """What became of each set between the first of its changes and the last."""
    if len(changed) == 1:
        return changed
    found: dict[Any, tuple[EndpointSet | None, EndpointSet | None]] = {}
    for old, new in changed:
        row = new or old
        assert row is not None
        key = ENDPOINT_SETS.key(row)
        found[key] = (found[key][0] if key in found else old, new)
    return [pair for pair in found.values() if pair[0] is not None or pair[1] is not None]


def _difference(
    old: Sequence[Endpoint], new: Sequence[Endpoint]
) -> tuple[Sequence[Endpoint], Sequence[Endpoint]] | None:
    """(endpoints that have gone or changed, that have come or changed); None where an address is there twice."""
    if isinstance(old, Chunked) and isinstance(new, Chunked):
        return chunked.difference(old, new)
    if (few := _few_differ(old, new)) is not None:
        return few
    before, after = ({each.address: each for each in of} for of in (old, new))
    if len(before) != len(old) or len(after) != len(new):
        return None
    come = {address: each for address, each in after.items() if before.get(address) != each}
    gone = [each for address, each in before.items() if address not in after or address in come]
    return tuple(gone), tuple(come.values())


def _few_differ(
    old: Sequence[Endpoint], new: Sequence[Endpoint]
) -> tuple[Sequence[Endpoint], Sequence[Endpoint]] | None:  # hot:
    """The same where few differ, each at an address of its own. Both are sorted by address."""
    removed: list[Endpoint] = []
    added: list[Endpoint] = []
    at, to = 0, 0  # all before these has been compared
    while len(removed) + len(added) <= MAX_STEPS:
        alike = next(compress(count(), map(ne, islice(old, at, None), islice(new, to, None))), None)
        if alike is None:
            alike = min(len(old) - at, len(new) - to)
        at, to = at + alike, to + alike
        if at == len(old) and to == len(new):
            return removed, added
        if _beside(old, at) or _beside(new, to):
            return None
        before, after = old[at : at + 1], new[to : to + 1]
        if before and (not after or before[0].address <= after[0].address):
            removed += before
            at += 1
        if after and (not before or after[0].address <= before[0].address):
            added += after
            to += 1
    return None


def _beside(rows: Sequence[Endpoint], at: int) -> bool:
    """Whether the endpoint before or after one has its address too."""
    return any(one.address == other.address for one, other in pairwise(rows[max(at - 1, 0) : at + 2]))


def _groups(row: Plan, port_name: str, moved: Moved) -> tuple[Group, ...] | None:  # hot:
    """The groups of a plan afterwards, the same object where it has not changed; None where it has to be computed."""
    gone, come = (set(_targets(row.key, port_name, rows.values())) for rows in moved)
    if not row.groups:
        return None if any(_is_for(row.key, port_name, each) for each in moved.come.values()) else row.groups
    if gone == come:
        return row.groups
    [group] = row.groups
    targets = chunked.changed(group.targets, removed=gone - come, added=come - gone)
    return (replace(group, targets=targets),) if targets else None


def _targets(key: PlanKey, port_name: str, rows: Iterable[Backend]) -> Iterable[Target]:  # hot:
    """The targets of those that serve a plan as long as any does."""
    return [tiers.target(each.key) for each in rows if selection.serves(each) and _is_for(key, port_name, each)]


def _is_for(key: PlanKey, port_name: str, row: Backend) -> bool:
    return not selection.mismatch(row, key=key, port_name=port_name)
