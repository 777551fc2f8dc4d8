"""A call from one island to another through the real Envoys of a node and of a gateway, and who is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from meshes.island_world import C3, DOMAIN, Islands, Pod, calling_with, expired, islands, reset, until
from meshes.route_world import C1, C2
from peers.etcd_server import free_ports

from isthmus.clusterset import certificates
from isthmus.clusterset.certificates import Pair
from isthmus.gateway import checks, naming
from isthmus.gateway.naming import service_sni
from isthmus.gateway.secrets import Identity
from isthmus.model.names import ClusterName, ServiceName, pod_id
from isthmus.model.services import Namespace, Port
from isthmus.model.tables import BACKENDS, GATEWAY_CHECKS, NAMESPACES, PLANS, XDS
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


WEB = ServiceName("demo/web")
WEB_NAME = f"web.demo.svc.{DOMAIN}"


def named(word: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A server that says which one it is, first."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(word + b"\n")
        await writer.drain()
        await reader.read()

    return serve


async def test_each_pod_of_an_island_is_called_by_its_own_name_and_so_is_the_one_in_its_place(world: Islands) -> None:
    """The addresses that c2's record has are used by others here: no call goes there."""
    first, second = await world.pod(named(b"first")), await world.pod(named(b"second"))
    world.rows.put(NAMESPACES, Namespace("demo"))
    world.export_pods(WEB, {"web-0": first, "web-1": second})
    world.rows.headless(WEB, c2=[f"web-0=10.1.0.1:{first.port}", f"web-1=10.1.0.2:{second.port}"])
    await world.healthy()

    async def answer(host: str, pod: Pod) -> bytes:
        reader, writer = await world.call_pod(WEB_NAME, host, pod)
        try:
            return await reader.readline()
        finally:
            writer.close()

    await until(lambda: answer("web-0", first), b"first\n")
    await until(lambda: answer("web-1", second), b"second\n")
    found = [await answer(*each) for each in [("web-0", first), ("web-1", second)] * 3]
    assert found == [b"first\n", b"second\n"] * 3
    other = await Pod().start(named(b"in its place"), world.stack, host="127.0.0.2", port=first.port)
    world.export_pods(WEB, {"web-1": second, "web-0": other})
    world.rows.replicas(WEB, C2, f"web-0=10.1.0.9:{first.port}", f"web-1=10.1.0.1:{second.port}")
    await until(lambda: answer("web-0", other), b"in its place\n")


async def test_a_pod_of_an_export_is_refused_to_whoever_is_refused_the_export(world: Islands) -> None:
    open_, secret, hidden = await world.pod(), await world.pod(), await world.pod()
    world.export_pods(WEB, {"web-0": open_})
    world.export_pods("demo/secret", {"web-0": secret}, importers="c3")
    world.put_hidden("demo/hidden", hidden)
    await world.healthy()
    node = world.identity(C1, naming.NODE)

    def sni(name: str, port: int, host: str = "web-0") -> str:
        of = ServiceName(name)
        return service_sni(of, port, DOMAIN, pod=pod_id(of, host, ""))

    refused = {
        "no certificate": await world.handshake(None, sni(WEB, open_.port)),
        "another pod": await world.handshake(node, sni(WEB, open_.port, "web-1")),
        "another port": await world.handshake(node, sni(WEB, secret.port)),
        "the export as a whole": await world.handshake(node, service_sni(WEB, 80, DOMAIN)),
        "not exported": await world.handshake(
            node,
            service_sni(
                ServiceName("demo/hidden"), hidden.port, DOMAIN, pod=pod_id(ServiceName("demo/hidden"), "", "127.0.0.1")
            ),
        ),
        "for others": await world.handshake(node, sni("demo/secret", secret.port)),
        "for others, another end": await world.handshake(node, f"{sni('demo/secret', secret.port)} restricted"),
    }
    assert {name: got for name, got in refused.items() if got} == {}
    assert (open_.seen, secret.seen, hidden.seen) == (0, 0, 0)
    assert await world.handshake(node, sni(WEB, open_.port)) == b"hello\n"
    allowed = world.identity(C3, naming.NODE)
    assert await world.handshake(allowed, sni("demo/secret", secret.port)) == b"hello\n"
    assert (open_.seen, secret.seen, hidden.seen) == (1, 1, 0)


