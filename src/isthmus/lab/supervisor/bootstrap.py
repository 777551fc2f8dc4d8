"""What a cluster has from the start: the Service of its DNS, backed by the control plane's address."""

from __future__ import annotations

from typing import Any, Final

from isthmus import kube
from isthmus.kube.objects.core import NAMESPACE, SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.lab.layout import CLUSTER_DNS, Cluster

MANAGER: Final = "isthmus-lab"
SYSTEM: Final = "kube-system"


async def fill(client: kube.Client, cluster: Cluster) -> None:
    """Make it; what is there already is put right."""
    await client.apply(NAMESPACE, "", SYSTEM, {}, field_manager=MANAGER)
    await client.apply(SERVICE, SYSTEM, "kube-dns", _service(), field_manager=MANAGER)
    await client.apply(ENDPOINT_SLICE, SYSTEM, "kube-dns", _slice(cluster), field_manager=MANAGER)


def _ports() -> list[dict[str, Any]]:
    return [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]


def _service() -> dict[str, Any]:
    return {
        "metadata": {"labels": {"k8s-app": "kube-dns"}},
        "spec": {"clusterIP": CLUSTER_DNS, "clusterIPs": [CLUSTER_DNS], "ports": _ports()},
    }


def _slice(cluster: Cluster) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": "kube-dns", "endpointslice.kubernetes.io/managed-by": MANAGER}
    return {
        "metadata": {"labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [cluster.address], "conditions": {"ready": True}}],
        "ports": _ports(),
    }
