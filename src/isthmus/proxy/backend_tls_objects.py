"""Computes the status of each BackendTLSPolicy (Gateway API, PolicyStatus): an ancestor for each of its targets.

Without a Gateway in between, the target itself is the ancestor. Entries of other controllers are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from isthmus.desired import Condition, Draft, Ownership, condition, row
from isthmus.kube.objects.gateway import BACKEND_TLS_POLICY
from isthmus.loadbalancer.route_conditions import CONTROLLER, EFFECTIVE, GROUPS, resolved
from isthmus.loadbalancer.services import names_for_import, resolve
from isthmus.model.backend_tls import BackendTls, TlsTarget
from isthmus.model.names import ServiceName, split
from isthmus.model.tables import AUTHORITIES, BACKEND_TLS, BACKEND_TLS_OBJECTS, IMPORTS, OBSERVED, SERVICES
from isthmus.proxy.backend_tls import failures, precedence
from isthmus.statedb import DerivedTogether, Reader, WriteTxn, rewrite

KIND: Final = "BackendTLSPolicy"
KINDS: Final = {KIND: Ownership(BACKEND_TLS_POLICY, controller=CONTROLLER)}

Pairs = Sequence[tuple[Any, Any]]


def derived() -> DerivedTogether:
    """Declare the table for the operator."""
    return DerivedTogether(
        BACKEND_TLS_OBJECTS,
        renew=renew,
        reads={
            BACKEND_TLS: by_policies,
            AUTHORITIES: by_authorities,
            SERVICES: by_services,
            IMPORTS: by_imports,
            OBSERVED: by_observed,
        },
    )


def renew(txn: WriteTxn, units: Iterable[ServiceName]) -> None:
    """Write the statuses of the policies of these names."""
    for name in units:
        policy = txn.get(BACKEND_TLS, name)
        computed = []
        if policy is not None:
            draft = Draft(KIND, name, status={"ancestors": [_entry(txn, policy, each) for each in policy.targets]})
            computed = [row(draft, txn.get(OBSERVED, (KIND, name)), unit=name, ownership=KINDS[KIND])]
        rewrite(txn, BACKEND_TLS_OBJECTS, txn.by(BACKEND_TLS_OBJECTS, "service", name), computed)


def _entry(reader: Reader, policy: BackendTls, target: TlsTarget) -> dict[str, Any]:
    reference = {"group": GROUPS[target.kind], "kind": target.kind, "name": split(target.name)[1]}
    if target.section:
        reference["sectionName"] = target.section
    resolved_refs = [] if policy.invalid else [resolved(policy, failures(reader, policy))]
    return {
        "ancestorRef": reference,
        "controllerName": CONTROLLER,
        "conditions": [_accepted(reader, policy, target), *resolved_refs, *_unfollowed(policy)],
    }


def _unfollowed(policy: BackendTls) -> Iterator[Condition]:
    if policy.unread:
        message = f"not followed, the rest of the policy is: {', '.join(policy.unread)}"
        yield condition(EFFECTIVE, False, reason="UnsupportedValue", message=message, generation=policy.generation)


def _accepted(reader: Reader, policy: BackendTls, target: TlsTarget) -> Condition:
    reason, message = _refusal(reader, policy, target)
    return condition("Accepted", not reason, reason=reason or "Accepted", message=message, generation=policy.generation)


def _refusal(reader: Reader, policy: BackendTls, target: TlsTarget) -> tuple[str, str]:
    """Return reason and message of the condition Accepted; both empty if the policy applies to the target."""
    subject = resolve(reader, target.service, which="all")
    if subject is None:
        return "TargetNotFound", f"{target.kind} {target.name} does not exist"
    if target.section and all(port.name != target.section for port in subject.ports):
        return "TargetNotFound", f"{target.kind} {target.name} has no port called {target.section}"
    if (first := precedence(reader, policy, target)).name != policy.name:
        return "Conflicted", f"BackendTLSPolicy {first.name} precedes it"
    if policy.invalid:
        return "Invalid", f"{policy.invalid}; calls of {target.kind} {target.name} by routes fail"
    references = len(policy.authorities) + len(policy.unresolved)
    if len(list(failures(reader, policy))) == references:
        return "NoValidCACertificate", f"calls of {target.kind} {target.name} by routes fail until there is one"
    return "", ""


def by_policies(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A policy affects itself and every policy of its targets: an older one precedes them."""
    rows = [each for pair in changed for each in pair if each is not None]
    return {each.name for each in rows} | _about(reader, {target.service for each in rows for target in each.targets})


def by_authorities(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A ConfigMap affects the policies that name it."""
    names = {(new or old).name for old, new in changed}
    return {each.name for name in names for each in reader.by(BACKEND_TLS, "authority", name)}


def by_services(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A Service affects the policies that have it as target."""
    return _about(reader, {each.name for pair in changed for each in pair if each is not None})


def by_imports(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """An import affects the policies of the Services that represent it."""
    return _about(reader, {name for pair in changed for name in names_for_import(reader, *pair)})


def by_observed(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """An observed status of a policy affects it: the two are compared."""
    return {each.name for pair in changed for each in pair if each is not None and each.kind == KIND}


def _about(reader: Reader, services: Iterable[ServiceName]) -> set[ServiceName]:
    if not reader.count(BACKEND_TLS):
        return set()
    return {each.name for name in services for each in reader.by(BACKEND_TLS, "target", name)}
