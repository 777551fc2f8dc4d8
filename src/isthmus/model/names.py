"""Names: what identifies a service, a cluster, and what the derived Service of an import is called."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final, NewType

ServiceName = NewType("ServiceName", str)
"""``namespace/name``; a namespace of one name is the same in every cluster of the clusterset."""

ClusterName = NewType("ClusterName", str)
"""At most 32 characters, lower-case letters, digits and dashes (Cilium ClusterMesh)."""

LOCAL: Final = ClusterName("")
"""The own cluster in rows of sources that do not know what it is called (files)."""

LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
"""A DNS label in lower case (RFC 1123)."""
CLUSTER: Final = re.compile(r"([a-z0-9][-a-z0-9]{0,30})?[a-z0-9]\Z")
DERIVED_PREFIX: Final = "derived-"

MOST_DERIVED: Final = 65_536
"""Names of imports whose hash is kept: more than a clusterset should have."""
_derived: dict[ServiceName, ServiceName] = {}
"""No ``lru_cache``: the order of use, which it keeps, is three more places in memory at each look-up."""


def service_name(namespace: str, name: str) -> ServiceName:
    """The name of a service from its parts."""
    found: ServiceName = f"{namespace}/{name}"  # type: ignore[assignment]  # hot: NewType is a call
    return found


def split(name: ServiceName) -> tuple[str, str]:
    """(namespace, name) of a service name."""
    namespace, _, short = name.partition("/")
    return namespace, short


def derived(name: ServiceName) -> ServiceName:  # hot:
    """The Service that stands for an import: ``derived-`` and ten base32hex characters of SHA-256 (MCS reference).

    >>> derived(ServiceName("default/my-svc"))
    'default/derived-b8s174v3sn'
    """
    found = _derived.get(name)
    if found is None:
        if len(_derived) >= MOST_DERIVED:
            _derived.clear()
        found = _derived[name] = service_name(split(name)[0], DERIVED_PREFIX + _hashed(name))
    return found


def is_derived(name: ServiceName) -> bool:
    """Whether this is what a derived Service is called; the hash is one-way, the import is found by its row."""
    return split(name)[1].startswith(DERIVED_PREFIX)


def host_label(hostname: str) -> str:
    """The label that an endpoint has by its hostname; empty where that is no DNS label."""
    lower = hostname.lower()
    return lower if LABEL.match(lower) else ""


def pod_id(service: ServiceName, hostname: str, address: str) -> str:
    """What an endpoint of a headless service is called where its address may not be: by its hostname, which a pod that
    replaces it has too, else by its address."""
    return _hashed(f"{service} {host_label(hostname) or address}")


def _hashed(text: str) -> str:
    return base64.b32hexencode(hashlib.sha256(text.encode()).digest())[:10].decode().lower()


def valid_cluster(name: str) -> bool:
    """Whether a cluster may be called so; ``default`` is what unnamed ones are called and is refused."""
    return bool(CLUSTER.match(name)) and name != "default"
