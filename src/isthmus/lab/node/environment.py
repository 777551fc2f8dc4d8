"""What a container is told: its environment, resolv.conf and hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.lab.layout import API_SERVICE, CLUSTER_DNS, CLUSTER_DOMAIN
from isthmus.lab.node.objects import Container, Env, Pod


class UnknownField(Exception):  # noqa: N818
    """A variable refers to a field that this node cannot give; the message names it."""


def variables(pod: Pod, container: Container, *, image: Mapping[str, str], address: str, host: str) -> dict[str, str]:
    """The environment: the image's, Kubernetes's own, then the container's, which may refer to earlier ones."""
    result = dict(image)
    result |= {
        "HOSTNAME": hostname(pod),
        "KUBERNETES_SERVICE_HOST": API_SERVICE,
        "KUBERNETES_SERVICE_PORT": "443",
    }
    fields = _fields(pod, address=address, host=host)
    for variable in container.env or ():
        result[variable.name] = _value(variable, fields, result, container.name)
    return result


def expand(text: str, known: Mapping[str, str]) -> str:
    """``$(NAME)`` becomes the variable's value where there is one; ``$$`` stands for ``$``."""
    parts = text.split("$$")
    for name, value in known.items():
        parts = [part.replace(f"$({name})", value) for part in parts]
    return "$".join(parts)


def hostname(pod: Pod) -> str:
    """What the pod calls itself."""
    return (pod.spec.hostname or pod.metadata.name)[:63]


def resolv_conf(pod: Pod) -> str:
    """The cluster DNS, as on any cluster."""
    search = f"{pod.metadata.namespace}.svc.{CLUSTER_DOMAIN} svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}"
    return f"search {search}\nnameserver {CLUSTER_DNS}\noptions ndots:5\n"


def hosts(pod: Pod, address: str) -> str:
    """/etc/hosts."""
    name = hostname(pod)
    full = f"{name}.{pod.spec.subdomain}.{pod.metadata.namespace}.svc.{CLUSTER_DOMAIN}\t" if pod.spec.subdomain else ""
    return f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{address}\t{full}{name}\n"


def _value(variable: Env, fields: Mapping[str, str], known: Mapping[str, str], container: str) -> str:
    if variable.value_from is None:
        return expand(variable.value, known)
    reference = variable.value_from.field_ref
    if reference is None:
        raise UnknownField(f"container {container}: env {variable.name}: only valueFrom.fieldRef is known here")
    if reference.field_path not in fields:
        raise UnknownField(
            f"container {container}: env {variable.name}: fieldRef {reference.field_path!r} is not known"
        )
    return fields[reference.field_path]


def _fields(pod: Pod, *, address: str, host: str) -> dict[str, str]:
    meta = pod.metadata
    fields = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name or "default",
        "status.hostIP": host,
        "status.podIP": address,
        "status.podIPs": address,
    }
    for kind, table in (("labels", meta.labels), ("annotations", meta.annotations)):
        fields |= {f"metadata.{kind}['{key}']": value for key, value in (table or {}).items()}
    return fields