async def test_who_is_refused_reaches_no_pod(world: Islands) -> None:
    """Every case is refused in the handshake or before it, and counted; a server that speaks first would be heard."""
    pod, secret, hidden = await world.pod(), await world.pod(), await world.pod()
    world.export(ECHO, pod)
    world.export("demo/secret", secret, importers="c3")
    world.put_hidden("demo/hidden", hidden)
    await world.healthy()
    c1, c3 = world.identity(C1, naming.NODE), world.identity(C3, naming.NODE)
    secret_sni = service_sni(ServiceName("demo/secret"), 80, DOMAIN)
    strangers = certificates.authority("isthmus clusterset c1")  # of another clusterset, with a member called as ours
    call = world.handshake
    first_flight = await recorded(world, c1)
    reached = pod.seen
    cases: list[tuple[str, Awaitable[bytes], str, str]] = [
        ("wrong CA", call(world.identity(C1, naming.NODE, by=strangers), SNI), "certificate", "unknown"),
        ("no certificate", call(None, SNI, caller="c1"), "no certificate", "unknown"),
        ("expired", call(expired(world, C1), SNI), "expired", "c1"),
        (
            "another cluster's name by the own authority",
            call(world.identity(C3, naming.NODE, by=world.authorities[C1]), SNI),
            "certificate",
            "unknown",
        ),
        ("in the name of another member", call(c1, SNI, caller="c3"), "not allowed", "unknown"),
        ("in nobody's name", call(c1, SNI, caller=""), "not allowed", "c1"),
        ("in the name of no member", call(c1, SNI, caller="c9"), "not allowed", "c1"),
        ("another clusterset's domain", call(c1, service_sni(ECHO, 80, "other.local")), "unknown SNI", "unknown"),
        ("a gateway's identity", call(world.identity(C3, naming.GATEWAY), SNI), "not allowed", "c3"),
        ("not exported", call(c1, service_sni(ServiceName("demo/hidden"), 80, DOMAIN)), "not exported", "c1"),
        ("another cluster's restricted export", call(c1, secret_sni), "not allowed", "c1"),
        (
            "an importer's name beside the own one, by the own authority",
            call(
                world.named(world.authorities[C1], naming.node_identity(C1, DOMAIN), naming.node_identity(C3, DOMAIN)),
                secret_sni,
            ),
            "not allowed",
            "c1",
        ),
        ("words before a restricted export's SNI", call(c1, f"restricted {secret_sni}"), "not exported", "c1"),
        ("words behind a restricted export's SNI", call(c1, f"{secret_sni} restricted"), "unknown SNI", "unknown"),
        ("a port that it has not", call(c1, service_sni(ECHO, 81, DOMAIN)), "not exported", "c1"),
        ("no SNI", call(c1, None), "unknown SNI", "unknown"),
        ("plain TCP", plain(world, b"GET / HTTP/1.0\r\n\r\n"), "unknown SNI", "unknown"),
        (
            "oversized ClientHello",
            plain(world, b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(70_000)),
            "no handshake",
            "unknown",
        ),
        ("TLS 1.2", call(c1, SNI, maximum_version=ssl.TLSVersion.TLSv1_2), "handshake", "unknown"),
        ("a member's call, replayed", ended(world, first_flight), "handshake", "unknown"),
    ]
    assert {name: got for name, answer, *_ in cases if (got := await answer)} == {}
    assert (pod.seen, secret.seen, hidden.seen) == (reached, 0, 0)
    assert await call(c1, SNI) == b"hello\n"
    assert await call(c3, secret_sni) == b"hello\n"
    assert (pod.seen, secret.seen, hidden.seen) == (reached + 1, 1, 0)
    want: dict[str, dict[str, int]] = {}
    for *_, reason, peer in cases:
        found = want.setdefault(reason, {})
        found[peer] = 1 if "handshake" in reason else found.get(peer, 0) + 1
    await until(counted(world), want)


