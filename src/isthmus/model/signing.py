"""Derived rows: whose calls this node signs, towards whom, and which ports it guards (docs/identity.md)."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Protocol

RefusalReason = Literal[
    "unsigned",
    "bad-mac",
    "unknown-key",
    "not-allowed",
    "spoofed",
    "unreadable",
    "not-allowed-by-address",
    "unknown-address",
]
"""``…-by-address``: of a caller that only its source address identifies. ``unknown-address``: of a datagram."""
MAX_DAY: Final = 100_000
"""Last day of a cluster's next key, in days since 1970: in the year 2243."""
PathState = Literal["ok", "stripped", "rewritten", "silent"]


class Source(Struct, frozen=True, gc=False):
    """A pod of this node, with the number of its service account."""

    pod: str
    """namespace/name."""
    addresses: tuple[str, ...]
    identity: int
    uid: str = ""
    """Of the pod. One that gets the name and the address of another is another row, whose interface is looked up."""


class HostSource(Struct, frozen=True, gc=False):
    """A pod in the network of this node, with the number of its service account. It is known by its cgroup."""

    pod: str
    """namespace/name."""
    uid: str
    identity: int


class SignedTo(Struct, frozen=True, gc=False):
    """An address of a service's backend in a cluster that verifies callers: SYNs to it are signed."""

    service: ServiceName
    """As in ``backends``: of an import, its derived Service."""
    address: str
    cluster: ClusterName
    cluster_id: int


class Guard(Struct, frozen=True, gc=False, kw_only=True):
    """A port of this node's pods whose callers from other clusters are verified."""

    policy: ServiceName
    """The ExportPolicy that decides."""
    address: str
    """Of the pod."""
    uid: str = ""
    """Of the pod, as in :class:`Source`."""
    port: int
    protocol: Protocol
    audit: bool = False
    """``True`` if refusals are counted and the calls let through."""
    require: bool = True
    """``False`` if a caller whose signature did not arrive is taken to be who its address says."""

    cut: bool = False
    """True if connections of callers that are no longer allowed are cut."""

    @property
    def by_address(self) -> bool:
        """True if callers that prove nothing are judged by their address; those by UDP always are."""
        return self.protocol == "UDP" or not self.require


class AddressUse(Struct, frozen=True, gc=False):
    """The only row of its table, present while a guard of this node judges callers by their address."""

    whole: bool = True


class AddressIdentity(Struct, frozen=True, gc=False):
    """An address of another cluster's pod, by which a guard of this node may judge it."""

    address: str
    number: int
    """Number of the account in the cluster's records, which no proof confirms."""


class Permit(Struct, frozen=True, gc=False):
    """An identity that a policy allows."""

    policy: ServiceName
    identity: int


class Refusal(Struct, frozen=True, gc=False, kw_only=True):
    """Input row: calls that this node's kernel refused, or would have refused without ``audit``."""

    policy: ServiceName
    """Empty of spoofed ones."""
    identity: int
    """0 if unknown; if it is not proven, the part with the cluster's id. Of spoofed SYNs, the sending pod's own."""
    reason: RefusalReason
    caller: str = ""
    """Cluster and account of a proven identity, or the cluster that another one claims; empty if that is unknown."""
    count: int
    """Number of calls since the first that is still noted."""
    last: float
    """Time of the last of them, Unix seconds."""


class Path(Struct, frozen=True, gc=False):
    """Input row: whether the proof of callers arrives in a cluster, by this node's last conclusive probe."""

    cluster: ClusterName
    state: PathState
    reason: str
    """A phrase."""
    address: str
    """The backend that was called."""
    last: float
    """Unix seconds."""
