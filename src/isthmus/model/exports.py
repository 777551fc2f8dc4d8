"""What the own cluster exports: a Service, a ServiceExport that marks it, and a namespace that is shared.

The publisher tells it to peers, the importer merges it with what peers tell; both ask here, so that they never differ.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct, structs

from isthmus.model.mcs import Merged
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.services import Export, ExportMark, Namespace, Port, Service
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import EXPORT_MARKS, NAMESPACES, SERVICES
from isthmus.statedb import Reader

GLOBAL_NAMESPACE: Final = "clustermesh.cilium.io/global"

Reason = Literal["NoService", "InvalidServiceType", "NamespaceNotGlobal"]


class Refusal(Struct, frozen=True, gc=False):
    """Why a ServiceExport exports nothing: the reason of its condition Valid and a sentence."""

    reason: Reason
    message: str


def is_global(namespace: Namespace, *, default: bool = True) -> bool:
    """Whether a namespace takes part in the clusterset: its annotation says so, else the cluster's default does."""
    said = dict(namespace.annotations).get(GLOBAL_NAMESPACE)
    return default if said is None else said.lower() == "true"


def refusal(mark: ExportMark, *, service: Service | None, namespace: Namespace, default: bool = True) -> Refusal | None:
    """Why this ServiceExport exports nothing; None where it does."""
    if not is_global(namespace, default=default):
        text = f"namespace {namespace.name} is not global: its annotation {GLOBAL_NAMESPACE} is not 'true'"
        return Refusal("NamespaceNotGlobal", text)
    if service is None:
        return Refusal("NoService", f"there is no Service {mark.name}")
    if service.type == "ExternalName":
        return Refusal("InvalidServiceType", f"Service {mark.name} is of type ExternalName, which cannot be exported")
    if service.import_of:
        text = f"Service {mark.name} stands for the import {service.import_of}: what is imported is not exported again"
        return Refusal("InvalidServiceType", text)
    return None


def own_export(cluster: ClusterName, *, service: Service, mark: ExportMark) -> Export:
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


def exported(reader: Reader, name: ServiceName, *, cluster: ClusterName, default: bool = True) -> Export | None:
    """The own cluster's export of a name as the tables have it now; None where there is none, or it is refused.

    Reads services, export_marks and namespaces. A namespace that is not known yet exports nothing.
    """
    mark = reader.get(EXPORT_MARKS, name)
    service = reader.get(SERVICES, (name, KUBERNETES))
    namespace = reader.get(NAMESPACES, split(name)[0])
    if mark is None or service is None or namespace is None:
        return None
    if refusal(mark, service=service, namespace=namespace, default=default) is not None:
        return None
    return own_export(cluster, service=service, mark=mark)


def agreed_ports(export: Export, merged: Merged) -> frozenset[str]:
    """Names of the export's ports that mean in the clusterset what they mean here: same name, number and protocol.

    Endpoints answer for no other: a call to the import's port 80 must not reach what another cluster calls so.
    """
    wanted = {(port.name, port.port, port.protocol) for port in merged.ports}
    return frozenset(port.name for port in export.ports if (port.name, port.port, port.protocol) in wanted)


def _without_node_port(port: Port) -> Port:
    return structs.replace(port, node_port=0) if port.node_port else port
