"""The key layout of ClusterMesh: where in an etcd which record lies.

Watched prefixes end in a slash, so that cluster ``c1`` never matches ``c11``. A canary names the base of a kind,
without the cluster: ``cilium/synced/c1/cilium/state/services/v1``.
"""

from __future__ import annotations

import re
from typing import Final

from isthmus.clusterset.errors import RecordError
from isthmus.model.names import ClusterName, ServiceName

HEARTBEAT: Final = "cilium/.heartbeat"
SILENT_KINDS: Final = ("nodes", "identities", "ip", "endpointslices")
"""Kinds that we publish nothing of; Cilium's readers wait for their canaries nevertheless."""

_LABEL = r"(?!-)[-a-z0-9]{1,63}(?<!-)"
"""As ``model.names.LABEL``; without a group in it, which took half as long again."""
_NAME: Final = re.compile(rf"{_LABEL}/{_LABEL}\Z")


def base(kind: str, *, cached: bool = False) -> str:
    """Above the records of all clusters of a kind; ``cached``: as a mirror copies them."""
    return f"cilium/{'cache' if cached else 'state'}/{kind}/v1"


def prefix(kind: str, cluster: ClusterName, *, cached: bool = False) -> str:
    """Above the records of one cluster."""
    return f"{base(kind, cached=cached)}/{cluster}/"


def copy(kind: str, cluster: ClusterName, name: ServiceName) -> str:
    """The key of a mirror's copy of a record."""
    return prefix(kind, cluster, cached=True) + name


def record(kind: str, cluster: ClusterName, name: ServiceName) -> str:
    """The key of a record."""
    return prefix(kind, cluster) + name


MIRROR: Final = "isthmus/mirror"
"""Who mirrors; under a lease, so that there is one at a time."""
SYNCED: Final = "cilium/synced/"


def mirrored(synced: str) -> ClusterName | None:
    """The cluster whose copies a canary below ``SYNCED`` marks as whole; None for any other key."""
    cluster, _, rest = synced.partition("/")
    return ClusterName(cluster) if rest.startswith("cilium/cache/") else None


def canary(kind: str, cluster: ClusterName, *, cached: bool = False) -> str:
    """The key that is there once all records of a kind of a cluster are."""
    return f"cilium/synced/{cluster}/{base(kind, cached=cached)}"


def config(cluster: ClusterName) -> str:
    """The key of a cluster's configuration."""
    return f"cilium/cluster-config/{cluster}"


DESCRIPTIONS: Final = "isthmus/clusters/v1/"


def description(cluster: ClusterName) -> str:
    """The key of a cluster's description, which Cilium has no place for."""
    return DESCRIPTIONS + cluster


def trust(cluster: ClusterName) -> str:
    """The key of the trust bundle for this cluster's etcd: its authorities, two while one takes over."""
    return f"isthmus/trust/v1/{cluster}"


INVITATIONS: Final = "isthmus/invite/"


def invitation(number: str) -> str:
    """The key that is there while a token is good; under a lease."""
    return INVITATIONS + number


def offer(number: str) -> str:
    """The one key that a token's bearer may write."""
    return f"isthmus/join/{number}"


def parse(name: str) -> ServiceName:
    """The service that a key below :func:`prefix` names; RecordError where it names none."""
    if not _NAME.match(name):
        raise RecordError("the key is not <namespace>/<name>")
    return ServiceName(name)
