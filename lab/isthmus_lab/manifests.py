"""Manifests: ``DIR/*.yaml`` for every cluster, ``DIR/<cluster>/*.yaml`` for that one, applied through the API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

from isthmus import kube
from isthmus.kube.objects.meta import Meta, Wire
from isthmus.reflector import Transient
from isthmus_lab import images
from isthmus_lab.images import Image
from isthmus_lab.layout import Lab

MANAGER: Final = "isthmus-lab"
FIRST: Final = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "ConfigMap", "Secret")


class AnyObject(Wire, frozen=True):
    """Any object."""

    metadata: Meta


class Manifest(Struct, frozen=True):
    """An object of a file."""

    file: Path
    body: dict[str, Any]

    def __str__(self) -> str:
        meta = self.body.get("metadata") or {}
        name = "/".join(part for part in (meta.get("namespace"), meta.get("name")) if part)
        return f"{self.file}: {self.body.get('kind', 'an object without kind')} {name}".rstrip()


class BadManifest(Exception):  # noqa: N818
    """A file that cannot be read; the message names it and the place."""


def of_lab(directory: Path, lab: Lab) -> dict[str, list[Manifest]]:
    """Read a directory's manifests by cluster. BadManifest names a file that is no YAML or a folder of no cluster."""
    if not directory.is_dir():
        raise BadManifest(f"{directory}: is no directory")
    common = list(_read(directory))
    per_cluster = {cluster.name: [*common, *_read(directory / cluster.name)] for cluster in lab.clusters}
    return {name: sorted(manifests, key=_rank) for name, manifests in per_cluster.items()}


def of_file(file: Path) -> Iterator[Manifest]:
    """The objects of a file. BadManifest where it is no YAML."""
    try:
        documents = list(yaml.safe_load_all(file.read_text()))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise BadManifest(f"{file}: {' '.join(str(error).split())}") from None
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise BadManifest(f"{file}: a document is no object")
        items = document.get("items") if document.get("kind") == "List" else [document]
        yield from (Manifest(file, item) for item in items or ())


async def apply(client: kube.Client, manifests: list[Manifest]) -> list[str]:
    """Apply them all; what could not be applied, as sentences that name file and object."""
    failures = []
    for manifest in manifests:
        try:
            await _apply(client, manifest.body)
        except (kube.KubeError, Transient, BadManifest) as error:
            failures.append(f"{manifest}: {error}")
    return failures


def unknown_images(manifests: Iterable[Manifest], *, own: Mapping[str, Image]) -> list[str]:
    """A sentence for each image that nothing stands in for, with the first place that names it: file, object, field."""
    places: dict[str, list[str]] = {}
    for manifest in {id(each): each for each in manifests}.values():  # common ones are of every cluster
        for path, container in _containers(manifest.body):
            try:
                images.find(str(container.get("image", "")), own=own)
            except images.UnknownImage as error:
                places.setdefault(str(error), []).append(f"{manifest}: {path}.image")
    return [
        f"{error} ({uses[0]}{f' and {len(uses) - 1} more' if len(uses) > 1 else ''})" for error, uses in places.items()
    ]


def _containers(body: Mapping[str, Any], path: str = "spec") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every container of a pod, or of a template of pods, each with the path it stands at."""
    spec = body.get("spec")
    if not isinstance(spec, dict):
        return
    for part in ("template", "jobTemplate"):
        if isinstance(inner := spec.get(part), dict):
            yield from _containers(inner, f"{path}.{part}.spec")
    for part in ("initContainers", "containers"):
        listed = spec.get(part)
        for n, container in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(container, dict):
                yield f"{path}.{part}[{n}]", container


async def _apply(client: kube.Client, body: dict[str, Any]) -> None:
    for field in ("apiVersion", "kind", "metadata"):
        if not body.get(field):
            raise BadManifest(f"{field} is missing")
    name = body["metadata"].get("name")
    if not name:
        raise BadManifest("metadata.name is missing")
    kind = await client.kind(body["apiVersion"], body["kind"], AnyObject)
    namespace = body["metadata"].get("namespace", "default") if kind.namespaced else ""
    await client.apply(kind, namespace, name, body, field_manager=MANAGER)


def _read(directory: Path) -> Iterator[Manifest]:
    for file in sorted([*directory.glob("*.yaml"), *directory.glob("*.yml")]):
        yield from of_file(file)


def _rank(manifest: Manifest) -> int:
    kind = manifest.body.get("kind")
    return FIRST.index(kind) if kind in FIRST else len(FIRST)
