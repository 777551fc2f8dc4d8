"""cluster.karmada.io and work.karmada.io: members of a Karmada control plane, what is placed in them, what they get."""

from __future__ import annotations

from typing import Any, Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Condition, Meta, Wire


class Taint(Wire, frozen=True):
    """A taint of a member."""

    key: str = ""
    value: str = ""
    effect: str = ""


class ClusterSpec(Wire, frozen=True):
    """Desired state of a member cluster."""

    provider: str | None = None
    region: str | None = None
    zone: str | None = None
    zones: list[str] | None = None
    taints: list[Taint] | None = None


class ClusterStatus(Wire, frozen=True):
    """Observed state of a member cluster, as Karmada last wrote it."""

    conditions: list[Condition] | None = None


class Cluster(Wire, frozen=True):
    """A member."""

    metadata: Meta
    spec: ClusterSpec = ClusterSpec()
    status: ClusterStatus | None = None


class ObjectReference(Wire, frozen=True):
    """The object of the control plane that is placed."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""


class TargetCluster(Wire, frozen=True):
    """A member in which it is placed."""

    name: str = ""


class EvictionTask(Wire, frozen=True):
    """A member that it leaves, once it runs elsewhere or the grace period is over."""

    from_cluster: str = ""
    reason: str = ""
    grace_period_seconds: int | None = None
    creation_timestamp: str | None = None


class BindingSpec(Wire, frozen=True):
    """Placed resource, and its target clusters."""

    resource: ObjectReference = ObjectReference()
    clusters: list[TargetCluster] | None = None
    graceful_eviction_tasks: list[EvictionTask] | None = None


class AggregatedStatus(Wire, frozen=True):
    """The status that the object has in one member."""

    cluster_name: str = ""
    status: dict[str, Any] | None = None


class BindingStatus(Wire, frozen=True):
    """The status that it has in all of them."""

    aggregated_status: list[AggregatedStatus] | None = None


class ResourceBinding(Wire, frozen=True):
    """The placement of an object."""

    metadata: Meta
    spec: BindingSpec = BindingSpec()
    status: BindingStatus | None = None


class WorkStatus(Wire, frozen=True):
    """Observed state of a Work."""

    conditions: list[Condition] | None = None


class Work(Wire, frozen=True):
    """Objects for one member: the one whose namespace ``karmada-es-<member>`` it is in. Its manifests are not read."""

    metadata: Meta
    status: WorkStatus | None = None


class Template(Wire, frozen=True):
    """A pod template, as far as Services select by it."""

    metadata: Meta = Meta()


class WorkloadSpec(Wire, frozen=True):
    """The pod template of Deployments, StatefulSets and their like."""

    template: Template = Template()


class Workload(Wire, frozen=True):
    """An object of any kind that has a pod template, or none."""

    metadata: Meta
    spec: WorkloadSpec = WorkloadSpec()


CLUSTER: Final = Kind("cluster.karmada.io", "v1alpha1", "clusters", "Cluster", Cluster, namespaced=False)
RESOURCE_BINDING: Final = Kind("work.karmada.io", "v1alpha2", "resourcebindings", "ResourceBinding", ResourceBinding)
WORK: Final = Kind("work.karmada.io", "v1alpha1", "works", "Work", Work)
