"""Transport between clusters: records in, records out, over each cluster's own etcd.

What belongs here: key layout and values of ClusterMesh, who may publish what, following and judging peers, copies of
their records, joining, key pairs. What never does: deciding what is exported, global or merged (``mcs``), choosing
backends (``loadbalancer``), anything of Kubernetes but Secrets of keys. Other rooms use the names below and no other (a
test sees to it).

    records             keys, values and bounds of records; no I/O
    peers               sessions with each peer's etcd, and what is known of it
    publishing          the own cluster's records in the own etcd
    mirror              peers' records copied into the own etcd, for many agents
    joining             how clusters join and leave
    links               what follows from ClusterLinks, and certificates that two clusters sign for each other
    keeping             keys that live in the cluster: Secrets, renewal, the users of the own etcd
    certificates, pki   key pairs, and the folder that keeps them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus import lazily

if TYPE_CHECKING:
    from isthmus.clusterset import certificates, joining, links, peers, pki
    from isthmus.clusterset.errors import JoinError, PkiError
    from isthmus.clusterset.joining import OwnCluster
    from isthmus.clusterset.joining.rights import remote_user
    from isthmus.clusterset.keeping import AUTHORITY_ROTATION, REQUESTED, Issuer, Keeper, Reader, SigningRequest, Step
    from isthmus.clusterset.keeping.shares import PUBLIC_KEY
    from isthmus.clusterset.mirror import Mirror
    from isthmus.clusterset.peers.connection import PeerStats
    from isthmus.clusterset.peers.follower import Follower
    from isthmus.clusterset.pki import Folder
    from isthmus.clusterset.publishing.publisher import PublisherStats
    from isthmus.clusterset.publishing.publishers import Publishers
    from isthmus.clusterset.records import addresses, endpoints, exports, identities, refusals, slices
    from isthmus.clusterset.records.signing import Next, Signing
else:
    __getattr__ = lazily.names(
        __name__,
        {
            "errors": (
                "JoinError",
                "PkiError",
            ),
            "joining": ("OwnCluster",),
            "joining.rights": ("remote_user",),
            "keeping": (
                "AUTHORITY_ROTATION",
                "REQUESTED",
                "Issuer",
                "Keeper",
                "Reader",
                "SigningRequest",
                "Step",
            ),
            "keeping.shares": ("PUBLIC_KEY",),
            "mirror": ("Mirror",),
            "peers.connection": ("PeerStats",),
            "peers.follower": ("Follower",),
            "pki": ("Folder",),
            "publishing.publisher": ("PublisherStats",),
            "publishing.publishers": ("Publishers",),
            "records": (
                "addresses",
                "endpoints",
                "exports",
                "identities",
                "refusals",
                "slices",
            ),
            "records.signing": ("Next", "Signing"),
        },
    )

__all__ = [
    "AUTHORITY_ROTATION",
    "PUBLIC_KEY",
    "REQUESTED",
    "Folder",
    "Follower",
    "Issuer",
    "JoinError",
    "Keeper",
    "Mirror",
    "Next",
    "OwnCluster",
    "PeerStats",
    "PkiError",
    "PublisherStats",
    "Publishers",
    "Reader",
    "Signing",
    "SigningRequest",
    "Step",
    "addresses",
    "certificates",
    "endpoints",
    "exports",
    "identities",
    "joining",
    "links",
    "peers",
    "pki",
    "refusals",
    "remote_user",
    "slices",
]
