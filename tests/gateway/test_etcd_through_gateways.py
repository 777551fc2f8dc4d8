"""Islands join by the same two commands, and follow each other's etcd, through gateways. Real Envoys and etcds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest
import yaml
from meshes.envoy_world import EnvoyWorld, envoy_world
from msgspec.structs import replace
from peers.etcd_server import free_ports
from peers.joining_world import World, clusters, two_commands

from isthmus.clusterset import joining
from isthmus.clusterset.errors import JoinError
from isthmus.clusterset.joining import tokens
from isthmus.config import GatewaySection
from isthmus.gateway import exports, naming
from isthmus.gateway.exports import GatewaySettings
from isthmus.gateway.secrets import Identity, Secrets
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.hosts import Endpoint
from isthmus.model.names import ClusterName
from isthmus.processes.start import tables_of
from isthmus.statedb import Database, Derivations

pytestmark = pytest.mark.needs("envoy")

DOMAIN = GatewaySection().domain


class Islands:
    """Two clusters, and where the gateway of each is."""

    def __init__(self, c1: World, c2: World, ports: list[int]) -> None:
        self.c1, self.c2 = c1, c2
        self.at = {"c1": f"https://127.0.0.1:{ports[0]}", "c2": f"https://127.0.0.1:{ports[1]}"}


async def gateway(world: World, directory: Path, port: int, stack: AsyncExitStack) -> EnvoyWorld:
    """The Envoy of a cluster's gateway, which passes connections for the etcd on."""
    etcd = urlsplit(world.etcd.endpoint)
    assert etcd.hostname is not None
    assert etcd.port is not None
    name = ClusterName(world.home.cluster.name)
    of = GatewaySettings(name, DOMAIN, (Endpoint("127.0.0.1", port),), directory, (Endpoint(etcd.hostname, etcd.port),))
    pair = Identity(world.keys.path / "gateway.crt", world.keys.path / "gateway.key")
    declared = [exports.derived(of)]
    db = Database(*tables_of(declared, tables.PEER_POLICIES, tables.XDS_REFUSED, tables.XDS_SERVED))
    derivations = Derivations(db, *declared)
    trust = world.home.directory
    Secrets(db, directory, apart=exports.trusted_apart, identity=pair, trust=trust, domain=DOMAIN).renew()
    with db.write() as txn:
        txn.put(tables.CLUSTERS, Cluster(name=name, own=True))
    while derivations.step():
        pass
    return await stack.enter_async_context(envoy_world(directory, db=db))


@pytest.fixture
async def islands(tmp_path: Path) -> AsyncIterator[Islands]:
    ports = free_ports(2)
    at = [(f"127.0.0.1:{port}",) for port in ports]
    async with AsyncExitStack() as stack:
        c1, c2 = await stack.enter_async_context(clusters(tmp_path, gateways=(at[0], at[1])))
        for world, port in zip((c1, c2), ports, strict=True):
            short = Path(stack.enter_context(TemporaryDirectory()))  # a path of a socket has 108 characters
            await gateway(world, short, port, stack)
        yield Islands(c1, c2, ports)


@pytest.mark.slow
async def test_two_commands_join_islands_that_reach_each_others_gateway_alone(islands: Islands) -> None:
    c1, c2 = islands.c1, islands.c2
    await c1.publish("10.1.1.1")
    await c2.publish("10.1.1.1")
    async with c1.following() as first, c2.following() as second:
        await two_commands(c1, c2)
        await first.state("c2", "ready")
        await second.state("c1", "ready")
        assert first.services() == {"c2:demo/echo": ["10.1.1.1"]}
        await c2.publish("10.1.1.1", "10.1.1.2")
        await first.until(lambda s: first.services() == {"c2:demo/echo": ["10.1.1.1", "10.1.1.2"]})
    for world, peer in ((c1, "c2"), (c2, "c1")):
        found = yaml.safe_load((world.home.directory / peer).read_text())
        assert found["endpoints"] == [islands.at[peer]], "the gateway, and no other address"
        assert found["server-name"] == naming.etcd_sni(ClusterName(peer), DOMAIN)


async def test_another_clusters_gateway_has_no_way_to_an_etcd(islands: Islands) -> None:
    """A gateway passes on what names its own cluster's etcd: c2's is not reached at c1's."""
    async with joining.invitation(islands.c2.home, lifetime=60) as invitation:
        token = tokens.unpack(invitation.word)
        at = (islands.at["c1"],)
        wrong = replace(token, entry=replace(token.entry, endpoints=at))
        with pytest.raises(JoinError, match="cannot be reached"):
            await joining.join(islands.c1.home, tokens.pack(wrong), patience=5)
    assert islands.c1.files() == []


async def test_a_cluster_of_another_domain_is_refused_with_what_to_make_equal(islands: Islands) -> None:
    async with joining.invitation(islands.c1.home, lifetime=60) as invitation:
        token = tokens.unpack(invitation.word)
        wrong = replace(token, entry=replace(token.entry, server_name="etcd.c1.example.org"))
        with pytest.raises(JoinError, match=r"gateway\.domain has to be the same in all clusters"):
            await joining.join(islands.c2.home, tokens.pack(wrong), patience=5)


async def test_given_addresses_come_before_gateways(islands: Islands) -> None:
    entry = islands.c1.home.entry(("https://etcd.example:2379",))
    assert (entry.endpoints, entry.server_name) == (("https://etcd.example:2379",), "")
