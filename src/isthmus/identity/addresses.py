"""The tables ``address_use`` and ``address_identities``: addresses by which guards of this node may judge callers.

Both are empty unless a guard judges by address, since they would follow every pod of every peer. An address that two
clusters publish has no row: a peer whose ranges are not pinned can make another's callers unknown, and never
impersonate them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from isthmus.model.signing import AddressIdentity, AddressUse, Guard
from isthmus.model.tables import ADDRESS_IDENTITIES, ADDRESS_USE, CALLER_ADDRESSES, GUARDS
from isthmus.statedb import Derived, Reader, on_change, unit_of

WHOLE = True
"""The one unit of ``address_use``."""


def derived() -> list[Derived[Any]]:
    """Declare both tables for a node."""
    return [
        Derived(
            ADDRESS_USE,
            compute=_use,
            reads={GUARDS: on_change(("by_address",), _by_guard)},
        ),
        Derived(
            ADDRESS_IDENTITIES,
            compute=_identity,
            reads={CALLER_ADDRESSES: unit_of("address"), ADDRESS_USE: on_change((), _every_address)},
        ),
    ]


def _use(reader: Reader, _: bool) -> Iterable[AddressUse]:
    return (AddressUse(WHOLE),) if reader.by(GUARDS, "by_address", True) else ()


def _by_guard(_: Reader, old: Guard | None, new: Guard | None) -> Iterable[bool]:
    return (WHOLE,) if any(row is not None and row.by_address for row in (old, new)) else ()


def _every_address(reader: Reader, old: AddressUse | None, new: AddressUse | None) -> Iterable[str]:
    return {row.address for row in reader.all(CALLER_ADDRESSES)}


def _identity(reader: Reader, address: str) -> Iterator[AddressIdentity]:
    if reader.get(ADDRESS_USE, WHOLE) is None:
        return
    rows = reader.by(CALLER_ADDRESSES, "address", address)
    if len(rows) == 1:
        yield AddressIdentity(address, rows[0].number)
