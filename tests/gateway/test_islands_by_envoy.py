"""A call from one island to another through the real Envoys of a node and of a gateway, and who is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from island_world import C3, DOMAIN, Islands, expired, islands, reset
from route_world import C1, C2

from isthmus.clusterset import certificates
from isthmus.clusterset.certificates import Pair
from isthmus.gateway import checks, naming, tls
from isthmus.gateway.naming import service_sni
from isthmus.gateway.secrets import KEEP
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.tables import BACKENDS, GATEWAY_CHECKS, PLANS, XDS
from isthmus.proxy.process import Admin

pytestmark = pytest.mark.needs("envoy")

ECHO = ServiceName("demo/echo")
SNI = service_sni(ECHO, 80, DOMAIN)
SIZE = 4 * 1024 * 1024


@pytest.fixture
async def world() -> AsyncIterator[Islands]:
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        async with islands(Path(short)) as made:
            yield made


async def test_a_call_of_an_import_reaches_a_pod_of_another_island(world: Islands) -> None:
    pod = await world.pod()
    world.export(ECHO, pod)
    world.imported(ECHO, count=3)
    await world.healthy()
    reader, writer = await world.call(ECHO)
    assert await reader.readline() == b"hello\n"
    writer.close()
    assert pod.seen == 1
    [backend] = world.rows.rows(BACKENDS)
    assert backend.stands_for == 3
    assert "10.1.0." not in repr([*world.rows.rows(BACKENDS), *world.rows.rows(XDS)])


async def test_who_is_refused_reaches_no_pod(world: Islands) -> None:
    """Every case is refused in the handshake or before it; a server that speaks first would have been heard."""
    pod = await world.pod()
    secret, hidden = await world.pod(), await world.pod()
    world.export(ECHO, pod)
    world.export("demo/secret", secret, importers="c3")
    world.put_hidden("demo/hidden", hidden)
    await world.healthy()
    c1 = world.identity(C1, naming.NODE)
    strangers = certificates.authority("isthmus clusterset c1")  # of another clusterset, with a member called as ours
    ended = expired(world, C1)
    cases = {
        "wrong CA": await world.handshake(world.identity(C1, naming.NODE, by=strangers), SNI),
        "no certificate": await world.handshake(None, SNI),
        "expired": await world.handshake(ended, SNI),
        "another cluster's name by the own authority": await world.handshake(
            world.identity(C3, naming.NODE, by=world.authorities[C1]), SNI
        ),
        "another clusterset's domain": await world.handshake(
            world.identity(C1, naming.NODE), service_sni(ECHO, 80, "other.local")
        ),
        "a gateway's identity": await world.handshake(world.identity(C3, naming.GATEWAY), SNI),
        "not exported": await world.handshake(c1, service_sni(ServiceName("demo/hidden"), 80, DOMAIN)),
        "another cluster's restricted export": await world.handshake(
            c1, service_sni(ServiceName("demo/secret"), 80, DOMAIN)
        ),
        "an importer's name beside the own one, by the own authority": await world.handshake(
            world.named(world.authorities[C1], naming.node_identity(C1, DOMAIN), naming.node_identity(C3, DOMAIN)),
            service_sni(ServiceName("demo/secret"), 80, DOMAIN),
        ),
        "words before a restricted export's SNI": await world.handshake(
            c1, f"restricted {service_sni(ServiceName('demo/secret'), 80, DOMAIN)}"
        ),
        "words behind a restricted export's SNI": await world.handshake(
            c1, f"{service_sni(ServiceName('demo/secret'), 80, DOMAIN)} restricted"
        ),
        "a port that it has not": await world.handshake(c1, service_sni(ECHO, 81, DOMAIN)),
        "no SNI": await world.handshake(c1, None),
        "plain TCP": await plain(world, b"GET / HTTP/1.0\r\n\r\n"),
        "oversized ClientHello": await plain(world, b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(70_000)),
        "TLS 1.2": await world.handshake(c1, SNI, maximum_version=ssl.TLSVersion.TLSv1_2),
    }
    assert {name: got for name, got in cases.items() if got} == {}
    assert (pod.seen, secret.seen, hidden.seen) == (0, 0, 0)
    assert await world.handshake(c1, SNI) == b"hello\n"
    allowed = world.identity(C3, naming.NODE)
    assert await world.handshake(allowed, service_sni(ServiceName("demo/secret"), 80, DOMAIN)) == b"hello\n"
    assert (pod.seen, secret.seen, hidden.seen) == (1, 1, 0)
    want = {
        "certificate": {"unknown": 2},
        "expired": {"c1": 1},
        "handshake": {"unknown": 1},
        "no certificate": {"unknown": 1},
        "no handshake": {"unknown": 1},
        "not allowed": {"c3": 1, "unknown": 2},
        "not exported": {"c1": 3},
        "unknown SNI": {"unknown": 4},
    }
    await until(counted(world), want)


def counted(world: Islands, *reasons: str) -> Callable[[], Awaitable[dict[str, dict[str, int]]]]:
    """Refusals, of all reasons or some; a busy node's checks break off too: of those only whether there were any."""

    async def ask() -> dict[str, dict[str, int]]:
        found = world.refusals.by_reason()
        return {
            reason: dict.fromkeys(peers, 1) if "handshake" in reason else peers
            for reason, peers in found.items()
            if not reasons or reason in reasons
        }

    return ask