async def recorded(world: Islands, identity: Identity) -> bytes:
    """All that a member sends in a call that a pod answers."""
    sent = bytearray()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*world.gateways[0])
        answers = asyncio.create_task(passed(there, writer))
        while data := await reader.read(65_536):
            sent.extend(data)
            back.write(data)
        back.close()
        await answers

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)

    at = await world.pod(relay)
    context = calling_with(identity)
    reader, writer = await asyncio.open_connection(at.host, at.port, ssl=context, server_hostname=SNI)
    writer.write(b"pay\n")
    assert await reader.read(64) == b"hello\n"
    writer.transport.abort()
    return bytes(sent)


async def ended(world: Islands, data: bytes) -> bytes:
    """Nothing, once the gateway has ended the connection of one who sends this; a part of a handshake is no answer."""
    reader, writer = await asyncio.open_connection(*world.gateways[0])
    async with asyncio.timeout(60):
        with suppress(OSError):
            writer.write(data)
            while await reader.read(65_536):
                pass
    writer.transport.abort()
    return b""


@pytest.mark.needs("openssl")
async def test_early_data_reaches_no_pod(world: Islands, tmp_path: Path) -> None:
    """A caller that has a session of another server of that name, whose key the gateway does not know, sends data with
    its ClientHello: the gateway gives no session, takes none and skips that data."""
    received = bytearray()

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        while data := await reader.read(64):
            received.extend(data)

    async def whole() -> bytes:
        return bytes(received)

    pod, c1 = await world.pod(keep), world.identity(C1, naming.NODE)
    world.export(ECHO, pod)
    await world.healthy()
    session, early = tmp_path / "session", tmp_path / "early"
    early.write_bytes(b"pay twice\n")
    alpn = naming.protocol(C1, DOMAIN)
    [port] = free_ports(1)
    pair = ("-cert", str(c1.certificate), "-key", str(c1.key))
    more = ("-tls1_3", "-max_early_data", "16384", "-alpn", alpn, "-www", "-quiet")
    other = await asyncio.create_subprocess_exec("openssl", "s_server", "-accept", str(port), *pair, *more)

    async def has_session() -> bool:
        await said(port, alpn, b"GET / HTTP/1.0\r\n\r\n", "-ign_eof", "-sess_out", str(session))
        return session.is_file()

    try:
        await until(has_session, True)
    finally:
        other.terminate()
        await other.wait()
    offer, at = ("-sess_in", str(session), "-early_data", str(early)), world.gateways[0].port
    assert b"Early data was rejected" in await said(at, alpn, b"paid\n", *offer, *pair)
    await until(whole, b"paid\n")
    assert b"hello" not in await said(at, alpn, b"", *offer)
    await until(counted(world, "no certificate"), {"no certificate": {"unknown": 1}})
    assert (pod.seen, bytes(received)) == (1, b"paid\n")
    assert not await gets_session(world, c1)


async def gets_session(world: Islands, identity: Identity) -> bool:
    """Whether the gateway gives a caller a session that it could resume."""
    context = calling_with(identity)
    reader, writer = await asyncio.open_connection(*world.gateways[0], ssl=context, server_hostname=SNI)
    assert await reader.read(64) == b"hello\n"
    found: bool = writer.get_extra_info("ssl_object").session.has_ticket
    writer.transport.abort()
    return found


