"""``isthmus gateway`` and the Envoy that ``isthmus envoy`` keeps for it, called as a node of a peer calls."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from clusters.fake_apiserver import FakeApiServer, running
from peers.etcd_server import EtcdServer, free_ports

from isthmus import kube
from isthmus.admin.query import QueryError, Socket
from isthmus.clusterset import Folder
from isthmus.clusterset.records import identity, keys
from isthmus.config import (
    AdminSection,
    ClusterSection,
    ClustersetSection,
    Config,
    GatewaySection,
    IdentitySection,
    ProxySection,
)
from isthmus.etcd import Session
from isthmus.gateway import exports
from isthmus.gateway.naming import protocol, service_sni
from isthmus.gateway.refusals import REASONS, FailedConnection, Refusals
from isthmus.gateway.secrets import Identity, Secrets
from isthmus.identity import allow
from isthmus.kube.access import Access
from isthmus.kube.transport import Transport
from isthmus.model.clusters import PeerPolicy
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.tables import CLUSTERS, OWN_EXPORTS, PEER_POLICIES, TRUST_BUNDLES
from isthmus.processes import gateway, proxying
from isthmus.proxy import Settings, Supervisor, binary
from isthmus.running import Tasks
from isthmus.statedb import Database

pytestmark = pytest.mark.needs("envoy")

DOMAIN = "clusterset.local"
EXPORT = "/apis/multicluster.x-k8s.io/v1beta1/namespaces/demo/serviceexports/echo"


class World(NamedTuple):
    """The gateway of c2, and c1's keys."""

    server: FakeApiServer
    config: Config
    c1: Folder
    port: int

    async def call(self, sni: str) -> bytes:
        """What a node of c1 is given first; nothing where it is refused."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=Folder(self.directory / "c2").bundle.decode())
        context.load_cert_chain(self.c1.path / "node.crt", self.c1.path / "node.key")
        context.set_alpn_protocols([protocol(ClusterName("c1"), DOMAIN)])
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(30):
                at = asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=sni)
                reader, writer = await at
                try:
                    return await reader.read(64)
                finally:
                    writer.transport.abort()
        return b""

    @property
    def directory(self) -> Path:
        return Path(self.config.admin.socket).parent

    async def status(self) -> dict[str, Any]:
        with suppress(QueryError):
            return await asyncio.to_thread(Socket(Path(self.config.admin.socket)).status)
        return {}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with TemporaryDirectory() as short:
        directory, [port] = Path(short), free_ports(1)
        c1, c2 = Folder(directory / "c1"), Folder(directory / "c2")
        c1.ensure("c1", ("127.0.0.1",), days=30, domain=DOMAIN)
        c2.ensure("c2", ("127.0.0.1",), days=30, domain=DOMAIN)
        (directory / "peers").mkdir()
        (directory / "peers" / "c1.ca.crt").write_bytes(c1.bundle)
        config = Config(
            cluster=ClusterSection(name="c2", id=2, network="two"),
            clusterset=ClustersetSection(directory=str(directory / "peers")),
            proxy=ProxySection(directory=str(directory / "envoy"), uplinks=()),
            gateway=GatewaySection(identity=str(c2.path), listen=(f"127.0.0.1:{port}",)),
            admin=AdminSection(socket=str(directory / "gateway.sock")),
        )
        settings = Settings(binary.find(), directory / "envoy", concurrency=1, drain_time=1.0)
        async with running() as server, kube.Client(Transport(Access(server=server.url))) as client:
            server.served["/apis/multicluster.x-k8s.io/v1beta1"] = ["serviceexports"]
            server.served["/apis/discovery.k8s.io/v1"] = ["endpointslices"]
            server.served["/apis/isthmus.io/v1alpha1"] = ["peerpolicies"]
            server.put("/api/v1/namespaces/demo")
            tasks = [asyncio.create_task(gateway.work(config, client)), asyncio.create_task(Supervisor(settings).run())]
            try:
                yield World(server, config, c1, port)
            finally:
                for task in tasks[::-1]:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def test_who_is_trusted_is_not_known_before_it_is_known_who_is_distrusted(tmp_path: Path) -> None:
    for name in ("c1", "c3"):
        folder = Folder(tmp_path / name)
        folder.ensure(name, ("127.0.0.1",), days=30, domain=DOMAIN)
        (tmp_path / f"{name}.ca.crt").write_bytes(folder.bundle)
    config = Config(
        clusterset=ClustersetSection(directory=str(tmp_path)), proxy=ProxySection(directory=str(tmp_path / "envoy"))
    )
    db = Database(PEER_POLICIES, TRUST_BUNDLES)
    listed = db.initializer(PEER_POLICIES, "kubernetes")
    secrets = proxying.secrets(db, config, "gateway")
    secrets.renew()
    assert (db.snapshot().initialized(TRUST_BUNDLES), [*db.snapshot().all(TRUST_BUNDLES)]) == (False, [])
    with db.write() as txn:
        txn.put(PEER_POLICIES, PeerPolicy(cluster=ClusterName("c1"), distrusted=True))
        listed.complete(txn)
    secrets.renew()
    assert db.snapshot().initialized(TRUST_BUNDLES)
    assert [row.clusters for row in db.snapshot().all(TRUST_BUNDLES)] == [("c3",)]


async def test_what_is_exported_is_called_and_nothing_else_and_no_longer_than_it_is(world: World) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    pod = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = pod.sockets[0].getsockname()[1]
    async with pod:
        for name in ("echo", "hidden"):
            service(world.server, name, port)
        world.server.put(EXPORT, spec={})
        echo, hidden = (service_sni(ServiceName(f"demo/{name}"), 80, DOMAIN) for name in ("echo", "hidden"))
        await until(lambda: world.call(echo), lambda got: got == b"hello")
        assert await world.call(hidden) == b""
        status = await world.status()
        assert (status["exports"], status["members"], status["problems"]) == (1, ["c1"], [])
        await until(world.status, lambda found: found["refusals"].get("not exported", {}).get("c1", 0) >= 1)
        world.server.put(EXPORT, spec={"exportedAnnotations": {"isthmus.io/importers": "c3"}})
        await until(lambda: world.call(echo), lambda got: got == b"")
        world.server.put(EXPORT, spec={})
        await until(lambda: world.call(echo), lambda got: got == b"hello")
        world.server.remove(EXPORT)
        await until(lambda: world.call(echo), lambda got: got == b"")


async def test_a_gateway_knows_the_labels_that_a_peer_publishes(tmp_path: Path, own_etcd: EtcdServer) -> None:
    c1 = ClusterSection(name="c1", id=1, labels=("class=gold",))
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "c1").write_text(f"endpoints: ['{own_etcd.endpoint}']\n")
    config = Config(
        cluster=ClusterSection(name="c2", id=2),
        clusterset=ClustersetSection(directory=str(tmp_path / "peers")),
        identity=IdentitySection(enabled=True),
    )
    db = Database(CLUSTERS)
    async with Session([own_etcd.endpoint]) as session, asyncio.timeout(60), Tasks() as tasks:
        await own_etcd.ready(session)
        await session.put(keys.config(ClusterName("c1")), identity.encode(identity.own_config(c1, most=255)))
        described = identity.own_description(c1, version="0.1.0", drains=[])
        await session.put(keys.description(ClusterName("c1")), identity.encode(described))
        follower = gateway.descriptions(db, config)
        assert follower is not None
        tasks.start("follower", follower.run)
        await db.until(lambda now: allow.labels_of(now) == {"c1": (("class", "gold"),), "c2": ()})
        tasks.cancel()


def test_a_gateway_without_identities_follows_no_peer(tmp_path: Path) -> None:
    config = Config(clusterset=ClustersetSection(directory=str(tmp_path)))
    assert gateway.descriptions(Database(CLUSTERS), config) is None


async def test_without_a_certificate_the_status_has_the_command_that_makes_one(world: World) -> None:
    (world.directory / "c2" / "gateway.key").unlink()
    await until(world.status, lambda found: "isthmus clusters certs" in "".join(found.get("problems", ())))


def test_metrics_have_refusals_by_reason_and_peer_and_zero_for_what_did_not_occur(tmp_path: Path) -> None:
    identity = Identity(tmp_path / "gateway.crt", tmp_path / "gateway.key")
    db = Database(OWN_EXPORTS, TRUST_BUNDLES)
    secrets = Secrets(db, tmp_path, apart=exports.trusted_apart, identity=identity, trust=tmp_path, domain=DOMAIN)
    refusals = Refusals(DOMAIN, lambda: [ClusterName("c1")])
    refusals.count(FailedConnection(f"spiffe://c1.{DOMAIN}/node", no_cluster=True))
    found = gateway.families(db, secrets, refusals)
    samples = {
        (each.labels["reason"], each.labels["peer"]): each.value
        for family in found
        for each in family.samples
        if each.name == "isthmus_gateway_refused_total"
    }
    assert samples == {**{(reason, "unknown"): 0 for reason in REASONS}, ("not exported", "c1"): 1}


def service(server: FakeApiServer, name: str, port: int) -> None:
    """A Service with one ready pod."""
    ports = [{"port": 80, "protocol": "TCP"}]
    server.put(f"/api/v1/namespaces/demo/services/{name}", spec={"clusterIP": "10.96.0.9", "ports": ports})
    server.put(
        f"/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices/{name}-1",
        metadata={"labels": {"kubernetes.io/service-name": name}},
        addressType="IPv4",
        endpoints=[{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
        ports=[{"name": "", "port": port, "protocol": "TCP"}],
    )


async def until(ask: Callable[[], Any], good: Callable[[Any], bool]) -> None:
    got = None
    try:
        async with asyncio.timeout(60):
            while not good(got := await ask()):  # noqa: ASYNC110 of another process
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(got) from None
