"""Input rows: policies for the distribution of calls over clusters."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from isthmus.model.balancing import BackendKey, Ejection
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Affinity, Labels

ANY_OTHER: Final = ClusterName("*")
"""Name in a tier for every cluster that no tier names."""


THIS_CLUSTER: Final = ClusterName(".")
"""Name in a tier for the cluster of the caller."""


class Share(Struct, frozen=True, gc=False):
    """Clusters in a tier, selected by name, or by region, zone and labels as far as these are given.

    A cluster belongs to one share only.

    Without a weight a share's part of the calls is its number of usable backends; weight 0 drains it.
    """

    cluster: ClusterName = ClusterName("")
    weight: int | None = None
    region: str = ""
    zone: str = ""
    labels: Labels = ()


class Tier(Struct, frozen=True, gc=False):
    """Shares that are called together. A tier with too few usable backends leaves calls to the next tier."""

    shares: tuple[Share, ...]
    min_healthy: int = 1
    min_percent: int = 0
    """Percentage of the known backends, ready or not, that replaces ``min_healthy``. 0 if it is not given."""


class HealthCheck(Struct, frozen=True, gc=False, kw_only=True):
    """Probe of a backend. HTTP passes with a status from 200 to 399, GRPC with SERVING (grpc.health.v1)."""

    type: Literal["TCP", "HTTP", "GRPC"] = "TCP"
    port: int = 0
    """Port to probe. 0 selects the backend's own."""
    path: str = "/"
    host: str = ""
    """Host of an HTTP request. Empty selects the address."""
    service: str = ""
    """gRPC service to check. Empty checks the whole server."""
    interval: float = 5.0
    """Minimum seconds between two probes from one node."""
    timeout: float = 1.0
    """Seconds after which a probe fails."""
    healthy_after: int = 2
    """Consecutive passing probes after which a dead backend is healthy again."""
    unhealthy_after: int = 3
    """Consecutive failing probes after which a backend is dead."""


class Check(Struct, frozen=True, gc=False):
    """Derived row: a backend of another cluster that this node probes."""

    key: BackendKey
    check: HealthCheck


PolicyKind = Literal["TrafficPolicy", "flomesh.io/GlobalTrafficPolicy", "multicluster.flomesh.io/GlobalTrafficPolicy"]
"""Kinds of policy, by precedence."""

Locality = Literal["", "Node", "Zone", "Region", "Cluster"]


class Policy(Struct, frozen=True, gc=False, kw_only=True):
    """Input row: distribution of one service's calls over clusters.

    If a target has several, a TrafficPolicy precedes other kinds, then the older one, then the name; the others wait.
    """

    name: ServiceName
    target: ServiceName
    policy_kind: PolicyKind = "TrafficPolicy"
    kind: Literal["ServiceImport", "Service"] = "ServiceImport"
    tiers: tuple[Tier, ...] = ()
    """Tiers in order; without tiers all clusters are called together. A cluster in no tier is not called."""
    affinity: Affinity | None = None
    affinity_timeout: int = 10800
    consistent: bool | None = None
    ejection: Ejection | None = None
    """``None`` selects the configuration."""
    health: HealthCheck | None = None
    """Probe of backends in other clusters. ``None`` probes them only while their cluster cannot be reached."""
    locality: Locality = ""
    """Backends that are preferred while one of them is ready. Empty leaves the service's own preference."""
    refuse: bool = False
    """Refuse calls if probes find every backend dead. Otherwise all backends are tried."""
    invalid: str = ""
    """Reason why the object has no effect, empty if it has."""
    created: str = ""
    uid: str = ""
    generation: int = 0

    @property
    def service(self) -> ServiceName:
        """Service whose plans the policy affects: for an import, its derived Service."""
        return self.target if self.kind == "Service" else derived(self.target)
