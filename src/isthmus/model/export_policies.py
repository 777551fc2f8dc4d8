"""Who may call what the own cluster exports: policies as input rows, and the callers that each allows."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Labels

MAX_PERMITS: Final = 65_536
"""Identities that all policies of a cluster may allow together: entries of the kernel's map ``allowed``."""

NO_EXPORT: Final = "?"
"""Target of a policy whose own cannot be read: no ServiceExport has this name."""

Scope = tuple[str, str]
"""Namespace and name of an export; without a name, every export of the namespace."""

Enforce = Literal["tcp", "all"]
"""``all`` includes UDP, whose callers are known by their address only."""


class Allow(Struct, frozen=True, gc=False, kw_only=True):
    """Callers that a policy allows: those that match every field given. Without any field, every caller."""

    cluster: ClusterName = ClusterName("")
    namespace: str = ""
    service_account: str = ""
    labels: Labels = ()
    """Labels of the caller's cluster, as its configuration publishes them."""


class ExportPolicy(Struct, frozen=True, gc=False, kw_only=True):
    """Input row: who may call an export of the own cluster, or every export of a namespace.

    An invalid policy allows nobody: a mistake in an access rule must not open what it protects.
    """

    name: ServiceName
    target: str = ""
    """Name of the ServiceExport, in the policy's namespace; empty for all of the namespace."""
    allow: tuple[Allow, ...] = ()
    """Empty allows nobody."""
    audit: bool = False
    """Count calls that the policy would refuse, and refuse none."""
    enforce: Enforce = "tcp"
    require: bool = True
    """Refuse TCP callers that do not prove their identity. Otherwise these are judged by their address."""
    cut: bool = False
    """Cut established TCP connections that the policy forbids, at nodes. Otherwise they stay."""
    invalid: str = ""
    """Reason why the object cannot be followed, empty if it can."""
    created: str = ""
    uid: str = ""
    generation: int = 0

    @property
    def namespace(self) -> str:
        """Namespace of the policy and of its exports."""
        return self.name.partition("/")[0]

    @property
    def scope(self) -> Scope:
        """What the policy is for."""
        return (self.namespace, self.target)


class AllowedCallers(Struct, frozen=True, gc=False):
    """Derived row: the identities in other clusters that the policy in force for a scope allows."""

    policy: ServiceName
    scope: Scope
    identities: tuple[tuple[ClusterName, tuple[int, ...]], ...]
    """Numbers of each cluster, sorted."""

    @property
    def count(self) -> int:
        """Number of identities."""
        return sum(len(numbers) for _, numbers in self.identities)


class ExcessPolicy(Struct, frozen=True, gc=False):
    """Derived row: a policy with callers that do not fit beside those of others. Nodes allow none of these."""

    policy: ServiceName
    identities: int
    """Number of identities that do not fit."""
    limit: int
    clusters: tuple[ClusterName, ...] = ()
    """The clusters whose identities these are: all that the policy allows of each."""
