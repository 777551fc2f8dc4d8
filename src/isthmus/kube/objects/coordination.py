"""coordination.k8s.io/v1: leases."""

from __future__ import annotations

from typing import Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Meta, Wire


class LeaseSpec(Wire, frozen=True):
    """Holder of a lease, time of acquisition and renewal, and its duration."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Wire, frozen=True):
    """A lease."""

    metadata: Meta
    spec: LeaseSpec = LeaseSpec()


LEASE: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease", Lease)
