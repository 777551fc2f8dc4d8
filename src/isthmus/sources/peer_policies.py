"""An administrator's policy for a peer: a ConfigMap in the namespace of Isthmus, labelled with the peer's name.

A ConfigMap rather than a kind of our own: every cluster serves ConfigMaps, so a peer can be distrusted without
installing a definition first. Whoever may write in that namespace runs Isthmus anyway.
"""

from __future__ import annotations

from typing import Any, Final

from isthmus.kube.objects import core
from isthmus.model.clusters import PeerPolicy
from isthmus.model.names import ClusterName, valid_cluster
from isthmus.sources.sink import Malformed

CLUSTER: Final = "isthmus.io/cluster"
"""The label that names the peer."""
DISTRUSTED: Final = "distrusted"


def name_of(cluster: ClusterName) -> str:
    """Name of the ConfigMap with a peer's policy."""
    return f"isthmus-cluster-{cluster}"


def peer_policy(wire: core.ConfigMap) -> PeerPolicy:
    """Return the row of a ConfigMap. Raises Malformed if its label or its value is invalid."""
    cluster = (wire.metadata.labels or {}).get(CLUSTER, "")
    if not valid_cluster(cluster):
        raise Malformed(f"metadata.labels[{CLUSTER}]: {cluster!r} cannot be a cluster's name")
    distrusted = (wire.data or {}).get(DISTRUSTED, "false").lower()
    if distrusted not in ("true", "false"):
        raise Malformed(f"data.{DISTRUSTED}: want true or false, got {distrusted!r}")
    return PeerPolicy(cluster=ClusterName(cluster), distrusted=distrusted == "true")


def body(cluster: ClusterName, *, distrusted: bool) -> dict[str, Any]:
    """The ConfigMap of a policy, to be applied."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"labels": {CLUSTER: cluster, "app.kubernetes.io/part-of": "isthmus"}},
        "data": {DISTRUSTED: "true" if distrusted else "false"},
    }
