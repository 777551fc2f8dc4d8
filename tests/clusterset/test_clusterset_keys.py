"""Each process has a key pair of its own, which opens what that process does and nothing else. Real etcds over TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from peers.joining_world import World, clusters

from isthmus.clusterset import pki
from isthmus.clusterset.errors import PkiError
from isthmus.etcd import Denied, Session, Tls
from isthmus.reflector import Transient

COPY = "cilium/cache/services/v1/c9/demo/echo"
OWN = "cilium/state/services/v1/c2/demo/echo"
CLIENTS = [*pki.CLIENTS, "peer"]


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[World, World]]:
    async with clusters(tmp_path) as both:
        yield both


def by_certificate(world: World, pair: str) -> Session:
    """A session of whoever has this pair, and no password."""
    path = world.keys.path
    tls = Tls(str(path / "ca.crt"), str(path / f"{pair}.crt"), str(path / f"{pair}.key"))
    return Session(world.home.etcd.endpoints, tls=tls)


@pytest.mark.parametrize(
    ("pair", "reads", "writes"),
    [
        ("operator", {OWN}, {OWN}),
        ("mirror", {COPY}, {COPY}),
        ("local", {COPY}, set()),
        ("admin", set(), set()),
        ("peer", set(), set()),
    ],
)
async def test_a_pair_opens_what_its_process_does_and_nothing_else(
    two: tuple[World, World], pair: str, reads: set[str], writes: set[str]
) -> None:
    _, c2 = two  # whose etcd asks for certificates, and takes their names for users
    async with c2.home.session() as root:
        for key in (OWN, COPY, "isthmus/join/7", "/registry/secrets/a/b"):
            await root.put(key, b"x")
    async with by_certificate(c2, pair) as session:
        for key in (OWN, COPY, "isthmus/join/7", "/registry/secrets/a/b", "isthmus/trust/v1/c2"):
            if key in reads:
                assert await session.get(key)
            else:
                with pytest.raises(Denied):
                    await session.get(key)
            if key in writes:
                await session.put(key, b"y")
            else:
                with pytest.raises(Denied):
                    await session.put(key, b"y")


async def test_a_servers_pair_is_no_clients_and_a_clients_none_of_a_server(two: tuple[World, World]) -> None:
    _, c2 = two
    async with by_certificate(c2, "server") as session:
        with pytest.raises(Transient):
            await session.get(OWN)
    for pair in ("server", *CLIENTS):
        certificate = x509.load_pem_x509_certificate(c2.keys.read(f"{pair}.crt"))
        [use] = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert use._name == ("serverAuth" if pair == "server" else "clientAuth")


def test_a_cluster_with_the_longest_name_has_keys_and_another_authority(tmp_path: Path) -> None:
    folder, name = pki.Folder(tmp_path), "c" * 32
    folder.ensure(name, ["127.0.0.1"], days=1, domain="clusterset.local")
    folder.begin_rotation(name)
    folder.switch()
    assert len(x509.load_pem_x509_certificates(folder.bundle)) == 2


def test_no_two_processes_have_one_key(tmp_path: Path) -> None:
    folder = pki.Folder(tmp_path / "pki")
    folder.ensure("c1", ["127.0.0.1"], days=30)
    assert len({folder.read(f"{pair}.key") for pair in ("ca", "server", *CLIENTS)}) == len(CLIENTS) + 2


@pytest.mark.parametrize("file", ["server.crt", "server.key", "node.key"])
@pytest.mark.parametrize("content", [b"", b"\xff nonsense", b"-----BEGIN CERTIFICATE-----\n"])
def test_a_pair_that_is_no_certificate_with_its_key_is_issued_anew(tmp_path: Path, file: str, content: bytes) -> None:
    folder = pki.Folder(tmp_path)
    folder.ensure("c1", ["127.0.0.1"], days=365, domain="clusterset.local")
    folder.save(file, content)
    made = folder.ensure("c1", ["127.0.0.1"], days=365, domain="clusterset.local")
    assert made == [file.partition(".")[0]]


@pytest.mark.parametrize("file", ["ca.crt", "ca.key"])
def test_an_authority_that_cannot_be_read_is_an_error_with_its_file_and_without_its_content(
    tmp_path: Path, file: str
) -> None:
    folder = pki.Folder(tmp_path)
    folder.ensure("c1", ["127.0.0.1"], days=365)
    folder.save(file, b"\xff secret nonsense")
    with pytest.raises(PkiError, match=r"ca.crt, ca.key: they are no certificate and its key") as caught:
        folder.ensure("c1", ["127.0.0.1"], days=365)
    assert "secret" not in str(caught.value)


def test_a_pair_of_another_use_is_issued_anew(tmp_path: Path) -> None:
    folder = pki.Folder(tmp_path / "pki")
    folder.ensure("c1", ["127.0.0.1"], days=30)
    assert folder.ensure("c1", ["127.0.0.1"], days=30) == []
    for part in ("crt", "key"):  # a client's pair in the server's place
        (folder.path / f"server.{part}").write_bytes(folder.read(f"operator.{part}"))
    assert folder.ensure("c1", ["127.0.0.1"], days=30) == ["server"]


async def test_certs_that_made_no_users_fail_and_say_that_the_etcd_is_open(two: tuple[World, World]) -> None:
    c1, _ = two
    c1.etcd.stop()
    command = await c1.command("certs")
    _, wrong = await command.communicate()
    assert command.returncode == 1
    assert b"no users made: this etcd is open to whoever reaches it" in wrong
    c1.etcd.start()
    async with c1.home.session() as root:
        await c1.etcd.ready(root)
    command = await c1.command("certs")
    _, wrong = await command.communicate()
    assert command.returncode == 0, wrong


async def test_a_token_is_never_an_argument(two: tuple[World, World], tmp_path: Path) -> None:
    c1, c2 = two
    invite = await c1.command("invite")
    assert invite.stdout is not None
    token = await invite.stdout.readline()
    shown = await c2.command("join", token.decode().strip())
    _, wrong = await shown.communicate()
    assert (shown.returncode, b"whoever lists processes (ps) reads a token" in wrong) == (1, True)
    assert token.strip() not in wrong
    assert c2.files() == []
    file = tmp_path / "token"
    file.write_bytes(token)
    join = await c2.command("join", "--token-file", str(file))
    _, wrong = await join.communicate()
    assert join.returncode == 0, wrong
    await invite.communicate()
    assert c2.files()
