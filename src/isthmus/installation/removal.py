"""Kinds that the removal of an installation deletes, and the pods that remove the node's part. Pure."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from isthmus.installation import SYSTEM, rendering
from isthmus.installation.facts import ApiObject
from isthmus.installation.rendering import PART_OF, Object

CLEANUP: Final = "isthmus-cleanup"
"""DaemonSet that removes the node's part."""
HOST: Final = "/host"
"""Place of the node's folders in its pods."""
GRACE: Final = 1
NAME: Final = "app.kubernetes.io/name"
SECRETS: Final = frozenset({
    "isthmus-etcd-server", "isthmus-etcd-operator", "isthmus-etcd-mirror", "isthmus-gateway", "isthmus-node",
    "isthmus-keys", "isthmus-links", "isthmus-peers", "isthmus-mirrored", "isthmus-pair-keys",
})  # fmt: skip
"""Secrets that an installation reads. Those that were made by hand have no label."""
INJECTED: Final = frozenset({"kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"})
"""ConfigMaps that a controller puts into every namespace."""
ACCOUNT: Final = ("kubernetes.io/service-account.name", "openshift.io/internal-registry-auth-token.service-account")
"""Annotations of a ServiceAccount's Secrets, which end with it."""


def is_part(kind: str, namespace: str, name: str, definitions: Collection[str]) -> bool:
    """True if an object with our label is where an installation has its objects.

    Other users may set that label on an object, such as a Namespace, whose deletion deletes everything in it. Ours are
    in one namespace, or in none, and then have the names of deploy/. ``definitions`` are names of the definitions.
    """
    if kind == "Namespace":
        return name == SYSTEM
    return namespace == SYSTEM or (not namespace and (name.startswith("isthmus-") or name in definitions))


def is_own(kind: str, item: ApiObject) -> bool:
    """True if an object in our namespace is one of the installation, or of its etcd's volumes."""
    name, labels = item.metadata.name, item.metadata.labels or {}
    if labels.get(PART_OF) == "isthmus":
        return True
    return (
        (kind == "Secret" and name in SECRETS)
        or (kind == "Pod" and labels.get(NAME, "").startswith("isthmus-"))
        or (kind == "PersistentVolumeClaim" and "-isthmus-etcd-" in name)
    )


def is_foreign(kind: str, item: ApiObject) -> bool:
    """True if an object in our namespace is neither ours nor one that every namespace has."""
    name, annotations = item.metadata.name, item.metadata.annotations or {}
    if kind == "ConfigMap" and name in INJECTED:
        return False
    return not is_own(kind, item) and not (kind == "Secret" and any(each in annotations for each in ACCOUNT))


def manifests(folder: Path) -> list[Object]:
    """Return every object of deploy/, with all components, in the order of deletion."""
    return rendering.render(folder, rendering.Options(components=tuple(rendering.components(folder))))[::-1]


def cleanup(image: str) -> dict[str, Any]:
    """Return the DaemonSet whose pods are ready once their nodes' programs, addresses and files are removed."""
    labels = {NAME: CLEANUP}
    command = f"isthmus bpf remove --everything --root {HOST} && touch /tmp/done && exec sleep infinity"
    container = {
        "name": "cleanup",
        "image": image,
        "command": ["sh", "-ec", command],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/done"]}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            # The agent's: links and filters of BPF, addresses of the node, folders of every owner.
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "SYS_ADMIN", "DAC_OVERRIDE"]},
        },
        "volumeMounts": [
            {"name": "bpf", "mountPath": "/sys/fs/bpf"},
            {"name": "run", "mountPath": f"{HOST}/run"},
            {"name": "lib", "mountPath": f"{HOST}/var/lib"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": "system-node-critical",
        "hostNetwork": True,
        "dnsPolicy": "Default",
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": GRACE,
        "containers": [container],
        "volumes": [
            {"name": "bpf", "hostPath": {"path": "/sys/fs/bpf", "type": "Directory"}},
            {"name": "run", "hostPath": {"path": "/run", "type": "Directory"}},
            {"name": "lib", "hostPath": {"path": "/var/lib", "type": "Directory"}},
            {"name": "tmp", "emptyDir": {"medium": "Memory"}},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": CLEANUP, "namespace": SYSTEM, "labels": {**labels, PART_OF: "isthmus"}},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
            "updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}},
        },
    }
