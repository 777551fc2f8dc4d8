"""multicluster.x-k8s.io: clusters of an inventory (KEP-4322), with how they are reached (KEP-5339)."""

from __future__ import annotations

from typing import Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Meta, Wire


class ProfiledCluster(Wire, frozen=True):
    """Entry of a cluster in a kubeconfig, without credentials."""

    server: str = ""


class AccessProvider(Wire, frozen=True):
    """One way to reach a cluster: its API server, and by its name the plugin that has credentials for it."""

    cluster: ProfiledCluster = ProfiledCluster()


class Property(Wire, frozen=True):
    """A property of a cluster, such as a ClusterProperty that it has."""

    name: str = ""
    value: str = ""


class ClusterProfileStatus(Wire, frozen=True):
    """State of a cluster as its manager has observed it."""

    properties: list[Property] | None = None
    access_providers: list[AccessProvider] | None = None
    credential_providers: list[AccessProvider] | None = None
    """The name that earlier versions of v1alpha1 have for ``access_providers``."""


class ClusterProfile(Wire, frozen=True):
    """A cluster of an inventory."""

    metadata: Meta
    status: ClusterProfileStatus = ClusterProfileStatus()


CLUSTER_PROFILE: Final = Kind(
    "multicluster.x-k8s.io", "v1alpha1", "clusterprofiles", "ClusterProfile", ClusterProfile, namespaced=True
)
