"""ConfigMaps and Secrets of a pod: which ones it references (pure), and their content."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from isthmus import kube
from isthmus_lab.node.objects import CONFIG_MAP, SECRET, Container, Files, Pod, Volume

ConfigKind = Literal["configmap", "secret"]


class ConfigRef(NamedTuple):
    """A ConfigMap or Secret of the pod's namespace."""

    kind: ConfigKind
    name: str


ConfigData = Mapping[ConfigRef, Mapping[str, bytes]]


class Missing(Exception):  # noqa: N818
    """An object that a pod needs does not exist yet; the message names it."""


def named(pod: Pod) -> dict[ConfigRef, bool]:
    """All that a pod names, and whether it can do without."""
    references: dict[ConfigRef, bool] = {}
    uses = [use for container in _containers(pod) for use in _of_container(container)]
    uses += [use for volume in pod.spec.volumes or () for use in _of_volume(volume)]
    for source, optional in uses:
        references[source] = optional and references.get(source, True)
    return references


async def fetch(client: kube.Client, pod: Pod) -> ConfigData:
    """The contents of all; Missing names one that is not there and is needed."""
    data: dict[ConfigRef, Mapping[str, bytes]] = {}
    for source, optional in named(pod).items():
        try:
            data[source] = await _content(client, pod.metadata.namespace, source)
        except kube.NotFound:
            if not optional:
                raise Missing(f"{source.kind} {pod.metadata.namespace}/{source.name} is not there") from None
    return data


async def _content(client: kube.Client, namespace: str, source: ConfigRef) -> Mapping[str, bytes]:
    if source.kind == "secret":
        secret = await client.get(SECRET, source.name, namespace)
        return {key: _decoded(value, source) for key, value in (secret.data or {}).items()}
    config_map = await client.get(CONFIG_MAP, source.name, namespace)
    text = {key: value.encode() for key, value in (config_map.data or {}).items()}
    return text | {key: _decoded(value, source) for key, value in (config_map.binary_data or {}).items()}


def _decoded(value: str, source: ConfigRef) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise Missing(f"{source.kind} {source.name}: a value is not base64") from None


def _containers(pod: Pod) -> list[Container]:
    return [*(pod.spec.init_containers or ()), *pod.spec.containers]


def _of_container(container: Container) -> Iterator[tuple[ConfigRef, bool]]:
    for source in container.env_from or ():
        if source.config_map_ref is not None:
            yield ConfigRef("configmap", source.config_map_ref.name), source.config_map_ref.optional
        if source.secret_ref is not None:
            yield ConfigRef("secret", source.secret_ref.name), source.secret_ref.optional
    for variable in container.env or ():
        if (source_of := variable.value_from) is None:
            continue
        if source_of.config_map_key_ref is not None:
            yield ConfigRef("configmap", source_of.config_map_key_ref.name), source_of.config_map_key_ref.optional
        if source_of.secret_key_ref is not None:
            yield ConfigRef("secret", source_of.secret_key_ref.name), source_of.secret_key_ref.optional


def _of_volume(volume: Volume) -> Iterator[tuple[ConfigRef, bool]]:
    for ref, files in sources_of(volume.config_map, volume.secret):
        yield ref, files.optional
    for source in (volume.projected.sources if volume.projected else None) or ():
        for ref, files in sources_of(source.config_map, source.secret):
            yield ref, files.optional


def sources_of(config_map: Files | None, secret: Files | None) -> Iterator[tuple[ConfigRef, Files]]:
    """Pair each source with the files taken from it."""
    if config_map is not None:
        yield ConfigRef("configmap", config_map.name), config_map
    if secret is not None:
        yield ConfigRef("secret", secret.secret_name or secret.name), secret