async def test_names_that_callers_choose_are_no_peers(world: Islands) -> None:
    """A member's authority signs any path and any cluster's name; another authority is nobody's."""
    world.export(ECHO, await world.pod(), importers="c3")
    await world.healthy()
    c1 = world.authorities[C1]
    for number in range(3):
        await world.handshake(world.identity(C1, f"/own-{number}"), SNI)
        await world.handshake(world.identity(ClusterName(f"x{number}"), naming.NODE, by=c1), SNI)
    want = {"certificate": {"unknown": 3}, "not allowed": {"unknown": 3}}
    await until(counted(world, *want), want)


async def test_a_certificate_of_several_names_gives_no_rights_of_another_cluster(world: Islands) -> None:
    """The authority is that of the first name's cluster; the rights must be, too."""
    pod = await world.pod()
    world.export(ECHO, pod, importers="c3")
    await world.healthy()
    uris = (naming.node_identity(C1, DOMAIN), naming.node_identity(C3, DOMAIN))
    by = world.authorities[C1]
    assert await world.handshake(world.named(by, *uris), SNI) == b""
    assert await world.handshake(world.named(by, *uris[::-1]), SNI) == b""
    assert await world.handshake(world.identity(C3, naming.NODE), SNI) == b"hello\n"
    assert pod.seen == 1


async def test_a_certificate_of_several_names_answers_for_no_other_cluster(world: Islands) -> None:
    """c3 signs itself c2's name as a second one, and stands where c2's gateway is."""
    world.export(ECHO, await world.pod())
    world.imported(ECHO)
    await world.healthy()
    uris = (naming.gateway_identity(C3, DOMAIN), naming.gateway_identity(C2, DOMAIN))
    found, held = world.named(world.authorities[C3], *uris, server=True), world.gateway_secrets.identity
    found.key.replace(held.key)
    found.certificate.replace(held.certificate)
    await until(world.shown, ssl.PEM_cert_to_DER_cert(held.certificate.read_text()))
    reader, writer = await world.call(ECHO)
    assert await reader.read(64) == b""
    writer.close()


async def test_a_cluster_that_is_no_member_any_more_is_refused_from_then_on(world: Islands) -> None:
    world.export(ECHO, await world.pod())
    await world.healthy()
    c3 = world.identity(C3, naming.NODE)
    assert await world.handshake(c3, SNI) == b"hello\n"
    (world.trust / "c3.ca.crt").unlink()
    world.renew()
    await until(lambda: world.handshake(c3, SNI), b"")
    assert await world.handshake(world.identity(C1, naming.NODE), SNI) == b"hello\n"


async def test_an_export_is_taken_from_those_who_may_not_import_it_any_more(world: Islands) -> None:
    pod = await world.pod()
    world.export(ECHO, pod)
    await world.healthy()
    c1, c3 = world.identity(C1, naming.NODE), world.identity(C3, naming.NODE)
    assert await world.handshake(c1, SNI) == b"hello\n"
    world.export(ECHO, pod, importers="c3")
    await until(lambda: world.handshake(c1, SNI), b"")
    await until(lambda: world.handshake(c3, SNI), b"hello\n")
    seen = pod.seen
    assert await world.handshake(c1, SNI) == b""
    assert pod.seen == seen


async def test_clusters_that_an_export_names_again_after_long_are_let_in_again(world: Islands) -> None:
    pod = await world.pod()
    world.export(ECHO, pod, importers="c3")
    c1, c3 = world.identity(C1, naming.NODE), world.identity(C3, naming.NODE)
    await until(lambda: world.handshake(c3, SNI), b"hello\n")
    world.export(ECHO, pod, importers="c1")
    await until(lambda: world.handshake(c1, SNI), b"hello\n")
    world.later += KEEP + 1
    world.renew()
    assert not tls.secret_file(world.gateway_of.directory, tls.trust_of([C3])).exists()
    assert await world.handshake(c1, SNI) == b"hello\n"
    world.export(ECHO, pod, importers="c3")
    await until(lambda: world.handshake(c3, SNI), b"hello\n")
    assert await world.handshake(c1, SNI) == b""


async def test_what_a_server_sends_before_it_closes_first_arrives_whole(world: Islands) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(SIZE))
        await writer.drain()

    world.export(ECHO, await world.pod(serve))
    world.imported(ECHO)
    await world.healthy()
    at = await world.target(ECHO)

    async def download() -> int:
        reader, writer = await asyncio.open_connection(*at)
        found = len(await reader.read(-1))
        writer.close()
        return found

    assert {await download() for _ in range(20)} == {SIZE}


