"""Two clusters are joined by two commands, and no file is copied. Real etcds with TLS and users."""

from __future__ import annotations

import asyncio
import base64
import signal
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from peers.clusterset_peers import QUICK, Following
from peers.joining_world import World, clusters, two_commands

from isthmus.clusterset import certificates, joining
from isthmus.clusterset.errors import JoinError
from isthmus.clusterset.joining import tokens
from isthmus.clusterset.peers import Directory
from isthmus.clusterset.records import keys
from isthmus.etcd import Credentials, Denied, Session, access
from isthmus.model import tables
from isthmus.model.names import ClusterName


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[World, World]]:
    async with clusters(tmp_path) as both:
        yield both


async def joined(c1: World, c2: World) -> None:
    async with joining.invitation(c1.home, lifetime=60) as invitation, asyncio.TaskGroup() as tasks:
        tasks.create_task(invitation.accepted())
        tasks.create_task(joining.join(c2.home, invitation.word, patience=90))


async def guests(world: World) -> set[str]:
    async with world.home.session() as root:
        people = await access.users(root) | await access.roles(root)
        keys_left = [kv.key for prefix in ("isthmus/join/", "isthmus/invite/") for kv in (await root.list(prefix)).kvs]
    return {each for each in people if each.startswith("join-")} | set(keys_left)


async def test_two_commands_join_two_clusters_in_both_directions(two: tuple[World, World]) -> None:
    c1, c2 = two
    await c1.publish("10.1.1.1")
    await c2.publish("10.2.1.1")
    async with c1.following() as first, c2.following() as second:
        await two_commands(c1, c2)
        await first.state("c2", "ready")
        await second.state("c1", "ready")
        assert first.services() == {"c2:demo/echo": ["10.2.1.1"]}
        assert second.services() == {"c1:demo/echo": ["10.1.1.1"]}
        await c2.publish("10.2.1.1", "10.2.1.2")
        await first.until(lambda s: first.services() == {"c2:demo/echo": ["10.2.1.1", "10.2.1.2"]})
    assert await guests(c1) == set()
    for world in two:
        assert all(path.stat().st_mode & 0o77 == 0 for path in (world.folder / "peers").iterdir())
        assert all(path.stat().st_mode & 0o77 == 0 for path in world.keys.path.iterdir())


async def test_a_token_is_good_once(two: tuple[World, World]) -> None:
    c1, c2 = two
    async with joining.invitation(c1.home, lifetime=60) as invitation, asyncio.TaskGroup() as tasks:
        tasks.create_task(invitation.accepted())
        await joining.join(c2.home, invitation.word, patience=90)
    await joining.leave(c2.home, ClusterName("c1"))
    with pytest.raises(JoinError, match="used or expired"):
        await joining.join(c2.home, invitation.word, patience=5)
    assert c2.files() == []


async def test_a_token_used_by_two_clusters_admits_neither(two: tuple[World, World]) -> None:
    c1, _ = two
    async with joining.invitation(c1.home, lifetime=60) as invitation:
        token = tokens.unpack(invitation.word)
        async with c1.home.session() as root:
            for _ in range(2):
                await root.put(keys.offer(token.number), b"{}")
        with pytest.raises(JoinError, match="used twice"):
            await invitation.accepted()
    assert (c1.files(), await guests(c1)) == ([], set())


async def test_a_guest_can_do_nothing_but_make_its_offer(two: tuple[World, World]) -> None:
    c1, _ = two
    async with joining.invitation(c1.home, lifetime=60) as invitation:
        token = tokens.unpack(invitation.word)
        tls = c1.home.session()._transport._tls
        guest = Credentials(f"join-{token.number}", token.password)
        async with Session(token.entry.endpoints, tls=tls, credentials=guest) as session:
            for key in ("cilium/state/services/v1/c1/demo/echo", keys.offer(token.number), "/registry/secrets/a/b"):
                with pytest.raises(Denied):
                    await session.get(key)
            with pytest.raises(Denied):
                await session.put(keys.offer("another"), b"")
            await session.put(keys.offer(token.number), b"{}")
        with pytest.raises(JoinError, match="offer cannot be read"):
            await invitation.accepted()


