"""Objects of an exported Service ``demo/echo`` with one endpoint, which needs no pod."""

from __future__ import annotations

from typing import Any, Final

SERVICE: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "echo", "namespace": "demo"},
    "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
}
SLICE: Final[dict[str, Any]] = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {"name": "echo-1", "namespace": "demo", "labels": {"kubernetes.io/service-name": "echo"}},
    "addressType": "IPv4",
    "endpoints": [{"addresses": ["10.1.1.5"], "conditions": {"ready": True}}],
    "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
}
EXPORT: Final[dict[str, Any]] = {
    "apiVersion": "multicluster.x-k8s.io/v1beta1",
    "kind": "ServiceExport",
    "metadata": {"name": "echo", "namespace": "demo"},
}
