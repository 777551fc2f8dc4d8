"""The key layout of ClusterMesh in an etcd.

Watched prefixes end in a slash, so that cluster ``c1`` never matches ``c11``. A canary names the base of a kind,
without the cluster: ``cilium/synced/c1/cilium/state/services/v1``.
"""

from __future__ import annotations

from typing import Final

from isthmus.bounds import Syntax
from isthmus.clusterset.errors import RecordError
from isthmus.model.names import ClusterName, ServiceName

HEARTBEAT: Final = "cilium/.heartbeat"
SILENT_KINDS: Final = ("nodes", "identities", "ip", "endpointslices")
"""Kinds without records of ours, identities and ip unless enabled. Cilium's readers wait for their canaries."""

_LABEL = r"(?!-)[-a-z0-9]{1,63}(?<!-)"
"""The syntax of ``model.names.LABEL`` without a group: the group made matching 1.5 times as slow."""
_NAME: Final = Syntax(rf"{_LABEL}/{_LABEL}", most=63 + len("/") + 63, meaning="<namespace>/<name>")


_STATE: Final = {"identities": "id/", "ip": "default/"}
"""Segment that Cilium puts between the prefix of a kind and the keys of records, in place of the cluster."""
_COPY: Final = {"identities": "id/"}
"""Segment after the cluster in the keys of copies."""


def base(kind: str, *, cached: bool = False) -> str:
    """Key prefix of all records of a kind; ``cached``: of their copies by a mirror."""
    return f"cilium/{'cache' if cached else 'state'}/{kind}/v1"


def prefix(kind: str, cluster: ClusterName, *, cached: bool = False) -> str:
    """Key prefix of the records of one cluster and kind. Those of callers name the cluster in copies alone."""
    if cached:
        return f"{base(kind, cached=True)}/{cluster}/{_COPY.get(kind, '')}"
    return f"{base(kind)}/{_STATE.get(kind, f'{cluster}/')}"


def copy(kind: str, cluster: ClusterName, name: ServiceName) -> str:
    """The key of a mirror's copy of a record."""
    return prefix(kind, cluster, cached=True) + name


def record(kind: str, cluster: ClusterName, name: ServiceName) -> str:
    """The key of a record."""
    return prefix(kind, cluster) + name


MIRROR: Final = "isthmus/mirror"
"""Lock of the mirror, whose name is its value; under a lease, so that there is one mirror at a time."""
SYNCED: Final = "cilium/synced/"


def mirrored(synced: str) -> ClusterName | None:
    """The cluster whose copies a canary below ``SYNCED`` marks as complete; None for any other key."""
    cluster, _, rest = synced.partition("/")
    return ClusterName(cluster) if rest.startswith("cilium/cache/") else None


def canary(kind: str, cluster: ClusterName, *, cached: bool = False) -> str:
    """The key that exists once all records of a cluster and kind do."""
    return f"cilium/synced/{cluster}/{base(kind, cached=cached)}"


def config(cluster: ClusterName) -> str:
    """The key of a cluster's configuration."""
    return f"cilium/cluster-config/{cluster}"


DESCRIPTIONS: Final = "isthmus/clusters/v1/"


def description(cluster: ClusterName) -> str:
    """The key of a cluster's description, for which Cilium has no key."""
    return DESCRIPTIONS + cluster


def trust(cluster: ClusterName) -> str:
    """The key of the trust bundle for this cluster's etcd: its authorities, two during a rotation."""
    return f"isthmus/trust/v1/{cluster}"


def all_certificates(signer: ClusterName) -> str:
    """Key prefix of the certificates that a cluster signed for its peers."""
    return f"isthmus/certificates/v1/{signer}/"


def certificate(signer: ClusterName, peer: ClusterName) -> str:
    """The key of the certificate that a cluster last signed for a peer's user."""
    return all_certificates(signer) + peer


def all_accepted(cluster: ClusterName) -> str:
    """Key prefix of what a cluster uses of each peer's bundle and certificates."""
    return f"isthmus/accepted/v1/{cluster}/"


def accepted(cluster: ClusterName, peer: ClusterName) -> str:
    """The key of the digests of the bundle and the certificate by which a cluster reads a peer's etcd."""
    return all_accepted(cluster) + peer


def all_refusals(cluster: ClusterName) -> str:
    """Key prefix of a cluster's refusals of other clusters' records."""
    return f"isthmus/refusals/v1/{cluster}/"


def refusals(cluster: ClusterName, exporter: ClusterName) -> str:
    """The key of a cluster's refusals of the records of ``exporter``."""
    return all_refusals(cluster) + exporter


INVITATIONS: Final = "isthmus/invite/"


def invitation(number: str) -> str:
    """The key that exists while a token is valid; under a lease."""
    return INVITATIONS + number


def offer(number: str) -> str:
    """The one key that a token's bearer may write."""
    return f"isthmus/join/{number}"


def is_name(name: str) -> bool:
    """True for <namespace>/<name>."""
    return _NAME.fits(name)


def parse(name: str) -> ServiceName:
    """The service that a key below :func:`prefix` names; RecordError if it names none."""
    if not _NAME.fits(name):
        raise RecordError("the key is not <namespace>/<name>")
    return ServiceName(name)
