"""The reason why a peer's etcd is not read, as its link displays it: certificates that one side does not trust."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.etcd_server import EtcdServer

from isthmus.clusterset import certificates, links
from isthmus.clusterset.peers.peer_files import Peer
from isthmus.etcd import Session, Tls, binary
from isthmus.model.names import ClusterName

C1, C2 = ClusterName("c1"), ClusterName("c2")
OLD, NEW = certificates.authority("c1"), certificates.authority("c1 anew")


class PeerEtcd:
    """The etcd of c1, whose authority is the new one, and how c2 reaches it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        pair = certificates.issue(NEW, "c1", hosts=["127.0.0.1", "localhost"])
        files = {"server.crt": pair.certificate, "server.key": pair.key, "ca.crt": NEW.certificate}
        for name, content in files.items():
            (folder / name).write_bytes(content)
        tls = [f"--cert-file={folder}/server.crt", f"--key-file={folder}/server.key"]
        trusted = [f"--trusted-ca-file={folder}/ca.crt", "--client-cert-auth"]
        self.server = EtcdServer(binary.find(), folder / "etcd", *tls, *trusted, scheme="https")

    def as_peer(self, *, trusted: certificates.Pair, signer: certificates.Pair) -> Peer:
        pair = certificates.issue(signer, "remote-c2")
        files = {"c1.ca.crt": trusted.certificate, "c1.crt": pair.certificate, "c1.key": pair.key}
        for name, content in files.items():
            (self.folder / name).write_bytes(content)
        ca, certificate, key = (str(self.folder / name) for name in files)
        return Peer(name=C1, endpoints=(self.server.endpoint,), ca_file=ca, cert_file=certificate, key_file=key)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[PeerEtcd]:
    made = PeerEtcd(tmp_path)
    made.server.start()
    try:
        yield made
    finally:
        made.server.stop()


async def ready(etcd: PeerEtcd) -> None:
    peer = etcd.as_peer(trusted=NEW, signer=NEW)
    async with Session(peer.endpoints, tls=Tls(peer.ca_file, peer.cert_file, peer.key_file)) as session:
        await etcd.server.ready(session)


async def test_a_peer_of_an_authority_that_we_do_not_know_is_untrusted_with_the_cure(etcd: PeerEtcd) -> None:
    await ready(etcd)
    look = await links.look(etcd.as_peer(trusted=OLD, signer=NEW), C2)
    assert look.reason == "Untrusted"
    assert "its certificate is refused: unable to get local issuer certificate" in look.message
    assert look.message.endswith("isthmus connect, for both clusters")


async def test_a_peer_that_does_not_know_the_authority_of_our_certificate_is_untrusted_with_the_cure(
    etcd: PeerEtcd,
) -> None:
    await ready(etcd)
    look = await links.look(etcd.as_peer(trusted=NEW, signer=OLD), C2)
    assert look.reason == "Untrusted"
    assert "it refuses the client's certificate" in look.message
    assert look.message.endswith("isthmus connect, for both clusters")


async def test_a_peer_that_is_not_there_or_has_no_user_for_us_is_not_untrusted(etcd: PeerEtcd) -> None:
    await ready(etcd)
    good = etcd.as_peer(trusted=NEW, signer=NEW)
    assert (await links.look(good, C2)).reason == ""
    etcd.server.stop()
    assert (await links.look(good, C2)).reason == "Unreachable"
