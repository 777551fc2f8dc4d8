"""Questions that are passed on: what is bounded, what ends by itself, and DNS over TCP on both sides."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import dns.asyncquery
import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from answers.dns_world import ECHO, ROWS, ZONE, serving, texts, upstream_server

from isthmus.dns import Server, respond
from isthmus.dns.upstream import Address, Upstream, answers
from isthmus.model.hosts import endpoint
from isthmus.model.tables import NAMES, PODS
from isthmus.statedb import Database

Replies = list[tuple[bytes, Address]]


@asynccontextmanager
async def silent_upstream(**bounds: int) -> AsyncIterator[tuple[Upstream, Replies, list[float], socket.socket]]:
    """An upstream that never answers, what clients were sent, a clock to turn, and the socket that is asked."""
    replies: Replies = []
    now = [0.0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        nobody.setblocking(False)
        upstream = Upstream(
            nobody.getsockname(),
            send=lambda reply, client: replies.append((reply, client)),
            timeout=3.0,
            clock=lambda: now[0],
            **bounds,
        )
        try:
            yield upstream, replies, now, nobody
        finally:
            upstream.close()


def question(n: int) -> bytes:
    return dns.message.make_query(f"n{n}.cluster.local", "A", id=n).to_wire()


@pytest.mark.parametrize("ordinary", [True, False])
@pytest.mark.parametrize("do", [False, True])
def test_a_servfail_to_a_question_with_edns_has_edns(ordinary: bool, do: bool) -> None:
    """An answer has an OPT record exactly when the question has one, with its DO bit (RFC 6891 §6.1.1, RFC 3225 §3)."""
    options: list[dns.edns.Option] = (
        [] if ordinary else [dns.edns.GenericOption(dns.edns.OptionType.COOKIE, b"12345678")]
    )
    query = dns.message.make_query("a.cluster.local", "A", use_edns=0, want_dnssec=do, options=options)
    packet = query.to_wire()
    reply = dns.message.from_wire(respond.failure(packet, limit=512) or b"")
    assert (reply.id, reply.rcode(), reply.question) == (query.id, dns.rcode.SERVFAIL, query.question)
    assert (reply.edns, bool(reply.ednsflags & dns.flags.DO)) == (0, do)
    plain = dns.message.make_query("a.cluster.local", "A").to_wire()
    assert dns.message.from_wire(respond.failure(plain, limit=512) or b"").edns == -1


async def test_a_caller_with_too_many_pending_questions_loses_its_own_oldest() -> None:
    async with silent_upstream(share=3) as (upstream, replies, _, _):
        upstream.forward(question(9), ("127.0.0.2", 9), caller="127.0.0.2")
        for n in range(5):
            upstream.forward(question(n), ("127.0.0.1", n), caller="127.0.0.1")
        assert upstream.stats().pending == 4
    assert [client for _, client in replies] == [("127.0.0.1", 0), ("127.0.0.1", 1)]
    assert {dns.message.from_wire(reply).rcode() for reply, _ in replies} == {dns.rcode.SERVFAIL}


async def test_when_all_room_is_taken_the_caller_with_most_pending_gives_way() -> None:
    async with silent_upstream(most=4, share=4) as (upstream, replies, _, _):
        upstream.forward(question(9), ("127.0.0.2", 9), caller="127.0.0.2")
        for n in range(3):
            upstream.forward(question(n), ("127.0.0.1", n), caller="127.0.0.1")
        upstream.forward(question(10), ("127.0.0.2", 10), caller="127.0.0.2")
        assert upstream.stats().pending == 4
    assert [client for _, client in replies] == [("127.0.0.1", 0)]


async def test_when_all_room_is_taken_the_namespace_with_most_pending_gives_way() -> None:
    async with silent_upstream(most=8) as (upstream, replies, _, _):
        for n in range(2):
            upstream.forward(question(n), ("10.1.1.1", n), caller="10.1.1.1", namespace="demo")
        for n in range(6):
            upstream.forward(question(n), (f"10.1.0.{n}", n), caller=f"10.1.0.{n}", namespace="aaa")
        upstream.forward(question(9), ("10.1.1.1", 9), caller="10.1.1.1", namespace="demo")
        assert upstream.stats().pending == 8
    assert [client for _, client in replies] == [("10.1.0.0", 0)], "not the caller with most pending questions"


async def test_every_forwarded_question_has_a_port_and_an_id_of_its_own() -> None:
    async with silent_upstream() as (upstream, _, _, nobody):
        for n in range(100):
            upstream.forward(question(n), ("127.0.0.1", n), caller=f"127.0.0.{n}")
        asked = [nobody.recvfrom(512) for _ in range(100)]
    ports, ids = [client[1] for _, client in asked], [packet[:2] for packet, _ in asked]
    assert len(set(ports)) == 100
    assert len(set(ids)) > 90
    steps = {after - before for before, after in itertools.pairwise(ports)}
    assert len(steps) > 50, "ports must not follow from one another"
    assert any(n.to_bytes(2, "big") != ident for n, ident in enumerate(ids))


async def test_a_reply_counts_only_on_the_port_of_its_question() -> None:
    async with silent_upstream() as (upstream, replies, _, nobody):
        for n in range(2):
            upstream.forward(question(n), ("127.0.0.1", n), caller="127.0.0.1")
        (first, port), (_, other) = nobody.recvfrom(512), nobody.recvfrom(512)
        reply = dns.message.make_response(dns.message.from_wire(first)).to_wire()
        nobody.sendto(reply, other)
        while upstream.stats().dropped == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert replies == []
        nobody.sendto(reply, port)
        while not replies:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert dns.message.from_wire(replies[0][0]).id == 0


async def test_sockets_go_with_their_questions() -> None:
    def sockets() -> int:
        return sum("socket" in str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())

    async with silent_upstream() as (upstream, _, now, _):
        before = sockets()
        for n in range(50):
            upstream.forward(question(n), ("127.0.0.1", n), caller="127.0.0.1")
        assert sockets() == before + 50
        now[0] = 5.0
        upstream.expire()
        assert sockets() == before


async def test_questions_end_in_the_order_of_asking_when_their_time_is_over() -> None:
    async with silent_upstream() as (upstream, replies, now, _):
        upstream.forward(question(1), ("127.0.0.1", 1), caller="127.0.0.1")
        now[0] = 2.0
        upstream.forward(question(2), ("127.0.0.1", 2), caller="127.0.0.1")
        now[0] = 3.5
        upstream.expire()
        assert [dns.message.from_wire(reply).id for reply, _ in replies] == [1]
        now[0] = 5.5
        upstream.expire()
        assert [dns.message.from_wire(reply).id for reply, _ in replies] == [1, 2]
        assert upstream.stats().pending == 0


async def test_servfail_carries_opt_where_the_question_did() -> None:
    async with silent_upstream() as (upstream, replies, now, _):
        plain = dns.message.make_query("a.cluster.local", "A")
        edns = dns.message.make_query("a.cluster.local", "A", use_edns=0, want_dnssec=True)
        newer = dns.message.make_query("a.cluster.local", "A", use_edns=1)
        signed = dns.message.make_query("a.cluster.local", "A", use_edns=0)
        signed.additional.append(dns.rrset.from_text("x.", 0, "IN", "A", "10.0.0.1"))
        for query in (plain, edns, newer, signed):
            upstream.forward(query.to_wire(), ("127.0.0.1", 1), caller="127.0.0.1")
        now[0] = 4.0
        upstream.expire()
    read = [dns.message.from_wire(reply) for reply, _ in replies]
    assert [reply.rcode() for reply in read] == [dns.rcode.SERVFAIL] * 4
    assert [reply.edns for reply in read] == [-1, 0, 0, 0]
    assert read[1].ednsflags & dns.flags.DO


async def test_a_question_that_cannot_be_read_ends_without_a_word() -> None:
    async with silent_upstream() as (upstream, replies, now, _):
        packet = bytearray(question(1))
        packet[2] |= 0x02  # truncated: no ordinary question
        upstream.forward(bytes(packet), ("127.0.0.1", 1), caller="127.0.0.1")
        now[0] = 4.0
        upstream.expire()
    assert replies == []


@pytest.mark.parametrize(
    ("change", "accepted"),
    [
        (lambda reply: reply, True),
        (lambda reply: reply[:4] + b"\0\0" + reply[6:], False),  # no question and no error
        (lambda reply: reply[:3] + b"\1\0\0" + reply[6:12], True),  # FORMERR of a server that could not read it
        (lambda reply: reply[:2] + b"\0" + reply[3:], False),  # a question, not a reply
        (lambda reply: reply[:11], False),
        (lambda reply: reply.replace(b"cluster", b"CLUSTER"), True),
        (lambda reply: reply.replace(b"cluster", b"clutter"), False),
    ],
)
def test_a_reply_is_one_to_the_question_asked(change: object, accepted: bool) -> None:
    query = dns.message.make_query("a.cluster.local", "A")
    reply = dns.message.make_response(query).to_wire()
    assert callable(change)
    assert answers(change(reply), query.to_wire()) == accepted


async def test_an_upstream_whose_host_refuses_costs_a_servfail() -> None:
    async with serving(timeout=0.05) as setup:
        pass
    server = Server(
        Database(NAMES, PODS), zone=ZONE, listen=[("127.0.0.1", 0)], upstream=setup.upstream.address, timeout=0.05
    )
    run = asyncio.create_task(server.run())
    await server.listening()
    host, port = server.address
    for send in (dns.asyncquery.udp, dns.asyncquery.tcp):
        reply = await send(dns.message.make_query("a.cluster.local", "A"), host, port=port, timeout=30)
        assert reply.rcode() == dns.rcode.SERVFAIL
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


async def test_one_connection_takes_several_questions_one_after_the_other() -> None:
    async with serving() as setup:
        reader, writer = await asyncio.open_connection(*setup.server.address)
        for name in (ECHO, "a.cluster.local", ECHO):
            wire = dns.message.make_query(name, "A").to_wire()
            writer.write(len(wire).to_bytes(2, "big") + wire)
        said = []
        for _ in range(3):
            size = int.from_bytes(await reader.readexactly(2), "big")
            said += texts(dns.message.from_wire(await reader.readexactly(size)))
        writer.close()
        await writer.wait_closed()
    assert said == ["10.96.0.7", "10.96.0.1", "10.96.0.7"]


async def test_connections_end_with_the_server() -> None:
    async with serving() as setup:
        reader, writer = await asyncio.open_connection(*setup.server.address)
        writer.write(b"\0")
        assert (await setup.ask(ECHO, tcp=True)).answer
    [ended] = await asyncio.gather(reader.read(), return_exceptions=True)
    assert ended == b"" or isinstance(ended, ConnectionError)
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_it_serves_on_an_address_of_each_family_and_answers_from_the_one_that_was_asked() -> None:
    db = Database(NAMES, PODS)
    with db.write() as txn:
        txn.put(NAMES, ROWS[0])
    async with upstream_server() as upstream:
        server = Server(db, zone=ZONE, listen=[("127.0.0.1", 0), ("::1", 0)], upstream=upstream.address)
        run = asyncio.create_task(server.run())
        await server.listening()
        while server.stats().names == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
        addresses = [endpoint(each, port=0) for each in server.stats().listen]
        assert [each.host for each in addresses] == ["127.0.0.1", "::1"]
        for host, port in addresses:
            for name, said in (("a.cluster.local", ["10.96.0.1"]), (ROWS[0].name, list(ROWS[0].answers))):
                for send in (dns.asyncquery.udp, dns.asyncquery.tcp):
                    reply = await send(dns.message.make_query(name, "A"), host, port=port, timeout=30)
                    assert texts(reply) == said, (host, name)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