async def said(port: int, alpn: str, text: bytes, *options: str) -> bytes:
    """What ``openssl s_client`` writes, which types this text."""
    to = ("-connect", f"127.0.0.1:{port}", "-servername", SNI, "-alpn", alpn, "-tls1_3")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "openssl", "s_client", *to, *options, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(60):
        return (await process.communicate(text))[0]


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
    want = {"certificate": {"unknown": 3}, "not allowed": {"c1": 3}}
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
    pod = await world.pod()
    world.export(ECHO, pod)
    await world.healthy()
    c3 = world.identity(C3, naming.NODE)
    assert await world.handshake(c3, SNI) == b"hello\n"
    (world.trust / "c3.ca.crt").unlink()
    world.renew()
    await until(lambda: world.handshake(c3, SNI), b"")
    seen = pod.seen
    assert await world.handshake(c3, SNI) == b""
    assert pod.seen == seen
    assert await world.handshake(world.identity(C1, naming.NODE), SNI) == b"hello\n"
    await until(counted(world, "certificate"), {"certificate": {"unknown": 2}})


async def test_connections_that_a_cluster_holds_end_when_it_is_no_member_any_more_and_no_others(
    world: Islands,
) -> None:
    """Also those to an export for some clusters, and to one of HTTP."""
    world.export(ECHO, await world.pod(echoed))
    world.export("demo/some", await world.pod(echoed), importers="c1, c3")
    world.export("demo/web", await world.pod(web), ports=(Port("", 80, app_protocol="http"),))
    await world.healthy()
    snis = [service_sni(ServiceName(name), 80, DOMAIN) for name in (ECHO, "demo/some", "demo/web")]
    c1 = [await held(world, world.identity(C1, naming.NODE), sni) for sni in snis]
    c3 = [await held(world, world.identity(C3, naming.NODE), sni) for sni in snis]
    (world.trust / "c3.ca.crt").unlink()
    world.renew()
    async with asyncio.timeout(60):
        for each in c3:
            assert await each.ended() == b""
    assert [await each.asked() for each in c1] == [b"still there", b"still there", b"HTTP/1.1 200 OK"]


async def test_connections_end_when_an_export_is_taken_from_the_cluster_that_holds_them(world: Islands) -> None:
    pod = await world.pod(echoed)
    world.export(ECHO, pod, importers="c1, c3")
    await world.healthy()
    c1, c3 = [await held(world, world.identity(each, naming.NODE), SNI) for each in (C1, C3)]
    world.export(ECHO, pod, importers="c1")
    async with asyncio.timeout(60):
        assert await c3.ended() == b""
    assert await c1.asked() == b"still there"


async def test_held_connections_outlive_exports_and_members_that_come_and_go(world: Islands) -> None:
    world.export(ECHO, await world.pod(echoed))
    world.export("demo/web", await world.pod(web), ports=(Port("", 80, app_protocol="http"),))
    await world.healthy()
    c1 = world.identity(C1, naming.NODE)
    found = [await held(world, c1, service_sni(ServiceName(name), 80, DOMAIN)) for name in (ECHO, "demo/web")]
    other = await world.pod(echoed)
    world.export("demo/other", other, ports=(Port("", 80, app_protocol="http"),))
    some, c3 = service_sni(ServiceName("demo/some"), 80, DOMAIN), world.identity(C3, naming.NODE)
    world.export("demo/some", other, importers="c3")
    await until(lambda: world.handshake(c3, some), b"hello\n")
    gone = await held(world, c3, some)
    (world.trust / "c3.ca.crt").unlink()
    world.renew()
    async with asyncio.timeout(60):
        assert await gone.ended() == b""  # what was to be drained has been
    assert [await each.asked() for each in found] == [b"still there", b"HTTP/1.1 200 OK"]


