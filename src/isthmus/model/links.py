"""Links to peers, as ClusterLink objects declare them."""

from __future__ import annotations

from msgspec import Struct

from isthmus.model.names import ClusterName


class LinkCondition(Struct, frozen=True, gc=False, kw_only=True):
    """A condition of a link."""

    type: str
    status: str
    reason: str
    message: str
    generation: int
    """Generation of the object that it is about."""
    time: str = ""
    """Time at which its status changed last, RFC 3339."""


class LinkStatus(Struct, frozen=True, gc=False, kw_only=True):
    """Status of a ClusterLink, all of it public."""

    conditions: tuple[LinkCondition, ...] = ()
    request: str = ""
    """Our certificate signing request to the peer, as PEM."""
    certificate: str = ""
    """The certificate that we signed for the peer, as PEM."""


class Link(Struct, frozen=True, gc=False, kw_only=True):
    """A ClusterLink. ``invalid`` is the reason if it cannot be used, otherwise empty; then only its name counts."""

    name: ClusterName
    id: int = 0
    """The peer's cluster id."""
    endpoints: tuple[str, ...] = ()
    """URLs of its etcd; of a link with gateways, these."""
    by_gateways: bool = False
    """True if its etcd is reached through its gateways, as an island's."""
    ca_bundle: str = ""
    """Authorities of its etcd, as PEM, when the link was made."""
    namespaces: tuple[str, ...] = ()
    pod_ranges: tuple[str, ...] = ()
    request: str = ""
    """The peer's certificate signing request, as PEM; empty until ``isthmus connect`` brings it."""
    certificate: str = ""
    """The first certificate that the peer signed for this cluster, as PEM; empty until it is brought."""
    created: str = ""
    """RFC 3339."""
    generation: int = 0
    status: LinkStatus = LinkStatus()
    """Its status in the API server."""
    invalid: str = ""

    @property
    def settled(self) -> bool:
        """True if its status accepts it in its present generation."""
        conditions = self.status.conditions
        return any((c.type, c.status, c.generation) == ("Accepted", "True", self.generation) for c in conditions)