async def test_each_side_may_close_its_half_first(world: Islands) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d" % len(await reader.read(-1)))  # answers when the client has closed its half
        await writer.drain()

    async def answer_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"done")
        writer.write_eof()
        received.set_result(len(await reader.read(-1)))

    received: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    world.export(ECHO, await world.pod(count))
    world.export("demo/first", await world.pod(answer_first))
    world.imported(ECHO)
    world.imported("demo/first")
    await world.healthy()
    reader, writer = await world.call(ECHO)
    writer.write(bytes(1_000_000))
    writer.write_eof()
    assert await reader.read(-1) == b"1000000"
    writer.close()
    reader, writer = await world.call("demo/first")
    assert await reader.read(-1) == b"done"
    writer.write(bytes(1_000_000))
    writer.write_eof()
    assert await received == 1_000_000
    writer.close()


async def test_a_reset_of_the_client_ends_the_connection_of_the_pod(world: Islands) -> None:
    ended = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        try:
            await reader.read(-1)
        finally:
            ended.set()

    world.export(ECHO, await world.pod(hold))
    world.imported(ECHO)
    await world.healthy()
    reader, writer = await world.call(ECHO)
    assert await reader.readline() == b"hello\n"
    reset(writer)
    async with asyncio.timeout(90):
        await ended.wait()


async def test_a_renewed_certificate_is_shown_and_a_held_connection_goes_on(world: Islands) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)

    world.export(ECHO, await world.pod(echo))
    world.imported(ECHO)
    await world.healthy()
    reader, writer = await world.call(ECHO)
    before = await world.shown()
    held = world.gateway_secrets.identity
    renewed = world.identity(C2, naming.GATEWAY)
    renewed.key.replace(held.key)
    renewed.certificate.replace(held.certificate)
    await until(world.shown, ssl.PEM_cert_to_DER_cert(held.certificate.read_text()))
    assert await world.shown() != before
    writer.write(b"still there\n")
    assert await reader.readline() == b"still there\n"
    writer.close()


async def test_an_authority_gives_way_to_another_one_and_no_call_fails(world: Islands) -> None:
    """As ``clusters rotate-ca`` does it: both are trusted, the new one signs, the old one is forgotten."""
    world.export(ECHO, await world.pod())
    world.imported(ECHO)
    await world.healthy()
    at = await world.target(ECHO)
    answers: list[bytes] = []
    ended = asyncio.Event()

    async def call() -> None:
        while not ended.is_set():
            reader, writer = await asyncio.open_connection(*at)
            answers.append(await reader.readline())
            writer.close()

    async def trust(*pairs: Pair) -> None:
        (world.trust / "c2.ca.crt").write_bytes(b"".join(pair.certificate for pair in pairs))
        world.renew()
        before = len(answers)
        await until(lambda: answered(answers, before + 20), b"yes")

    old, new = world.authorities[C2], certificates.authority("isthmus clusterset c2 anew")
    calling = asyncio.create_task(call())
    await trust(old, new)
    held, renewed = world.gateway_secrets.identity, world.identity(C2, naming.GATEWAY, by=new)
    renewed.key.replace(held.key)
    renewed.certificate.replace(held.certificate)
    await until(world.shown, ssl.PEM_cert_to_DER_cert(held.certificate.read_text()))
    await trust(new)
    ended.set()
    await calling
    assert set(answers) == {b"hello\n"}


async def answered(answers: list[bytes], count: int) -> bytes:
    return b"yes" if len(answers) >= count else b""


async def test_an_island_whose_gateway_has_ended_is_in_no_plan_until_it_is_back(world: Islands) -> None:
    world.export(ECHO, await world.pod())
    world.imported(ECHO, own=["10.9.9.9:8080"])  # with nothing else that could be called, the island would stay
    await world.target(ECHO)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(checks.follow(world.rows.db, world.node_of.directory))
        await planned(world, 1)
        await world.gateway.stop("supervisor")
        for path in world.gateway_of.directory.glob("admin-*.sock"):
            os.kill(Admin(path).pid, signal.SIGKILL)
        await planned(world, 0)
        [row] = world.rows.rows(GATEWAY_CHECKS)
        assert (row.cluster, row.healthy) == (C2, False)
        world.gateway.supervise()
        await planned(world, 1)
        following.cancel()


async def planned(world: Islands, want: int) -> None:
    """Wait until plans of the import have so many targets in c2."""
    async with asyncio.timeout(90):
        while True:
            world.rows.derive()
            plans = world.rows.rows(PLANS)
            if sum(t.cluster == C2 for plan in plans for group in plan.groups for t in group.targets) == want:
                return
            await asyncio.sleep(0.02)


async def until(ask: Callable[[], Awaitable[object]], want: object) -> None:
    """Ask until the answer is as wanted."""
    got = None
    try:
        async with asyncio.timeout(60):
            while (got := await ask()) != want:  # noqa: ASYNC110 of another process
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"want {want}, got {got}") from None


async def plain(world: Islands, data: bytes) -> bytes:
    """What the gateway gives one who sends this."""
    reader, writer = await asyncio.open_connection(*world.gateways[0])
    try:
        async with asyncio.timeout(60):
            writer.write(data)
            return await reader.read(64)
    except OSError:
        return b""
    finally:
        writer.transport.abort()
