"""The node's server on real sockets, asked by dnspython."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import dns.asyncquery
import dns.flags
import dns.message
import dns.rcode
import pytest
from answers.dns_world import serving, texts
from peers.etcd_server import free_ports

from isthmus.dns import CannotListen, Server
from isthmus.dns.intake import Intake
from isthmus.model.dns import Name
from isthmus.model.services import Pod
from isthmus.model.tables import FAULTS, NAMES, PODS
from isthmus.statedb import Database
from isthmus.zone import Zone, codec

ECHO = "echo.demo.svc.clusterset.local"


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize(
    ("name", "type_", "said"),
    [
        (ECHO, "A", ["10.96.0.7"]),
        (ECHO, "AAAA", ["fd00::7"]),
        (f"_http._tcp.{ECHO}", "SRV", [f"0 100 80 {ECHO}."]),
        ("7.0.96.10.in-addr.arpa", "PTR", [f"{ECHO}."]),
        ("dns-version.clusterset.local", "TXT", ['"1.1.0"']),
        ("a.c2.many.demo.svc.clusterset.local", "A", ["10.1.0.0"]),
        ("clusterset.local", "NS", ["ns.dns.clusterset.local."]),
        ("ns.dns.clusterset.local", "A", ["10.96.0.10"]),
    ],
)
async def test_ours_is_answered_with_authority(name: str, type_: str, said: list[str], tcp: bool) -> None:
    async with serving() as setup:
        reply = await setup.ask(name, type_, tcp=tcp)
    assert texts(reply) == said
    assert reply.flags & dns.flags.AA
    assert not setup.upstream.asked


async def test_letter_case_of_a_question_comes_back_as_it_went() -> None:
    async with serving() as setup:
        reply = await setup.ask("eChO.DEMO.svc.ClusterSet.LOCAL")
    assert texts(reply) == ["10.96.0.7"]
    assert str(reply.question[0].name) == "eChO.DEMO.svc.ClusterSet.LOCAL."


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        (ECHO, "TXT"),
        ("clusterset.local", "A"),
        ("svc.clusterset.local", "A"),
        ("demo.svc.clusterset.local", "A"),
        (f"_tcp.{ECHO}", "SRV"),
    ],
)
async def test_a_name_without_such_records_is_no_data(name: str, type_: str) -> None:
    async with serving() as setup:
        reply = await setup.ask(name, type_)
    assert (reply.rcode(), reply.answer) == (dns.rcode.NOERROR, [])
    assert reply.authority[0].name.to_text() == "clusterset.local."
    assert reply.authority[0].ttl == 5


@pytest.mark.parametrize(
    "name", ["absent.demo.svc.clusterset.local", "c2.many.demo.svc.clusterset.local", f"x.{ECHO}", "x.clusterset.local"]
)
async def test_what_does_not_exist_is_nxdomain_with_soa(name: str) -> None:
    async with serving() as setup:
        reply = await setup.ask(name)
    assert reply.rcode() == dns.rcode.NXDOMAIN
    assert reply.authority[0].name.to_text() == "clusterset.local."


async def test_what_is_not_ours_goes_to_the_cluster_dns_and_back() -> None:
    async with serving() as setup:
        found = await setup.ask("kubernetes.default.svc.cluster.local")
        missing = await setup.ask("notclusterset.local")
        reverse = await setup.ask("1.0.96.10.in-addr.arpa", "PTR")
        stream = await setup.ask("kubernetes.default.svc.cluster.local", tcp=True)
    assert texts(found) == texts(stream) == ["10.96.0.1"]
    assert missing.rcode() == reverse.rcode() == dns.rcode.NXDOMAIN
    assert len(setup.upstream.asked) == 4


async def test_before_the_first_list_unknown_names_of_ours_fail_and_others_are_passed_on() -> None:
    async with serving(complete=False) as setup:
        unknown = await setup.ask("absent.demo.svc.clusterset.local")
        known = await setup.ask(ECHO)
        foreign = await setup.ask("kubernetes.default.svc.cluster.local")
        setup.complete()
        while not setup.server.stats().complete:  # noqa: ASYNC110
            await asyncio.sleep(0)
        settled = await setup.ask("absent.demo.svc.clusterset.local")
    assert unknown.rcode() == dns.rcode.SERVFAIL
    assert texts(known) == ["10.96.0.7"]
    assert texts(foreign) == ["10.96.0.1"]
    assert settled.rcode() == dns.rcode.NXDOMAIN


@pytest.mark.parametrize("tcp", [False, True])
async def test_a_question_whose_answer_raises_costs_itself(monkeypatch: pytest.MonkeyPatch, tcp: bool) -> None:
    answer = Zone.answer

    def raising(zone: Zone, query: codec.Query) -> codec.Answer:
        if b"bug" in query.name:
            raise KeyError("bug")
        return answer(zone, query)

    monkeypatch.setattr(Zone, "answer", raising)
    async with serving() as setup:
        for _ in range(3):
            failed = await setup.ask("bug.demo.svc.clusterset.local", tcp=tcp)
            assert failed.rcode() == dns.rcode.SERVFAIL
            assert texts(await setup.ask(ECHO, tcp=tcp)) == ["10.96.0.7"]
        async with asyncio.timeout(60):
            await setup.db.until(lambda now: sum(row.tries for row in now.all(FAULTS)) == 3)
        [fault] = setup.db.snapshot().all(FAULTS)
        assert (fault.part, fault.kind, fault.error) == ("names", "questions", "KeyError: 'bug'")


async def test_questions_whose_reading_raises_are_not_answered_and_the_server_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parse = codec.parse

    def raising(packet: bytes, *, limit: int) -> codec.Query | None:
        if b"bug" in packet:
            raise KeyError("bug")
        return parse(packet, limit=limit)

    monkeypatch.setattr(codec, "parse", raising)
    async with serving() as setup:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            for _ in range(30):
                asking.sendto(dns.message.make_query("bug.example", "A").to_wire(), setup.server.address)
        assert texts(await setup.ask(ECHO)) == ["10.96.0.7"]
        async with asyncio.timeout(60):
            await setup.db.until(lambda now: sum(row.tries for row in now.all(FAULTS)) == 30)


async def test_a_name_that_raises_keeps_its_last_answer_and_costs_no_other() -> None:
    other = "other.demo.svc.clusterset.local"
    async with serving() as setup:
        setup.put(Name(ECHO, "A", ("10.96.0.9",), ttl=1 << 40), Name(other, "A", ("10.96.0.8",)))
        await setup.taken_in()
        assert texts(await setup.ask(ECHO)) == ["10.96.0.7"]
        assert texts(await setup.ask(other)) == ["10.96.0.8"]
        [fault] = setup.db.snapshot().all(FAULTS)
        assert (fault.part, fault.name) == ("names", f"{ECHO} A")
        setup.put(Name(ECHO, "A", ("10.96.0.9",)))
        await setup.taken_in()
        assert texts(await setup.ask(ECHO)) == ["10.96.0.9"]
        assert setup.db.snapshot().count(FAULTS) == 0
        with setup.db.write() as txn:
            txn.delete(NAMES, (ECHO, "A"))
        await setup.taken_in()
        assert texts(await setup.ask(ECHO)) == []


async def test_names_follow_the_table() -> None:
    async with serving() as setup:
        setup.put(Name("new.demo.svc.clusterset.local", "A", ("10.96.0.9",)))
        await setup.taken_in()
        assert texts(await setup.ask("new.demo.svc.clusterset.local")) == ["10.96.0.9"]
        with setup.db.write() as txn:
            txn.delete(NAMES, ("new.demo.svc.clusterset.local", "A"))
        await setup.taken_in()
        assert (await setup.ask("new.demo.svc.clusterset.local")).rcode() == dns.rcode.NXDOMAIN


async def test_what_does_not_fit_is_a_part_of_the_set_and_whole_over_tcp() -> None:
    name = "many.demo.svc.clusterset.local"
    async with serving() as setup:
        cut = await setup.ask(name, use_edns=False)
        edns = await setup.ask(name, use_edns=0, payload=4096)
        whole = await setup.ask(name, tcp=True)
    assert not cut.flags & dns.flags.TC
    assert not edns.flags & dns.flags.TC
    assert len(cut.to_wire()) <= 512 < len(edns.to_wire()) <= 1232
    assert len(set(texts(whole))) == 600
    assert not whole.flags & dns.flags.TC


async def test_several_addresses_take_turns_in_being_first() -> None:
    async with serving() as setup:
        replies = [await setup.ask("many.demo.svc.clusterset.local") for _ in range(3)]
    assert len({texts(reply)[0] for reply in replies}) == 3


async def test_an_unknown_version_of_edns_is_said_to_be_so() -> None:
    async with serving() as setup:
        reply = await setup.ask(ECHO, use_edns=1)
    assert (reply.rcode(), reply.edns) == (dns.rcode.BADVERS, 0)


@pytest.mark.parametrize(("type_", "rdclass"), [("AXFR", "IN"), ("A", "CH")])
async def test_transfers_and_other_classes_are_refused(type_: str, rdclass: str) -> None:
    async with serving() as setup:
        query = dns.message.make_query(ECHO, type_, rdclass)
        host, port = setup.server.address
        reply = await dns.asyncquery.tcp(dns.message.from_wire(query.to_wire()), host, port=port, timeout=30)
    assert reply.rcode() == dns.rcode.REFUSED


async def test_any_is_answered_with_one_set_of_records() -> None:
    async with serving() as setup:
        assert texts(await setup.ask(ECHO, "ANY")) == ["10.96.0.7"]


async def test_an_upstream_that_is_silent_costs_a_servfail_and_nothing_else() -> None:
    async with serving(timeout=0.05) as setup:
        setup.upstream.reply = lambda query: None
        foreign, own = await asyncio.gather(setup.ask("a.cluster.local"), setup.ask(ECHO))
        stats = setup.server.stats().upstream
    assert foreign.rcode() == dns.rcode.SERVFAIL
    assert texts(own) == ["10.96.0.7"]
    assert (stats.timeouts, stats.pending) == (1, 0)


async def test_a_reply_to_another_question_is_not_passed_on() -> None:
    def forged(query: dns.message.Message) -> dns.message.Message:
        reply = dns.message.make_response(dns.message.make_query("evil.cluster.local", "A"))
        reply.id = query.id
        return reply

    async with serving(timeout=0.05) as setup:
        setup.upstream.reply = forged
        reply = await setup.ask("a.cluster.local")
    assert reply.rcode() == dns.rcode.SERVFAIL


async def test_clients_with_one_id_get_each_their_own_reply() -> None:
    async with serving() as setup:
        asked = [setup.ask(f"n{n}.cluster.local", id=7) for n in range(50)]
        replies = await asyncio.gather(*asked)
    assert [str(reply.question[0].name) for reply in replies] == [f"n{n}.cluster.local." for n in range(50)]
    assert {query.id for query in setup.upstream.asked} != {7}


def test_callers_with_waiting_questions_take_turns_and_each_has_a_bounded_share() -> None:
    intake: Intake[str] = Intake(share=3)
    for caller in "aaaab":
        intake.put(caller, caller)
    assert intake.dropped == 1
    assert [intake.take() for _ in range(4)] == ["a", "b", "a", "a"]


def test_namespaces_with_waiting_questions_take_turns_however_many_pods_one_has() -> None:
    intake: Intake[str] = Intake()
    for pod in range(9):
        intake.put(f"10.1.0.{pod}", f"aaa-{pod}", namespace="aaa")
    for question in range(3):
        intake.put("10.1.1.1", f"demo-{question}", namespace="demo")
    taken = [intake.take() for _ in range(12)]
    assert taken[:6] == ["aaa-0", "demo-0", "aaa-1", "demo-1", "aaa-2", "demo-2"]
    assert not intake


def test_a_namespace_whose_callers_take_all_room_makes_place_for_one_of_another() -> None:
    intake: Intake[str] = Intake(callers=4)
    for pod in range(6):
        intake.put(f"10.1.0.{pod}", "aaa", namespace="aaa")
    assert intake.dropped == 2
    intake.put("10.1.1.1", "demo", namespace="demo")
    assert intake.dropped == 3
    assert [intake.take() for _ in range(4)] == ["aaa", "demo", "aaa", "aaa"]


async def test_connections_of_one_namespace_leave_room_for_those_of_others() -> None:
    async with serving() as setup:
        host, port = setup.server.address
        pods = {f"127.0.1.{number}": f"aaa/pod-{number}" for number in range(1, 9)} | {"127.0.0.1": "demo/pod"}
        with setup.db.write() as txn:
            txn.put_all(PODS, [Pod(name=name, uid=name, addresses=(ip,)) for ip, name in pods.items()])
        await asyncio.sleep(0)
        callers = [ip for ip, name in pods.items() if name.startswith("aaa/")] * 32
        opened = [await asyncio.open_connection(host, port, local_addr=(ip, 0)) for ip in callers]
        assert texts(await setup.ask(ECHO, tcp=True)) == ["10.96.0.7"]
        stats = setup.server.stats().tcp
        for _, writer in opened:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in opened), return_exceptions=True)
    assert stats.refused == 256 - 256 * 4 // 5 - 1


async def test_the_question_of_one_caller_is_answered_before_the_rest_of_anothers_flood() -> None:
    async with serving() as setup:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as victim,
        ):
            flood.bind(("127.0.0.2", 0))
            victim.setblocking(False)
            packet = dns.message.make_query("n.cluster.local", "A").to_wire()
            for _ in range(200):
                flood.sendto(packet, setup.server.address)
            victim.sendto(dns.message.make_query(ECHO, "A").to_wire(), setup.server.address)
            answered = await asyncio.get_running_loop().sock_recv(victim, 512)
            stats = setup.server.stats()
    assert texts(dns.message.from_wire(answered)) == ["10.96.0.7"]
    assert stats.dropped >= 200 - 64 - 1, "the flood keeps a bounded share of what waits"
    assert stats.upstream.forwarded < 65


async def test_connections_of_one_caller_are_bounded_and_anothers_are_served() -> None:
    async with serving() as setup:
        host, port = setup.server.address
        opened = [await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0)) for _ in range(40)]
        assert texts(await setup.ask(ECHO, tcp=True)) == ["10.96.0.7"]
        stats = setup.server.stats().tcp
        for _, writer in opened:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in opened), return_exceptions=True)
    assert stats.refused == 8


async def test_garbage_is_answered_or_ignored_and_the_next_question_is_served() -> None:
    async with serving() as setup:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for size in range(0, 64, 3):
                sock.sendto(bytes(range(size)), setup.server.address)
        reader, writer = await asyncio.open_connection(*setup.server.address)
        writer.write(b"\0\3abc")
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert texts(await setup.ask(ECHO)) == ["10.96.0.7"]


async def test_an_address_in_use_is_one_clear_line() -> None:
    async with serving() as setup:
        other = Server(
            Database(NAMES, PODS), zone="clusterset.local", listen=[setup.server.address], upstream=("127.0.0.1", 1)
        )
        with pytest.raises(CannotListen, match=r"127.0.0.1:\d+ \(udp\): Address already in use"):
            await other.run()


def test_a_server_that_would_ask_itself_is_refused() -> None:
    with pytest.raises(CannotListen, match="round for ever"):
        Server(Database(NAMES, PODS), zone="z", listen=[("127.0.0.1", 53)], upstream=("127.0.0.1", 53))


async def test_a_name_server_without_an_address_is_not_named() -> None:
    async with serving() as setup:
        with setup.db.write() as txn:
            txn.delete(NAMES, ("ns.dns.clusterset.local", "A"))
        await setup.taken_in()
        servers, absent = await setup.ask("clusterset.local", "NS"), await setup.ask("x.clusterset.local")
    assert (servers.rcode(), servers.answer) == (dns.rcode.NOERROR, [])
    [soa] = absent.authority[0]
    assert soa.mname.to_text() == "clusterset.local."


async def test_the_first_question_is_answered_from_the_names_that_are_there_when_it_begins() -> None:
    """A process that joins another one gets its share of the questions from the moment that it has the sockets."""
    db = Database(NAMES, PODS)
    source = db.initializer(NAMES, "test")
    with db.write() as txn:
        for n in range(5_000):
            txn.put(NAMES, Name(f"n{n}.demo.svc.clusterset.local", "A", ("10.96.0.7",)))
        source.complete(txn)
    [port] = free_ports(1)
    server = Server(db, zone="clusterset.local", listen=[("127.0.0.1", port)], upstream=("127.0.0.1", 1))
    running = asyncio.create_task(server.run())
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect(("127.0.0.1", port))
            asking.setblocking(False)
            question = dns.message.make_query("n4999.demo.svc.clusterset.local", "A").to_wire()
            answer = b""
            while not answer:
                with suppress(BlockingIOError, ConnectionRefusedError):
                    asking.send(question)
                    answer = asking.recv(512)
                await asyncio.sleep(0)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert texts(dns.message.from_wire(answer)) == ["10.96.0.7"]
