"""Worlds of rows, and API servers: the lab's, and a real one where it is built (marked ``kube``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.apiserver_world import TOKEN, ApiServer, serving
from clusters.kube_apiserver import RANGES, KubeApiServer
from clusters.operator_world import Operator
from rows.mcs_world import World

from isthmus import kube
from isthmus.kube.access import Access
from isthmus.kube.kind import Kind
from isthmus.kube.objects.core import NAMESPACE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.kube.objects.meta import Meta, Wire
from isthmus.kube.transport import Transport

CRDS = Path(__file__).resolve().parents[2] / "deploy" / "crds"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def dual() -> World:
    """A cluster with both address families."""
    return World("IPv4", "IPv6")


@pytest.fixture(scope="session")
def lab_apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One API server of the lab for all tests of this package, with Services of both families."""
    with serving(tmp_path_factory.mktemp("mcs-apiserver"), f"--service-cidr={RANGES}") as server:
        yield server


class Definition(Wire, frozen=True):
    """A CustomResourceDefinition."""

    metadata: Meta


CRD = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", Definition, namespaced=False
)


@pytest.fixture(params=["lab", pytest.param("kube", marks=pytest.mark.kube)])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[kube.Client]:
    """A client of each API server in turn; both serve exports and imports."""
    if request.param == "lab":
        lab: ApiServer = request.getfixturevalue("lab_apiserver")
        async with kube.Client(Transport(Access(server=lab.url, tls=lab.trust, token=TOKEN))) as client:
            yield client
        return
    real: KubeApiServer = request.getfixturevalue("kube_apiserver")
    await real.ready()
    async with await kube.connect(real.section()) as client:
        await _define(client)
        yield client


async def _define(client: kube.Client) -> None:
    """Our definitions of the two kinds, until they are served."""
    for path in sorted(CRDS.glob("service*.yaml")):
        body: dict[str, Any] = yaml.safe_load(path.read_text())
        await client.apply(CRD, "", body["metadata"]["name"], body, field_manager="test")
    async with asyncio.timeout(60):
        while True:
            try:
                await client.list(SERVICE_IMPORT)
                await client.list(SERVICE_EXPORT)
            except kube.KubeError:
                await asyncio.sleep(0.05)
            else:
                return


@pytest.fixture
async def namespace(client: kube.Client) -> AsyncIterator[str]:
    made = await client.create(NAMESPACE, "", {"metadata": {"generateName": "isthmus-test-mcs-"}})
    yield made.metadata.name
    await client.delete(NAMESPACE, "", made.metadata.name)


@pytest.fixture
async def operator(client: kube.Client, namespace: str) -> AsyncIterator[Operator]:
    async with Operator(client, namespace=namespace).running() as operator:
        yield operator