async def test_a_token_expires(two: tuple[World, World]) -> None:
    c1, c2 = two
    now = time.time()
    async with joining.invitation(c1.home, lifetime=600, clock=lambda: now) as invitation:
        now += 601
        with pytest.raises(JoinError, match="no cluster joined"):
            await invitation.accepted()
    with pytest.raises(JoinError, match="has expired"):
        await joining.join(c2.home, invitation.word, patience=5, clock=lambda: now)
    forged = msgspec.structs.replace(tokens.unpack(invitation.word), expires=int(now) + 100)
    with pytest.raises(JoinError, match="used or expired"):
        await joining.join(c2.home, tokens.pack(forged), patience=5, clock=lambda: now)
    assert (c2.files(), await guests(c1)) == ([], set())


async def test_what_an_inviter_that_was_killed_left_goes_when_its_time_is_over(two: tuple[World, World]) -> None:
    c1, _ = two
    invite = await c1.command("invite", "--expires", "600")
    assert invite.stdout is not None
    token = tokens.unpack((await invite.stdout.readline()).decode())
    invite.kill()
    await invite.communicate()
    await joining.guard(c1.home)
    assert f"join-{token.number}" in await guests(c1)
    async with c1.home.session() as root:
        await root.delete(keys.invitation(token.number))  # as its lease does
    await joining.guard(c1.home)
    assert await guests(c1) == set()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
async def test_an_inviter_that_is_stopped_removes_its_invitation(
    two: tuple[World, World], stop: signal.Signals
) -> None:
    c1, _ = two
    invite = await c1.command("invite")
    assert invite.stdout is not None
    await invite.stdout.readline()
    invite.send_signal(stop)
    await invite.communicate()
    assert await guests(c1) == set()


async def test_a_join_without_an_answer_removes_what_it_made(two: tuple[World, World]) -> None:
    c1, c2 = two
    async with joining.invitation(c1.home, lifetime=60) as invitation:
        with pytest.raises(JoinError, match="did not grant access"):
            await joining.join(c2.home, invitation.word, patience=1)
    async with c2.home.session() as root:
        assert "remote-c1" not in await access.users(root)
    assert c2.files() == []


@pytest.mark.parametrize(
    ("name", "number", "why"),
    [("c1", 7, "both clusters are called c1"), ("c3", 1, "our id 1"), ("c3", 300, "want 1 to 255"), ("Ä", 3, "name")],
)
async def test_clusters_that_cannot_be_distinguished_do_not_join(
    two: tuple[World, World], name: str, number: int, why: str
) -> None:
    c1, c2 = two
    entry = msgspec.structs.replace(c2.home.entry(()), cluster=ClusterName(name), id=number)
    offer = tokens.Offer(entry=entry, password="x" * 32, wanted="y" * 32)
    async with joining.invitation(c1.home, lifetime=60) as invitation:
        async with c1.home.session() as root:
            await root.put(keys.offer(tokens.unpack(invitation.word).number), msgspec.json.encode(offer))
        with pytest.raises(JoinError, match=why):
            await invitation.accepted()
    async with c1.home.session() as root:
        assert not {each for each in await access.users(root) if each.startswith("remote-")}
    assert c1.files() == []


async def test_leaving_undoes_joining_and_may_be_followed_by_joining_again(two: tuple[World, World]) -> None:
    c1, c2 = two
    await c1.publish("10.1.1.1")
    await joined(c1, c2)
    with pytest.raises(JoinError, match="has joined already"):
        async with joining.invitation(c1.home, lifetime=60) as invitation:
            await joining.join(c2.home, invitation.word)
    async with c2.following() as second:
        await second.state("c1", "ready")
        await joining.leave(c2.home, ClusterName("c1"))
        await second.until(lambda s: s.get(tables.CLUSTERS, ClusterName("c1")) is None and not second.services())
        async with c2.home.session() as root:
            assert "remote-c1" not in await access.users(root)
        with pytest.raises(JoinError, match="no cluster 'c1' has joined"):
            await joining.leave(c2.home, ClusterName("c1"))
        await joining.leave(c1.home, ClusterName("c2"))
        await joined(c1, c2)
        await second.state("c1", "ready")


