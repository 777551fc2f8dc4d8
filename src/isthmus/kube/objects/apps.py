"""apps/v1: deployments and stateful sets."""

from __future__ import annotations

from typing import Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Meta, Wire


class LabelSelector(Wire, frozen=True):
    """Selector of the objects that belong to another."""

    match_labels: dict[str, str] | None = None


class DeploymentSpec(Wire, frozen=True):
    """Desired state of a Deployment."""

    replicas: int | None = None
    selector: LabelSelector = LabelSelector()


class DeploymentStatus(Wire, frozen=True):
    """Observed state of a Deployment."""

    replicas: int | None = None
    ready_replicas: int | None = None


class Deployment(Wire, frozen=True):
    """A Deployment."""

    metadata: Meta
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class PodTemplate(Wire, frozen=True):
    """Template of a workload's pods."""

    metadata: Meta = Meta()


class StatefulSetSpec(Wire, frozen=True):
    """Desired state of a StatefulSet."""

    replicas: int | None = None
    template: PodTemplate = PodTemplate()


class StatefulSetStatus(Wire, frozen=True):
    """Observed state of a StatefulSet."""

    observed_generation: int = 0
    ready_replicas: int | None = None
    updated_replicas: int | None = None


class StatefulSet(Wire, frozen=True):
    """A StatefulSet."""

    metadata: Meta
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


DEPLOYMENT: Final = Kind("apps", "v1", "deployments", "Deployment", Deployment)
STATEFUL_SET: Final = Kind("apps", "v1", "statefulsets", "StatefulSet", StatefulSet)
