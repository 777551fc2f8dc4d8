"""Connections that a gateway refused, by reason and by the cluster that called. Pure.

Envoy reports each connection that may have been refused (:mod:`isthmus.gateway.access_log`). Reasons are those below,
and peers are members and ``unknown``: a caller cannot add a value of either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from isthmus.gateway.naming import cluster_of
from isthmus.model.names import ClusterName

UNKNOWN: Final = "unknown"
"""The peer where no member's authority vouches for the caller."""
UNKNOWN_SNI, NOT_EXPORTED, NO_HANDSHAKE, HANDSHAKE = "unknown SNI", "not exported", "no handshake", "handshake"
BY_FAILURE: Final = {
    "CERTIFICATE_VERIFY_FAILED:verify cert failed: SAN match": "not allowed",
    "verification error at depth 0: certificate has expired": "expired",
    "CERTIFICATE_VERIFY_FAILED": "certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
}
"""By a part of Envoy's words for why a handshake failed; the first that is found."""
VOUCHED: Final = frozenset({"not allowed", "expired", NOT_EXPORTED})
"""Reasons after which the signature of a member's authority was found good, so that its certificate names the peer.

Certificates are no secret: that the caller has the key is shown for ``not exported`` alone, whose handshake was done.
"""
REASONS: Final = (*BY_FAILURE.values(), UNKNOWN_SNI, NOT_EXPORTED, NO_HANDSHAKE, HANDSHAKE)


class Ended(NamedTuple):
    """A connection that ended without a pod, as Envoy reports it."""

    identity: str = ""
    """The URI in the caller's certificate, verified or not; empty: it sent none."""
    failure: str = ""
    """Why the handshake failed, in Envoy's words."""
    hello: bool = True
    """Whether the handshake began."""
    no_chain: bool = False
    """No filter chain has its SNI."""
    no_cluster: bool = False
    """Its SNI names no export."""


def reason(of: Ended) -> str | None:
    """Why it was refused; None: it was not, but a pod could not be reached."""
    if of.no_chain:
        return UNKNOWN_SNI
    if of.no_cluster:
        return NOT_EXPORTED
    if of.failure:
        return next((found for part, found in BY_FAILURE.items() if part in of.failure), HANDSHAKE)
    return None if of.hello else NO_HANDSHAKE


def peer(of: Ended, why: str, *, domain: str, members: Collection[ClusterName]) -> str:
    """The member that called, as far as its authority vouches for it."""
    cluster = cluster_of(of.identity, domain) if why in VOUCHED else None
    return cluster if cluster is not None and cluster in members else UNKNOWN


class Refusals:
    """Counts them, since this process started."""

    def __init__(self, domain: str, members: Callable[[], Collection[ClusterName]]) -> None:
        self._domain = domain
        self._members = members
        self.counts: Counter[tuple[str, str]] = Counter()
        """By reason and peer."""

    def __repr__(self) -> str:
        return f"<Refusals {self.by_reason()}>"

    def count(self, of: Ended) -> None:
        """Take a connection into account, if it was refused."""
        if (why := reason(of)) is not None:
            self.counts[why, peer(of, why, domain=self._domain, members=self._members())] += 1

    def by_reason(self) -> dict[str, dict[str, int]]:
        """Those that occurred: reason, peer, number."""
        found: dict[str, dict[str, int]] = {}
        for (why, who), number in sorted(self.counts.items()):
            found.setdefault(why, {})[who] = number
        return found
