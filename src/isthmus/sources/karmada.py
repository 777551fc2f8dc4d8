"""Karmada's objects in a member cluster, as karmada-controller-manager 1.18 writes them.

Karmada brings a service's endpoints from where they run (the provider) to where they are called, as EndpointSlices of
another cluster beside a Service of the same name (MultiClusterService), or behind ``derived-<name>`` (ServiceImport).
``karmada.io/managed`` alone does not distinguish those from local ones: a Service's labels are copied to its slices.
"""

from __future__ import annotations

from typing import Final

from isthmus.kube.objects.meta import Meta
from isthmus.model.names import DERIVED_PREFIX, ClusterName, valid_cluster
from isthmus.model.services import Import, Labels

MANAGED: Final = "karmada.io/managed"
"""Label of every object that Karmada writes in a member, and of objects that inherit its labels."""
PROVIDER: Final = "endpointslice.karmada.io/provision-cluster"
"""Annotation of a dispatched slice: the member whose endpoints these are."""
MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
DISPATCHER: Final = "endpointslice-dispatch-controller.karmada.io"
IMPORTER: Final = "endpointslice-controller.karmada.io"
IMPORTED: Final = "imported-"
"""Prefix of the names of an import's slices: ``imported-<provider>-<slice of the provider>``."""
OF_SERVICE: Final = "kubernetes.io/service-name"


def dispatched(meta: Meta) -> bool:
    """True if an EndpointSlice holds another member's endpoints."""
    manager = (meta.labels or {}).get(MANAGED_BY)
    return manager in (DISPATCHER, IMPORTER) or PROVIDER in (meta.annotations or {})


def provider(meta: Meta) -> ClusterName | None:
    """Return the member whose endpoints a dispatched slice holds; ``None`` if neither annotation nor name gives it.

    A slice of an import gives it by its name alone: the provider, then the name of the provider's slice, which begins
    with the Service's name. Both may contain dashes; the label gives the Service's name.
    """
    name = (meta.annotations or {}).get(PROVIDER, "") or _named(meta)
    return ClusterName(name) if valid_cluster(name) else None


def _named(meta: Meta) -> str:
    service = (meta.labels or {}).get(OF_SERVICE, "").removeprefix(DERIVED_PREFIX)
    if not service or not meta.name.startswith(IMPORTED):
        return ""
    name, middle = meta.name.removeprefix(IMPORTED), f"-{service}"
    if name.endswith(middle):
        return name.removesuffix(middle)
    return name.rpartition(f"{middle}-")[0]


def derived_of(meta: Meta) -> str:
    """Name, without namespace, of the import whose derived Service Karmada wrote; empty for any other Service."""
    managed = (meta.labels or {}).get(MANAGED) == "true"
    return meta.name.removeprefix(DERIVED_PREFIX) if managed and meta.name.startswith(DERIVED_PREFIX) else ""


def writes(labels: Labels) -> bool:
    """True if Karmada maintains an object."""
    return (MANAGED, "true") in labels


def serves(imported: Import) -> str:
    """Name, without namespace, of the Service that serves an import of Karmada's; empty for other imports."""
    return DERIVED_PREFIX + imported.name.partition("/")[2] if writes(imported.labels) else ""
