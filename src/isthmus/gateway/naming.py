"""Names that travel between a node's Envoy and a gateway: SNIs and the identities in certificates. Pure.

An SNI is sent in clear, so it names a service by the hash of its derived Service. Each cluster is a SPIFFE trust domain
of its own, since each has an authority of its own: what one authority signs cannot be taken for another cluster's.
"""

from __future__ import annotations

from typing import Final

from isthmus.clusterset import pki
from isthmus.model.names import ClusterName, ServiceName, derived, split, valid_cluster
from isthmus.model.services import Protocol

NODE: Final = "/node"
"""Path of the identity with which nodes of a cluster call."""
GATEWAY: Final = "/gateway"
"""Path of the identity that gateways of a cluster show."""


def service_sni(service: ServiceName, port: int, domain: str, *, protocol: Protocol = "TCP", pod: str = "") -> str:
    """What is called: a port of an import, in the clusterset of this domain. ``pod``: of one pod (``names.pod_id``).

    >>> service_sni(ServiceName("default/my-svc"), 80, "clusterset.local")
    '80.derived-b8s174v3sn.tcp.clusterset.local'
    """
    of = f"{pod}.{split(derived(service))[1]}" if pod else split(derived(service))[1]
    return f"{port}.{of}{services_suffix(domain, protocol)}"


def services_suffix(domain: str, protocol: Protocol = "TCP") -> str:
    """How the SNI of every port of a protocol ends."""
    return f".{protocol.lower()}.{domain}"


def health_sni(cluster: ClusterName, domain: str) -> str:
    """What nodes check a gateway of a cluster by."""
    return f"health.{cluster}.{domain}"


def etcd_sni(cluster: ClusterName, domain: str) -> str:
    """The etcd of a cluster, which itself ends TLS: its certificate has this name."""
    return pki.etcd_name(cluster, domain)


def trust_domain(cluster: ClusterName, domain: str) -> str:
    """The SPIFFE trust domain of a cluster."""
    return f"{cluster}.{domain}"


def protocol(cluster: ClusterName, domain: str) -> str:
    """The protocol (ALPN, RFC 7301) that a cluster's nodes offer a gateway: which member calls, by its own word."""
    return trust_domain(cluster, domain)


def node_identity(cluster: ClusterName, domain: str) -> str:
    """The URI in the certificate of a cluster's nodes."""
    return f"spiffe://{trust_domain(cluster, domain)}{NODE}"


def cluster_of(identity: str, domain: str) -> ClusterName | None:
    """The cluster whose trust domain an identity is of; None: it is of no cluster of this domain.

    >>> cluster_of("spiffe://c1.clusterset.local/node", "clusterset.local")
    'c1'
    """
    at, _, _ = identity.removeprefix("spiffe://").partition("/")
    name, dot, rest = at.partition(".")
    return ClusterName(name) if dot and rest == domain and valid_cluster(name) else None


def gateway_identity(cluster: ClusterName, domain: str) -> str:
    """The URI in the certificate of a cluster's gateways."""
    return f"spiffe://{trust_domain(cluster, domain)}{GATEWAY}"
