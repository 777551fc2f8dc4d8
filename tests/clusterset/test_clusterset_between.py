"""Two clusters: what one publishes the other follows, over TLS, while certificates change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from machine.certificates import Authority
from peers.clusterset_peers import Peers, following
from peers.etcd_server import EtcdServer

from isthmus import __version__
from isthmus.clusterset.publishing.publisher import Publisher
from isthmus.config import ClusterSection
from isthmus.etcd import Session, Tls, binary
from isthmus.model import tables
from isthmus.model.drains import Drain, Draining
from isthmus.model.mcs import Record
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, Export, Port
from isthmus.statedb import Database

NAME, DERIVED = ServiceName("demo/echo"), ServiceName("demo/derived-h8gu71nsf1")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
async def secure(tmp_path: Path, authority: Authority) -> AsyncIterator[EtcdServer]:
    cert, key = authority.sign("server")
    flags = ("--cert-file", cert, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", authority.cert)
    server = EtcdServer(binary.find(), tmp_path / "etcd", *map(str, flags), scheme="https")
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def published(server: EtcdServer, tls: Tls) -> AsyncIterator[Database]:
    """Cluster c2 publishes what is put into its RECORDS."""
    db = Database(tables.RECORDS, tables.REFUSALS, tables.DRAINING)
    async with Session([server.endpoint], tls=tls) as session:
        await server.ready(session)
        section = ClusterSection(name="c2", id=2, network="blue", labels=("class=gold",), gateways=("10.9.0.1:15443",))
        task = asyncio.create_task(Publisher(db, session, section).run())
        yield db
        task.cancel()
        await asyncio.wait([task])


def put(db: Database, *addresses: str) -> None:
    from isthmus.clusterset.records import endpoints, exports

    c2, port = ClusterName("c2"), Port("http", 8080)
    published = [Endpoint(address, (port,)) for address in addresses]
    value = endpoints.encode(DERIVED, cluster=c2, cluster_id=2, endpoints=published, frontends={})
    export = Export(cluster=c2, name=NAME, created="2026-01-01T00:00:00Z", ports=(Port("http", 80),))
    with db.write() as txn:
        txn.put(tables.RECORDS, Record("services", DERIVED, value))
        txn.put(tables.RECORDS, Record("serviceexports", NAME, exports.encode(export)))


def tls_of(authority: Authority, name: str) -> Tls:
    cert, key = authority.sign(name)
    return Tls(str(authority.cert), str(cert), str(key))


def peer_file(peers: Peers, server: EtcdServer, tls: Tls) -> None:
    (peers.folder / "c2").write_text(
        f"endpoints: ['{server.endpoint}']\ntrusted-ca-file: {tls.ca_file}\n"
        f"cert-file: {tls.cert_file}\nkey-file: {tls.key_file}\n"
    )


async def test_one_cluster_follows_what_the_other_publishes(
    secure: EtcdServer, authority: Authority, tmp_path: Path
) -> None:
    peers = Peers(tmp_path / "clusters", "")
    peer_file(peers, secure, tls_of(authority, "c1"))
    async with published(secure, tls_of(authority, "c2")) as c2, following(peers) as c1:
        put(c2, "10.2.1.1")
        await c1.until(lambda s: c1.services() == {f"c2:{DERIVED}": ["10.2.1.1"]} and c1.exports() == ["c2:demo/echo"])
        await c1.state("c2", "ready")
        await c1.until(lambda s: c1.cluster("c2").network == "blue")
        assert (c1.cluster("c2").gateways, c1.cluster("c2").version) == (("10.9.0.1:15443",), __version__)
        assert c1.cluster("c2").labels == (("class", "gold"),)
        put(c2, "10.2.1.1", "10.2.1.2")
        await c1.until(lambda s: c1.services() == {f"c2:{DERIVED}": ["10.2.1.1", "10.2.1.2"]})
        with c2.write() as txn:
            txn.delete(tables.RECORDS, ("services", DERIVED))
        await c1.until(lambda s: c1.services() == {})


async def test_certificates_are_renewed_under_a_follower_and_no_backend_leaves(
    secure: EtcdServer, authority: Authority, tmp_path: Path
) -> None:
    peers = Peers(tmp_path / "clusters", "")
    peer_file(peers, secure, tls_of(authority, "c1"))
    async with published(secure, tls_of(authority, "c2")) as c2, following(peers) as c1:
        put(c2, "10.2.1.1")
        await c1.state("c2", "ready")
        await c1.until(lambda s: c1.services())
        changes = c1.db.changes(tables.ENDPOINT_SETS)
        changes.next()
        before = c1.cluster("c2").since
        authority.sign("c1")
        await c1.until_true(lambda: c1.connections("c2") >= 2)
        await c1.state("c2", "ready")
        put(c2, "10.2.1.1", "10.2.1.9")
        await c1.until(lambda s: c1.services() == {f"c2:{DERIVED}": ["10.2.1.1", "10.2.1.9"]})
        assert all(change.new is not None for change in changes.next()[1])
        assert c1.cluster("c2").since >= before


async def test_a_client_with_a_wrong_certificate_reports_it_and_delays_no_other(
    secure: EtcdServer, authority: Authority, tmp_path: Path
) -> None:
    peers = Peers(tmp_path / "clusters", "")
    stranger = Authority(tmp_path / "stranger")
    cert, key = stranger.sign("c1")
    peer_file(peers, secure, Tls(str(authority.cert), str(cert), str(key)))
    async with published(secure, tls_of(authority, "c2")) as c2, following(peers) as c1:
        put(c2, "10.2.1.1")
        await c1.until(lambda s: c1.cluster("c2").failures)
        assert c1.cluster("c2").state == "connecting"
        assert secure.endpoint in c1.cluster("c2").reason
        peer_file(peers, secure, tls_of(authority, "c1"))
        await c1.state("c2", "ready")


async def test_a_drain_reaches_the_peers_with_the_description_and_ends_there(
    secure: EtcdServer, authority: Authority, tmp_path: Path
) -> None:
    peers = Peers(tmp_path / "clusters", "")
    peer_file(peers, secure, tls_of(authority, "c1"))
    async with published(secure, tls_of(authority, "c2")) as c2, following(peers) as c1:
        put(c2, "10.2.1.1")
        await c1.state("c2", "ready")
        rows = [
            Draining(by=ClusterName("c2"), drain=Drain(kind="Cluster", target="c2", started="2026-01-01T00:00:00Z")),
            Draining(by=ClusterName("c2"), drain=Drain(kind="Cluster", target="c1"), left=50),
            Draining(by=ClusterName("c9"), drain=Drain(kind="Cluster", target="c9")),
        ]
        with c2.write() as txn:
            for row in rows:
                txn.put(tables.DRAINING, row)
        await c1.until(lambda s: c1.cluster("c2").drains == (rows[0].drain,))
        with c2.write() as txn:
            for row in rows:
                txn.delete(tables.DRAINING, row.key)
        await c1.until(lambda s: c1.cluster("c2").drains == ())


async def test_a_publisher_that_does_not_know_its_drains_yet_leaves_what_is_published(
    secure: EtcdServer, authority: Authority, tmp_path: Path
) -> None:
    tls = tls_of(authority, "c2")
    key = "isthmus/clusters/v1/c2"
    async with Session([secure.endpoint], tls=tls) as session:
        await secure.ready(session)
        await session.put(key, b'{"drains":[{"kind":"Cluster","target":"c2"}]}')
        db = Database(tables.RECORDS, tables.REFUSALS, tables.DRAINING)
        initializer = db.initializer(tables.DRAINING, "drains")
        task = asyncio.create_task(Publisher(db, session, ClusterSection(name="c2", id=2)).run())
        async with asyncio.timeout(60):
            while await session.get("cilium/synced/c2/cilium/state/services/v1") is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            kept = await session.get(key)
            assert kept is not None
            assert b"drains" in kept.value
            with db.write() as txn:
                initializer.complete(txn)
            while (found := await session.get(key)) is None or b"drains" in found.value:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
