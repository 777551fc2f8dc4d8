"""The environment of a container, its resolv.conf and hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from isthmus_lab import families
from isthmus_lab.layout import CLUSTER_DOMAIN
from isthmus_lab.node.config_data import ConfigData, ConfigKind, ConfigRef, Missing
from isthmus_lab.node.objects import ConfigSourceRef, Container, Env, KeyRef, Pod


class UnknownField(Exception):  # noqa: N818
    """A variable refers to a field that this node cannot give; the message names it."""


class Addresses(NamedTuple):
    """A pod's addresses and its node's, one of each family, the primary one first."""

    pod: tuple[str, ...]
    host: tuple[str, ...]


def variables(
    pod: Pod, container: Container, *, image: Mapping[str, str], data: ConfigData, addresses: Addresses
) -> dict[str, str]:
    """The environment: the image's, Kubernetes's own, then the container's, which may refer to earlier ones."""
    result = dict(image)
    result |= {
        "HOSTNAME": hostname(pod),
        "KUBERNETES_SERVICE_HOST": families.scheme_of(addresses.pod[0]).api_service,
        "KUBERNETES_SERVICE_PORT": "443",
    }
    for source in container.env_from or ():
        references: tuple[tuple[ConfigKind, ConfigSourceRef | None], ...]
        references = (("configmap", source.config_map_ref), ("secret", source.secret_ref))
        for kind, reference in references:
            content = data.get(ConfigRef(kind, reference.name), {}) if reference is not None else {}
            result |= {source.prefix + key: _text(value) for key, value in content.items()}
    values = fields(pod, addresses)
    for variable in container.env or ():
        if (value := _value(variable, values, data, result, container.name)) is not None:
            result[variable.name] = value
    return result


def expand(text: str, values: Mapping[str, str]) -> str:
    """``$(NAME)`` becomes the variable's value where there is one; ``$$`` stands for ``$``."""
    parts = text.split("$$")
    for name, value in values.items():
        parts = [part.replace(f"$({name})", value) for part in parts]
    return "$".join(parts)


def hostname(pod: Pod) -> str:
    """Hostname of the pod."""
    if pod.spec.host_network:
        return pod.spec.node_name
    return (pod.spec.hostname or pod.metadata.name)[:63]


def resolv_conf(pod: Pod, name_server: str) -> str:
    """The search list, as on any cluster."""
    search = f"{pod.metadata.namespace}.svc.{CLUSTER_DOMAIN} svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}"
    return f"search {search}\nnameserver {name_server}\noptions ndots:5\n"


def hosts(pod: Pod, addresses: Iterable[str]) -> str:
    """/etc/hosts."""
    name = hostname(pod)
    full = f"{name}.{pod.spec.subdomain}.{pod.metadata.namespace}.svc.{CLUSTER_DOMAIN}\t" if pod.spec.subdomain else ""
    own = "".join(f"{address}\t{full}{name}\n" for address in addresses)
    return f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{own}"


def _value(
    variable: Env, values: Mapping[str, str], data: ConfigData, earlier: Mapping[str, str], container: str
) -> str | None:
    if (source := variable.value_from) is None:
        return expand(variable.value, earlier)
    where = f"container {container}: env {variable.name}"
    if source.config_map_key_ref is not None:
        return _of_config("configmap", source.config_map_key_ref, data, where)
    if source.secret_key_ref is not None:
        return _of_config("secret", source.secret_key_ref, data, where)
    if source.field_ref is None:
        raise UnknownField(f"{where}: valueFrom has none of fieldRef, configMapKeyRef, secretKeyRef")
    if source.field_ref.field_path not in values:
        raise UnknownField(f"{where}: fieldRef {source.field_ref.field_path!r} is not known")
    return values[source.field_ref.field_path]


def _of_config(kind: ConfigKind, reference: KeyRef, data: ConfigData, where: str) -> str | None:
    value = data.get(ConfigRef(kind, reference.name), {}).get(reference.key)
    if value is None and not reference.optional:
        raise Missing(f"{where}: {kind} {reference.name} has no key {reference.key}")
    return None if value is None else _text(value)


def _text(value: bytes) -> str:
    return value.decode(errors="replace").replace("\0", "")


def fields(pod: Pod, addresses: Addresses) -> dict[str, str]:
    """The fields of a pod that variables and files can have."""
    meta = pod.metadata
    values = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name or "default",
        "status.hostIP": addresses.host[0],
        "status.hostIPs": ",".join(addresses.host),
        "status.podIP": addresses.pod[0],
        "status.podIPs": ",".join(addresses.pod),
    }
    for kind, table in (("labels", meta.labels), ("annotations", meta.annotations)):
        values |= {f"metadata.{kind}['{key}']": value for key, value in (table or {}).items()}
    return values
