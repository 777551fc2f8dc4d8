"""A process as others see it: a few of Isthmus' tables behind an admin socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from isthmus.admin import Server
from isthmus.admin.protocol import ProcessStatus
from isthmus.model import tables
from isthmus.statedb import Database, Table

TABLES: list[Table[Any, Any]] = [
    tables.SERVICES,
    tables.IMPORTS,
    tables.NAMESPACES,
    tables.PODS,
    tables.CLUSTERS,
    tables.FRONTENDS,
    tables.BACKENDS,
    tables.FAILURES,
    tables.FAULTS,
    tables.PLANS,
    tables.PLANS_STATUS,
    tables.NAMES,
]


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition that no event announces."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def list_clusters(lab: Path, *names: str) -> None:
    """The list of its clusters that a lab writes into its directory."""
    lab.mkdir(parents=True, exist_ok=True)
    listed = {
        name: {
            "sockets": {each: str(lab / name / f"{each}.sock") for each in ("agent", "operator", "dns", "dns-second")},
            "pin": str(lab / "bpf" / name),
        }
        for name in names
    }
    (lab / "clusters.json").write_text(json.dumps(listed))


class Process:
    """A database and where it is served."""

    def __init__(self, db: Database, socket: Path, server: Server) -> None:
        self.db = db
        self.socket = socket
        self.server = server

    def put(self, table: Table[Any, Any], *rows: Any) -> None:
        """Rows in one transaction."""
        with self.db.write() as txn:
            for row in rows:
                txn.put(table, row)

    def delete(self, table: Table[Any, Any], *keys: Any) -> None:
        """Rows away in one transaction."""
        with self.db.write() as txn:
            for key in keys:
                txn.delete(table, key)


@asynccontextmanager
async def serving(
    socket: Path, *, db: Database | None = None, status: ProcessStatus | None = None, **more: Any
) -> AsyncIterator[Process]:
    """A process that serves its tables until the block ends."""
    db = db or Database(*TABLES)
    server = Server(db, socket, status=lambda: status or ProcessStatus(), **more)
    task = asyncio.create_task(server.run())
    opened = asyncio.create_task(server.listening())
    await asyncio.wait([task, opened], return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            await task
        yield Process(db, socket, server)
    finally:
        opened.cancel()
        task.cancel()
        await asyncio.gather(task, opened, return_exceptions=True)