async def test_joining_wires_the_agents_to_the_mirror_and_leaving_takes_that_back(two: tuple[World, World]) -> None:
    c1, c2 = two
    behind = c2.folder / "mirrored"
    section = structs.replace(c2.home.clusterset, mirrored=str(behind), mirror_endpoints=(c2.etcd.endpoint,))
    c2.home = structs.replace(c2.home, clusterset=section)
    directory = Directory(str(behind), own=ClusterName("c2"))
    assert directory.read() == {}
    await joined(c1, c2)
    copies = directory.read()[ClusterName("c1")]
    assert (copies.endpoints, copies.username, copies.id) == ((c2.etcd.endpoint,), "local", 1)
    assert all(path.stat().st_mode & 0o77 == 0 for path in behind.iterdir())
    async with copies.session() as agent:
        await agent.list("cilium/cache/")
        with pytest.raises(Denied):
            await agent.list("cilium/state/")
    (c2.keys.path / "local.password").write_text("another one, of as many characters")
    await joining.guard(c2.home)
    async with directory.read()[ClusterName("c1")].session() as agent:
        await agent.list("cilium/cache/")
    await joining.leave(c2.home, ClusterName("c1"))
    assert directory.read() == {}
    assert sorted(path.name for path in behind.iterdir()) == ["etcd.crt", "local.crt", "local.key"]


async def test_a_peer_that_is_granted_access_again_by_its_former_password_has_it(two: tuple[World, World]) -> None:
    c1, _ = two
    c2, password, granted = ClusterName("c2"), "long enough to be one", dict[ClusterName, str]()
    for passwords in ({c2: password}, {}, {c2: password}):
        await joining.grant(c1.home, passwords, granted)
        async with c1.home.session() as root:
            assert ("remote-c2" in await access.users(root)) is bool(passwords)


@pytest.mark.parametrize("word", ["", "hello", "isthmus1.", "isthmus1.AAAA", "isthmus1.!!!", "isthmus1.eJwDAAAAAAE"])
def test_a_word_that_is_no_token_is_refused(word: str) -> None:
    with pytest.raises(JoinError):
        tokens.unpack(word)


