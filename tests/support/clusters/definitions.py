"""A client of a real kube-apiserver that serves one of our definitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from clusters.kube_apiserver import KubeApiServer

from isthmus import kube
from isthmus.kube.kind import Kind
from isthmus.kube.objects.core import NAMESPACE
from isthmus.kube.objects.meta import Meta, Wire

FOLDER = Path(__file__).parents[3] / "deploy" / "crds"


class Definition(Wire, frozen=True):
    """An object of which only the name matters here."""

    metadata: Meta


CRD = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", Definition, namespaced=False
)


@asynccontextmanager
async def serving(server: KubeApiServer, kind: Kind[Any]) -> AsyncIterator[kube.Client]:
    """Create the definition of a kind, and give a client once its objects are served."""
    await server.ready()
    async with await kube.connect(server.section()) as client:
        with suppress(kube.AlreadyExists):
            await client.create(CRD, "", yaml.safe_load((FOLDER / f"{kind.resource}.yaml").read_text()))
        async with asyncio.timeout(60):
            while not await _is_served(client, kind):  # noqa: ASYNC110 of another process
                await asyncio.sleep(0.05)
        yield client


async def new_namespace(client: kube.Client, prefix: str) -> str:
    """Make a namespace; returns its name."""
    made = await client.create(NAMESPACE, "", {"metadata": {"generateName": prefix}})
    return made.metadata.name


async def _is_served(client: kube.Client, kind: Kind[Any]) -> bool:
    """Discovery has a kind a moment before its requests are answered."""
    client.forget(kind)
    try:
        await client.get(kind, "none", "default")
    except kube.NotFound as why:
        return not isinstance(why, kube.NotServed)
    return True
