"""isthmus.io and flomesh.io: policies of how calls are shared out over clusters, and of who may call."""

from __future__ import annotations

from typing import Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Condition, Meta, Wire


class TargetRef(Wire, frozen=True):
    """Target of the policy, in its own namespace."""

    name: str = ""
    kind: str = "ServiceImport"


class ClusterRef(Wire, frozen=True):
    """Clusters of a tier: one by name, or those of a region, a zone, with labels."""

    name: str | None = None
    region: str | None = None
    zone: str | None = None
    match_labels: dict[str, str] | None = None
    weight: int | None = None


class PolicyTier(Wire, frozen=True):
    """Clusters that are called together."""

    clusters: list[ClusterRef] | None = None
    min_healthy: int | str | None = None


class EjectionSpec(Wire, frozen=True):
    """Thresholds and durations of ejecting a backend that fails connects."""

    consecutive_failures: int | None = None
    base_seconds: int | None = None
    max_seconds: int | None = None


class HealthCheckSpec(Wire, frozen=True):
    """Probe of backends in other clusters."""

    type: str | None = None
    port: int | None = None
    path: str | None = None
    host: str | None = None
    service: str | None = None
    interval_seconds: int | None = None
    timeout_seconds: int | None = None
    healthy_threshold: int | None = None
    unhealthy_threshold: int | None = None


class TrafficPolicySpec(Wire, frozen=True):
    """Distribution of the target's calls."""

    target_ref: TargetRef = TargetRef()
    tiers: list[PolicyTier] | None = None
    locality: str | None = None
    session_affinity: str | None = None
    session_affinity_timeout_seconds: int | None = None
    load_balancing: str | None = None
    when_nothing_usable: str | None = None
    ejection: EjectionSpec | None = None
    health_check: HealthCheckSpec | None = None


class PolicyStatus(Wire, frozen=True):
    """Observed state of the policy."""

    observed_generation: int = 0
    conditions: list[Condition] | None = None
    shares: str | None = None


class TrafficPolicy(Wire, frozen=True):
    """A policy."""

    metadata: Meta
    spec: TrafficPolicySpec = TrafficPolicySpec()
    status: PolicyStatus | None = None


class GlobalTarget(Wire, frozen=True):
    """A cluster of a GlobalTrafficPolicy."""

    cluster_key: str = ""
    weight: int | None = None


class GlobalTrafficPolicySpec(Wire, frozen=True):
    """Mode of distribution, and the clusters that it applies to."""

    lb_type: str = "Locality"
    targets: list[GlobalTarget] | None = None


class GlobalTrafficPolicy(Wire, frozen=True):
    """A policy of Flomesh's, for the import of its own name."""

    metadata: Meta
    spec: GlobalTrafficPolicySpec = GlobalTrafficPolicySpec()


class ExportTarget(Wire, frozen=True):
    """A ServiceExport of the policy's namespace."""

    name: str = ""


class AllowedCallers(Wire, frozen=True):
    """Callers that match every given field."""

    cluster: str | None = None
    cluster_labels: dict[str, str] | None = None
    namespace: str | None = None
    service_account: str | None = None


class ExportPolicySpec(Wire, frozen=True):
    """Who may call the target."""

    target: ExportTarget | None = None
    allow: list[AllowedCallers] | None = None
    audit: bool = False
    enforce: str | None = None
    unsigned: str | None = None
    established: str | None = None


class ExportPolicyStatus(Wire, frozen=True):
    """Observed state of the policy."""

    observed_generation: int = 0
    conditions: list[Condition] | None = None


class ExportPolicy(Wire, frozen=True):
    """A policy of who may call exports."""

    metadata: Meta
    spec: ExportPolicySpec = ExportPolicySpec()
    status: ExportPolicyStatus | None = None


EXPORT_POLICY: Final = Kind("isthmus.io", "v1alpha1", "exportpolicies", "ExportPolicy", ExportPolicy)
TRAFFIC_POLICY: Final = Kind("isthmus.io", "v1alpha1", "trafficpolicies", "TrafficPolicy", TrafficPolicy)
FLOMESH_POLICY: Final = Kind(
    "flomesh.io", "v1alpha1", "globaltrafficpolicies", "GlobalTrafficPolicy", GlobalTrafficPolicy
)
FSM_POLICY: Final = Kind(
    "multicluster.flomesh.io", "v1alpha1", "globaltrafficpolicies", "GlobalTrafficPolicy", GlobalTrafficPolicy
)
