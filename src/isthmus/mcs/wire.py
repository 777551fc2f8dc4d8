"""How wanted objects are written down: canonical JSON, so that equal wishes are equal rows; and the words on them."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from isthmus.model.mcs import MANAGED_BY as MANAGED_BY
from isthmus.model.mcs import Object
from isthmus.model.names import ServiceName, split
from isthmus.model.services import Labels

MANAGER: Final = "isthmus-operator"

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

API_VERSIONS: Final = {
    "ServiceImport": "multicluster.x-k8s.io/v1beta1",
    "ServiceExport": "multicluster.x-k8s.io/v1beta1",
    "Service": "v1",
    "EndpointSlice": "discovery.k8s.io/v1",
}

ConditionBody = dict[str, str | int]
"""A condition as the API has it, without the time of its last change: that is not known here."""

MOST_MESSAGE: Final = 32768
"""Characters that the API takes."""

SEEN_AS_WANTED: Final = "="


def encode(value: dict[str, Any]) -> bytes:
    """Canonical JSON: keys sorted, nothing between."""
    return msgspec.json.encode(value, order="sorted")


def wanted(
    kind: str,
    name: ServiceName,
    *,
    service: ServiceName,
    content: dict[str, Any],
    labels: dict[str, str],
    annotations: dict[str, str],
    status: dict[str, Any] | None = None,
    owner: tuple[str, ServiceName, str] | None = None,
    remake: str = "",
    seen: str = "",
) -> Object:
    """An object that is wholly ours. ``content`` is what stands beside metadata: spec, or a slice's fields."""
    namespace, short = split(name)
    metadata: dict[str, Any] = {
        "name": short,
        "namespace": namespace,
        "annotations": {**annotations, MANAGED_BY: MANAGER},
    }
    if labels:  # a server drops an empty map it is sent, and takes the next one for a change
        metadata["labels"] = labels
    body = {"apiVersion": API_VERSIONS[kind], "kind": kind, "metadata": metadata, **content}
    return Object(
        kind=kind,
        name=name,
        body=encode(body),
        status=encode(status) if status is not None else b"",
        service=service,
        owner=owner,
        remake=remake,
        seen=seen,
    )


def exported(pairs: Labels) -> dict[str, str]:
    """Exported labels or annotations as they reach our objects."""
    return {key: value for key, value in pairs if key not in RESERVED}


def condition(kind: str, status: bool, *, reason: str, message: str = "", generation: int = 0) -> ConditionBody:
    """One condition."""
    said: ConditionBody = {
        "type": kind,
        "status": "True" if status else "False",
        "reason": reason,
        "message": message if len(message) <= MOST_MESSAGE else f"{message[: MOST_MESSAGE - 1]}…",
    }
    return {**said, "observedGeneration": generation} if generation else said


def without_empty(value: dict[str, Any]) -> dict[str, Any]:
    """The fields that say something."""
    return {key: each for key, each in value.items() if each not in (None, "", [], {})}


def seen(found: Struct, *, told: bool = True, **ours: Any) -> str:
    """How an object stands in the API server: its row, and the fields of it that are ours to say.

    Of labels and annotations only those we write are compared; others may add theirs. ``told`` says whether its status
    is as wanted.
    """
    for field in ("labels", "annotations"):
        if field in ours:
            ours[field] = tuple(sorted({**dict(getattr(found, field)), **ours[field]}.items()))
    if told and structs.replace(found, **ours) == found:
        return SEEN_AS_WANTED
    return hashlib.sha256(repr(found).encode()).hexdigest()[:12]
