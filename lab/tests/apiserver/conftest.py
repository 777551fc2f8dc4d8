"""One server for all tests, a client with a namespace of its own, a node, kubectl."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from clusters.apiserver_world import COUNTER, ApiServer, Client, Kubectl, Node, connected, serving
from machine import programs


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One server for all tests: use a namespace of your own."""
    with serving(tmp_path_factory.mktemp("shared")) as found:
        yield found


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ApiServer]:
    """A server of this test alone, to stop and kill."""
    with serving(tmp_path) as found:
        yield found


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    async with connected(server, f"test-{next(COUNTER)}") as found:
        yield found


@pytest.fixture
async def node(client: Client) -> AsyncIterator[Node]:
    """The cluster's one node, running."""
    found = Node(client, f"node-{client.namespace}")
    await found.register()
    task = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await found.leave()


@pytest.fixture
def kubectl(server: ApiServer, client: Client, tmp_path: Path) -> Kubectl:
    """The real kubectl, in the test's namespace."""
    return Kubectl(programs.path("kubectl"), server, client.namespace, tmp_path)
