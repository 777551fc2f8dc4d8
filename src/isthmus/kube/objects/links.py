"""isthmus.io: links to the other clusters of the clusterset."""

from __future__ import annotations

from typing import Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Condition, Meta, Wire


class ClusterLinkSpec(Wire, frozen=True):
    """Access to a peer's etcd, its limits, and the two halves of the exchange of certificates."""

    id: int = 0
    endpoints: list[str] | None = None
    gateways: list[str] | None = None
    ca_bundle: str = ""
    namespaces: list[str] | None = None
    pod_ranges: list[str] | None = None
    request: str = ""
    certificate: str = ""


class ClusterLinkStatus(Wire, frozen=True):
    """Observed state of a link, and what its peer needs of this cluster."""

    conditions: list[Condition] | None = None
    request: str = ""
    certificate: str = ""


class ClusterLink(Wire, frozen=True):
    """A link to the cluster that it is named after."""

    metadata: Meta
    spec: ClusterLinkSpec = ClusterLinkSpec()
    status: ClusterLinkStatus = ClusterLinkStatus()


CLUSTER_LINK: Final = Kind("isthmus.io", "v1alpha1", "clusterlinks", "ClusterLink", ClusterLink, namespaced=False)
