"""Services of the API server as rows."""

from __future__ import annotations

from typing import Final

from isthmus import bounds
from isthmus.kube.objects import core
from isthmus.model.names import ServiceName, derived, service_name
from isthmus.model.services import Service
from isthmus.model.sources import KUBERNETES
from isthmus.sources import karmada
from isthmus.sources.normal import (
    AFFINITIES,
    POLICIES,
    addresses,
    affinity_seconds,
    families,
    name_of,
    pairs,
    ports,
)

OF_IMPORT: Final = "multicluster.kubernetes.io/service-name"
"""Label of a derived Service and of its slices: the name of the import."""
AFFINITY_SECONDS: Final = 10800


def service(wire: core.Service) -> Service:
    """The row of a Service."""
    meta, spec, balancer = wire.metadata, wire.spec, wire.status.load_balancer
    name, labels, settings = name_of(meta), meta.labels, spec.session_affinity_config
    cluster_ips = addresses(spec.cluster_ips or [spec.cluster_ip], field="spec.clusterIPs")
    return Service(  # positional, in the order of the row's fields: it takes a tenth of the time
        name,
        KUBERNETES,
        spec.type,
        ports(spec.ports),
        cluster_ips,
        tuple(sorted(addresses(spec.external_ips, field="spec.externalIPs"))) if spec.external_ips else (),
        _load_balancer_ips(balancer) if balancer else (),
        spec.cluster_ip == "None",
        families(spec.ip_families, cluster_ips),
        pairs(spec.selector),
        AFFINITIES.get(spec.session_affinity, "None"),
        (affinity_seconds(settings) if settings else None) or AFFINITY_SECONDS,
        POLICIES.get(spec.internal_traffic_policy, "Cluster"),
        POLICIES.get(spec.external_traffic_policy, "Cluster"),
        spec.traffic_distribution or "",
        bool(spec.publish_not_ready_addresses),
        pairs(labels) if labels else (),
        pairs(meta.annotations) if meta.annotations else (),
        meta.creation_timestamp or "",
        import_of(wire, name) if labels or meta.owner_references else ServiceName(""),
        meta.uid,
    )


def import_of(wire: core.Service, name: ServiceName) -> ServiceName:
    """Return the import whose derived Service this is; empty for an ordinary Service.

    It is the owner, else for a Service of Karmada's the import of its name, else the one that the label names if the
    Service's name is that import's hash.
    """
    namespace = wire.metadata.namespace
    labels, owners = wire.metadata.labels, wire.metadata.owner_references
    for owner in owners or ():
        if owner.kind == "ServiceImport":
            return service_name(namespace, owner.name)
    if not labels:
        return ServiceName("")
    if imported := karmada.derived_of(wire.metadata):
        return service_name(namespace, imported)
    label = labels.get(OF_IMPORT)
    if label and derived(candidate := service_name(namespace, label)) == name:
        return candidate
    return ServiceName("")


def _load_balancer_ips(status: core.LoadBalancerStatus) -> tuple[str, ...]:
    """Return the addresses in mode VIP. Packets to one in mode Proxy have to pass through the proxy."""
    ingress = status.ingress or ()
    field = "status.loadBalancer.ingress"
    return tuple(
        sorted({bounds.address(i.ip, field=field) for i in ingress if i.ip and i.ip_mode in (None, "", "VIP")})
    )
