"""Where input rows come from: the name of every source, and which of two sources comes first.

A source's name is the ``source`` of its rows. A peer's rows have one source, ``clusterset``; each peer has an
initializer of its own beside it, ``clusterset/<cluster>``, so that tables await every peer by name.
"""

from __future__ import annotations

from typing import Final

from isthmus.model.names import ClusterName

CLUSTERSET: Final = "clusterset"
"""Records of the peers, and of the own cluster's etcd."""
KUBERNETES: Final = "kubernetes"
"""The own cluster's API server."""
PODS: Final = "pods"
"""Host ports of this node's pods."""
KARMADA: Final = "karmada"
FILES: Final = "files"
PROXY: Final = "envoy"
"""The initializer of what Envoy serves: rows that stand for a proxy wait for it, and nothing else does."""

PRECEDENCE: Final = (CLUSTERSET, KUBERNETES, PODS, KARMADA, FILES)
"""Best first. A peer's record is nearer to its endpoints than any copy of them in the own API server."""

_RANK: Final = {source: rank for rank, source in enumerate(PRECEDENCE)}
_PEER: Final = CLUSTERSET + "/"


def rank(source: str) -> int:
    """The place of a source in the order of precedence; unknown ones come last."""
    return _RANK.get(source, len(PRECEDENCE))


def of_peer(cluster: ClusterName) -> str:
    """The name of the initializer by which tables await one peer."""
    return _PEER + cluster


def is_peer(initializer: str) -> bool:
    """Whether an initializer is that of a peer. A peer that is away must not hold up what others have completed."""
    return initializer.startswith(_PEER)
