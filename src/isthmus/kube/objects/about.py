"""about.k8s.io: properties of a cluster (KEP-2149)."""

from __future__ import annotations

from typing import Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Meta, Wire


class ClusterPropertySpec(Wire, frozen=True):
    """The value of a property."""

    value: str = ""


class ClusterProperty(Wire, frozen=True):
    """A property of the cluster, by name."""

    metadata: Meta
    spec: ClusterPropertySpec = ClusterPropertySpec()


CLUSTER_PROPERTY: Final = Kind(
    "about.k8s.io",
    "v1beta1",
    "clusterproperties",
    "ClusterProperty",
    ClusterProperty,
    namespaced=False,
    older_versions=("v1alpha1",),
)
