"""Input rows: policies of how calls are shared out over clusters."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from isthmus.model.balancing import BackendKey, Ejection
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Affinity, Labels

ANY_OTHER: Final = ClusterName("*")
"""In a tier: every cluster that no tier names."""


THIS_CLUSTER: Final = ClusterName(".")
"""In a tier: the cluster in which the call is made."""


class Share(Struct, frozen=True, gc=False):
    """Clusters in a tier: one by its name, or all of a region, of a zone and with labels, as far as given.

    A cluster belongs to one share only.

    Without a weight a share's part of the calls is its number of usable backends; weight 0 drains it.
    """

    cluster: ClusterName = ClusterName("")
    weight: int | None = None
    region: str = ""
    zone: str = ""
    labels: Labels = ()


class Tier(Struct, frozen=True, gc=False):
    """Clusters that are called together. With fewer usable backends than it wants it leaves calls to the next tier."""

    shares: tuple[Share, ...]
    min_healthy: int = 1
    min_percent: int = 0
    """1 to 100: of the backends known, ready or not, in place of ``min_healthy``; 0: not given."""


class HealthCheck(Struct, frozen=True, gc=False, kw_only=True):
    """How a backend is probed. HTTP passes with a status from 200 to 399, GRPC with SERVING (grpc.health.v1)."""

    type: Literal["TCP", "HTTP", "GRPC"] = "TCP"
    port: int = 0
    """0: the backend's own."""
    path: str = "/"
    host: str = ""
    """Of an HTTP request; empty: the address."""
    service: str = ""
    """Asked for by gRPC; empty: the server as a whole."""
    interval: float = 5.0
    """Seconds between two probes from one node, at least."""
    timeout: float = 1.0
    """Seconds."""
    healthy_after: int = 2
    """Probes that pass in a row until a backend found dead is healthy again."""
    unhealthy_after: int = 3
    """Probes that fail in a row until a backend is found dead."""


class Check(Struct, frozen=True, gc=False):
    """Derived row: a backend of another cluster that this node is to probe."""

    key: BackendKey
    check: HealthCheck


PolicyKind = Literal["TrafficPolicy", "flomesh.io/GlobalTrafficPolicy", "multicluster.flomesh.io/GlobalTrafficPolicy"]
"""In order of precedence."""

Locality = Literal["", "Node", "Zone", "Region", "Cluster"]


class Policy(Struct, frozen=True, gc=False, kw_only=True):
    """Input row: how calls of one service are shared out over clusters.

    Of several for one target a TrafficPolicy comes first, then the oldest, then the name; the others wait.
    """

    name: ServiceName
    target: ServiceName
    policy_kind: PolicyKind = "TrafficPolicy"
    kind: Literal["ServiceImport", "Service"] = "ServiceImport"
    tiers: tuple[Tier, ...] = ()
    """In order. None: all clusters together. A cluster in no tier is not called."""
    affinity: Affinity | None = None
    affinity_timeout: int = 10800
    consistent: bool | None = None
    ejection: Ejection | None = None
    """None: as the configuration has it."""
    health: HealthCheck | None = None
    """How backends of other clusters are probed; None: not, while their cluster can be reached."""
    locality: Locality = ""
    """Which backends are preferred while one of them is ready; empty: nothing beyond what the service asks for."""
    refuse: bool = False
    """Calls are refused where probes find every backend dead; else all are tried."""
    invalid: str = ""
    """Why the object cannot be followed; the row has no effect then."""
    created: str = ""
    uid: str = ""
    generation: int = 0

    @property
    def service(self) -> ServiceName:
        """The Service whose plans it is about: for an import the one derived of it."""
        return self.target if self.kind == "Service" else derived(self.target)
