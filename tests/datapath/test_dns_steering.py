"""Questions to the cluster DNS go to the node's server while its liveness deadline holds, and only then."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext

import dns.message
import pytest
from answers.names_node import within
from datapath_worlds.bpf_world import (
    BACKENDS,
    CLUSTER_DNS,
    CLUSTER_DNS6,
    SERVER_DNS,
    SERVER_DNS6,
    World,
    group,
    needs_cookies,
    no_place_is_free,
    plan,
    programmed,
)
from msgspec import structs

from isthmus.datapath import Datapath
from isthmus.datapath.alive import Alive
from isthmus.datapath.core.shapes import COOKIE, ID
from isthmus.datapath.names import NamesTarget
from isthmus.datapath.names.settings import host_cookie
from isthmus.model.dns import Name

pytestmark = pytest.mark.bpf

ECHO = "echo.demo.svc.clusterset.local"
ORDINARY = {"answer": f"{CLUSTER_DNS}:53 10.7.0.1", "from": f"{CLUSTER_DNS}:53", "peer": ""}
STEERED = {"answer": f"{SERVER_DNS}:53 10.7.0.1", "from": f"{CLUSTER_DNS}:53", "peer": ""}


@pytest.mark.slow
async def test_questions_are_steered_until_the_deadline_and_no_longer(world: World, datapath: Datapath) -> None:
    assert world.caller.udp(CLUSTER_DNS, 53) == ORDINARY
    alive = await Alive.open(world.pin)
    alive.renew(60)
    assert world.caller.udp(CLUSTER_DNS, 53) == STEERED
    alive.renew(-0.001)
    assert world.caller.udp(CLUSTER_DNS, 53) == ORDINARY
    alive.renew(60)
    alive.withdraw()
    assert world.caller.udp(CLUSTER_DNS, 53) == ORDINARY
    alive.close()
    assert [row["calls"] for row in datapath.counters() if row["verdict"] == "steered"] == [1]


@pytest.mark.parametrize("connected", [False, True])
async def test_a_resolver_of_ipv6_is_steered_to_the_servers_address_of_ipv6(
    world: World, datapath: Datapath, connected: bool
) -> None:
    asked, seen = f"{CLUSTER_DNS6}:53", "fd00:7::1"
    peer = asked if connected else ""
    ordinary = world.caller.udp(CLUSTER_DNS6, 53, connected=connected)
    assert ordinary == {"answer": f"[{CLUSTER_DNS6}]:53 {seen}", "from": asked, "peer": peer}
    alive = await Alive.open(world.pin)
    alive.renew(60)
    steered = world.caller.udp(CLUSTER_DNS6, 53, connected=connected)
    assert steered == {"answer": f"[{SERVER_DNS6}]:53 {seen}", "from": asked, "peer": peer}
    assert world.caller.udp(CLUSTER_DNS, 53) == STEERED, "each family has its own"
    alive.close()


async def test_a_connected_socket_has_the_cluster_dns_as_its_peer(world: World, datapath: Datapath) -> None:
    alive = await Alive.open(world.pin)
    alive.renew(60)
    result = world.caller.udp(CLUSTER_DNS, 53, connected=True)
    assert result == STEERED | {"peer": f"{CLUSTER_DNS}:53"}
    alive.close()


async def test_a_socket_that_asked_a_steered_question_can_ask_an_ordinary_one(world: World, datapath: Datapath) -> None:
    alive = await Alive.open(world.pin)
    alive.renew(60)
    assert world.caller.udp(CLUSTER_DNS, 53, name="both") == STEERED
    alive.withdraw()
    assert world.caller.udp(CLUSTER_DNS, 53, name="both") == ORDINARY
    alive.close()


async def test_only_udp_to_port_53_of_that_address_is_steered(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", "10.96.7.7", group(BACKENDS[0])))
    alive = await Alive.open(world.pin)
    alive.renew(60)
    assert world.caller.tcp(CLUSTER_DNS, 53)["answer"] == f"{CLUSTER_DNS}:53 10.7.0.1"
    assert world.caller.udp(CLUSTER_DNS, 80)["answer"] == f"{CLUSTER_DNS}:80 10.7.0.1"
    alive.close()


@pytest.mark.parametrize("kind", ["udp", "tcp"])
async def test_a_question_of_the_name_server_itself_is_not_sent_back_to_it(
    world: World, datapath: Datapath, kind: str
) -> None:
    alive = await Alive.open(world.pin)
    alive.takes_tcp = True
    for server, seen in ((CLUSTER_DNS, "10.7.0.1"), (CLUSTER_DNS6, "fd00:7::1")):
        asked = f"[{server}]:53" if ":" in server else f"{server}:53"
        alive.renew(60)
        assert getattr(world.caller, kind)(server, 53)["answer"] != f"{asked} {seen}", "those of others are steered"
        [found] = world.caller.calls("own", server, 53, kind=kind)
        assert found == {"answer": f"{asked} {seen}"}
    alive.close()


async def test_a_server_that_is_killed_is_noticed_before_its_deadline(world: World, datapath: Datapath) -> None:
    alive = await Alive.open(world.pin)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    assert alive.tie(server)
    alive.renew(60)
    assert world.caller.udp(CLUSTER_DNS, 53) == STEERED
    server.close()
    assert world.caller.udp(CLUSTER_DNS, 53) == ORDINARY
    alive.close()


SERVER = """
import asyncio, socket, sys
from isthmus.datapath.alive import Alive
async def main():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    alive = await Alive.open(sys.argv[1])
    assert alive.tie(server)
    alive.renew(60)
    print("ready", flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


def test_a_process_that_is_killed_is_noticed_at_once(world: World, datapath: Datapath) -> None:
    command = [sys.executable, "-c", SERVER, world.pin]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        steered = world.caller.udp(CLUSTER_DNS, 53)
        process.kill()
        process.wait()
    assert (steered, world.caller.udp(CLUSTER_DNS, 53)) == (STEERED, ORDINARY)


async def test_a_new_server_takes_over_from_the_old_and_outlives_it(world: World, datapath: Datapath) -> None:
    alive = await Alive.open(world.pin)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as new:
        new.bind(("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as old:
            old.bind(("127.0.0.1", 0))
            alive.tie(old)
            alive.tie(new)
            alive.renew(60)
        assert world.caller.udp(CLUSTER_DNS, 53) == STEERED
    assert world.caller.udp(CLUSTER_DNS, 53) == ORDINARY
    alive.close()


async def test_a_tied_server_still_answers(world: World, datapath: Datapath) -> None:
    alive = await Alive.open(world.pin)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        server.bind(("127.0.0.1", 0))
        assert alive.tie(server)
        client.sendto(b"?", server.getsockname())
        question, peer = server.recvfrom(100)
        server.sendto(question + b"!", peer)
        assert client.recvfrom(100)[0] == b"?!"
    alive.close()


@needs_cookies
async def test_pods_of_the_nodes_own_network_are_steered_in_their_calls_and_others_where_packets_enter(
    world: World, datapath: Datapath
) -> None:
    alive = await Alive.open(world.pin)
    alive.renew(60)
    with within(world.client):
        callers = host_cookie()
    assert not datapath.maps.put("tc_namespaces", [(COOKIE.pack(callers), ID.pack(1))])
    for host, expected in ((callers, STEERED), (callers + 1, ORDINARY), (0, STEERED)):
        NamesTarget(datapath.maps, world.dns, lifetime=60, host=host)
        assert world.caller.udp(CLUSTER_DNS, 53) == expected, "0: this kernel tells no namespace from another"
    alive.close()


def question(name: str) -> str:
    """A question for A, as a caller takes it."""
    return dns.message.make_query(name, "A").to_wire().decode("latin-1")


def first_record(reply: str) -> str:
    """Of a reply that a caller gave."""
    return str(dns.message.from_wire(reply.encode("latin-1")).answer[0][0])


def counted(datapath: Datapath) -> Counter[tuple[str, str]]:
    """Questions at TC, by kind and result."""
    return Counter({(row["kind"], row["result"]): row["questions"] for row in datapath.questions()})


@pytest.mark.parametrize("connected", [False, True])
async def test_a_pod_resolves_from_its_first_question_on_whenever_its_link_gets_the_program(
    world: World, datapath: Datapath, connected: bool
) -> None:
    """Until a question was seen at TC the next is steered where it is asked: another server would deny our name."""
    ours, other, before = question(ECHO), question("example.com"), counted(datapath)
    alive = await Alive.open(world.pin)
    alive.renew(60)
    await NamesTarget(datapath.maps, world.dns, lifetime=60, host=1).update([Name(ECHO, "A", ("10.96.0.7",))])

    def ask(payload: str) -> str:
        found = world.caller.udp(CLUSTER_DNS, 53, connected=connected, payload=payload)
        assert found["from"] == f"{CLUSTER_DNS}:53"
        name, _, to = found["answer"].partition(" ")
        return name if to == "10.7.0.1" else first_record(found["answer"])

    own, cluster = f"{SERVER_DNS}:53", f"{CLUSTER_DNS}:53"
    assert [ask(ours), ask(other), ask(ours)] == [own] * 3, "nothing is on its link"
    with world.on_link(datapath):
        assert [ask(other), ask(other), ask(ours)] == [own, cluster, "10.96.0.7"]
    assert [row["calls"] for row in datapath.counters() if row["verdict"] == "steered"] == [4]
    assert counted(datapath) - before == {("A", "passed"): 2, ("A", "answered"): 1}
    alive.close()


async def test_the_first_question_of_a_pod_is_answered_on_its_link_though_it_was_steered(
    world: World, datapath: Datapath
) -> None:
    alive = await Alive.open(world.pin)
    alive.renew(60)
    await NamesTarget(datapath.maps, world.dns, lifetime=60, host=1).update([Name(ECHO, "A", ("10.96.0.7",))])
    with world.on_link(datapath):
        found = world.caller.udp(CLUSTER_DNS, 53, payload=question(ECHO))
    assert (found["from"], first_record(found["answer"])) == (f"{CLUSTER_DNS}:53", "10.96.0.7")
    alive.close()


@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_every_server_that_pods_have_as_nameserver_is_steered_and_no_other(
    world: World, datapath: Datapath, transport: str
) -> None:
    NamesTarget(datapath.maps, structs.replace(world.dns, resolvers=("10.8.0.60",)), lifetime=60)
    alive = await Alive.open(world.pin)
    alive.takes_tcp = True
    alive.renew(60)
    found = getattr(world.caller, transport)("10.8.0.60", 53)
    assert (found["answer"], found.get("from", found["peer"])) == (STEERED["answer"], "10.8.0.60:53")
    udp, tcp, nobody = world.caller.udp, world.caller.tcp, "10.8.0.61"
    assert "error" in (udp(nobody, 53, patience=0.5) if transport == "udp" else tcp(nobody, 53))
    alive.close()


@pytest.mark.parametrize("place", ["a place", "no place"])
async def test_one_socket_that_asks_two_resolvers_is_answered_by_the_one_it_asked_last(
    world: World, datapath: Datapath, place: str
) -> None:
    """As the resolver of musl does it, with two nameservers that are steered to one server."""
    NamesTarget(datapath.maps, structs.replace(world.dns, resolvers=("10.8.0.60",)), lifetime=60)
    alive = await Alive.open(world.pin)
    alive.renew(60)
    with no_place_is_free(datapath) if place == "no place" else nullcontext():
        for asked in (CLUSTER_DNS, "10.8.0.60", CLUSTER_DNS, "10.8.0.60"):
            answer = world.caller.udp(asked, 53, name=f"musl {place}")
            assert (answer["answer"], answer["from"]) == (STEERED["answer"], f"{asked}:53")
    alive.close()


async def test_tcp_is_steered_where_a_process_wants_it_and_that_one_lives(world: World, datapath: Datapath) -> None:
    first, second = [await Alive.open(world.pin, instance=each) for each in ("first", "second")]
    ordinary = world.caller.tcp(CLUSTER_DNS, 53)["answer"]
    first.takes_tcp = True
    first.renew(60)
    second.renew(60)
    steered = world.caller.tcp(CLUSTER_DNS, 53)["answer"]
    assert steered != ordinary
    first.renew(-0.001)
    assert world.caller.tcp(CLUSTER_DNS, 53)["answer"] == ordinary, "the one that lives forwards no TCP"
    second.takes_tcp = True
    second.renew(60)
    assert world.caller.tcp(CLUSTER_DNS, 53)["answer"] == steered
    for each in (first, second):
        each.close()


async def test_questions_are_steered_while_either_process_lives(world: World, datapath: Datapath) -> None:
    first, second = [await Alive.open(world.pin, instance=each) for each in ("first", "second")]
    for deadlines, expected in (((60, -1), STEERED), ((-1, 60), STEERED), ((60, 60), STEERED), ((-1, -1), ORDINARY)):
        first.renew(deadlines[0])
        second.renew(deadlines[1])
        assert world.caller.udp(CLUSTER_DNS, 53) == expected
    for each in (first, second):
        each.close()
