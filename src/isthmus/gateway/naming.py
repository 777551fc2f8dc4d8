"""Names used between a node's Envoy and a gateway: SNIs and the identities in certificates. Pure.

An SNI is sent unencrypted, so it contains the hash of the derived Service instead of its name. Each cluster has its own
authority and is its own SPIFFE trust domain, so that no authority can sign an identity of another cluster.
"""

from __future__ import annotations

from typing import Final

from isthmus.model.names import ClusterName, ServiceName, derived, etcd_name, split, valid_cluster
from isthmus.model.services import Protocol

NODE: Final = "/node"
"""Path of the identity of a cluster's nodes."""
GATEWAY: Final = "/gateway"
"""Path of the identity of a cluster's gateways."""


def service_sni(service: ServiceName, port: int, domain: str, *, protocol: Protocol = "TCP", pod: str = "") -> str:
    """SNI of an import's port, in the clusterset of a domain. ``pod``: of a single pod (``names.pod_id``).

    >>> service_sni(ServiceName("default/my-svc"), 80, "clusterset.local")
    '80.derived-b8s174v3sn.tcp.clusterset.local'
    """
    name = f"{pod}.{split(derived(service))[1]}" if pod else split(derived(service))[1]
    return f"{port}.{name}{services_suffix(domain, protocol)}"


def services_suffix(domain: str, protocol: Protocol = "TCP") -> str:
    """Suffix of the SNIs of all service ports of a protocol."""
    return f".{protocol.lower()}.{domain}"


def health_sni(cluster: ClusterName, domain: str) -> str:
    """SNI of health checks of a cluster's gateways."""
    return f"health.{cluster}.{domain}"


def etcd_sni(cluster: ClusterName, domain: str) -> str:
    """SNI of a cluster's etcd, which terminates TLS itself with a certificate of this name."""
    return etcd_name(cluster, domain)


def trust_domain(cluster: ClusterName, domain: str) -> str:
    """SPIFFE trust domain of a cluster."""
    return f"{cluster}.{domain}"


def protocol(cluster: ClusterName, domain: str) -> str:
    """Protocol (ALPN, RFC 7301) that a cluster's nodes offer a gateway: an unverified claim of the calling member."""
    return trust_domain(cluster, domain)


def node_identity(cluster: ClusterName, domain: str) -> str:
    """URI in the certificate of a cluster's nodes."""
    return f"spiffe://{trust_domain(cluster, domain)}{NODE}"


def cluster_of(identity: str, domain: str) -> ClusterName | None:
    """Return the cluster whose trust domain an identity belongs to; ``None`` if it is of no cluster of this domain.

    >>> cluster_of("spiffe://c1.clusterset.local/node", "clusterset.local")
    'c1'
    """
    host, _, _ = identity.removeprefix("spiffe://").partition("/")
    name, dot, rest = host.partition(".")
    return ClusterName(name) if dot and rest == domain and valid_cluster(name) else None


def gateway_identity(cluster: ClusterName, domain: str) -> str:
    """URI in the certificate of a cluster's gateways."""
    return f"spiffe://{trust_domain(cluster, domain)}{GATEWAY}"
