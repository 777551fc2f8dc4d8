"""What the own cluster shares: the table ``own_exports``, and which Services are global by annotation.

The only place that decides it: the publisher's records, the merge and the conditions read what stands here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import structs

from isthmus.mcs.words import SYNC_SLICES
from isthmus.model.mcs import Merged, OwnExport, RefusalReason
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.services import (
    Endpoint,
    Export,
    ExportMark,
    Namespace,
    Port,
    Service,
    annotated,
    claimed_by,
    is_global,
    named_as,
)
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import EXPORT_MARKS, NAMESPACES, OWN_EXPORTS, SERVICES
from isthmus.statedb import Derived, Reader, on_change, through, unit_of

GLOBAL_NAMESPACE: Final = "clustermesh.cilium.io/global"
SHARED: Final = "service.cilium.io/shared"
SHARED_ALIAS: Final = "io.cilium/shared-service"


def derived(cluster: ClusterName, *, default_global: bool) -> Derived[OwnExport]:
    """The declaration of ``own_exports``: a row for each ServiceExport, with its export or why there is none."""

    def compute(reader: Reader, name: ServiceName) -> Iterable[OwnExport]:
        mark, namespace = reader.get(EXPORT_MARKS, name), reader.get(NAMESPACES, split(name)[0])
        if mark is None or namespace is None:  # a namespace that is not known yet exports nothing
            return ()
        service = reader.get(SERVICES, (name, KUBERNETES))
        return (own_export(mark, service, namespace, cluster=cluster, default_global=default_global),)

    return Derived(
        OWN_EXPORTS,
        compute=compute,
        reads={
            EXPORT_MARKS: unit_of("name"),
            SERVICES: unit_of("name"),
            NAMESPACES: on_change(sharing_changed, through(EXPORT_MARKS, "name", index="namespace")),
        },
    )


def own_export(
    mark: ExportMark, service: Service | None, namespace: Namespace, *, cluster: ClusterName, default_global: bool
) -> OwnExport:
    """What a ServiceExport comes to: the first reason that refuses it, else the export of its Service."""

    def refused(reason: RefusalReason, message: str) -> OwnExport:
        return OwnExport(name=mark.name, reason=reason, message=message)

    if not is_shared_namespace(namespace, default=default_global):
        text = f"namespace {namespace.name} is not global: its annotation {GLOBAL_NAMESPACE} is not 'true'"
        return refused("NamespaceNotGlobal", text)
    if service is None:
        return refused("NoService", f"there is no Service {mark.name}")
    if service.type == "ExternalName":
        return refused("InvalidServiceType", f"Service {mark.name} is of type ExternalName, which cannot be exported")
    if service.import_of:
        text = f"Service {mark.name} stands for the import {service.import_of}: what is imported is not exported again"
        return refused("InvalidServiceType", text)
    return OwnExport(name=mark.name, export=export_of(mark, service, cluster=cluster))


def export_of(mark: ExportMark, service: Service, *, cluster: ClusterName) -> Export:
    """The export that a Service and its ServiceExport make, given that nothing refuses it."""
    return Export(
        cluster=cluster,
        name=mark.name,
        created=mark.created,
        type="Headless" if service.headless else "ClusterSetIP",
        ports=tuple(_without_node_port(port) for port in service.ports),
        affinity=service.affinity,
        affinity_timeout=service.affinity_timeout if service.affinity == "ClientIP" else None,
        families=service.families,
        internal_policy=service.internal_policy,
        distribution=service.distribution or None,
        labels=mark.labels,
        annotations=mark.annotations,
    )


def agreed_ports(export: Export, merged: Merged) -> frozenset[str]:
    """Names of the export's ports that mean in the clusterset what they mean here: same name, number and protocol.

    Endpoints answer for no other: a call to the import's port 80 must not reach what another cluster calls so.
    """
    wanted = {(port.name, port.port, port.protocol) for port in merged.ports}
    return frozenset(port.name for port in export.ports if (port.name, port.port, port.protocol) in wanted)


def agreed(
    merged: Merged, own: OwnExport | None, peers: Iterable[Export]
) -> dict[ClusterName, tuple[Export, frozenset[str]]]:
    """Return each export, the own one included, with the names of its ports that mean what they mean in the import."""
    exports = [*peers, *([own.export] if own is not None and own.export is not None else ())]
    return {export.cluster: (export, agreed_ports(export, merged)) for export in exports}


def agreeing(endpoint: Endpoint, export: Export, agreed: frozenset[str]) -> Endpoint | None:
    """Return an endpoint of an export with its ports that agree; ``None`` if it has ports and none does.

    It may have the former name of a port that the exporter renamed.
    """
    ports = tuple(port for port in named_as(endpoint.ports, export.ports) if port.name in agreed)
    return structs.replace(endpoint, ports=ports) if ports or not endpoint.ports else None


def is_shared_namespace(namespace: Namespace, *, default: bool) -> bool:
    """Whether a namespace takes part in the clusterset: by its annotation, else by the cluster's default."""
    return annotated(namespace.annotations, GLOBAL_NAMESPACE, default=default)


def sharing_changed(old: Namespace | None, new: Namespace | None) -> bool:
    """True if a change of a namespace may change its participation, whatever the default is."""
    before, after = (dict(row.annotations).get(GLOBAL_NAMESPACE) if row is not None else None for row in (old, new))
    return old is None or new is None or before != after


def takes_endpoints(service: Service) -> bool:
    """Whether a Service is global by annotation, and slices of all clusters' Services of its name are ours to write.

    Not beside one that a MultiClusterService claims: Karmada would collect what we write and bring it to every member.
    """
    return not claimed_by(service) and not service.import_of and is_global(service)


def takes_slices(service: Service) -> bool:
    """Whether of such a Service these slices are wanted: of a headless one unless it declines, of others if it asks."""
    return takes_endpoints(service) and annotated(service.annotations, SYNC_SLICES, default=service.headless)


def gives_endpoints(service: Service, namespace: Namespace, *, default_global: bool) -> bool:
    """Whether the own cluster publishes a Service's endpoints under its own name, or only takes those of others.

    It does of a global one; and of one that a MultiClusterService claims, for Services that are claimed elsewhere: the
    record arrives there before Karmada's slices.
    """
    shared = annotated(service.annotations, SHARED, SHARED_ALIAS, default=True)
    return (
        (is_global(service) or bool(claimed_by(service)))
        and not service.import_of
        and shared
        and is_shared_namespace(namespace, default=default_global)
    )


def _without_node_port(port: Port) -> Port:
    return structs.replace(port, node_port=0) if port.node_port else port
