"""The meaning of ExportPolicies: which policy judges an export, and which callers it allows. Pure.

Gateways' filter chains, nodes' maps and statuses are all made from these functions. Callers of the own cluster are
never judged: NetworkPolicies are for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isthmus.loadbalancer.services import UNKNOWN_AGE
from isthmus.model.export_policies import Allow, ExportPolicy
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.services import Labels

ClusterLabels = Mapping[ClusterName, Labels]
"""Labels of each cluster that is known."""


def precedence(policy: ExportPolicy) -> tuple[bool, str, str]:
    """Sort key of policies for one export: the smallest judges it, and the others wait.

    A policy that names the export comes before one of its namespace, then the older one, then the name. An invalid
    policy has its place like any other, since it allows nobody.
    """
    return (not policy.target, policy.created or UNKNOWN_AGE, policy.name)


def judge(policies: Iterable[ExportPolicy], export: ServiceName) -> ExportPolicy | None:
    """Return the policy that judges an export, of those of its namespace; ``None`` if all callers are allowed."""
    name = split(export)[1]
    return min((each for each in policies if each.target in ("", name)), key=precedence, default=None)


def first_for_target(policies: Iterable[ExportPolicy]) -> dict[str, ExportPolicy]:
    """Return the policy in force for each target of a namespace, by the target's name; empty for the namespace."""
    first: dict[str, ExportPolicy] = {}
    for policy in sorted(policies, key=precedence):
        first.setdefault(policy.target, policy)
    return first


def selects(rule: Allow, cluster: ClusterName, clusters: ClusterLabels) -> bool:
    """True if a rule allows callers of a cluster. Labels of an unknown cluster match no rule."""
    if rule.cluster and rule.cluster != cluster:
        return False
    return not rule.labels or set(rule.labels) <= set(clusters.get(cluster, ()))


def clusters_allowed(policy: ExportPolicy, clusters: ClusterLabels) -> frozenset[ClusterName] | None:
    """Return the clusters with callers that a policy allows; ``None`` if any cluster may have some.

    It is what a gateway enforces, which knows no more of a caller than the cluster that its certificate names. So a
    rule for some accounts of a cluster allows the cluster; a cluster that no rule selects is never allowed.
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
