"""Initial objects of a cluster: the Service of its DNS, backed by the control plane's address."""

from __future__ import annotations

from typing import Any, Final

from isthmus import kube
from isthmus.kube.objects.core import NAMESPACE, SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus_lab.families import Scheme
from isthmus_lab.layout import Cluster

MANAGER: Final = "isthmus-lab"
SYSTEM: Final = "kube-system"


async def fill(client: kube.Client, cluster: Cluster) -> None:
    """Make it; what is there already is put right."""
    await client.apply(NAMESPACE, "", SYSTEM, {}, field_manager=MANAGER)
    await client.apply(SERVICE, SYSTEM, "kube-dns", _service(cluster), field_manager=MANAGER)
    for number, scheme in enumerate(cluster.schemes):
        name = f"kube-dns-{scheme.family.lower()}" if number else "kube-dns"
        await client.apply(ENDPOINT_SLICE, SYSTEM, name, _slice(cluster, scheme), field_manager=MANAGER)


def _ports(number: int = 53) -> list[dict[str, Any]]:
    return [{"name": "dns", "port": number, "protocol": "UDP"}, {"name": "dns-tcp", "port": number, "protocol": "TCP"}]


def _service(cluster: Cluster) -> dict[str, Any]:
    addresses = [scheme.cluster_dns for scheme in cluster.schemes]
    families = {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": list(cluster.families)}
    return {
        "metadata": {"labels": {"k8s-app": "kube-dns"}},
        "spec": {"clusterIP": addresses[0], "clusterIPs": addresses, **families, "ports": _ports()},
    }


def _slice(cluster: Cluster, scheme: Scheme) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": "kube-dns", "endpointslice.kubernetes.io/managed-by": MANAGER}
    return {
        "metadata": {"labels": labels},
        "addressType": scheme.family,
        "endpoints": [{"addresses": [cluster.machine(scheme)], "conditions": {"ready": True}}],
        "ports": _ports(cluster.lab.port(53)),
    }
