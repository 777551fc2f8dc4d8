"""The kinds of objects that the operator writes for exports and imports, and what of them is ours."""

from __future__ import annotations

from typing import Final

from isthmus.desired import Ownership
from isthmus.desired.ownership import Ownerships
from isthmus.kube.objects.core import SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.mcs.words import SERVICE_NAME, SLICE_MANAGED_BY, SLICE_MANAGER

KINDS: Final[Ownerships] = {
    "ServiceImport": Ownership(
        SERVICE_IMPORT,
        absent=frozenset({"ipFamilies", "sessionAffinityConfig", "internalTrafficPolicy", "trafficDistribution"}),
        conditions=frozenset({"Ready", "Stale", "EndpointsReady", "RecordsRefused", "UDPThroughGateways"}),
        selector="",
    ),
    "Service": Ownership(
        SERVICE,
        absent=frozenset({"selector", "sessionAffinityConfig", "trafficDistribution"}),
        selector=SERVICE_NAME,
    ),
    "EndpointSlice": Ownership(ENDPOINT_SLICE, selector=f"{SLICE_MANAGED_BY}={SLICE_MANAGER}"),
    "ServiceExport": Ownership(
        SERVICE_EXPORT,
        conditions=frozenset({"Valid", "Ready", "Conflict", "Refused", "Unpublished", "MetadataOmitted"}),
    ),
}
"""In the order of writing: each controls the next. A ServiceExport's status stands on its own."""