async def test_a_node_notices_that_its_cluster_is_no_member_of_an_island_any_more(world: Islands) -> None:
    """Its held check of the gateway ends; its held calls end too."""
    world.export(ECHO, await world.pod(echoed))
    world.imported(ECHO)
    await world.healthy()
    reader, writer = await world.call(ECHO)
    assert await reader.readline() == b"hello\n"
    await until(lambda: found_healthy(world), 1)
    (world.trust / "c1.ca.crt").rename(world.trust / "c1.gone")
    world.renew()
    await until(lambda: found_healthy(world), 0)
    async with asyncio.timeout(60):
        assert await reader.read(-1) == b""
    writer.close()
    (world.trust / "c1.gone").rename(world.trust / "c1.ca.crt")
    world.renew()
    await until(lambda: found_healthy(world), 1)
    reader, writer = await world.call(ECHO)
    assert await reader.readline() == b"hello\n"
    writer.close()


async def echoed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that says hello, and sends each line back."""
    writer.write(b"hello\n")
    while line := await reader.readline():
        writer.write(line)


async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server of HTTP that answers each request with nothing."""
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


class Held(NamedTuple):
    """A connection to a pod that stays."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    speaks_http: bool

    async def asked(self) -> bytes:
        """The first line of what it answers now."""
        async with asyncio.timeout(60):
            self.writer.write(b"GET / HTTP/1.1\r\nhost: echo\r\n\r\n" if self.speaks_http else b"still there\n")
            lines = [await self.reader.readline()]
            while self.speaks_http and lines[-1].strip():
                lines.append(await self.reader.readline())
            return lines[0].strip()

    async def ended(self) -> bytes:
        """What comes until the gateway ends it."""
        try:
            return await self.reader.read(-1)
        except OSError:
            return b""


async def held(world: Islands, identity: Identity, sni: str) -> Held:
    """A connection of a member to a pod, which has answered once."""
    context = calling_with(identity)
    reader, writer = await asyncio.open_connection(*world.gateways[0], ssl=context, server_hostname=sni)
    world.stack.callback(lambda: writer.transport.abort())
    found = Held(reader, writer, sni == service_sni(ServiceName("demo/web"), 80, DOMAIN))
    if not found.speaks_http:
        assert await reader.readline() == b"hello\n"
    assert await found.asked() in (b"still there", b"HTTP/1.1 200 OK")
    return found


async def found_healthy(world: Islands) -> int | None:
    """How many gateways pass the node's checks."""
    return (await world.node_stats("cluster.island.*membership_healthy")).get("cluster.island c2.membership_healthy")


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


async def test_clusters_that_an_export_names_again_are_let_in_again(world: Islands) -> None:
    pod = await world.pod()
    world.export(ECHO, pod, importers="c3")
    c1, c3 = world.identity(C1, naming.NODE), world.identity(C3, naming.NODE)
    await until(lambda: world.handshake(c3, SNI), b"hello\n")
    world.export(ECHO, pod, importers="c1")
    await until(lambda: world.handshake(c1, SNI), b"hello\n")
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


async def test_a_certificate_that_a_kubelet_renews_is_shown(world: Islands, tmp_path: Path) -> None:
    """A mounted Secret's files are links into ``..data``, itself a link: its replacement is the one move there is."""
    versions = [world.identity(C2, naming.GATEWAY) for _ in range(2)]
    for number, pair in enumerate(versions):
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        (folder / "gateway.crt").write_bytes(pair.certificate.read_bytes())
        (folder / "gateway.key").write_bytes(pair.key.read_bytes())
    (tmp_path / "..data").symlink_to("..0")
    mounted = Identity(tmp_path / "gateway.crt", tmp_path / "gateway.key")
    for path in (mounted.certificate, mounted.key):
        path.symlink_to(f"..data/{path.name}")
    first, second = (ssl.PEM_cert_to_DER_cert(pair.certificate.read_text()) for pair in versions)
    world.gateway_secrets.identity = mounted
    world.renew()
    await world.healthy()
    await until(world.shown, first)
    (tmp_path / "..data_tmp").symlink_to("..1")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    await until(world.shown, second)


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
