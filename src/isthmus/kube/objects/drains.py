"""isthmus.io: drains of clusters, nodes and services."""

from __future__ import annotations

from typing import Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Condition, Meta, Wire


class TargetRef(Wire, frozen=True):
    """Target of a drain. A Service is in the object's own namespace."""

    kind: str = ""
    name: str = ""


class DrainSpec(Wire, frozen=True):
    """Target, times and effect of a drain."""

    target_ref: TargetRef = TargetRef()
    start_time: str | None = None
    ramp_seconds: int | None = None
    existing: str | None = None
    deadline_seconds: int | None = None
    end_time: str | None = None
    end_ramp_seconds: int | None = None


class DrainStatus(Wire, frozen=True):
    """Observed state of a drain."""

    observed_generation: int = 0
    conditions: list[Condition] | None = None
    share: str | None = None


class Drain(Wire, frozen=True):
    """A drain."""

    metadata: Meta
    spec: DrainSpec = DrainSpec()
    status: DrainStatus | None = None


DRAIN: Final = Kind("isthmus.io", "v1alpha1", "drains", "Drain", Drain)
