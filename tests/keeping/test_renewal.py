"""Certificates of a few seconds: each is renewed before it ends, and what uses it takes the new one by itself."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from clusters.keys_world import KeptCluster, kept, until
from clusters.kube_apiserver import KubeApiServer
from cryptography import x509

from isthmus.clusterset.keeping.shares import SHARES
from isthmus.etcd import Credentials, Session, Tls

pytestmark = pytest.mark.kube

LIFETIME = 24.0
"""Seconds. A third is left for what a kubelet and a handshake take on a machine that is busy."""
FOR = 36.0
"""Seconds in which each certificate is renewed at least twice."""


@pytest.fixture
async def cluster(kube_apiserver: KubeApiServer, tmp_path: Path) -> AsyncIterator[KeptCluster]:
    async with kept(kube_apiserver, tmp_path) as made:
        yield made


async def kubelet(cluster: KeptCluster) -> None:
    """Renew what is mounted, for ever."""
    while True:
        await cluster.mount("isthmus-etcd-server", "isthmus-etcd-operator")
        await asyncio.sleep(0.2)


@pytest.mark.slow
async def test_the_etcd_and_its_clients_take_renewed_certificates_without_a_restart(cluster: KeptCluster) -> None:
    mount = cluster.mounts / "isthmus-etcd-operator"
    async with cluster.running(cluster.keeper(lifetime=LIFETIME)) as keeper:
        await keeper.loaded.wait()
        await cluster.mount("isthmus-etcd-server", "isthmus-etcd-operator")
        cluster.etcd.start()
        mounting = asyncio.create_task(kubelet(cluster))

        async def guarded() -> bool:
            return keeper.outcome.startswith("the etcd has its users")

        await until(guarded, "the users")
        tls = Tls(*(str(mount / file) for file in ("ca.crt", "operator.crt", "operator.key")))
        credentials = Credentials("operator", (mount / "operator.password").read_text())
        seen: set[datetime] = set()
        shown: set[bytes] = set()
        loop = asyncio.get_running_loop()
        end = loop.time() + FOR
        while loop.time() < end:
            async with Session([cluster.etcd.endpoint], tls=tls, credentials=credentials) as session:
                assert await session.put("cilium/.heartbeat", b"")  # each session has a handshake of its own
            leaf = x509.load_pem_x509_certificate((mount / "operator.crt").read_bytes())
            assert leaf.not_valid_after_utc > datetime.now(UTC)
            seen.add(leaf.not_valid_after_utc)
            shown.add(await server_certificate(cluster.etcd.endpoint, tls))
            await asyncio.sleep(0.3)
        assert len(seen) >= 3, "the operator's certificate was renewed"
        assert len(shown) >= 3, "and the etcd shows its new ones"
        assert keeper.problems() == []
        mounting.cancel()


async def server_certificate(endpoint: str, tls: Tls) -> bytes:
    """The certificate that the etcd shows in a new handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(tls.cert_file, tls.key_file)
    url = urlsplit(endpoint)
    _, writer = await asyncio.open_connection(url.hostname, url.port, ssl=context)
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return shown


@pytest.mark.slow
async def test_an_operator_and_the_keeper_as_processes_go_on_over_several_lives_of_their_certificates(
    cluster: KeptCluster,
) -> None:
    await cluster.define()
    cluster.start("keys", lifetime=40.0)
    await cluster.mount("isthmus-etcd-server", "isthmus-etcd-operator")
    cluster.etcd.start()
    operator = cluster.start("operator")
    mounting = asyncio.create_task(kubelet(cluster))
    await until(lambda: asyncio.to_thread(lambda: operator.ready), "a ready operator")
    first = await cluster.secret("isthmus-etcd-operator")
    assert first is not None

    async def renewed() -> bool:
        now = await cluster.secret("isthmus-etcd-operator")
        return now is not None and now["operator.crt"] != first["operator.crt"]

    await until(renewed, "the operator's certificate renewed")
    cluster.etcd.stop()  # every connection is made anew, by the new certificate, once the first one has ended
    ends = x509.load_pem_x509_certificate(first["operator.crt"]).not_valid_after_utc
    await asyncio.sleep(max(0.0, (ends - datetime.now(UTC)).total_seconds()) + 1.0)
    cluster.etcd.start()
    await until(lambda: asyncio.to_thread(lambda: "cannot publish" not in operator.asked("readyz")[1]), "it publishes")
    await until(lambda: asyncio.to_thread(lambda: operator.ready), "a ready operator")
    mounting.cancel()


async def test_what_ends_soon_is_renewed_in_every_role_s_secret(cluster: KeptCluster) -> None:
    async with cluster.running(cluster.keeper(lifetime=6.0)) as keeper:
        await keeper.loaded.wait()
        before = {name: await cluster.secret(name) for name in SHARES}

        async def all_renewed() -> bool:
            return all([await cluster.secret(name) != before[name] for name in SHARES])

        await until(all_renewed, "new certificates in all Secrets")
        after = await cluster.secret("isthmus-keys")
        assert after is not None
        for name in SHARES:
            shared, old = await cluster.secret(name), before[name]
            assert shared is not None
            assert old is not None
            assert shared.get("ca.crt") == old.get("ca.crt"), "the authority stays"
