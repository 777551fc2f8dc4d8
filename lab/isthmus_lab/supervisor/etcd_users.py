"""Users and roles of a cluster's etcd: ``python -m isthmus_lab.supervisor.etcd_users LAB CLUSTER``.

It runs in the network of the cluster's control plane, where the etcd is reached.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from typing import Final

from isthmus import config
from isthmus.clusterset import joining, peers
from isthmus.etcd import EtcdError, access
from isthmus.etcd.access import Grant
from isthmus.model.names import ClusterName
from isthmus.reflector import Transient
from isthmus_lab import record
from isthmus_lab.apiserver.storage import REGISTRY
from isthmus_lab.layout import Cluster
from isthmus_lab.supervisor import etcd_access

OBJECTS: Final = (
    Grant("readwrite", REGISTRY, prefix=True),
    Grant("readwrite", "/registry/", prefix=True),  # kube-apiserver's
    Grant("readwrite", "compact_rev_key"),  # the same: by it servers agree who compacts
)


async def make_users(cluster: Cluster) -> None:
    """Make them, and turn authentication on; may be repeated."""
    home = joining.OwnCluster(
        cluster=config.ClusterSection(name=cluster.name, id=cluster.index),
        clusterset=config.ClustersetSection(directory=str(etcd_access.peers_of(cluster))),
        etcd=etcd_access.section(cluster),
        folder=etcd_access.folder(cluster),
    )
    async with home.session() as root, home.session(user="") as anybody:
        user = etcd_access.APISERVER
        session = root if await access.enabled(root) else anybody
        await access.ensure_role(session, user, OBJECTS)
        await access.ensure_user(session, user, secrets.token_urlsafe(24), user)
    await joining.guard(home)  # last: the API server is at work already
    await joining.grant(home, _passwords(cluster), {})


def _passwords(cluster: Cluster) -> dict[ClusterName, str]:
    """Passwords of the other clusters' users, from their peer files for this cluster."""
    passwords = {}
    for reader in cluster.lab.clusters:
        read = peers.Directory(str(etcd_access.peers_of(reader)), own=ClusterName(reader.name)).read()
        if (entry := read.get(ClusterName(cluster.name))) is not None:
            passwords[ClusterName(reader.name)] = entry.password
    return passwords


def main(lab: str, cluster: str) -> int:
    """The program; gives its exit status."""
    if (asked := record.read(lab).lab.cluster(cluster)) is None:
        print(f"no cluster {cluster} in lab {lab}", file=sys.stderr)
        return 2
    try:
        asyncio.run(make_users(asked))
    except (Transient, EtcdError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
