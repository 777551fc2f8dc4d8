"""The CustomResourceDefinitions of ``deploy/crds``, applied to every server.

One of a kind that a server has built in changes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

import isthmus_lab
from isthmus import kube
from isthmus.kube.kind import Kind
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.kube.objects.meta import Meta, Wire

MANAGER: Final = "isthmus-lab"
INSTALLED: Final = Path(isthmus_lab.__file__).resolve().parent / "deploy" / "crds"
"""In a wheel."""
SOURCES: Final = Path(isthmus_lab.__file__).resolve().parents[2] / "deploy" / "crds"


class Definition(Wire, frozen=True):
    """A CustomResourceDefinition."""

    metadata: Meta


DEFINITION: Final = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", Definition, namespaced=False
)


def bodies() -> list[dict[str, Any]]:
    """As the files have them."""
    directory = INSTALLED if INSTALLED.is_dir() else SOURCES
    return [yaml.safe_load(file.read_text()) for file in sorted(directory.glob("*.yaml"))]


async def apply(client: kube.Client) -> None:
    """Apply all of them; a KubeError until the server serves ServiceExport and ServiceImport."""
    for body in bodies():
        await client.apply(DEFINITION, "", body["metadata"]["name"], body, field_manager=MANAGER)
    await client.served(SERVICE_EXPORT)
    await client.served(SERVICE_IMPORT)
