"""Incremental updates of large services: the cost of a change does not grow with the service.

For nearly every service, backends and plans depend on each endpoint by itself. ``large`` recognises such a service when
it has just been computed as a whole; ``follow`` then adds and removes single endpoints in its backends and plans. If a
result depends on the set as a whole (a policy, zones, an endpoint in two slices, no ready endpoint), the service is
computed as a whole every time.
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
from isthmus.loadbalancer.plans import PlanContext
from isthmus.loadbalancer.services import ResolvedService
from isthmus.model import chunked
from isthmus.model.balancing import Backend, BackendKey, Group, Plan, PlanKey, Target
from isthmus.model.chunked import Chunked
from isthmus.model.names import ClusterName
from isthmus.model.services import Endpoint, EndpointSet
from isthmus.model.tables import BACKENDS, ENDPOINT_SETS, PLANS, PROBES
from isthmus.statedb import Reader, WriteTxn

LARGE: Final = 64
"""Number of backends above which a service is followed: below it, computing all of them costs no more."""

MAX_STEPS: Final = 4
"""Number of differing endpoints up to which two sorted sets are compared step by step, which takes half the time."""

Sets = dict[tuple[ClusterName, str], int]
"""Number of endpoint sets, by cluster and source."""
Changed = Sequence[tuple[EndpointSet | None, EndpointSet | None]]
"""Endpoint sets before and after each change, in order; ``None`` if the set did not or does not exist."""


class Large(Struct, gc=False):
    """A service whose results depend on each endpoint by itself.

    Invariant: its backends are the endpoints of the sets of ``sources``, each endpoint in exactly one set, none probed
    or drained. Each plan has exactly the backends that match it and serve, and at least one unless none matches it.
    """

    subject: ResolvedService
    sources: frozenset[tuple[ClusterName, str]]
    """The source in effect for each cluster."""
    sets: Sets
    ports: Mapping[PlanKey, str]
    """The port name of each plan."""


class Moved(NamedTuple):
    """Backends removed from a service and added to it. A changed backend is in both."""

    removed: Mapping[BackendKey, Backend]
    added: Mapping[BackendKey, Backend]


def large(
    reader: Reader,
    subject: ResolvedService,
    *,
    backends: Collection[Backend],
    plans: Sequence[Plan],
    ports: Mapping[PlanKey, str],
    view: Viewpoint,
    context: PlanContext,
) -> Large | None:
    """Return the state for following a service just computed; ``None`` if it cannot be followed.

    ``backends``: its backends, whose endpoints are each in one set. ``ports``: the port name of each of its plans.
    """
    if any(row.stands_for for row in backends):
        return None  # its weight is the number of an island's endpoints, which are no backends themselves
    sets: Sets = {}
    sources = frozenset({(row.key.cluster, row.source) for row in backends})
    for row in reader.by(ENDPOINT_SETS, "service", subject.name):
        source = (row.cluster or view.cluster, row.source)
        sets[source] = sets.get(source, 0) + 1
        if source in sources and not _is_used(row, subject, view):
            return None
    if reader.by(PROBES, "service", subject.name) or policies.of_service(reader, subject) is not None:
        return None
    if _drained(backends, context):
        return None
    for plan in plans:
        if plan.redirected_by or plan.consumers or not selection.each_by_itself(subject, plan.key.scope):
            return None
        callable_ = [each for each in backends if _is_for(plan.key, ports[plan.key], each)]
        if callable_ and not any(map(selection.serves, callable_)):
            return None  # none is ready, so terminating or dead ones serve until one is
    return Large(subject, sources, sets, dict(ports))


def follow(
    txn: WriteTxn, large_service: Large, changed: Changed, *, view: Viewpoint, context: PlanContext
) -> bool:  # hot:
    """Apply a change of endpoints to the backends and plans of a service.

    Returns False if the service has to be computed as a whole; nothing is written then.
    """
    moved = _moved(txn, large_service, changed, view=view)
    if moved is None or _drained(moved.added.values(), context):
        return False
    current: list[Plan] = txn.by(PLANS, "service", large_service.subject.name)
    plans: list[Plan] = []
    for row in current:
        groups = _groups(row, large_service.ports[row.key], moved)
        if groups is None:
            return False
        if groups is not row.groups:
            plans.append(replace(row, groups=groups))
    txn.delete_all(BACKENDS, [key for key in moved.removed if key not in moved.added])
    changed_rows = [row for key, row in moved.added.items() if moved.removed.get(key) != row]
    txn.put_all(BACKENDS, changed_rows, compared=True)
    txn.put_all(PLANS, plans, compared=True)
    return True


def _moved(reader: Reader, large_service: Large, changed: Changed, *, view: Viewpoint) -> Moved | None:  # hot:
    """Return the changes of backends; ``None`` if they do not depend on these sets alone. Updates the sets' counts."""
    removed: dict[BackendKey, Backend] = {}
    added: dict[BackendKey, Backend] = {}
    for old, new in _by_set(changed):
        row = new or old
        assert row is not None
        source = (row.cluster or view.cluster, row.source)
        if source not in large_service.sources or not all(
            _is_used(each, large_service.subject, view) for each in (old, new) if each is not None
        ):
            return None
        if old is None or new is None:
            # The count may be wrong after a later return of None: the caller forgets this state then.
            large_service.sets[source] += 1 if old is None else -1
            if large_service.sets[source] == 0:
                return None  # another source may take effect now
        if old is not None and new is not None and old.service_ports != new.service_ports:
            return None  # ports may have been renamed
        difference = _difference(old.endpoints if old is not None else (), new.endpoints if new is not None else ())
        if difference is None:
            return None
        removed.update(backends.of_endpoints(large_service.subject, row, difference[0], view=view))
        for key, backend in backends.of_endpoints(large_service.subject, row, difference[1], view=view).items():
            if key in added:
                return None  # in two sets
            added[key] = backend
    for key in added:
        if key not in removed and reader.get(BACKENDS, key) is not None:
            return None  # also in an unchanged set
    return Moved(removed, added)


