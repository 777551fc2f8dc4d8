"""Input rows: drains. A drained target takes no new call as long as another backend can answer."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from isthmus.model.names import ClusterName, ServiceName

DrainKind = Literal["Cluster", "Node", "Service"]


class Drain(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A drain of a cluster, node or service. Clusters publish its JSON form to their peers: fields are only added.

    A cluster is drained as a whole; of a node or service, the backends in the requesting cluster.
    """

    kind: str = ""
    """A DrainKind. An unknown kind, which a newer version may publish, drains nothing."""
    target: str = ""
    """The name of the cluster or node, or the Service's namespace/name."""
    reason: str = ""
    """Cause of the drain, for people: ``Drain isthmus-system/cluster-c2``, ``node deleted``."""
    started: str = ""
    """Start, RFC 3339; empty if the drain began before this process first saw it."""
    ramp: int = 0
    """Seconds over which the share of new calls decreases to none."""
    deadline: int | None = None
    """Seconds after the start at which remaining connections are closed. ``None`` leaves them open."""
    ends: str = ""
    """Time at which the drain ends by itself, RFC 3339; empty if it does not."""
    end_ramp: int = 0
    """Seconds before ``ends`` over which the share of new calls grows back."""


class DrainRequest(Struct, frozen=True, gc=False, kw_only=True):
    """A Drain object of the own API server."""

    name: ServiceName
    drain: Drain
    uid: str = ""
    generation: int = 0
    invalid: str = ""
    """Reason why the object has no effect, empty if it has."""


class Draining(Struct, frozen=True, gc=False, kw_only=True):
    """A drain in effect now, and its progress. The row is updated as time passes, so that plans need no clock."""

    by: ClusterName
    """Cluster that requests it."""
    drain: Drain
    left: int = 0
    """Remaining percentage of the target's usual share of new calls."""
    closing: bool = False
    """``True`` after the deadline: connections to the target are closed."""

    @property
    def key(self) -> tuple[ClusterName, str, str, str]:
        """Key of the row: each drain of a target has one."""
        return (self.by, self.drain.kind, self.drain.target, self.drain.reason)
