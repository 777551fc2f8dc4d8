"""Labels and annotations of exports, imports and what stands behind them."""

from __future__ import annotations

from typing import Final

from isthmus.desired import MANAGED_BY
from isthmus.model.services import Labels

SERVICE_NAME: Final = "multicluster.kubernetes.io/service-name"
SOURCE_CLUSTER: Final = "multicluster.kubernetes.io/source-cluster"
DERIVED_SERVICE: Final = "multicluster.kubernetes.io/derived-service"
SUPPORTED_FAMILIES: Final = "clustermesh.cilium.io/supported-ip-families"
GLOBAL: Final = "service.cilium.io/global"
SYNC_SLICES: Final = "service.cilium.io/global-sync-endpoint-slices"
SLICE_SERVICE: Final = "kubernetes.io/service-name"
SLICE_MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
SLICE_MANAGER: Final = "endpointslice-mcs-controller.isthmus.io"
SOURCE_SLICE: Final = "isthmus.io/source-slice"
HEADLESS: Final = "service.kubernetes.io/headless"

RESERVED: Final = frozenset(
    {
        MANAGED_BY,
        DERIVED_SERVICE,
        SUPPORTED_FAMILIES,
        SLICE_SERVICE,
        SLICE_MANAGED_BY,
        SOURCE_CLUSTER,
        HEADLESS,
        "kubectl.kubernetes.io/last-applied-configuration",
    }
)
"""Labels and annotations that others act on, so that no peer may set them by exporting them."""


def exported(pairs: Labels) -> dict[str, str]:
    """Exported labels or annotations as they reach our objects."""
    return {key: value for key, value in pairs if key not in RESERVED}
