"""Chooses the policy in effect for a service. The order of precedence depends on the rows alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

from isthmus.loadbalancer.services import UNKNOWN_AGE, ResolvedService
from isthmus.model.policies import Policy, PolicyKind
from isthmus.model.tables import POLICIES
from isthmus.statedb import Reader, Rows, rows_of

KINDS = {kind: rank for rank, kind in enumerate(get_args(PolicyKind))}


def precedence(row: Policy) -> tuple[int, str, str]:
    """Sort key of policies for one target: the smallest is in effect."""
    return (KINDS[row.policy_kind], row.created or UNKNOWN_AGE, row.name)


def effective(rows: Iterable[Policy]) -> Policy | None:
    """Return the policy in effect among those for one target; ``None`` if all are invalid."""
    return min((row for row in rows if not row.invalid), key=precedence, default=None)


def of_service(reader: Reader, service: ResolvedService) -> Policy | None:
    """Return the policy in effect for a service."""
    return effective_policy(reader.finder(POLICIES, "target"), service)


def effective_policy(by_target: Callable[[Any], Rows | None], service: ResolvedService) -> Policy | None:  # hot:
    """Return the policy in effect for a service, using a pre-built index look-up (``Reader.finder``)."""
    if service.is_pod:
        return None
    rows = by_target(("ServiceImport", service.import_of) if service.import_of else ("Service", service.name))
    return None if rows is None else effective(rows_of(rows))
