"""When the name server may have questions steered to it: once it answers from the whole of its first list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from peers.etcd_server import free_ports

from isthmus import admin, config
from isthmus.model.dns import Name
from isthmus.model.tables import NAMES, PODS
from isthmus.processes import dns
from isthmus.reflector import LIST_BATCH
from isthmus.statedb import Database

MANY = tuple(Name(f"s{n}.demo.svc.clusterset.local", "A", ("10.96.0.7",)) for n in range(20 * LIST_BATCH))


class World:
    """An agent's admin socket, and the parts of a ``dns`` process that follow it."""

    def __init__(self, socket: Path, *, timeout: float) -> None:
        self.agent = Database(NAMES, PODS)
        self.source = self.agent.initializer(NAMES, "test")
        self.admin = admin.Server(self.agent, socket, timeout=timeout)
        [port] = free_ports(1)
        section = config.DnsSection(listen=(f"127.0.0.1:{port}",), cluster_dns=("127.0.0.1:1",), agent=str(socket))
        self.config = config.Config(dns=section)
        self.names = dns.Names(self.config)
        self.server = dns._server(self.names.db, self.config)

    def put(self, *rows: Name, complete: bool) -> None:
        with self.agent.write() as txn:
            txn.put_all(NAMES, rows)
            if complete:
                self.source.complete(txn)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Gives the task that ends when questions may be steered."""
        tasks = [asyncio.create_task(each.run()) for each in (self.admin, self.names.reflector, self.server)]
        ready = asyncio.create_task(dns.until_ready(self.names, self.server))
        try:
            yield ready
        finally:
            for each in (ready, *tasks):
                each.cancel()
            await asyncio.gather(ready, *tasks, return_exceptions=True)


@pytest.mark.parametrize("complete", [True, False])
async def test_questions_are_steered_once_every_name_of_the_list_is_answered(tmp_path: Path, complete: bool) -> None:
    world = World(tmp_path / "agent.sock", timeout=0.1)
    world.put(*MANY, complete=complete)
    async with world.running() as ready:
        await asyncio.wait_for(ready, 30)
        stats = world.server.stats()
        assert (stats.names, stats.complete) == (len(MANY), complete)


async def test_a_partial_list_without_a_name_is_nothing_to_answer_from(tmp_path: Path) -> None:
    world = World(tmp_path / "agent.sock", timeout=0.0)
    async with world.running() as ready:
        async with asyncio.timeout(30):
            await world.names.listed.wait()
        assert not ready.done()
        world.put(MANY[0], complete=False)
        await asyncio.wait_for(ready, 30)
        assert world.server.stats().names == 1


async def test_a_whole_list_may_have_no_names(tmp_path: Path) -> None:
    world = World(tmp_path / "agent.sock", timeout=30)
    world.put(complete=True)
    async with world.running() as ready:
        await asyncio.wait_for(ready, 30)
        assert world.server.stats().complete
