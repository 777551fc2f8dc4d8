"""The agent serves resources as soon as all that it reads is there, with or without an Envoy."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from meshes.route_world import C1, NODE, route

from isthmus import loadbalancer
from isthmus.config import Config, NodeSection, ProxySection, SyncSection
from isthmus.model import tables
from isthmus.model.names import ServiceName
from isthmus.model.services import Port, Service
from isthmus.processes import proxying
from isthmus.processes.start import tables_of
from isthmus.proxy import Listening, derived
from isthmus.statedb import Database, Derivations

TO_ECHO = "parentRefs: [{group: '', kind: Service, name: echo}]\nrules: [{backendRefs: [{name: echo, port: 80}]}]"


async def test_resources_are_served_before_an_envoy_has_any_of_them(tmp_path: Path) -> None:
    """Some follow from what Envoy serves: to wait for that first would be for ever."""
    declared = [*loadbalancer.derived(C1, NODE, services="multicluster"), *derived(C1, NODE, Listening(("127.0.0.1",)))]
    db = Database(*tables_of(declared, tables.CLUSTERS, *proxying.TABLES))
    listed = db.initializer(tables.ROUTES, "kubernetes")
    derivations = Derivations(db, *declared)
    config = Config(
        node=NodeSection(name=NODE),
        proxy=ProxySection(directory=str(tmp_path / "proxy")),
        sync=SyncSection(timeout=600.0),
    )
    serving = asyncio.create_task(proxying.Serving(db, config, None).run())
    await asyncio.sleep(0)  # it waits
    with db.write() as txn:
        echo = Service(name=ServiceName("demo/echo"), source="kubernetes", ports=(Port("http", 80),))
        txn.put(tables.SERVICES, echo)
        txn.put(tables.ROUTES, route(TO_ECHO))
        listed.complete(txn)
    async with asyncio.timeout(60):
        while not (tmp_path / "proxy" / "bootstrap.json").exists():
            derivations.step()
            await asyncio.sleep(0.01)
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
