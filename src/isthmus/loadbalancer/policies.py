"""Which policy counts for a service: of several one, in an order that follows from the rows alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

from isthmus.loadbalancer.services import UNKNOWN_AGE, ResolvedService
from isthmus.model.policies import Policy, PolicyKind
from isthmus.model.tables import POLICIES
from isthmus.statedb import Reader, Rows, rows_of

KINDS = {kind: rank for rank, kind in enumerate(get_args(PolicyKind))}


def precedence(row: Policy) -> tuple[int, str, str]:
    """What decides between policies of one target: the least counts."""
    return (KINDS[row.policy_kind], row.created or UNKNOWN_AGE, row.name)


def counting(rows: Iterable[Policy]) -> Policy | None:
    """The policy that counts of those for one target; one that is invalid has no effect."""
    return min((row for row in rows if not row.invalid), key=precedence, default=None)


def of_service(reader: Reader, of: ResolvedService) -> Policy | None:
    """The policy that counts for a service."""
    return found(reader.finder(POLICIES, "target"), of)


def found(by_target: Callable[[Any], Rows | None], of: ResolvedService) -> Policy | None:  # hot:
    """The same, by a function from a target to the policies for it (``Reader.finder``)."""
    if of.alone:
        return None
    rows = by_target(("ServiceImport", of.import_of) if of.import_of else ("Service", of.name))
    return None if rows is None else counting(rows_of(rows))
