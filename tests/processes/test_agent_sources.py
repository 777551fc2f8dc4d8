"""The agent's sources together: an API server that has next to nothing, and a directory of files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from clusters.fake_apiserver import running

from isthmus import kube
from isthmus.admin.query import QueryError, Socket
from isthmus.config import AdminSection, ClusterSection, Config, DatapathSection, NodeSection, SourcesSection
from isthmus.kube.access import Access
from isthmus.kube.transport import Transport
from isthmus.processes import agent

WEB = Path(__file__).parents[2] / "examples" / "health-checker" / "services" / "web.yaml"


def plans(asked: Socket) -> list[str]:
    """The backends that are reached, once all sources are complete."""
    try:
        listing = asked.table("plans")
    except QueryError:
        return []
    if listing.pending:
        return []
    return [target["address"] for row in listing.rows for group in row["groups"] for target in group["targets"]]


async def test_services_of_a_directory_are_planned_beside_those_of_the_api_server(tmp_path: Path) -> None:
    folder, socket = tmp_path / "files", tmp_path / "agent.sock"
    folder.mkdir()
    config = Config(
        cluster=ClusterSection(name="c1", id=1),
        node=NodeSection(name="n1"),
        admin=AdminSection(socket=str(socket)),
        sources=SourcesSection(files=str(folder)),
        datapath=DatapathSection(services="all"),
    )
    async with running() as server, kube.Client(Transport(Access(server=server.url))) as client:
        server.served["/apis/multicluster.x-k8s.io/v1beta1"] = ["serviceimports"]
        server.served["/apis/discovery.k8s.io/v1"] = ["endpointslices"]
        task = asyncio.create_task(agent.work(config, client))
        try:
            await until(lambda: socket.exists(), task)
            (folder / "web.yaml").write_text(WEB.read_text())
            async with asyncio.timeout(60):
                while not await asyncio.to_thread(plans, Socket(socket)):
                    assert not task.done()
                    await asyncio.sleep(0.02)
            assert await asyncio.to_thread(plans, Socket(socket)) == ["127.0.0.1", "127.0.0.1"]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(condition: Any, task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            assert not task.done(), task
            await asyncio.sleep(0.01)
