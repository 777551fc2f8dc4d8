"""Names of services, clusters, and imports' derived Services."""

from __future__ import annotations

import base64
import hashlib
from typing import Final, NewType

from isthmus.bounds import Syntax

ServiceName = NewType("ServiceName", str)
"""``namespace/name``; a namespace of one name is the same in every cluster of the clusterset."""

ClusterName = NewType("ClusterName", str)
"""At most 32 characters, lower-case letters, digits and dashes (Cilium ClusterMesh)."""

LOCAL: Final = ClusterName("")
"""Own cluster in rows of sources that do not know its name (files)."""

LABEL: Final = Syntax(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", most=63, meaning="a DNS label")
"""A DNS label in lower case (RFC 1123)."""
SUBDOMAIN: Final = Syntax(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", most=253, meaning="a DNS subdomain"
)
"""The name of most objects, among them service accounts (RFC 1123, as Kubernetes reads it)."""
QUALIFIED: Final = Syntax(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    most=253 + len("/") + 63,
    meaning="a qualified name",
)
"""The key of a label or an annotation, and the ``appProtocol`` of a port."""
LABEL_VALUE: Final = Syntax(
    r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", most=63, meaning="the value of a label"
)
CLUSTER: Final = Syntax(r"([a-z0-9][-a-z0-9]{0,30})?[a-z0-9]", most=32, meaning="the name of a cluster")
DERIVED_PREFIX: Final = "derived-"

MOST_DERIVED: Final = 65_536
"""Hashes that are cached: more than a clusterset should have imports."""
_derived: dict[ServiceName, ServiceName] = {}
"""Not an ``lru_cache``, which keeps the order of use and so touches more memory at each look-up."""


def service_name(namespace: str, name: str) -> ServiceName:
    """Return the name of a service from its parts."""
    joined: ServiceName = f"{namespace}/{name}"  # type: ignore[assignment]  # hot: NewType is a call
    return joined


def split(name: ServiceName) -> tuple[str, str]:
    """Return (namespace, name) of a service name."""
    namespace, _, short = name.partition("/")
    return namespace, short


def derived(name: ServiceName) -> ServiceName:  # hot:
    """Return an import's derived Service: ``derived-`` and ten base32hex characters of SHA-256 (MCS reference).

    >>> derived(ServiceName("default/my-svc"))
    'default/derived-b8s174v3sn'
    """
    service = _derived.get(name)
    if service is None:
        if len(_derived) >= MOST_DERIVED:
            _derived.clear()
        service = _derived[name] = service_name(split(name)[0], DERIVED_PREFIX + _hashed(name))
    return service


def is_derived(name: ServiceName) -> bool:
    """True if this is the name of a derived Service. The hash is one-way: the import is looked up by its row."""
    return split(name)[1].startswith(DERIVED_PREFIX)


def host_label(hostname: str) -> str:
    """Return the DNS label of an endpoint's hostname, empty if it is not a label."""
    lower = hostname.lower()
    return lower if LABEL.fits(lower) else ""


def pod_id(service: ServiceName, hostname: str, address: str) -> str:
    """Return an identifier of a headless service's endpoint for names that must not contain its address.

    It is a hash of its hostname, which a replacing pod inherits, or else of its address.
    """
    return _hashed(f"{service} {host_label(hostname) or address}")


def _hashed(text: str) -> str:
    return base64.b32hexencode(hashlib.sha256(text.encode()).digest())[:10].decode().lower()


def valid_cluster(name: str) -> bool:
    """True if a cluster may have this name. ``default``, the name of unnamed clusters, is refused."""
    return CLUSTER.fits(name) and name != "default"


def etcd_name(cluster: str, domain: str) -> str:
    """Name of a cluster's etcd in TLS and SNI, for connections through the cluster's gateways."""
    return f"etcd.{cluster}.{domain}"
