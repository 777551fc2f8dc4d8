"""Numbers of the own cluster's service accounts: which each account has, gets and loses. Pure.

A number stays with its account while a pod runs as it, and for an hour after; only once its object is deleted does
another account get it, so that no cluster that reads late takes one account for the other. Of several numbers that an
account has, the smallest is kept. A new account gets the first free number from one that follows from its name, so
that it mostly has the same one again. What was wanted and is not written yet counts as taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from hashlib import blake2s
from typing import Final, NamedTuple

from msgspec import structs

from isthmus import bounds
from isthmus.fair import Shares, grant
from isthmus.model.identities import Identity
from isthmus.model.names import ClusterName
from isthmus.times import timestamp

UNUSED: Final = timedelta(hours=1)
"""Time for which a number without a pod stays with its account."""

Account = tuple[str, str]
"""Namespace and name of a service account."""
ByNumber = Mapping[int, Identity]


class Allocation(NamedTuple):
    """Numbers that the cluster is to have, and accounts that get none."""

    wanted: ByNumber
    refused: tuple[Account, ...]
    """Accounts for which the range has no number left, within the share of their namespace."""
    due: datetime | None
    """Time of the next change by time alone; ``None`` if there is none."""


def allocate(
    accounts: Collection[Account],
    *,
    existing: Iterable[Identity],
    before: ByNumber,
    cluster: ClusterName,
    room: range,
    now: datetime,
) -> Allocation:
    """Give every account a number. ``existing``: numbers that are objects; ``before``: those last wanted."""
    taken = {row.number: row for row in before.values() if _account(row) in accounts}
    written = {row.number: row for row in existing if row.cluster == cluster and row.number in room}
    taken |= written
    current: dict[Account, int] = {}
    for number in sorted(taken, key=lambda number: (number not in written, number)):
        current.setdefault(_account(taken[number]), number)
    wanted: dict[int, Identity] = {}
    ends: list[datetime] = []
    for number, row in taken.items():
        account = _account(row)
        if account in accounts and current[account] == number:
            wanted[number] = structs.replace(row, unused_since="")
            continue
        if number not in written:
            continue
        since = _unused_since(row, before.get(number), now)
        if now < since + UNUSED:
            wanted[number] = structs.replace(row, unused_since=timestamp(since))
            ends.append(since + UNUSED)
    refused: list[Account] = []
    for account in _served([each for each in accounts if each not in current], taken, room, refused):
        number = _first_free(account, taken, room)
        row = Identity(cluster=cluster, number=number, namespace=account[0], service_account=account[1])
        taken[number] = wanted[number] = row
    return Allocation(wanted, tuple(refused), min(ends, default=None))


def _served(newcomers: list[Account], taken: ByNumber, room: range, refused: list[Account]) -> list[Account]:
    """The new accounts that get numbers, in fair shares by namespace; the others are appended to ``refused``."""
    shares = Shares(len(room))
    for row in taken.values():
        shares.hold((row.namespace,))
    served = grant(newcomers, shares, holders=lambda account: [(account[0],)], order=lambda account: account)
    refused += sorted({*newcomers} - {*served})
    return sorted(served)


def _unused_since(row: Identity, before: Identity | None, now: datetime) -> datetime:
    """Time since which a number is unused: what was last wanted counts, since the object may be older."""
    written = before if before is not None and _account(before) == _account(row) else row
    since = bounds.timestamp(written.unused_since) if written.unused_since else now
    return min(since, now)


def _first_free(account: Account, taken: ByNumber, room: range) -> int:
    """The first number that is free, from one that follows from the account's name."""
    digest = blake2s("/".join(account).encode(), digest_size=8).digest()
    start = int.from_bytes(digest) % len(room)
    return next(each for place in range(len(room)) if (each := room[(start + place) % len(room)]) not in taken)


def _account(row: Identity) -> Account:
    return row.namespace, row.service_account
