"""Labels and annotations of exports, imports and what stands behind them."""

from __future__ import annotations

from typing import Final, Literal

from isthmus.model.names import LABEL_VALUE, QUALIFIED
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


MAX_ANNOTATIONS: Final = 250_000
"""Bytes of keys and values: the API server takes 256 KiB of an object's annotations, ours among them."""

Omission = Literal["Invalid", "Reserved", "TooLarge"]


def exported_labels(pairs: Labels) -> dict[str, str]:
    """Exported labels as they reach our objects, without those that the API server would refuse the object for."""
    return {key: value for key, value in pairs if not _label_omission(key, value)}


def exported_annotations(pairs: Labels) -> dict[str, str]:
    """Exported annotations as they reach our objects, in order of keys as far as there is room for them."""
    omitted = omitted_annotations(pairs)
    return {key: value for key, value in pairs if key not in omitted}


def omitted_labels(pairs: Labels) -> dict[str, Omission]:
    """Keys of exported labels that reach no object, with the reason."""
    return {key: why for key, value in pairs if (why := _label_omission(key, value))}


def omitted_annotations(pairs: Labels) -> dict[str, Omission]:
    """Keys of exported annotations that reach no object, with the reason."""
    omitted: dict[str, Omission] = {}
    total = 0
    for key, value in pairs:
        if why := _key_omission(key):
            omitted[key] = why
        elif total + (size := len(key) + len(value.encode())) > MAX_ANNOTATIONS:
            omitted[key] = "TooLarge"
        else:
            total += size
    return omitted


def _label_omission(key: str, value: str) -> Omission | None:
    return _key_omission(key) or (None if LABEL_VALUE.fits(value) else "Invalid")


def _key_omission(key: str) -> Omission | None:
    if reserved(key):
        return "Reserved"
    return None if QUALIFIED.fits(key) else "Invalid"
