"""The operator's prober and the shares in a policy's status, over sockets on loopback."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from peers.etcd_server import free_ports
from rows.balancing_world import INPUTS, TABLES, make

from isthmus.config import HealthSection
from isthmus.health import Prober
from isthmus.loadbalancer import checks, gateways, own_ranges, policy_objects
from isthmus.model import tables
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import HealthCheck, Policy, Share, Tier
from isthmus.model.services import Port
from isthmus.processes.start import tables_of
from isthmus.running import Tasks
from isthmus.statedb import Database, Derivations

C1, C2 = ClusterName("c1"), ClusterName("c2")


async def test_shares_follow_a_backend_that_stops_answering_and_answers_again() -> None:
    [port] = free_ports(1)
    check = HealthCheck(interval=0.05, timeout=10.0, unhealthy_after=2)
    policy = Policy(
        name=ServiceName("demo/policy"),
        target=ServiceName("demo/echo"),
        tiers=(Tier((Share(C1, 50), Share(C2, 50))),),
        health=check,
    )
    peer = make.endpoint("127.0.0.1", ports=(Port("http", port),))
    rows = (
        make.imported(clusters=(C1, C2)),
        make.derived(),
        make.endpoints("c1", "10.1.0.1"),
        make.endpoints("c2", peer),
    )
    derived = own_ranges.derived(C1), gateways.derived(), checks.of_policies(C1), policy_objects.derived(C1)
    db = Database(*tables_of(derived, *INPUTS, tables.OBSERVED, tables.FAULTS))
    prober = Prober(db, HealthSection(rate=1_000.0, backend_rate=1_000.0), node="")

    def shares() -> Any:
        row = db.snapshot().get(tables.POLICY_OBJECTS, ("TrafficPolicy", policy.name))
        return msgspec.json.decode(row.status)["shares"] if row is not None else None

    async def until(text: str) -> None:
        async with asyncio.timeout(60):
            await db.until(lambda _: shares() == text)

    async def serve() -> asyncio.Server:
        return await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)

    async with Tasks() as tasks:
        tasks.start("derivations", Derivations(db, *derived).run)
        tasks.start("health", prober.run)
        server = await serve()
        with db.write() as txn:
            for row in (*rows, make.cluster("c1", own=True), policy):
                txn.put(TABLES[type(row)], row)
        await until("c1 50%, c2 50%")
        server.close()
        await server.wait_closed()
        await until("c1 100%")
        async with await serve():
            await until("c1 50%, c2 50%")
        tasks.cancel()
