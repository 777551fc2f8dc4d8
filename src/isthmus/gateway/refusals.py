"""Counts connections that a gateway refused, by reason and calling cluster. Pure.

Envoy reports each connection that may have been refused (:mod:`isthmus.gateway.access_log`). Reasons are the constants
below, peers are members or ``unknown``: a caller cannot add a value of either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from isthmus.gateway.naming import cluster_of
from isthmus.model.names import ClusterName

UNKNOWN: Final = "unknown"
"""Peer of a caller that no member's authority has signed."""
NOT_ALLOWED, UNKNOWN_SNI, NOT_EXPORTED, TOO_MANY, NO_HANDSHAKE, HANDSHAKE = (
    "not allowed",
    "unknown SNI",
    "not exported",
    "too many",
    "no handshake",
    "handshake",
)
UNTRUSTED: Final = "no trust bundle store"
"""Part of Envoy's message if the authority of a certificate's cluster is not trusted for the destination. If that is a
member, it may not import the export; the certificate's signature was not verified."""
BY_FAILURE: Final = {
    "CERTIFICATE_VERIFY_FAILED:verify cert failed: SAN match": NOT_ALLOWED,
    "verification error at depth 0: certificate has expired": "expired",
    "CERTIFICATE_VERIFY_FAILED": "certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "CONNECTION_REJECTED": TOO_MANY,  # by the chain's limit, before the handshake
}
"""Reason for a part of Envoy's message about a failed handshake. The first match applies."""
VOUCHED: Final = frozenset({NOT_ALLOWED, "expired", NOT_EXPORTED})
"""Reasons for which a member's authority has verifiably signed the caller's certificate, so that it names the peer.

Certificates are public: possession of the key is proven for ``not exported`` alone, after a complete handshake.
"""
REASONS: Final = (*BY_FAILURE.values(), UNKNOWN_SNI, NOT_EXPORTED, NO_HANDSHAKE, HANDSHAKE)


class FailedConnection(NamedTuple):
    """A connection that ended without reaching a pod, as Envoy reports it."""

    identity: str = ""
    """URI in the caller's certificate, verified or not; empty if it sent none."""
    failure: str = ""
    """Envoy's message about a failed handshake."""
    hello: bool = True
    """A ClientHello was received."""
    no_chain: bool = False
    """No filter chain matches its SNI."""
    no_cluster: bool = False
    """Its SNI matches no export."""
    too_many: bool = False
    """The limit of connections to the etcd is reached."""


def refusal(connection: FailedConnection, *, domain: str, members: Collection[ClusterName]) -> tuple[str, str] | None:
    """Return the reason of a refusal and the calling member; ``None`` if instead no pod could be reached."""
    named = cluster_of(connection.identity, domain)
    member = named if named in members else None
    reason = _reason(connection, names_member=member is not None)
    if reason is None:
        return None
    return (
        reason,
        member if member is not None and reason in VOUCHED and UNTRUSTED not in connection.failure else UNKNOWN,
    )


def _reason(connection: FailedConnection, *, names_member: bool) -> str | None:
    if connection.no_chain:
        return UNKNOWN_SNI
    if connection.no_cluster:
        return NOT_EXPORTED
    if connection.too_many:
        return TOO_MANY
    if UNTRUSTED in connection.failure and names_member:
        return NOT_ALLOWED
    if connection.failure:
        return next((reason for part, reason in BY_FAILURE.items() if part in connection.failure), HANDSHAKE)
    return None if connection.hello else NO_HANDSHAKE


class Refusals:
    """Counts of refused connections since the start of the process."""

    def __init__(self, domain: str, members: Callable[[], Collection[ClusterName]]) -> None:
        self._domain = domain
        self._members = members
        self.counts: Counter[tuple[str, str]] = Counter()
        """Counts by (reason, peer)."""

    def __repr__(self) -> str:
        return f"<Refusals {self.by_reason()}>"

    def count(self, connection: FailedConnection) -> None:
        """Count a connection if it was refused."""
        if (refused := refusal(connection, domain=self._domain, members=self._members())) is not None:
            self.counts[refused] += 1

    def by_reason(self) -> dict[str, dict[str, int]]:
        """Return the counts by reason and peer, without zeros."""
        counts: dict[str, dict[str, int]] = {}
        for (reason, peer), number in sorted(self.counts.items()):
            counts.setdefault(reason, {})[peer] = number
        return counts
