"""Karmada's objects in a member cluster, as karmada-controller-manager 1.18 writes them.

Karmada brings a service's endpoints from where they run (the provider) to where they are called, as EndpointSlices of
another cluster beside a Service of the same name (MultiClusterService), or behind ``derived-<name>`` (ServiceImport).
``karmada.io/managed`` alone does not distinguish those from local ones: a Service's labels are copied to its slices.
"""

from __future__ import annotations

import re
from typing import Final

from isthmus.kube.objects.meta import Meta
from isthmus.model.names import DERIVED_PREFIX, ClusterName, valid_cluster
from isthmus.model.services import Import, Labels

MANAGED: Final = "karmada.io/managed"
"""Label of everything that Karmada writes in a member, and of what inherits its labels."""
PROVIDER: Final = "endpointslice.karmada.io/provision-cluster"
"""Annotation of a dispatched slice: the member whose endpoints these are."""
MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
DISPATCHER: Final = "endpointslice-dispatch-controller.karmada.io"
IMPORTER: Final = "endpointslice-controller.karmada.io"
IMPORTED: Final = "imported-"
"""What names of slices behind an import begin with: ``imported-<provider>-<slice of the provider>``."""
OF_SERVICE: Final = "kubernetes.io/service-name"


def dispatched(meta: Meta) -> bool:
    """Whether an EndpointSlice stands for another member's endpoints."""
    manager = (meta.labels or {}).get(MANAGED_BY)
    return manager in (DISPATCHER, IMPORTER) or PROVIDER in (meta.annotations or {})


def provider(meta: Meta) -> ClusterName | None:
    """The member whose endpoints a dispatched slice has; None where neither annotation nor name has it.

    Behind an import only the name has it: the provider stands before the name of its slice, which begins with the name
    of the Service. Both may contain dashes; the service's name is known by the label.
    """
    name = (meta.annotations or {}).get(PROVIDER, "") or _named(meta)
    return ClusterName(name) if valid_cluster(name) else None


def _named(meta: Meta) -> str:
    service = (meta.labels or {}).get(OF_SERVICE, "").removeprefix(DERIVED_PREFIX)
    if not service or not meta.name.startswith(IMPORTED):
        return ""
    found = re.fullmatch(rf"(.+)-{re.escape(service)}(-.+)?", meta.name.removeprefix(IMPORTED))
    return found[1] if found else ""


def derived_of(meta: Meta) -> str:
    """The import that a Service of Karmada's stands for, without its namespace; empty for any other Service."""
    managed = (meta.labels or {}).get(MANAGED) == "true"
    return meta.name.removeprefix(DERIVED_PREFIX) if managed and meta.name.startswith(DERIVED_PREFIX) else ""


def writes(labels: Labels) -> bool:
    """Whether an object is Karmada's to write, whatever else it carries."""
    return (MANAGED, "true") in labels


def serves(imported: Import) -> str:
    """The Service, without its namespace, at whose address Karmada has an import called; empty for any other import."""
    return DERIVED_PREFIX + imported.name.partition("/")[2] if writes(imported.labels) else ""