def _drained(rows: Iterable[Backend], context: PlanContext) -> bool:
    drained = context.drained
    return drained is not None and any(drained.percent_left(each) != WHOLE for each in rows)


def _is_used(row: EndpointSet, subject: ResolvedService, view: Viewpoint) -> bool:
    """True if the endpoints of a set are backends as long as its source is in effect."""
    return not row.lapsed and backends.is_for(subject, row, view.cluster)


def _by_set(changed: Changed) -> Iterable[tuple[EndpointSet | None, EndpointSet | None]]:
    """Reduce the changes to one for each set, from before its first change to after its last."""
    if len(changed) == 1:
        return changed
    by_key: dict[Any, tuple[EndpointSet | None, EndpointSet | None]] = {}
    for old, new in changed:
        row = new or old
        assert row is not None
        key = ENDPOINT_SETS.key(row)
        by_key[key] = (by_key[key][0] if key in by_key else old, new)
    return [pair for pair in by_key.values() if pair[0] is not None or pair[1] is not None]


def _difference(
    old: Sequence[Endpoint], new: Sequence[Endpoint]
) -> tuple[Sequence[Endpoint], Sequence[Endpoint]] | None:
    """Return (removed or changed endpoints, added or changed endpoints); ``None`` if an address occurs twice."""
    if isinstance(old, Chunked) and isinstance(new, Chunked):
        return chunked.difference(old, new)
    if (few := _few_differ(old, new)) is not None:
        return few
    before, after = ({each.address: each for each in endpoints} for endpoints in (old, new))
    if len(before) != len(old) or len(after) != len(new):
        return None
    added = {address: each for address, each in after.items() if before.get(address) != each}
    removed = [each for address, each in before.items() if address not in after or address in added]
    return tuple(removed), tuple(added.values())


def _few_differ(
    old: Sequence[Endpoint], new: Sequence[Endpoint]
) -> tuple[Sequence[Endpoint], Sequence[Endpoint]] | None:  # hot:
    """Difference of sequences sorted by address; ``None`` if many endpoints differ or one shares its address."""
    removed: list[Endpoint] = []
    added: list[Endpoint] = []
    old_index, new_index = 0, 0  # everything before these is compared
    while len(removed) + len(added) <= MAX_STEPS:
        alike = next(compress(count(), map(ne, islice(old, old_index, None), islice(new, new_index, None))), None)
        if alike is None:
            alike = min(len(old) - old_index, len(new) - new_index)
        old_index, new_index = old_index + alike, new_index + alike
        if old_index == len(old) and new_index == len(new):
            return removed, added
        if _shares_address(old, old_index) or _shares_address(new, new_index):
            return None
        before, after = old[old_index : old_index + 1], new[new_index : new_index + 1]
        if before and (not after or before[0].address <= after[0].address):
            removed += before
            old_index += 1
        if after and (not before or after[0].address <= before[0].address):
            added += after
            new_index += 1
    return None


def _shares_address(rows: Sequence[Endpoint], index: int) -> bool:
    """True if the previous or next endpoint has the same address."""
    return any(first.address == second.address for first, second in pairwise(rows[max(index - 1, 0) : index + 2]))


def _groups(row: Plan, port_name: str, moved: Moved) -> tuple[Group, ...] | None:  # hot:
    """Return the updated groups of a plan, the same object if unchanged; ``None`` if the plan has to be computed."""
    removed, added = (set(_targets(row.key, port_name, rows.values())) for rows in moved)
    if not row.groups:
        return None if any(_is_for(row.key, port_name, each) for each in moved.added.values()) else row.groups
    if removed == added:
        return row.groups
    [group] = row.groups
    targets = chunked.changed(group.targets, removed=removed - added, added=added - removed)
    return (replace(group, targets=targets),) if targets else None


def _targets(key: PlanKey, port_name: str, rows: Iterable[Backend]) -> Iterable[Target]:  # hot:
    """Return the targets of backends that match a plan and serve."""
    return [tiers.target(each.key) for each in rows if selection.serves(each) and _is_for(key, port_name, each)]


def _is_for(key: PlanKey, port_name: str, row: Backend) -> bool:
    return not selection.mismatch(row, key=key, port_name=port_name)
