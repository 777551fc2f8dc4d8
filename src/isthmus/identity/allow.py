"""The meaning of ExportPolicies: which policy judges an export, and which callers it allows. Pure.

Gateways' filter chains, nodes' maps and statuses are all computed by these functions. Callers of the own cluster are
never judged: NetworkPolicies are for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from isthmus.loadbalancer.services import UNKNOWN_AGE
from isthmus.model.export_policies import Allow, ExportPolicy, Scope
from isthmus.model.identities import Identity
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.services import Labels
from isthmus.model.tables import CLUSTERS, EXPORT_POLICIES
from isthmus.statedb import Reader

MAX_POLICIES: Final = 100
"""Number of policies of one namespace, first in precedence, that allow callers at nodes and have a status."""

Accounts = frozenset[tuple[str, str]]
"""Callers by namespace and service account; an empty one matches any."""
EVERY_ACCOUNT: Final = ("", "")
ClusterLabels = Mapping[ClusterName, Labels]
"""Labels of each cluster that is known."""


def precedence(policy: ExportPolicy) -> tuple[bool, str, str]:
    """Sort key of policies for one export: the smallest judges it, and the others wait.

    A policy that names the export comes before one of its namespace, then the older one, then the name. An invalid
    policy has its place like any other: it allows nobody, and another one must not open what it protects.
    """
    return (not policy.target, policy.created or UNKNOWN_AGE, policy.name)


def judging(reader: Reader) -> Callable[[ServiceName], ExportPolicy | None]:
    """Return a function from an export to the policy that judges its callers, ``None`` if all are allowed.

    It looks up each scope once, so that a namespace of many policies and exports does not cost their product.
    """
    found: dict[Scope, ExportPolicy | None] = {}

    def of_scope(scope: Scope) -> ExportPolicy | None:
        if scope not in found:
            found[scope] = in_force(reader, scope)
        return found[scope]

    def judge(export: ServiceName) -> ExportPolicy | None:
        namespace, name = split(export)
        return of_scope((namespace, name)) or of_scope((namespace, ""))

    return judge


def in_force(reader: Reader, scope: Scope) -> ExportPolicy | None:
    """Return the policy in force among those with one scope."""
    return min(reader.by(EXPORT_POLICIES, "scope", scope), key=precedence, default=None)


def labels_of(reader: Reader) -> ClusterLabels:
    """Return the labels of each cluster that is known."""
    return {each.name: each.labels for each in reader.all(CLUSTERS)}


def selects(rule: Allow, cluster: ClusterName, clusters: ClusterLabels) -> bool:
    """True if a rule allows callers of a cluster. Labels of an unknown cluster match no rule."""
    if rule.cluster and rule.cluster != cluster:
        return False
    return not rule.labels or set(rule.labels) <= set(clusters.get(cluster, ()))


def clusters_allowed(policy: ExportPolicy, clusters: ClusterLabels) -> frozenset[ClusterName] | None:
    """Return the clusters with callers that a policy allows; ``None`` if any cluster may have some.

    A rule for some accounts of a cluster selects the cluster; a cluster that no rule selects is never allowed.
    """
    allowed: set[ClusterName] = set()
    for rule in policy.allow:
        if rule.labels:
            allowed |= {cluster for cluster in clusters if selects(rule, cluster, clusters)}
        elif rule.cluster:
            allowed.add(rule.cluster)
        else:
            return None
    return frozenset(allowed)


def allows_everyone(policy: ExportPolicy) -> bool:
    """True if a policy allows every caller of every cluster."""
    return Allow() in policy.allow


def accounts_allowed(policy: ExportPolicy, cluster: ClusterName, clusters: ClusterLabels) -> Accounts:
    """Return the callers in a cluster that a policy allows, as its rules name them."""
    selecting = (rule for rule in policy.allow if selects(rule, cluster, clusters))
    return frozenset((rule.namespace, rule.service_account) for rule in selecting)


def identities_allowed(
    policy: ExportPolicy, identities: Iterable[Identity], clusters: ClusterLabels, *, own: ClusterName
) -> dict[ClusterName, tuple[int, ...]]:
    """Return the numbers of the callers in other clusters that a policy allows, sorted, by cluster.

    Rules are compared once with each cluster, and each identity with four keys, however many rules a policy has.
    """
    accounts: dict[ClusterName, Accounts] = {}
    numbers: defaultdict[ClusterName, set[int]] = defaultdict(set)
    for each in identities:
        if each.cluster == own:
            continue
        allowed = accounts.get(each.cluster)
        if allowed is None:
            allowed = accounts[each.cluster] = accounts_allowed(policy, each.cluster, clusters)
        if allows(allowed, each.namespace, each.service_account):
            numbers[each.cluster].add(each.number)
    return {cluster: tuple(sorted(found)) for cluster, found in sorted(numbers.items())}


def allows(accounts: Accounts, namespace: str, account: str) -> bool:
    """True if callers with a service account are among those that rules name."""
    named = (namespace, account), (namespace, ""), ("", account), EVERY_ACCOUNT
    return bool(accounts) and not accounts.isdisjoint(named)