def test_a_token_that_decompresses_beyond_its_limit_is_refused_without_the_memory_for_it() -> None:
    """A kilobyte of zeros becomes a megabyte: the field is one that no token has, and the rest would be valid."""
    entry = tokens.Entry(cluster=ClusterName("c1"), id=1, endpoints=(), ca=b"", certificate=b"", key=b"")
    token = tokens.Token(entry=entry, number="1", password="x", expires=1)
    fields = msgspec.to_builtins(token, builtin_types=(bytes,))
    for size, valid in ((tokens.LIMIT // 2, True), (tokens.LIMIT, False)):
        packed = zlib.compress(msgspec.msgpack.encode(fields | {"more": b"0" * size}))
        word = tokens.MARK + base64.urlsafe_b64encode(packed).decode().rstrip("=")
        if valid:
            assert tokens.unpack(word) == token
        else:
            with pytest.raises(JoinError, match="damaged"):
                tokens.unpack(word)


async def test_a_terminals_line_breaks_do_no_harm(two: tuple[World, World]) -> None:
    word = tokens.pack(tokens.Token(entry=two[0].home.entry(()), number="1", password="x", expires=1))
    folded = "\n".join(word[start : start + 80] for start in range(0, len(word), 80))
    assert tokens.pack(tokens.unpack(folded)) == word


async def reconnected(follower: Following, runs: int) -> None:
    await follower.until_true(lambda: follower.connections("c1") >= runs)


async def until_addresses(follower: Following, addresses: list[str]) -> None:
    await follower.until(lambda s: follower.services() == {"c1:demo/echo": addresses})


@pytest.mark.slow
async def test_an_authority_is_changed_under_a_running_clusterset_and_no_backend_leaves(
    two: tuple[World, World],
) -> None:
    c1, c2 = two
    await c1.publish("10.1.1.1")
    await joined(c1, c2)
    async with c2.following() as second:
        await second.state("c1", "ready")
        await second.until(lambda s: second.services())
        changes = second.db.changes(tables.ENDPOINT_SETS)
        changes.next()
        before = (c2.folder / "peers" / "c1.ca.crt").read_bytes()
        for number, step in enumerate(("begin", "switch", "end"), 2):
            command = await c1.command("rotate-ca", step)
            _, wrong = await command.communicate()
            assert command.returncode == 0, wrong
            assert await joining.refresh(c2.home) == ["c1"]
            await reconnected(second, number)
            await c1.publish("10.1.1.1", f"10.1.1.{number}")
            await until_addresses(second, ["10.1.1.1", f"10.1.1.{number}"])
        assert all(change.new is not None for change in changes.next()[1])
        assert await joining.refresh(c2.home) == []
    after = (c2.folder / "peers" / "c1.ca.crt").read_bytes()
    assert after.count(b"BEGIN CERTIFICATE") == before.count(b"BEGIN CERTIFICATE") == 1
    assert after != before


async def test_an_authority_is_not_switched_while_the_etcd_hangs_but_is_while_it_does_not_run(
    two: tuple[World, World],
) -> None:
    _, c2 = two
    c2.home.folder.begin_rotation("c2")
    with c2.etcd.hanging(), pytest.raises(JoinError, match="does not answer now"):
        await joining.check_next(c2.home, timeout=1.0)
    c2.etcd.stop()
    await joining.check_next(c2.home, timeout=1.0)


@pytest.mark.slow
async def test_it_is_changed_where_etcd_asks_for_certificates_too_with_a_restart_after_the_first_and_last_step(
    two: tuple[World, World],
) -> None:
    c1, c2 = two
    await c2.publish("10.2.1.1")
    await joined(c1, c2)
    async with c1.following() as first:
        await first.state("c2", "ready")
        changes = first.db.changes(tables.ENDPOINT_SETS)
        changes.next()
        for number, step in enumerate(("begin", "switch", "end"), 2):
            command = await c2.command("rotate-ca", step)
            _, wrong = await command.communicate()
            assert command.returncode == 0, wrong
            assert (b"restart" in wrong) == (step != "switch")
            if step == "begin":
                early = await c2.command("rotate-ca", "switch")
                _, wrong = await early.communicate()
                assert (early.returncode, b"restart it, then again" in wrong) == (1, True), wrong
            if step != "switch":  # etcd reads new certificates by itself, but not its trusted authorities
                c2.etcd.stop()
                c2.etcd.start()
                async with c2.home.session() as root:
                    await c2.etcd.ready(root)
            assert await joining.refresh(c1.home) == ["c2"]
            await c2.publish("10.2.1.1", f"10.2.1.{number}")
            await first.until(lambda s, n=number: first.services() == {"c2:demo/echo": ["10.2.1.1", f"10.2.1.{n}"]})  # type: ignore[misc]
            await first.state("c2", "ready")
        assert all(change.new is not None for change in changes.next()[1])
        assert (c1.folder / "peers" / "c2.ca.crt").read_bytes().count(b"BEGIN CERTIFICATE") == 1


async def test_a_peers_row_names_the_certificate_that_its_etcd_shows_when_that_is_about_to_end(
    two: tuple[World, World],
) -> None:
    c1, c2 = two
    await c1.publish("10.1.1.1")
    await joined(c1, c2)
    name = c1.home.etcd.endpoints[0]
    timings = structs.replace(QUICK, handshake_every=6.0)
    async with c2.following(timings=timings) as second:
        await second.state("c1", "ready")
        assert "the certificate that" not in second.cluster("c1").reason
        pair = certificates.issue(c1.home.folder.signer, "c1", hosts=["127.0.0.1", "localhost"], days=3)
        good = c1.home.folder.pair("server")
        text = f"the certificate that {name} shows ends at"
        for each, expected in ((pair, True), (good, False)):
            c1.home.folder.save("server.key", each.key)
            c1.home.folder.save("server.crt", each.certificate)
            await second.until(lambda _, expected=expected: (text in second.cluster("c1").reason) is expected)  # type: ignore[misc]
        assert second.cluster("c1").state == "ready"
