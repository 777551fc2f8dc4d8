"""Computes the status of each ExportPolicy: whether it is in force, and where callers are refused by it.

``Enforced`` is False while any part of a policy has no effect somewhere, with every such part in its message; the
reason is that of the gravest. Nodes verify callers of clusters on this cluster's network, gateways those of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from heapq import nsmallest
from typing import Final, NamedTuple

from isthmus.desired import Condition, Draft, Ownership, condition, observed_generation, row
from isthmus.identity.allow import MAX_POLICIES, precedence
from isthmus.kube.objects.policies import EXPORT_POLICY
from isthmus.model.clusters import Cluster, reachability
from isthmus.model.export_policies import NO_EXPORT, ExportPolicy, Scope
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import Object, Observed
from isthmus.model.services import ExportMark
from isthmus.model.tables import (
    CLUSTERS,
    EXCESS_POLICIES,
    EXPORT_MARKS,
    EXPORT_POLICIES,
    EXPORT_POLICY_OBJECTS,
    OBSERVED,
)
from isthmus.statedb import Derived, Reader, on_change, through, unit_of

KIND: Final = "ExportPolicy"
KINDS: Final = {KIND: Ownership(EXPORT_POLICY, conditions=frozenset({"Ready", "Accepted", "Enforced"}))}

MAX_STATUSES: Final = MAX_POLICIES
"""Number of policies of one namespace with a status, first in precedence: a change of one recomputes all."""


class WithoutEffect(NamedTuple):
    """A part of a policy that has no effect somewhere: the reason of its condition, and the sentence."""

    reason: str
    text: str


SHOWN: Final = 5
"""Clusters that a condition names."""


def derived(cluster: ClusterName) -> Derived[Object]:
    """Declare the table for the operator of a cluster. Its unit is a namespace."""
    return Derived(
        EXPORT_POLICY_OBJECTS,
        compute=partial(compute, cluster=cluster),
        unit="service",
        reads={
            EXPORT_POLICIES: unit_of("namespace"),
            EXPORT_MARKS: on_change((), _by_export),
            EXCESS_POLICIES: unit_of(lambda row: row.policy.partition("/")[0]),
            CLUSTERS: on_change(("own", "network", "gateways"), through(EXPORT_POLICIES, "namespace")),
            OBSERVED: _by_observed,
        },
    )


def compute(reader: Reader, namespace: str, *, cluster: ClusterName) -> Iterator[Object]:
    """Yield the status of every ExportPolicy of a namespace."""
    in_force: dict[Scope, ExportPolicy] = {}
    for policy in nsmallest(MAX_STATUSES, reader.by(EXPORT_POLICIES, "namespace", namespace), key=precedence):
        accepted = _accepted(reader, policy, in_force.setdefault(policy.scope, policy))
        status = {
            **observed_generation(policy.generation),
            "conditions": [
                accepted,
                _enforced(reader, policy, accepted, cluster=cluster),
                {**accepted, "type": "Ready"},
            ],
        }
        observed = reader.get(OBSERVED, (KIND, policy.name))
        draft = Draft(KIND, policy.name, status=status)
        yield row(draft, observed, unit=ServiceName(namespace), ownership=KINDS[KIND])


def _by_export(reader: Reader, old: ExportMark | None, new: ExportMark | None) -> Iterable[str]:
    mark = new or old
    namespace = mark.name.partition("/")[0] if mark is not None else ""
    return (namespace,) if reader.by(EXPORT_POLICIES, "namespace", namespace) else ()


def _by_observed(reader: Reader, old: Observed | None, new: Observed | None) -> Iterable[str]:
    """An observed status of a policy affects it: the two are compared."""
    observed = new or old
    return (observed.name.partition("/")[0],) if observed is not None and observed.kind == KIND else ()


def _accepted(reader: Reader, policy: ExportPolicy, first: ExportPolicy) -> Condition:
    def refused(reason: str, message: str) -> Condition:
        return condition("Accepted", False, reason=reason, message=message, generation=policy.generation)

    if policy.target == NO_EXPORT:
        return refused("Invalid", f"{policy.invalid}; it has no effect")
    if first is not policy:
        return refused("Conflicted", f"{KIND} {first.name} comes first")
    if policy.invalid:
        consequence = "nobody is refused, by audit" if policy.audit else "it allows nobody"
        return refused("Invalid", f"{policy.invalid}; {consequence}")
    if policy.target and reader.get(EXPORT_MARKS, ServiceName(f"{policy.namespace}/{policy.target}")) is None:
        return refused("TargetNotFound", f"ServiceExport {policy.namespace}/{policy.target} does not exist")
    return condition("Accepted", True, reason="Accepted", generation=policy.generation)


def _enforced(reader: Reader, policy: ExportPolicy, accepted: Condition, *, cluster: ClusterName) -> Condition:
    if accepted["reason"] in ("Conflicted", "TargetNotFound") or policy.target == NO_EXPORT:
        return condition("Enforced", False, reason="NotAccepted", generation=policy.generation)
    clusters = list(reader.all(CLUSTERS))
    own = next((each for each in clusters if each.name == cluster), None)
    ignored = list(without_effect(policy, own, clusters))
    excess = reader.get(EXCESS_POLICIES, policy.name)
    if excess is not None:
        named, more = ", ".join(excess.clusters[:SHOWN]), len(excess.clusters) - SHOWN
        callers = f"{excess.identities} identities of {named}{f' and {more} more clusters' if more > 0 else ''}"
        room = f"it allows {callers}, which do not fit into the {excess.limit} of all policies"
        ignored.insert(0, WithoutEffect("TooManyCallers", f"{room}: nodes allow none of them"))
    if not ignored:
        by_address = judged_by_address(policy, own, clusters)
        reason = "ByAddress" if by_address else "Enforced"
        return condition("Enforced", True, reason=reason, message=by_address, generation=policy.generation)
    message = "; ".join(each.text for each in ignored)
    return condition("Enforced", False, reason=ignored[0].reason, message=message, generation=policy.generation)


def without_effect(policy: ExportPolicy, own: Cluster | None, clusters: Iterable[Cluster]) -> Iterator[WithoutEffect]:
    """Yield the parts of a policy without effect, gravest first."""
    if policy.audit:
        yield WithoutEffect("Audit", "audit: nobody is refused; nodes count whom it would refuse, gateways do not")
        return
    ways = _ways(own, clusters)
    if own is None or not own.gateways or not ways - {"direct"}:
        return
    if not any(rule.namespace or rule.service_account for rule in policy.allow):
        return
    if not policy.require:
        text = "unsigned: address: gateways allow callers that prove no account if any of their cluster is allowed"
        yield WithoutEffect("UnprovenAllowed", text)
    if policy.enforce == "all":
        text = "enforce: all: gateways know of a caller by UDP the cluster only, and allow it for any of its accounts"
        yield WithoutEffect("UDPByCluster", text)


def judged_by_address(policy: ExportPolicy, own: Cluster | None, clusters: Iterable[Cluster]) -> str:
    """A sentence about the callers on this network that are judged by address; empty if there are none."""
    whom = [*(["TCP callers that prove nothing"] if not policy.require else ())]
    whom += ["callers by UDP"] if policy.enforce == "all" else []
    if not whom or "direct" not in _ways(own, clusters):
        return ""
    return f"{' and '.join(whom)} are judged by address, which is not verified"


def _ways(own: Cluster | None, clusters: Iterable[Cluster]) -> set[str]:
    """The ways by which other clusters call this one."""
    return {reachability(own, each) for each in clusters if each is not own and not each.own}
