"""Names of the sources of input rows, and their precedence.

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
"""Initializer of the listeners that Envoy serves. Only rows that represent a proxy wait for it."""

PRECEDENCE: Final = (CLUSTERSET, KUBERNETES, PODS, KARMADA, FILES)
"""Best first. A peer's record is nearer to its endpoints than any copy of them in the own API server."""

_RANK: Final = {source: rank for rank, source in enumerate(PRECEDENCE)}
_PEER: Final = CLUSTERSET + "/"


def rank(source: str) -> int:
    """Return the position of a source in the order of precedence. Unknown sources are last."""
    return _RANK.get(source, len(PRECEDENCE))


def of_peer(cluster: ClusterName) -> str:
    """Return the name of the initializer by which tables await a peer."""
    return _PEER + cluster


def is_peer(initializer: str) -> bool:
    """True if an initializer is a peer's. An unreachable peer must not delay rows that other sources have completed."""
    return initializer.startswith(_PEER)
