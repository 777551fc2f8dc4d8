"""Questions that are passed on: what is bounded, what ends by itself, and DNS over TCP on both sides."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.asyncquery
import dns.message
import dns.rcode
import pytest
from dns_world import ECHO, ROWS, ZONE, serving, texts, upstream_server

from isthmus.dns import Server
from isthmus.dns.upstream import Address, Upstream, answers
from isthmus.model.hosts import endpoint
from isthmus.model.tables import NAMES
from isthmus.statedb import Database

Replies = list[tuple[bytes, Address]]


@asynccontextmanager
async def silent_upstream(most: int) -> AsyncIterator[tuple[Upstream, Replies, list[float]]]:
    """An upstream that never answers, what clients were sent, and a clock to turn."""
    replies: Replies = []
    now = [0.0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        upstream = Upstream(
            nobody.getsockname(),
            send=lambda reply, client: replies.append((reply, client)),
            most=most,
            timeout=3.0,
            clock=lambda: now[0],
        )
        upstream.open()
        try:
            yield upstream, replies, now
        finally:
            upstream.close()


def question(n: int) -> bytes:
    return dns.message.make_query(f"n{n}.cluster.local", "A", id=n).to_wire()


async def test_pending_questions_are_bounded_and_the_oldest_gives_way() -> None:
    async with silent_upstream(most=3) as (upstream, replies, _):
        for n in range(5):
            upstream.forward(question(n), ("127.0.0.1", n))
        assert upstream.stats()["pending"] == 3
    assert [client for _, client in replies] == [("127.0.0.1", 0), ("127.0.0.1", 1)]
    assert {dns.message.from_wire(reply).rcode() for reply, _ in replies} == {dns.rcode.SERVFAIL}


async def test_questions_end_in_the_order_of_asking_when_their_time_is_over() -> None:
    async with silent_upstream(most=9) as (upstream, replies, now):
        upstream.forward(question(1), ("127.0.0.1", 1))
        now[0] = 2.0
        upstream.forward(question(2), ("127.0.0.1", 2))
        now[0] = 3.5
        upstream.expire()
        assert [dns.message.from_wire(reply).id for reply, _ in replies] == [1]
        now[0] = 5.5
        upstream.expire()
        assert [dns.message.from_wire(reply).id for reply, _ in replies] == [1, 2]
        assert upstream.stats()["pending"] == 0


async def test_a_question_that_cannot_be_read_ends_without_a_word() -> None:
    async with silent_upstream(most=1) as (upstream, replies, now):
        packet = bytearray(question(1))
        packet[2] |= 0x02  # truncated: no ordinary question
        upstream.forward(bytes(packet), ("127.0.0.1", 1))
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
        Database(NAMES), zone=ZONE, listen=[("127.0.0.1", 0)], upstream=setup.upstream.address, timeout=0.05
    )
    run = asyncio.create_task(server.run())
    await server.listening()
    host, port = server.address
    for send in (dns.asyncquery.udp, dns.asyncquery.tcp):
        reply = await send(dns.message.make_query("a.cluster.local", "A"), host, port=port, timeout=5)
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
    db = Database(NAMES)
    with db.write() as txn:
        txn.put(NAMES, ROWS[0])
    async with upstream_server() as upstream:
        server = Server(db, zone=ZONE, listen=[("127.0.0.1", 0), ("::1", 0)], upstream=upstream.address)
        run = asyncio.create_task(server.run())
        await server.listening()
        while server.stats()["names"] == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
        addresses = [endpoint(each, port=0) for each in server.stats()["listen"]]
        assert [each.host for each in addresses] == ["127.0.0.1", "::1"]
        for host, port in addresses:
            for name, said in (("a.cluster.local", ["10.96.0.1"]), (ROWS[0].name, list(ROWS[0].answers))):
                for send in (dns.asyncquery.udp, dns.asyncquery.tcp):
                    reply = await send(dns.message.make_query(name, "A"), host, port=port, timeout=5)
                    assert texts(reply) == said, (host, name)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
