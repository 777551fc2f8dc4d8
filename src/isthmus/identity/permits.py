"""The table ``permits``: which identities each policy allows, within what the kernel's map holds.

``allowed_callers`` has what each policy in force allows, ``excess_policies`` the policies whose callers do not fit.
Namespaces divide the map in fair shares (``isthmus.fair``), the clusters of the callers divide a namespace's share, so
that a peer with very many numbers does not exclude another's callers, and policies get a cluster's share by their
precedence. A policy allows all its callers of a cluster or none of them: the order of numbers must not decide which
are refused.

Each policy of a namespace beyond the first hundred allows nobody: the cost of a changed identity must not grow with
the policies that a tenant writes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import product

from isthmus.fair import Path, Shares, allot
from isthmus.identity.allow import MAX_POLICIES, identities_allowed, in_force, labels_of, precedence
from isthmus.model.clusters import Cluster
from isthmus.model.export_policies import MAX_PERMITS, AllowedCallers, ExcessPolicy, ExportPolicy, Scope
from isthmus.model.identities import Identity
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.signing import Permit
from isthmus.model.tables import ALLOWED_CALLERS, CLUSTERS, EXCESS_POLICIES, EXPORT_POLICIES, IDENTITIES, PERMITS
from isthmus.statedb import Derivation, Derived, Reader, on_change, unit_of

Callers = tuple[str, str, str]
"""Cluster, namespace and service account of a rule; empty for any."""
WHOLE = True
"""The one unit of ``excess_policies``: which policies fit depends on all of them."""


def derived(cluster: ClusterName, *, room: int = MAX_PERMITS) -> list[Derivation]:
    """Declare the three tables for a cluster. All its policies together may allow ``room`` identities."""
    return [allowed(cluster), excess(room), permits()]


def allowed(cluster: ClusterName) -> Derived[AllowedCallers]:
    """Declare ``allowed_callers``. Its unit is a scope, of which one policy is in force."""

    first = _First()

    def compute(reader: Reader, scope: Scope) -> Iterable[AllowedCallers]:
        policy = in_force(reader, scope)
        if policy is None:
            return ()
        if not first.counts(reader, policy):
            return (AllowedCallers(policy.name, scope, ()),)
        numbers = identities_allowed(policy, _candidates(reader, policy), labels_of(reader), own=cluster)
        return (AllowedCallers(policy.name, scope, tuple(numbers.items())),)

    return Derived(
        ALLOWED_CALLERS,
        compute=compute,
        unit="scope",
        reads={
            EXPORT_POLICIES: first.by_policy,
            IDENTITIES: on_change(("namespace", "service_account"), first.by_identity),
            CLUSTERS: on_change(("labels",), _by_labels),
        },
    )


class _First:
    """The policies of each namespace that come first, found once for each revision of the table."""

    def __init__(self) -> None:
        self._revision = -1
        self._found: dict[str, list[ExportPolicy]] = {}
        self._counting: dict[str, frozenset[ServiceName]] = {}
        self._moved: dict[str, list[Scope]] = {}
        self._affected: dict[Callers, list[Scope]] = {}

    def counts(self, reader: Reader, policy: ExportPolicy) -> bool:
        """True if a policy is among the first of its namespace, so that it allows callers."""
        found = self._earliest(reader, policy.namespace)
        if policy.namespace not in self._counting:
            self._counting[policy.namespace] = frozenset(each.name for each in found[:MAX_POLICIES])
        return policy.name in self._counting[policy.namespace]

    def by_policy(self, reader: Reader, old: ExportPolicy | None, new: ExportPolicy | None) -> Iterator[Scope]:
        """A policy affects its scope, and in a namespace of many those that it moves."""
        for row in (old, new):
            if row is not None:
                yield row.scope
                if len(found := self._earliest(reader, row.namespace)) >= MAX_POLICIES:
                    if row.namespace not in self._moved:
                        self._moved[row.namespace] = [each.scope for each in found]
                    yield from self._moved[row.namespace]

    def by_identity(self, reader: Reader, old: Identity | None, new: Identity | None) -> Iterator[Scope]:
        """An identity affects policies with a rule that names it by any of its three parts, or by none."""
        for row in (old, new):
            if row is not None:
                for key in product({row.cluster, ""}, {row.namespace, ""}, {row.service_account, ""}):
                    yield from self._naming(reader, key)

    def _earliest(self, reader: Reader, namespace: str) -> list[ExportPolicy]:
        """Return twice MAX_POLICIES, in order of precedence. A change moves those around the last that counts."""
        self._renew(reader)
        if namespace not in self._found:
            policies = reader.by(EXPORT_POLICIES, "namespace", namespace)
            self._found[namespace] = nsmallest(2 * MAX_POLICIES, policies, key=precedence)
        return self._found[namespace]

    def _naming(self, reader: Reader, key: Callers) -> list[Scope]:
        """The scopes of policies that count with a rule of these parts."""
        self._renew(reader)
        if (found := self._affected.get(key)) is None:
            rows = reader.by(EXPORT_POLICIES, "callers", key)
            found = [row.scope for row in rows if self.counts(reader, row)]
            if found:
                self._affected[key] = found
        return found

    def _renew(self, reader: Reader) -> None:
        if self._revision != (revision := reader.revision(EXPORT_POLICIES)):
            self._revision = revision
            for each in (self._found, self._counting, self._moved, self._affected):
                each.clear()


def _candidates(reader: Reader, policy: ExportPolicy) -> Iterable[Identity]:
    """The identities that a policy may allow: those of the clusters that it names, if every rule names one."""
    named = {rule.cluster for rule in policy.allow}
    if "" in named:
        return reader.all(IDENTITIES)
    return [identity for cluster in named for identity in reader.by(IDENTITIES, "cluster", cluster)]


def _by_labels(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[Scope]:
    """Labels of a cluster affect policies that select clusters by labels."""
    yield from (policy.scope for policy in reader.by(EXPORT_POLICIES, "by_labels", True))


def excess(room: int = MAX_PERMITS) -> Derived[ExcessPolicy]:
    """Declare ``excess_policies``."""

    def compute(reader: Reader, _: bool) -> Iterable[ExcessPolicy]:
        if sum(row.count for row in reader.all(ALLOWED_CALLERS)) <= room:
            return ()
        counts = {
            row.policy: {cluster: len(numbers) for cluster, numbers in row.identities}
            for row in reader.all(ALLOWED_CALLERS)
        }
        policies = [policy for name in counts if (policy := reader.get(EXPORT_POLICIES, name)) is not None]
        return [
            ExcessPolicy(name, sum(counts[name][each] for each in clusters), room, clusters)
            for name, clusters in unfit(policies, counts, room).items()
        ]

    whole = unit_of(lambda row: WHOLE)
    return Derived(
        EXCESS_POLICIES,
        compute=compute,
        unit="all",
        reads={ALLOWED_CALLERS: whole, EXPORT_POLICIES: on_change(("created",), whole)},
    )


Counts = Mapping[ServiceName, Mapping[ClusterName, int]]
"""Number of identities that each policy allows, by their clusters."""


def unfit(policies: Iterable[ExportPolicy], counts: Counts, room: int) -> dict[ServiceName, tuple[ClusterName, ...]]:
    """Return the clusters whose callers do not fit into the room, by policy."""
    by_namespace: defaultdict[Path, list[ExportPolicy]] = defaultdict(list)
    for policy in policies:
        by_namespace[(policy.namespace,)].append(policy)
    wanted = Counter(
        {path: sum(sum(counts[each.name].values()) for each in rows) for path, rows in by_namespace.items()}
    )
    left = allot(wanted, Shares(room, reserve=False))
    found: defaultdict[ServiceName, list[ClusterName]] = defaultdict(list)
    for path, rows in by_namespace.items():
        if (free := left.get(path, 0)) < wanted[path]:
            for name, cluster in _unfit_of_namespace(rows, counts, free):
                found[name].append(cluster)
    return {name: tuple(sorted(clusters)) for name, clusters in sorted(found.items())}


def _unfit_of_namespace(
    policies: list[ExportPolicy], counts: Counts, room: int
) -> Iterator[tuple[ServiceName, ClusterName]]:
    wanted = Counter[Path]()
    for policy in policies:
        wanted.update({(cluster,): count for cluster, count in counts[policy.name].items()})
    left = Counter(allot(wanted, Shares(room, reserve=False)))
    for policy in sorted(policies, key=precedence):
        for cluster, count in counts[policy.name].items():
            if count <= left[(cluster,)]:
                left[(cluster,)] -= count
            else:
                yield policy.name, cluster


def permits() -> Derived[Permit]:
    """Declare ``permits``."""

    def compute(reader: Reader, policy: ServiceName) -> Iterator[Permit]:
        row = reader.get(ALLOWED_CALLERS, policy)
        if row is None:
            return
        excess = reader.get(EXCESS_POLICIES, policy)
        for cluster, numbers in row.identities:
            if excess is None or cluster not in excess.clusters:
                yield from (Permit(policy, number) for number in numbers)

    return Derived(
        PERMITS,
        compute=compute,
        unit="policy",
        reads={ALLOWED_CALLERS: unit_of("policy"), EXCESS_POLICIES: unit_of("policy")},
    )
