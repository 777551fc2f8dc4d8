"""Kinds that public manifests have and that no controller here acts on: stored, shown, and answered with a warning."""

from __future__ import annotations

from typing import Final

from isthmus_lab.apiserver.kinds import STATUS, Kind

SAYING: Final = "kept, and nothing acts on it here: use --apiserver real for that"
OPEN: Final = "kept, and not enforced: who has the token may do everything here"


def _kept(
    group: str,
    kind: str,
    resource: str,
    *short: str,
    namespaced: bool = True,
    versions: tuple[str, ...] = ("v1",),
    status: bool = True,
    warning: str = SAYING,
) -> Kind:
    return Kind(
        group=group,
        kind=kind,
        resource=resource,
        short=short,
        namespaced=namespaced,
        versions=versions,
        subresources=STATUS if status else frozenset(),
        counted=status,
        warning=warning,
    )


RBAC: Final = "rbac.authorization.k8s.io"
NETWORKING: Final = "networking.k8s.io"

STORED_KINDS: Final = (
    _kept(RBAC, "Role", "roles", status=False, warning=OPEN),
    _kept(RBAC, "RoleBinding", "rolebindings", status=False, warning=OPEN),
    _kept(RBAC, "ClusterRole", "clusterroles", namespaced=False, status=False, warning=OPEN),
    _kept(RBAC, "ClusterRoleBinding", "clusterrolebindings", namespaced=False, status=False, warning=OPEN),
    _kept(NETWORKING, "Ingress", "ingresses", "ing"),
    _kept(NETWORKING, "IngressClass", "ingressclasses", namespaced=False, status=False),
    _kept(NETWORKING, "NetworkPolicy", "networkpolicies", "netpol", status=False),
    _kept("policy", "PodDisruptionBudget", "poddisruptionbudgets", "pdb"),
    _kept("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", versions=("v2", "v1")),
    _kept("batch", "CronJob", "cronjobs", "cj"),
    _kept("", "LimitRange", "limitranges", "limits", status=False),
    _kept("", "ResourceQuota", "resourcequotas", "quota"),
    _kept("storage.k8s.io", "StorageClass", "storageclasses", "sc", namespaced=False, status=False),
    _kept("scheduling.k8s.io", "PriorityClass", "priorityclasses", "pc", namespaced=False, status=False),
)
