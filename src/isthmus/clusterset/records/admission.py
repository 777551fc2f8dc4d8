"""Admission of a peer's records: by namespace, by address, and by rate.

A peer is trusted with its own services and no more. What it may not publish is refused record by record: counted,
named in ``clusters status``, and without effect on its other records or on any other peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct

from isthmus.clusterset.errors import RecordError
from isthmus.model.addresses import range_of
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint

BURST: Final = 10.0
"""Bucket size in seconds of the rate: the burst that an idle peer may send at once."""


class Admission(Struct, frozen=True, kw_only=True):
    """Namespaces and addresses that one peer may publish."""

    cluster: ClusterName
    namespaces: tuple[str, ...] = ()
    """Patterns of namespaces that it may publish in; empty allows all that are not reserved."""
    reserved: tuple[str, ...] = ()
    """Patterns of namespaces that no peer may publish in unless its file names them."""
    pod_ranges: tuple[str, ...] = ()
    """Ranges that its endpoints must be in; empty allows every address."""
    most: Literal[255, 511] = 255
    """The own maxConnectedClusters, which says what numbers of identities are the peer's."""

    def check_name(self, name: ServiceName) -> None:
        """Raise RecordError if the peer may not publish in the namespace of a service."""
        namespace = name.partition("/")[0]
        if not _allowed(namespace, self.namespaces, self.reserved):
            message = f"cluster {self.cluster} may not publish in namespace {namespace}"
            raise RecordError(message, "NamespaceNotAllowed")

    def check_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """Raise RecordError if an endpoint's address is outside the peer's pod ranges."""
        if self.pod_ranges:
            for endpoint in endpoints:
                self.check_address(endpoint.address)

    def check_address(self, address: str) -> None:
        """Raise RecordError if an address is outside the peer's pod ranges."""
        if self.pod_ranges and not range_of(address, self.pod_ranges):
            message = f"{address} is in none of the pod ranges that {self.cluster} declared"
            raise RecordError(message, "AddressNotAllowed")


@lru_cache(4096)
def _allowed(namespace: str, namespaces: tuple[str, ...], reserved: tuple[str, ...]) -> bool:
    if namespaces:
        return any(fnmatchcase(namespace, each) for each in namespaces)
    return not any(fnmatchcase(namespace, each) for each in reserved)


class Pace:
    """Token bucket that limits the changes of one peer per second. A waiting reader reads no further, so unread
    changes stay in the peer's etcd and not in this process."""

    def __init__(self, rate: float, *, now: Callable[[], float] | None = None) -> None:
        self._rate = rate
        self._burst = rate * BURST
        self._now = now or asyncio.get_running_loop().time
        self._left = self._burst
        self._at = self._now()

    def __repr__(self) -> str:
        return f"<Pace of {self._rate:.0f}/s, {self._left:.0f} left of {self._burst:.0f}>"

    async def take(self, changes: int) -> None:
        """Take this many tokens, then wait until none are owed. A batch may exceed the burst and passes as one."""
        now = self._now()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) - changes
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)
