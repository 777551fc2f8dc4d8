"""Input rows: who may call what the own cluster exports."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Labels

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
    invalid: str = ""
    """Reason why the object cannot be followed, empty if it can."""
    created: str = ""
    uid: str = ""
    generation: int = 0

    @property
    def namespace(self) -> str:
        """Namespace of the policy and of its exports."""
        return self.name.partition("/")[0]
