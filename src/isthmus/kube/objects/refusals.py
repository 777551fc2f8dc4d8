"""isthmus.io: routes without effect on a node. Agents write it, each for its node; the operator reads it."""

from __future__ import annotations

from typing import Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Meta, Wire


class RefusedRoute(Wire, frozen=True):
    """A route, with one Service that it is for."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    service: str = ""
    message: str = ""
    reason: str = ""


class RefusedRoutes(Wire, frozen=True):
    """Named as the node."""

    metadata: Meta
    routes: list[RefusedRoute] | None = None


REFUSED_ROUTES: Final = Kind(
    "isthmus.io", "v1alpha1", "refusedroutes", "RefusedRoutes", RefusedRoutes, namespaced=False
)
