"""Access to a cluster's etcd, as ``isthmus clusters certs`` and ``join`` set it up on real clusters.

Connections are TLS with a client certificate of the cluster's authority; the operator's user is ``operator``, another
cluster as ``remote-<its name>``, each with a password. Other than on a real cluster the API server keeps its objects in
the same etcd: its user is ``apiserver``, by the name in its certificate, with access to these keys only.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Final

from isthmus import config
from isthmus.clusterset import PUBLIC_KEY, Folder, peers, remote_user
from isthmus.identity import pairs, schedule
from isthmus.model.names import ClusterName, etcd_name
from isthmus_lab.layout import Cluster, Lab

APISERVER: Final = "apiserver"
"""The user, its role, and the name of its certificate."""
DAYS: Final = 365
"""Life of certificates."""


def folder(cluster: Cluster) -> Folder:
    """The cluster's authority, and what that signed."""
    return Folder(cluster.directory / "pki")


def section(cluster: Cluster) -> config.EtcdSection:
    """The etcd as the operator opens it."""
    path, user = folder(cluster).path, "operator"
    return config.EtcdSection(
        endpoints=(cluster.etcd,),
        ca_file=str(path / "ca.crt"),
        cert_file=str(path / f"{user}.crt"),
        key_file=str(path / f"{user}.key"),
        username=user,
        password_file=str(path / f"{user}.password"),
    )


def write(lab: Lab, *, domain: str = "") -> None:
    """Keys of every cluster, and the files by which its peers read it.

    ``domain``: the clusterset's, for the identities of nodes and gateways; empty for none.
    """
    for cluster in lab.clusters:
        keys = folder(cluster)
        keys.ensure(cluster.name, cluster.addresses, days=DAYS, domain=domain)
        keys.client(APISERVER, days=DAYS)
    for cluster in lab.clusters:
        for peer in lab.clusters:
            if peer is not cluster:
                _introduce(peer, cluster, domain)
    if lab.identity:
        _share_secrets(lab)


def _share_secrets(lab: Lab) -> None:
    """Write the keys of signatures of each cluster and, for its nodes, the secrets of the next days with each peer.

    On a real cluster ``isthmus keys`` does it, and writes those of later days in time.
    """
    own = {cluster.name: schedule.new(time.time()) for cluster in lab.clusters}
    for cluster in lab.clusters:
        folder(cluster).save(PUBLIC_KEY, schedule.encode(own[cluster.name].public()))
        pairs_of(cluster).mkdir(parents=True, exist_ok=True, mode=0o700)
        for peer in lab.clusters:
            if peer is not cluster:
                public = own[peer.name].public()
                shared = pairs.pair(own[cluster.name], public, own=cluster.name, peer=peer.name, now=time.time())
                (pairs_of(cluster) / peer.name).write_bytes(pairs.encode(shared))


def _introduce(peer: Cluster, reader: Cluster, domain: str) -> None:
    """Write the file by which a cluster reads another one: across networks through its gateways."""
    keys = folder(peer)
    door = keys.pair("peer")
    entry = peers.Peer(
        name=ClusterName(peer.name),
        endpoints=peer.etcd_seen_from(reader),
        username=remote_user(ClusterName(reader.name)),
        password=secrets.token_urlsafe(24),
        id=peer.index,
        server_name=etcd_name(peer.name, domain) if peer.network != reader.network else "",
    )
    peers.save(peers_of(reader), entry, ca=keys.bundle, certificate=door.certificate, key=door.key)


def pairs_of(cluster: Cluster) -> Path:
    """The directory of the secrets from which its nodes derive keys of signatures."""
    return cluster.directory / "pairs"


def peers_of(cluster: Cluster) -> Path:
    """The directory of the files by which it reads the others."""
    return cluster.directory / "peers"
