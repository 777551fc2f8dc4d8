"""Quota for one peer's records of one kind, shared among its namespaces. Pure.

Records are counted in units of what they cost: an endpoint, or an export, but no fewer than their bytes come to. So
ports, labels and names are bounded with them. What a peer has is kept; newcomers share what is left, fairly
(``isthmus.fair``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from isthmus.clusterset.errors import Refusal
from isthmus.config import ClustersetSection
from isthmus.fair import Path, Shares, allot, always_fits
from isthmus.model.mcs import RecordKind

ENDPOINT_BYTES: Final = 256
"""Bytes of a record for each endpoint in it, above which they count for several: address, port, node, zone and hostname
take 60 to 200."""
EXPORT_BYTES: Final = 2_048
"""Bytes of an export record that count as one unit: its ports, labels and annotations."""
IDENTITY_BYTES: Final = 4_096
"""Bytes of an identity record that count as one identity: Cilium's have all labels of a pod."""
ADDRESS_BYTES: Final = 1_024
"""Bytes of an address record that count as one address. Cilium's records include the named ports of a pod."""
LISTED: Final = 4
"""Memory limit of a list, as a multiple of the admissible bytes: a list also holds records admitted before."""


class Size(Struct, frozen=True, gc=False):
    """Cost of a record."""

    units: int
    created: str = ""
    """Creation time of its export; a namespace's oldest records are admitted first. Empty for kinds without a time."""


def of_kind(kind: RecordKind, section: ClustersetSection) -> Quota:
    """An empty quota for one kind of one peer's records, as configured."""
    if kind == "serviceexports":
        return Quota(section.max_imports, unit="exports", option="clusterset.max_imports", listed=LISTED * EXPORT_BYTES)
    if kind == "identities":
        option, listed = "clusterset.max_identities", LISTED * IDENTITY_BYTES
        return Quota(section.max_identities, unit="identities", option=option, listed=listed)
    if kind == "ip":
        option, listed = "clusterset.max_caller_addresses", LISTED * ADDRESS_BYTES
        return Quota(section.max_caller_addresses, unit="addresses", option=option, listed=listed)
    return Quota(
        section.max_endpoints,
        unit="endpoints",
        option="clusterset.max_endpoints",
        listed=LISTED * ENDPOINT_BYTES,
        divisible=True,
    )


class Quota:
    """Units that the records of one kind and peer hold, by namespace. It outlives connections: what is held is kept.

    ``divisible``: a record that is too large for its namespace's share is taken in part. ``listed``: bytes for each
    unit that a list may hold in memory.
    """

    def __init__(self, room: int, *, unit: str, option: str, listed: int, divisible: bool = False) -> None:
        self.room = room
        self.listed_bytes = room * listed
        self.divisible = divisible
        self._unit = unit
        self._option = option
        self._units: dict[str, int] = {}
        self._shares = Shares(room)

    def __repr__(self) -> str:
        return f"<Quota of {self._option}: {self._shares}>"

    @property
    def used(self) -> int:
        """Units that all records hold."""
        return self._shares.used()

    def units(self, key: str) -> int:
        """Units that a record holds."""
        return self._units.get(key, 0)

    def retain(self, keys: Collection[str]) -> None:
        """Release what all records but these hold."""
        for key in [key for key in self._units if key not in keys]:
            self.hold(key, 0)

    def clear(self) -> None:
        """Release everything."""
        self._units.clear()
        self._shares = Shares(self.room)

    def hold(self, key: str, units: int) -> None:
        """Set the units that a record holds; 0 releases them."""
        before = self._units.get(key, 0)
        if units == before:
            return
        if units:
            self._units[key] = units
        else:
            del self._units[key]
        self._shares.hold(_namespace(key), units - before)

    def available(self, key: str, units: int) -> int:
        """Number of these units that a record may hold: its current ones plus the headroom of its namespace."""
        before = self._units.get(key, 0)
        if units <= before:  # hot:
            return units
        return self._whole(units, before, self._shares.headroom(_namespace(key)))

    def divided(self, sizes: Mapping[str, Size], imported: frozenset[str] = frozenset()) -> dict[str, int]:
        """Units for each record of a list, those that it holds first; what gets none is left out.

        ``imported``: records that are known to have been taken before this process started.
        """
        total = sum(size.units for size in sizes.values())
        if total <= always_fits(self.room, levels=1):
            return {key: size.units for key, size in sizes.items()}
        granted = {key: self._held_before(key, size.units, imported) for key, size in sizes.items()}
        established = {key for key, units in granted.items() if units}
        if sum(granted.values()) > self.room:  # the limit was lowered: divide all units again
            granted = dict.fromkeys(sizes, 0)
        shares, missing = Shares(self.room), defaultdict[Path, int](int)
        for key, units in granted.items():
            shares.hold(_namespace(key), units)
            missing[_namespace(key)] += sizes[key].units - units
        remaining = allot(missing, shares)
        for key in sorted(sizes, key=lambda record: (record not in established, sizes[record].created, record)):
            namespace = _namespace(key)
            more = self._whole(sizes[key].units, granted[key], remaining.get(namespace, 0)) - granted[key]
            if more:
                granted[key] += more
                remaining[namespace] -= more
        return {key: units for key, units in granted.items() if units}

    def refusal(self, key: str, requested: int, admitted: int) -> Refusal:
        """Reason for rejecting a record or admitting only a part of it."""
        namespace, _, name = key.partition("/")
        holder = f"namespace {namespace} has its share of" if name else "it has"
        share = f"{holder} the {self.room} {self._unit} of a cluster"
        part = f"{admitted} of its {requested} {self._unit} are taken: " if admitted else ""
        return Refusal("QuotaExceeded", f"{part}{share} ({self._option})")

    def _held_before(self, key: str, units: int, imported: frozenset[str]) -> int:
        return min(units, self._units.get(key, units if key in imported else 0))

    def _whole(self, requested: int, before: int, more: int) -> int:
        """Units that a record gets with ``more`` added: all; else a part if divisible; else ``before``."""
        if requested - before <= more:
            return requested
        return before + more if self.divisible else before


def _namespace(key: str) -> Path:
    return (key.partition("/")[0],)
