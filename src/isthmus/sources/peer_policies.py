"""What administrators decided about a peer: a ConfigMap in the namespace of Isthmus, labelled with the peer's name.

A ConfigMap and not a kind of our own: it is there on every cluster, so a peer can be distrusted without installing
anything first. Whoever may write in that namespace runs Isthmus anyway.
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
    """What the ConfigMap about a peer is called."""
    return f"isthmus-cluster-{cluster}"


def peer_policy(wire: core.ConfigMap) -> PeerPolicy:
    """The row of a ConfigMap; Malformed where it is about no cluster or has a value that is none."""
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
