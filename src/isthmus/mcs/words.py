"""Labels and annotations of exports, imports and what stands behind them."""

from __future__ import annotations

from typing import Final

from isthmus.model.services import TOPOLOGY_MODE as TOPOLOGY_MODE
from isthmus.model.services import Labels

SERVICE_NAME: Final = "multicluster.kubernetes.io/service-name"
SOURCE_CLUSTER: Final = "multicluster.kubernetes.io/source-cluster"
DERIVED_SERVICE: Final = "multicluster.kubernetes.io/derived-service"
SUPPORTED_FAMILIES: Final = "clustermesh.cilium.io/supported-ip-families"
SYNC_SLICES: Final = "service.cilium.io/global-sync-endpoint-slices"
SLICE_SERVICE: Final = "kubernetes.io/service-name"
SLICE_MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
SLICE_MANAGER: Final = "endpointslice-mcs-controller.isthmus.io"
SOURCE_SLICE: Final = "isthmus.io/source-slice"
HEADLESS: Final = "service.kubernetes.io/headless"

CLUSTER_IPS: Final = "isthmus.io/cluster-ips"
"""Annotation of an import that has no address now: the addresses that its derived Service had, to ask for again."""
IMPORTERS: Final = "isthmus.io/importers"
"""Exported annotation: the clusters that may import, joined by commas; without it every cluster may."""
CLUSTER_AFFINITY: Final = "service.cilium.io/affinity"
LB_ALGORITHM: Final = "service.cilium.io/lb-algorithm"

RESERVED_DOMAINS: Final = (
    "isthmus.io",
    "kubernetes.io",
    "k8s.io",
    "cilium.io",
    "io.cilium",
    "karmada.io",
    "submariner.io",
    "istio.io",
    "linkerd.io",
    "metallb.io",
    "metallb.universe.tf",
    "cloud.google.com",
    "gke.io",
)
"""Domains of labels and annotations by which controllers act on Services and EndpointSlices: Kubernetes' own and its
cloud controllers', other implementations of what we do, meshes, load balancers. Their subdomains too."""

EXPORTABLE: Final = frozenset({CLUSTER_AFFINITY, LB_ALGORITHM, SYNC_SLICES, TOPOLOGY_MODE})
"""Keys of those domains that only say how the import's own calls are spread."""
EXPORTABLE_DOMAIN: Final = "app.kubernetes.io"
"""Recommended labels: for people and their tools (Kubernetes, "Recommended Labels")."""


def reserved(key: str) -> bool:
    """Whether a label or annotation steers controllers, so that no cluster may set it on another's objects."""
    domain = key.rpartition("/")[0]
    if key in EXPORTABLE or domain == EXPORTABLE_DOMAIN:
        return False
    return any(domain == each or domain.endswith(f".{each}") for each in RESERVED_DOMAINS)


def exported(pairs: Labels) -> dict[str, str]:
    """Exported labels or annotations as they reach our objects."""
    return {key: value for key, value in pairs if not reserved(key)}
