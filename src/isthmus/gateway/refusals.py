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
NOT_ALLOWED, UNKNOWN_SNI, NOT_EXPORTED, TOO_MANY, NO_HANDSHAKE, HANDSHAKE = (
    "not allowed",
    "unknown SNI",
    "not exported",
    "too many",
    "no handshake",
    "handshake",
)
UNTRUSTED: Final = "no trust bundle store"
"""Part of Envoy's words: the authority of the cluster that a certificate names is not trusted for what is called. Where
it is a member's name, its cluster may not import the export; whether it is that member was not looked at."""
BY_FAILURE: Final = {
    "CERTIFICATE_VERIFY_FAILED:verify cert failed: SAN match": NOT_ALLOWED,
    "verification error at depth 0: certificate has expired": "expired",
    "CERTIFICATE_VERIFY_FAILED": "certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "CONNECTION_REJECTED": TOO_MANY,  # by the chain's limit, which is before the handshake
}
"""By a part of Envoy's words for why a handshake failed; the first that is found."""
VOUCHED: Final = frozenset({NOT_ALLOWED, "expired", NOT_EXPORTED})
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
    """Whether a ClientHello came."""
    no_chain: bool = False
    """No filter chain has its SNI."""
    no_cluster: bool = False
    """Its SNI names no export."""
    too_many: bool = False
    """The etcd has as many connections as it may."""


def refusal(of: Ended, *, domain: str, members: Collection[ClusterName]) -> tuple[str, str] | None:
    """Why it was refused, and the member that called; None: it was not, but a pod could not be reached."""
    named = cluster_of(of.identity, domain)
    member = named if named in members else None
    why = _reason(of, names_member=member is not None)
    if why is None:
        return None
    return why, member if member is not None and why in VOUCHED and UNTRUSTED not in of.failure else UNKNOWN


def _reason(of: Ended, *, names_member: bool) -> str | None:
    if of.no_chain:
        return UNKNOWN_SNI
    if of.no_cluster:
        return NOT_EXPORTED
    if of.too_many:
        return TOO_MANY
    if UNTRUSTED in of.failure and names_member:
        return NOT_ALLOWED
    if of.failure:
        return next((found for part, found in BY_FAILURE.items() if part in of.failure), HANDSHAKE)
    return None if of.hello else NO_HANDSHAKE


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
        if (found := refusal(of, domain=self._domain, members=self._members())) is not None:
            self.counts[found] += 1

    def by_reason(self) -> dict[str, dict[str, int]]:
        """Those that occurred: reason, peer, number."""
        found: dict[str, dict[str, int]] = {}
        for (why, who), number in sorted(self.counts.items()):
            found.setdefault(why, {})[who] = number
        return found
