"""Resolves the references of routes to their backends. Pure."""

from __future__ import annotations

from typing import Protocol

from isthmus.loadbalancer.services import resolve
from isthmus.model import services
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.routes import ParentRef, ServiceRef
from isthmus.model.tables import CLUSTERS, GRANTS
from isthmus.statedb import Reader


class Referrer(Protocol):
    """A route, as far as its references depend on it."""

    @property
    def kind(self) -> str:
        """Kind of the object."""

    @property
    def namespace(self) -> str:
        """Namespace of the object."""

    @property
    def parents(self) -> tuple[ParentRef, ...]:
        """Its parents."""


def unresolved(
    reader: Reader,
    route: Referrer,
    target: ServiceRef,
    *,
    protocol: services.Protocol = "TCP",
    parents_granted: bool = True,
) -> tuple[str, str]:
    """Reason and message of the condition ResolvedRefs for an invalid reference; both empty if it is valid.

    ``parents_granted``: a parent of the route needs no grant, because its calls are sent to the backends that they
    reach without the route (MeshConsumerRoute of the Gateway API's conformance suite).
    """
    if target.kind == "Cluster":
        exists = reader.get(CLUSTERS, ClusterName(target.name)) is not None
        return ("", "") if exists else ("BackendNotFound", f"no cluster of the clusterset is called '{target.name}'")
    namespace = target.name.partition("/")[0]
    parents = {parent.service for parent in route.parents} if parents_granted else ()
    if namespace != route.namespace and target.service not in parents:
        grants = reader.by(GRANTS, "namespace", namespace)
        if not any(grant.allows(route.kind, route.namespace, target) for grant in grants):
            return "RefNotPermitted", f"no ReferenceGrant in {namespace} lets it refer to {target.kind} {target.name}"
    if port_of(reader, target, protocol) is None:
        return "BackendNotFound", f"{target.kind} {target.name} with {protocol} port {target.port} does not exist"
    return "", ""


def port_of(reader: Reader, target: ServiceRef, protocol: services.Protocol) -> services.Port | None:
    """Return the port that a reference names, ``None`` if there is none."""
    subject = resolve(reader, ServiceName(target.service), which="all")
    ports = subject.ports if subject is not None else ()
    return next((port for port in ports if (port.port, port.protocol) == (target.port, protocol)), None)
