"""apps/v1: deployments."""

from __future__ import annotations

from typing import Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Meta, Wire


class LabelSelector(Wire, frozen=True):
    """Which objects belong."""

    match_labels: dict[str, str] | None = None


class DeploymentSpec(Wire, frozen=True):
    """What is wanted of a Deployment."""

    replicas: int | None = None
    selector: LabelSelector = LabelSelector()


class DeploymentStatus(Wire, frozen=True):
    """How a Deployment is."""

    replicas: int | None = None
    ready_replicas: int | None = None


class Deployment(Wire, frozen=True):
    """A Deployment."""

    metadata: Meta
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


DEPLOYMENT: Final = Kind("apps", "v1", "deployments", "Deployment", Deployment)
