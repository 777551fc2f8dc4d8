"""What a peer may publish: in which namespaces, how many imports, at which addresses, how fast.

A peer is trusted with its own services and no more. What it may not publish is refused record by record: counted,
named in ``clusters status``, and without effect on its other records or on any other peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from msgspec import Struct

from isthmus.clusterset.errors import RecordError
from isthmus.model.addresses import range_of
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint

BURST: Final = 10.0
"""Seconds of its rate that a peer may change at once after a time of rest."""


class Admission(Struct, frozen=True, kw_only=True):
    """What one peer may publish."""

    cluster: ClusterName
    namespaces: tuple[str, ...] = ()
    """Patterns of namespaces that it may publish in; empty: every one that is not reserved."""
    reserved: tuple[str, ...] = ()
    """Patterns of namespaces that no peer may publish in unless its file names them."""
    max_imports: int = 20_000
    pod_ranges: tuple[str, ...] = ()
    """Ranges that its endpoints are in; empty: it declared none."""

    def check_name(self, name: ServiceName) -> None:
        """RecordError where the peer may not publish in the namespace of a service."""
        namespace = name.partition("/")[0]
        if not _allowed(namespace, self.namespaces, self.reserved):
            raise RecordError(f"cluster {self.cluster} may not publish in namespace {namespace}")

    def check_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """RecordError where one of them has an address that the peer may not name."""
        if not self.pod_ranges:
            return
        for endpoint in endpoints:
            if not range_of(endpoint.address, self.pod_ranges):
                raise RecordError(f"{endpoint.address} is in none of the pod ranges that {self.cluster} declared")

    def limit(self, kind: RecordKind, *, most: int) -> int:
        """How many records of a kind are taken, ``most`` at most."""
        return min(self.max_imports, most) if kind == "serviceexports" else most


@lru_cache(4096)
def _allowed(namespace: str, namespaces: tuple[str, ...], reserved: tuple[str, ...]) -> bool:
    if namespaces:
        return any(fnmatchcase(namespace, each) for each in namespaces)
    return not any(fnmatchcase(namespace, each) for each in reserved)


class Pace:
    """Lets so many changes of one peer pass in a second: a bucket of tokens. Whoever waits here reads no further, so
    it is the peer's etcd that holds what is not yet read, and not this process."""

    def __init__(self, rate: float, *, now: Callable[[], float] | None = None) -> None:
        self._rate = rate
        self._burst = rate * BURST
        self._now = now or asyncio.get_running_loop().time
        self._left = self._burst
        self._at = self._now()

    def __repr__(self) -> str:
        return f"<Pace of {self._rate:.0f}/s, {self._left:.0f} left of {self._burst:.0f}>"

    async def take(self, changes: int) -> None:
        """Return when so many more changes may pass. More than the burst pass as one, and are paid for afterwards."""
        now = self._now()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) - changes
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)
