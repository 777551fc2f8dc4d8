"""ExportPolicies at a gateway, by its real Envoy: which cluster's node reaches the pods of an export."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from meshes.island_world import C3, DOMAIN, Islands, islands, until
from meshes.route_world import C1

from isthmus.gateway import naming
from isthmus.gateway.naming import service_sni
from isthmus.model.export_policies import Allow, ExportPolicy
from isthmus.model.names import ServiceName
from isthmus.model.tables import EXPORT_POLICIES

pytestmark = pytest.mark.needs("envoy")

ECHO = ServiceName("demo/echo")
SNI = service_sni(ECHO, 80, DOMAIN)


@pytest.fixture
async def world() -> AsyncIterator[Islands]:
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        async with islands(Path(short), gateway={"policies": True}) as made:
            yield made


def put(world: Islands, *allow: Allow, **fields: Any) -> None:
    world.put_gateway(EXPORT_POLICIES, ExportPolicy(name=ServiceName("demo/callers"), allow=allow, **fields))


async def test_a_cluster_that_no_rule_names_reaches_no_pod_and_audit_lets_it(world: Islands) -> None:
    pod = await world.pod()
    world.export(ECHO, pod)
    await world.healthy()
    c1, c3 = world.identity(C1, naming.NODE), world.identity(C3, naming.NODE)

    async def answers() -> tuple[bytes, bytes]:
        return await world.handshake(c1, SNI), await world.handshake(c3, SNI)

    both, only_c3, nobody = (b"hello\n", b"hello\n"), (b"", b"hello\n"), (b"", b"")
    await until(answers, both)
    put(world, Allow(cluster=C3))
    await until(answers, only_c3)
    seen = pod.seen
    assert await world.handshake(c1, SNI) == b""
    assert await world.handshake(c1, f"{SNI} restricted") == b"", "the Envoy cluster behind c3's chain"
    assert await world.handshake(c1, SNI, caller="c3") == b"", "in another member's name"
    assert pod.seen == seen
    put(world, Allow(cluster=C3), audit=True)
    await until(answers, both)
    put(world)
    await until(answers, nobody)
    put(world, Allow())
    await until(answers, both)
