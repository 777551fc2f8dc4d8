"""Transport between clusters: records in, records out, over each cluster's own etcd.

What belongs here: key layout and values of ClusterMesh, who may publish what, following and judging peers, copies of
their records, joining, key pairs. What never does: deciding what is exported, global or merged (``mcs``), choosing
backends (``loadbalancer``), anything of Kubernetes. Other rooms use the names below and no other (a test sees to it).

    follower, connection   sessions with each peer's etcd
    peer_record            what is known of a peer: facts, its row, its records as rows
    peer_status            the facts, and the one function that judges by them
    timings                how often a follower looks, and how long it waits
    admission              what a peer may publish
    exports, endpoints     the values of both kinds of records
    large_records          the same of many endpoints, read by what has changed
    publisher, owned       the own cluster's records in the own etcd
    copying                peers' records copied into the own etcd, for many agents
    joining, pki, rights   how clusters come to trust each other
"""

from isthmus.clusterset import certificates, endpoints, exports, joining, peers, pki
from isthmus.clusterset.connection import PeerStats
from isthmus.clusterset.copying import Mirror
from isthmus.clusterset.errors import JoinError, PkiError
from isthmus.clusterset.follower import Follower
from isthmus.clusterset.joining import OwnCluster
from isthmus.clusterset.pki import Folder
from isthmus.clusterset.publisher import Publisher, PublisherStats
from isthmus.clusterset.rights import remote_user

__all__ = [
    "Folder",
    "Follower",
    "JoinError",
    "Mirror",
    "OwnCluster",
    "PeerStats",
    "PkiError",
    "Publisher",
    "PublisherStats",
    "certificates",
    "endpoints",
    "exports",
    "joining",
    "peers",
    "pki",
    "remote_user",
]
