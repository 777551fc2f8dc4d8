"""The table ``permits``: which identities each policy allows, within what the kernel's map holds.

``allowed_callers`` has what every policy in force allows, and ``excess_policies`` those whose callers do not fit. Room
goes to namespaces in fair shares (``isthmus.fair``), within one to its policies by their precedence. A policy that does
not fit as a whole allows nobody: which of its callers are refused must not depend on the order of numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import product

from isthmus.fair import Path, Shares, allot
from isthmus.identity.allow import identities_allowed, in_force, precedence
from isthmus.model.clusters import Cluster
from isthmus.model.export_policies import MAX_PERMITS, AllowedCallers, ExcessPolicy, ExportPolicy, Scope
from isthmus.model.identities import Identity
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.signing import Permit
from isthmus.model.tables import ALLOWED_CALLERS, CLUSTERS, EXCESS_POLICIES, EXPORT_POLICIES, IDENTITIES, PERMITS
from isthmus.statedb import Derivation, Derived, Reader, on_change, unit_of

WHOLE = True
"""The one unit of ``excess_policies``: which policies fit depends on all of them."""


def derived(cluster: ClusterName, *, room: int = MAX_PERMITS) -> list[Derivation]:
    """Declare the three tables for a cluster whose policies may allow so many identities together."""
    return [allowed(cluster), excess(room), permits()]


def allowed(cluster: ClusterName) -> Derived[AllowedCallers]:
    """Declare ``allowed_callers``. Its unit is a scope, of which one policy is in force."""

    def compute(reader: Reader, scope: Scope) -> Iterable[AllowedCallers]:
        policy = in_force(reader, scope)
        if policy is None:
            return ()
        labels = {each.name: each.labels for each in reader.all(CLUSTERS)}
        numbers = identities_allowed(policy, _candidates(reader, policy), labels, own=cluster)
        return (AllowedCallers(policy.name, scope, numbers),)

    return Derived(
        ALLOWED_CALLERS,
        compute=compute,
        unit="scope",
        reads={
            EXPORT_POLICIES: unit_of("scope"),
            IDENTITIES: on_change(("namespace", "service_account"), _by_identity),
            CLUSTERS: on_change(("labels",), _by_labels),
        },
    )


def _candidates(reader: Reader, policy: ExportPolicy) -> Iterable[Identity]:
    """The identities that a policy may allow: those of the clusters that it names, if every rule names one."""
    named = {rule.cluster for rule in policy.allow}
    if "" in named:
        return reader.all(IDENTITIES)
    return [identity for cluster in named for identity in reader.by(IDENTITIES, "cluster", cluster)]


def _by_identity(reader: Reader, old: Identity | None, new: Identity | None) -> Iterator[Scope]:
    """An identity affects policies with a rule that names it by any of its three parts, or by none."""
    for row in (old, new):
        if row is not None:
            for key in product({row.cluster, ""}, {row.namespace, ""}, {row.service_account, ""}):
                yield from (policy.scope for policy in reader.by(EXPORT_POLICIES, "callers", key))


def _by_labels(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[Scope]:
    """Labels of a cluster affect policies that select clusters by labels."""
    yield from (policy.scope for policy in reader.by(EXPORT_POLICIES, "by_labels", True))


def excess(room: int = MAX_PERMITS) -> Derived[ExcessPolicy]:
    """Declare ``excess_policies``."""

    def compute(reader: Reader, _: bool) -> Iterable[ExcessPolicy]:
        counts = {row.policy: len(row.identities) for row in reader.all(ALLOWED_CALLERS)}
        if sum(counts.values()) <= room:
            return ()
        policies = [policy for name in counts if (policy := reader.get(EXPORT_POLICIES, name)) is not None]
        return [ExcessPolicy(name, counts[name], room) for name in unfit(policies, counts, room)]

    whole = unit_of(lambda row: WHOLE)
    return Derived(
        EXCESS_POLICIES,
        compute=compute,
        unit="all",
        reads={ALLOWED_CALLERS: whole, EXPORT_POLICIES: on_change(("created",), whole)},
    )


def unfit(policies: Iterable[ExportPolicy], counts: dict[ServiceName, int], room: int) -> list[ServiceName]:
    """Return the policies that do not fit into the room, given the number of identities that each allows."""
    by_namespace: defaultdict[Path, list[ExportPolicy]] = defaultdict(list)
    for policy in policies:
        by_namespace[(policy.namespace,)].append(policy)
    wanted = Counter({path: sum(counts[each.name] for each in rows) for path, rows in by_namespace.items()})
    left = allot(wanted, Shares(room, reserve=False))
    found: list[ServiceName] = []
    for path, rows in by_namespace.items():
        free = left.get(path, 0)
        for policy in sorted(rows, key=precedence):
            if counts[policy.name] <= free:
                free -= counts[policy.name]
            else:
                found.append(policy.name)
    return sorted(found)


def permits() -> Derived[Permit]:
    """Declare ``permits``."""

    def compute(reader: Reader, policy: ServiceName) -> Iterable[Permit]:
        row = reader.get(ALLOWED_CALLERS, policy)
        if row is None or reader.get(EXCESS_POLICIES, policy) is not None:
            return ()
        return [Permit(policy, number) for number in row.identities]

    return Derived(
        PERMITS,
        compute=compute,
        unit="policy",
        reads={ALLOWED_CALLERS: unit_of("policy"), EXCESS_POLICIES: unit_of("policy")},
    )
