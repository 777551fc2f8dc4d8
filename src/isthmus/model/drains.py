"""Input rows: drains. What is drained takes no new call, as long as something else can answer."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from isthmus.model.names import ClusterName, ServiceName

DrainKind = Literal["Cluster", "Node", "Service"]


class Drain(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What is drained, and how. Its JSON form is what a cluster publishes to its peers: fields are only ever added.

    A cluster is drained as a whole; a node's or a service's backends are those of the cluster that asks for it.
    """

    kind: str = ""
    """A DrainKind; one that a newer version publishes may be another, and drains nothing."""
    target: str = ""
    """The name of the cluster or node, or the Service's namespace/name."""
    reason: str = ""
    """Who asked for it, as people know it: ``Drain isthmus-system/cluster-c2``, ``node deleted``."""
    started: str = ""
    """RFC 3339; empty: not known, before this process first saw it."""
    ramp: int = 0
    """Seconds over which the new calls decrease to none."""
    deadline: int | None = None
    """Seconds after the start when connections that are still there are closed; None: they are left alone."""
    ends: str = ""
    """When the drain ends by itself, RFC 3339; empty: it does not."""


class DrainRequest(Struct, frozen=True, gc=False, kw_only=True):
    """A Drain object of the own API server."""

    name: ServiceName
    drain: Drain
    uid: str = ""
    generation: int = 0
    invalid: str = ""
    """Why the object cannot be followed; it drains nothing then."""


class Draining(Struct, frozen=True, gc=False, kw_only=True):
    """A drain that is in force now, and how far it has come. Written as time passes, so that plans need no clock."""

    by: ClusterName
    """The cluster that asks for it."""
    drain: Drain
    left: int = 0
    """Percent of its usual share of new calls that the target still has; 0: none."""
    closing: bool = False
    """Its deadline is over: connections to it are closed."""

    @property
    def key(self) -> tuple[ClusterName, str, str, str]:
        """Of several drains of one target each is a row."""
        return (self.by, self.drain.kind, self.drain.target, self.drain.reason)
