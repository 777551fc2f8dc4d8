"""A Service ``echo`` that a kept cluster exports, and cluster c9, which reads the export by a password."""

from __future__ import annotations

import yaml
from clusters.keys_world import KeptCluster
from peers.clusterset_peers import Peers

from isthmus import kube
from isthmus.clusterset import pki
from isthmus.kube.objects.core import SECRET, SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT

PASSWORD = "peer's password"


async def export(cluster: KeptCluster, namespace: str, *addresses: str) -> None:
    """Export the Service with these endpoints."""
    spec = {"ports": [{"name": "http", "port": 80}]}
    await cluster.admin.create(SERVICE, namespace, {"metadata": {"name": "echo"}, "spec": spec})
    await endpoints(cluster, namespace, *addresses)
    await cluster.admin.create(SERVICE_EXPORT, namespace, {"metadata": {"name": "echo"}})


async def endpoints(cluster: KeptCluster, namespace: str, *addresses: str) -> None:
    """Let the Service have these endpoints."""
    body = {
        "metadata": {"labels": {"kubernetes.io/service-name": "echo"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [each], "conditions": {"ready": True}} for each in addresses],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }
    await cluster.admin.apply(ENDPOINT_SLICE, namespace, "echo-1", body, field_manager="test")


async def import_addresses(cluster: KeptCluster, namespace: str) -> tuple[str, ...]:
    """Addresses of the ServiceImport; none before it has some."""
    try:
        found = await cluster.admin.get(SERVICE_IMPORT, "echo", namespace)
    except kube.NotFound:
        return ()
    return tuple(found.spec.ips or ()) if found.spec is not None else ()


async def admit(cluster: KeptCluster) -> None:
    """Let c9 read the cluster's etcd."""
    data = {"stringData": {"remote-c9.password": PASSWORD}}
    await cluster.admin.patch(SECRET, cluster.namespace, "isthmus-keys", data)


async def peer_file(cluster: KeptCluster, peers: Peers) -> None:
    """Write the files that c9 has of the cluster since it joined."""
    content = await cluster.secret("isthmus-keys")
    assert content is not None
    for name, file in (("ca.crt", "c1.ca.crt"), ("peer.crt", "c1.crt"), ("peer.key", "c1.key")):
        pki.save(peers.folder / file, content[name])
    fields = {
        "endpoints": [each.endpoint for each in cluster.etcds],
        "trusted-ca-file": "c1.ca.crt",
        "cert-file": "c1.crt",
        "key-file": "c1.key",
        "username": "remote-c9",
        "password": PASSWORD,
    }
    (peers.folder / "c1").write_text(yaml.safe_dump(fields))
