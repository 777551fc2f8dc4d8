"""Calls between pods whose SYNs are signed and verified: which arrive, and what callers get that are refused.

A node with three pods: two call, the third is called at a guarded port. ``outside`` is what comes from other machines.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pytest
from datapath_worlds.bpf_world import Caller, Load, World, done, group, needs_multipath, plan, programmed
from datapath_worlds.failing_backends import GOOD, GOOD6, REFUSES, REFUSES6, SILENT, SILENT6, VIP, VIP6
from datapath_worlds.signed_syn import FIN, PLAIN, PSH, RST, SYN, URG, option, packet, segment
from labs.lab_running import PATIENCE, until
from machine.namespaces import put, switch_on
from msgspec.structs import replace

from isthmus.datapath import Datapath, view
from isthmus.datapath.core.namespaces import CLONE_NEWNET
from isthmus.datapath.identity import IdentityTarget
from isthmus.datapath.identity.interfaces import groups_by_uid, pod_interfaces, uid_of
from isthmus.model import tables
from isthmus.model.balancing import Ejection
from isthmus.model.clusters import OwnRanges
from isthmus.model.export_policies import Allow, ExportPolicy
from isthmus.model.identities import CallerAddress, Identity
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.signing import AddressIdentity, Guard, HostSource, Permit, SignedTo, Source
from isthmus.processes.cutting import Cutting
from isthmus.statedb import Database

pytestmark = pytest.mark.bpf

PORT, OPEN_PORT, SPORT, SEQUENCE = 8080, 8081, 40_001, 0x0102_0304
OWN, CLUSTER = 3, 7
KEY, NUMBER = bytes(range(16)), 77
IDENTITY, STRANGER = CLUSTER << 16 | 0x1234, CLUSTER << 16 | 0x4321
POLICY = ServiceName("demo/echo")
C3 = ClusterName("c3")
MARK: Final = b"that was all"


class Family(NamedTuple):
    """Addresses of the two callers, of the pod that is called, of a machine elsewhere."""

    client: str
    other: str
    called: str
    elsewhere: str
    vip: str
    silent: str
    good: str
    refusal: str


FAMILIES = [
    pytest.param(
        Family("10.7.0.1", "10.7.2.1", "10.7.1.1", "10.66.0.1", VIP, SILENT, GOOD[0], "EHOSTUNREACH"), id="IPv4"
    ),
    pytest.param(
        Family("fd00:7::1", "fd00:7:2::1", "fd00:7:1::1", "fd00:66::1", VIP6, SILENT6, GOOD6[0], "EACCES"), id="IPv6"
    ),
]
CALLERS = {"client": ("10.7.0.1", "fd00:7::1"), "other": ("10.7.2.1", "fd00:7:2::1")}
CALLED = ("10.7.1.1", "fd00:7:1::1")
T = TypeVar("T")


def within(namespace: str, act: Callable[[], T]) -> T:
    """Run a function in a named network namespace: a socket that it makes stays there."""

    def entered() -> T:
        with Path("/run/netns", namespace).open() as where:
            assert ctypes.CDLL(None).setns(where.fileno(), CLONE_NEWNET) == 0
        return act()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(entered).result()


class Wire:
    """Packets from a network namespace of the sender's choice to the called pod, and which of them arrive."""

    def __init__(self, pod: str) -> None:
        self._seen = within(pod, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)))
        self._seen.settimeout(30)

    def arrives(self, namespace: str, sent: bytes) -> list[bytes]:
        """Packets of TCP and fragments that arrive of what is sent, before a datagram that is sent after it."""
        version6 = sent[0] >> 4 == 6
        source = socket.inet_ntop(socket.AF_INET6, sent[8:24]) if version6 else socket.inet_ntoa(sent[12:16])
        called = CALLED[version6]
        mark = packet(source, called, struct.pack("!HHHH", 9, 9, 8 + len(MARK), 0) + MARK, protocol=17)
        with within(namespace, lambda: raw_socket(version6=version6)) as sock:
            for each in (sent, mark if not version6 else with_sum(source, called)):
                sock.sendto(each, (called, 0))
        arrived: list[bytes] = []
        while True:
            data, (_, _, kind, *_) = self._seen.recvfrom(4096)
            if kind != socket.PACKET_HOST:
                continue  # the pod's own, as its error about the datagram
            if data.endswith(MARK):
                return arrived
            if (data[6] in (6, 44, 60) if data[0] >> 4 == 6 else data[9] == 6) and not is_reset(data):
                arrived.append(data)

    def close(self) -> None:
        self._seen.close()


def is_reset(data: bytes) -> bool:
    """True of the answer of a kernel whose raw socket's SYN was accepted."""
    return bool(data[(40 if data[0] >> 4 == 6 else 20) + 13] & RST)


def with_sum(source: str, called: str) -> bytes:
    """The mark for IPv6, where a checksum is needed; nobody listens."""
    return packet(source, called, struct.pack("!HHHH", 9, 9, 8 + len(MARK), 1) + MARK, protocol=17)


def raw_socket(*, version6: bool) -> socket.socket:
    family = socket.AF_INET6 if version6 else socket.AF_INET
    return socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)


@pytest.fixture(scope="module")
def node(served: World) -> World:
    """A node that forwards, whose third pod has a server."""
    switch_on(served.server, "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
    pods = [served.pod(number) for number in (1, 2)]
    put(pods[0], "net/ipv4/tcp_fastopen", 2 | 0x200)
    addresses = [f"[{each}]" if ":" in each else each for each in CALLED]
    served.echo(*(f"{each}:{port}" for each in addresses for port in (PORT, OPEN_PORT)), namespace=pods[0])
    return served


@pytest.fixture(scope="module")
def pods(node: World) -> dict[str, str]:
    """Namespaces by name."""
    names = {"client": node.client, "outside": node.server}
    return names | {"called": f"{node.name}-e", "other": f"{node.name}-f"}


@pytest.fixture(scope="module")
def callers(node: World, pods: dict[str, str]) -> dict[str, Caller]:
    return {name: node.call_from(node.cgroup / name, namespace=pods[name]) for name in CALLERS}


@pytest.fixture
def linked(node: World, datapath: Datapath) -> Iterator[Datapath]:
    """Programs on the links of all three."""
    with ExitStack() as stack:
        for device in ("eth0", "p1", "p2"):
            stack.enter_context(node.on_link(datapath, device))
        yield datapath


@pytest.fixture
def target(node: World, linked: Datapath) -> IdentityTarget:
    links = {**dict.fromkeys(CALLERS["client"], "eth0"), **dict.fromkeys(CALLERS["other"], "p2")}
    links |= dict.fromkeys(CALLED, "p1")
    interfaces = {address: node.interface(link) for address, link in links.items()}
    return IdentityTarget(linked.maps, lambda: interfaces, groups=lambda: groups_by_uid(node.cgroup))


@pytest.fixture
def guarded(target: IdentityTarget) -> IdentityTarget:
    """Both callers sign; the first may call."""
    sources = [Source("demo/client", CALLERS["client"], IDENTITY), Source("demo/other", CALLERS["other"], STRANGER)]
    assert done(target.sources.update(sources)) == {}
    assert done(target.signed_to.update([SignedTo(ServiceName("demo/far"), each, C3, OWN) for each in CALLED])) == {}
    assert done(target.permits.update([Permit(POLICY, IDENTITY)])) == {}
    assert (
        done(target.guards.update([Guard(policy=POLICY, address=each, port=PORT, protocol="TCP") for each in CALLED]))
        == {}
    )
    assert target.put_keys({(OWN, NUMBER): KEY}, {(CLUSTER, NUMBER): KEY}, number=NUMBER) == []
    return target


@pytest.fixture
def wire(pods: dict[str, str]) -> Iterator[Wire]:
    made = Wire(pods["called"])
    yield made
    made.close()


def refused(target: IdentityTarget) -> set[tuple[str, int, str]]:
    return {(row.policy, row.identity, row.reason) for row in target.refusals()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_caller_that_may_call_is_answered_and_its_syn_alone_has_the_option(
    guarded: IdentityTarget, callers: dict[str, Caller], wire: Wire, pods: dict[str, str], family: Family
) -> None:
    for _ in range(20):
        assert callers["client"].tcp(family.called, PORT)["answer"].endswith(family.client)
    assert refused(guarded) == set()
    others = packet(family.elsewhere, family.called, segment(family.elsewhere, 1, family.called, OPEN_PORT, 1))
    seen = [each[40 if ":" in family.called else 20 :] for each in wire.arrives(pods["outside"], others)]
    with_option = [each for each in seen if b"\xfd\x10\x15\x77" in each[20 : (each[12] >> 4) * 4]]
    assert len({each[:8] for each in with_option}) == 20, "by ports and number: a SYN may be sent again"
    assert all(each[13] & 0x3F == SYN for each in with_option)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_entries_no_syn_has_the_option(
    target: IdentityTarget, callers: dict[str, Caller], wire: Wire, pods: dict[str, str], family: Family
) -> None:
    assert done(target.sources.update([Source("demo/client", CALLERS["client"], IDENTITY)])) == {}
    assert callers["client"].tcp(family.called, PORT)["answer"].endswith(family.client)
    others = packet(family.elsewhere, family.called, segment(family.elsewhere, 1, family.called, OPEN_PORT, 1))
    assert not any(b"\xfd\x10\x15\x77" in each for each in wire.arrives(pods["outside"], others))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_was_moved_is_signed_for_where_it_went(
    linked: Datapath, guarded: IdentityTarget, callers: dict[str, Caller], family: Family
) -> None:
    called = f"[{family.called}]:{PORT}" if ":" in family.called else f"{family.called}:{PORT}"
    tiers = group(family.silent), group(called, tier=1)
    programmed(linked.target(), plan("echo", family.vip, *tiers, ejection=Ejection(50, 60.0, 60.0)))
    assert callers["client"].tcp(family.vip)["answer"].endswith(family.client)
    assert {row["verdict"]: row["calls"] for row in linked.counters()} == {"called": 1, "rescued": 1}
    assert refused(guarded) == set()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_refusal_ends_the_connect_and_is_no_failure_of_the_backend(
    linked: Datapath, guarded: IdentityTarget, callers: dict[str, Caller], family: Family
) -> None:
    called = f"[{family.called}]:{PORT}" if ":" in family.called else f"{family.called}:{PORT}"
    tiers = group(called), group(family.good, tier=1)
    programmed(linked.target(), plan("echo", family.vip, *tiers, ejection=Ejection(1, 60.0, 60.0)))
    for _ in range(3):
        assert callers["other"].tcp(family.vip) == {"error": family.refusal}
        assert callers["client"].tcp(family.vip)["answer"].endswith(family.client)
    assert refused(guarded) == {(POLICY, STRANGER, "not-allowed")}
    assert view.rows(linked.maps, "failing") == []
    assert [row["backend"] for row in view.rows(linked.maps, "denials")] == [f"{called}/TCP"]
    assert {row["verdict"]: row["calls"] for row in linked.counters()} == {"called": 6, "denied": 3}


def unsigned(target: IdentityTarget, called: str) -> None:
    done(target.sources.delete(list(target.sources.rows.values())))


def other_key(target: IdentityTarget, called: str) -> None:
    target.put_keys({(OWN, NUMBER): bytes(16)}, {(CLUSTER, NUMBER): KEY}, number=NUMBER)


def retired(target: IdentityTarget, called: str) -> None:
    target.put_keys({(OWN, NUMBER): KEY}, {(CLUSTER, NUMBER + 2): KEY}, number=NUMBER)


def nothing(target: IdentityTarget, called: str) -> None:
    pass


ZERO = CLUSTER << 16
CALLS: dict[str, tuple[str, str, Callable[[IdentityTarget, str], None], tuple[int, str]]] = {
    "unsigned": ("client", "tcp", unsigned, (0, "unsigned")),
    "another key": ("client", "tcp", other_key, (ZERO, "bad-mac")),
    "a retired epoch": ("client", "tcp", retired, (ZERO, "unknown-key")),
    "not allowed": ("other", "tcp", nothing, (STRANGER, "not-allowed")),
}


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pods_call_is_refused(guarded: IdentityTarget, callers: dict[str, Caller], family: Family, case: str) -> None:
    caller, call, change, (identity, reason) = CALLS[case]
    change(guarded, family.called)
    assert callers[caller].calls(call, family.called, PORT) == [{"error": family.refusal}]
    assert refused(guarded) == {(POLICY, identity, reason)}
    assert callers[caller].tcp(family.called, OPEN_PORT)["answer"], "another port is not guarded"


def by_address(target: IdentityTarget) -> None:
    """Judge callers at the port by their addresses, of TCP and of UDP."""
    rows = {"client": IDENTITY, "other": STRANGER}
    known = [AddressIdentity(each, number) for name, number in rows.items() for each in CALLERS[name]]
    assert done(target.addresses.update(known)) == {}
    guard = Guard(policy=POLICY, address="", port=PORT, protocol="TCP", require=False)
    rows_of_both = [replace(guard, address=each, protocol=way) for each in CALLED for way in ("TCP", "UDP")]
    assert done(target.guards.update(rows_of_both)) == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pods_unsigned_call_is_judged_by_its_address(
    guarded: IdentityTarget, callers: dict[str, Caller], family: Family
) -> None:
    unsigned(guarded, family.called)
    by_address(guarded)
    assert callers["client"].tcp(family.called, PORT)["answer"].endswith(family.client)
    assert refused(guarded) == set()
    assert callers["other"].tcp(family.called, PORT) == {"error": family.refusal}
    assert refused(guarded) == {(POLICY, STRANGER, "not-allowed-by-address")}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pods_datagrams_are_judged_by_its_address(
    guarded: IdentityTarget, callers: dict[str, Caller], family: Family
) -> None:
    by_address(guarded)
    assert callers["client"].udp(family.called, PORT)["answer"].endswith(family.client)
    assert refused(guarded) == set()
    assert callers["other"].udp(family.called, OPEN_PORT)["answer"], "another port is not guarded"
    assert "answer" not in callers["other"].udp(family.called, PORT, patience=0.3)
    assert refused(guarded) == {(POLICY, STRANGER, "not-allowed-by-address")}


@needs_multipath
@pytest.mark.parametrize("family", FAMILIES)
def test_a_multipath_call_is_signed_as_any_other(
    guarded: IdentityTarget, callers: dict[str, Caller], family: Family
) -> None:
    assert callers["client"].calls("mptcp", family.called, PORT)[0]["answer"].endswith(family.client)
    assert refused(guarded) == set()


def syn(source: str, called: str, *, proof: bytes = b"", options: bytes = PLAIN, **more: Any) -> bytes:
    return packet(source, called, segment(source, SPORT, called, PORT, SEQUENCE, options=options + proof, **more))


def proof(source: str, called: str, *, key: bytes = KEY, number: int = NUMBER, identity: int = IDENTITY) -> bytes:
    return option(key, number, identity, source, SPORT, called, PORT, SEQUENCE)


def extended(source: str, called: str) -> bytes:
    body = segment(source, SPORT, called, PORT, SEQUENCE, options=PLAIN + proof(source, called))
    if ":" in source:
        return packet(source, called, body, protocol=60, options=bytes.fromhex("0600010400000000"))
    return packet(source, called, body, options=b"\1\1\1\0")


def fragmented(source: str, called: str) -> bytes:
    body = segment(source, SPORT, called, PORT, SEQUENCE, options=PLAIN + proof(source, called))
    if ":" in source:
        return packet(source, called, body[:24], protocol=44, options=bytes.fromhex("0600000100000007"))
    return packet(source, called, body[:24], fragment=0x2000)


def replayed(source: str, called: str) -> bytes:
    body = segment(source, SPORT + 1, called, PORT, SEQUENCE, options=PLAIN + proof(source, called))
    return packet(source, called, body)


PACKETS: dict[str, tuple[str, Callable[[str, str], bytes], tuple[int, str]]] = {
    "without option": ("outside", lambda a, b: syn(a, b), (0, "unsigned")),
    "forged": ("outside", lambda a, b: syn(a, b, proof=proof(a, b, key=bytes(16))), (ZERO, "bad-mac")),
    "replayed from another port": ("outside", replayed, (ZERO, "bad-mac")),
    "retired": ("outside", lambda a, b: syn(a, b, proof=proof(a, b, number=NUMBER - 2)), (ZERO, "unknown-key")),
    "of another cluster": (
        "outside",
        lambda a, b: syn(a, b, proof=proof(a, b, identity=9 << 16 | 300)),
        (9 << 16, "unknown-key"),
    ),
    "not allowed": ("outside", lambda a, b: syn(a, b, proof=proof(a, b, identity=STRANGER)), (STRANGER, "not-allowed")),
    "MP_JOIN": ("outside", lambda a, b: syn(a, b, options=PLAIN + b"\x1e\x0c\x10\1" + bytes(8)), (0, "unsigned")),
    "TFO with a cookie": (
        "outside",
        lambda a, b: syn(a, b, options=PLAIN + b"\x22\x0a" + bytes(8) + b"\1\1", payload=b"hello"),
        (0, "unsigned"),
    ),
    "data": ("outside", lambda a, b: syn(a, b, proof=proof(a, b), payload=b"hello"), (0, "unsigned")),
    "SYN and FIN": ("outside", lambda a, b: syn(a, b, proof=proof(a, b), flags=SYN | FIN), (0, "unsigned")),
    "SYN, PSH and URG": ("outside", lambda a, b: syn(a, b, proof=proof(a, b), flags=SYN | PSH | URG), (0, "unsigned")),
    "options of IP": ("outside", extended, (0, "unreadable")),
    "a fragment": ("outside", fragmented, (0, "unreadable")),
}


@pytest.mark.parametrize("case", PACKETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_syn_from_elsewhere_does_not_reach_the_pod(
    guarded: IdentityTarget, wire: Wire, pods: dict[str, str], family: Family, case: str
) -> None:
    namespace, make, (identity, reason) = PACKETS[case]
    assert wire.arrives(pods[namespace], make(family.elsewhere, family.called)) == []
    assert refused(guarded) == {(POLICY, identity, reason)}


@pytest.fixture(scope="module")
def far(node: World) -> Load:
    """Callers on a machine 2 ms away, whose SYNs nobody signs."""
    node.slow_servers(0.002, "10.8.3.1:9", "[fd00:8:3::1]:9")
    return node.load_from(node.cgroup / "far", namespace=f"{node.name}-c")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_connect_of_a_caller_elsewhere_ends_by_the_answer_to_its_first_syn(
    guarded: IdentityTarget, far: Load, family: Family
) -> None:
    assert far.run(family.called, port=PORT, calls=20, at_once=1, timeout=PATIENCE).ended == {family.refusal: 20}
    assert {(row.reason, row.count) for row in guarded.refusals()} == {("unsigned", 20)}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_signed_syn_from_elsewhere_reaches_the_pod(
    guarded: IdentityTarget, wire: Wire, pods: dict[str, str], family: Family
) -> None:
    sent = syn(family.elsewhere, family.called, proof=proof(family.elsewhere, family.called))
    [arrived] = wire.arrives(pods["outside"], sent)
    assert arrived.endswith(proof(family.elsewhere, family.called))
    assert refused(guarded) == set()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_raw_socket_of_a_pod_sends_with_the_pods_own_identity_whatever_it_writes(
    guarded: IdentityTarget, wire: Wire, pods: dict[str, str], family: Family
) -> None:
    stolen = syn(family.other, family.called, proof=proof(family.other, family.called))
    assert wire.arrives(pods["other"], stolen) == [], "it is signed anew, as what may not call"
    assert refused(guarded) == {(POLICY, STRANGER, "not-allowed")}
    [arrived] = wire.arrives(pods["client"], syn(family.client, family.called, proof=b"\xfd\x10\x15\x77" + bytes(12)))
    assert arrived.endswith(proof(family.client, family.called))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pod_that_sends_with_anothers_address_is_dropped_at_its_own_node(
    guarded: IdentityTarget, wire: Wire, pods: dict[str, str], family: Family
) -> None:
    stolen = syn(family.client, family.called, proof=proof(family.client, family.called))
    assert wire.arrives(pods["other"], stolen) == []
    assert refused(guarded) == {("", STRANGER, "spoofed")}


@pytest.mark.parametrize("family", FAMILIES)
def test_syn_cookies_change_nothing(
    guarded: IdentityTarget, callers: dict[str, Caller], pods: dict[str, str], family: Family
) -> None:
    put(pods["called"], "net/ipv4/tcp_syncookies", 2)
    try:
        assert callers["client"].tcp(family.called, PORT)["answer"].endswith(family.client)
        assert callers["other"].tcp(family.called, PORT) == {"error": family.refusal}
    finally:
        put(pods["called"], "net/ipv4/tcp_syncookies", 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_the_own_cluster_are_not_looked_at(
    guarded: IdentityTarget, callers: dict[str, Caller], family: Family
) -> None:
    assert guarded.put_own_ranges(["10.7.2.0/24", "fd00:7:2::/48"]) == []
    assert callers["other"].tcp(family.called, PORT)["answer"].endswith(family.other)
    assert refused(guarded) == set()


def test_the_interface_of_a_pod_is_found_by_its_address(
    node: World, linked: Datapath, callers: dict[str, Caller]
) -> None:
    def look() -> bool:
        found = within(node.server, lambda: pod_interfaces(linked.maps, node.cgroup))
        wanted = {"client": node.interface("eth0"), "other": node.interface("p2")}
        return all(found.get(each) == wanted[name] for name in callers for each in CALLERS[name])

    until(look, what="callers are in their namespaces")
    target, row = linked.identity(), Source("demo/client", CALLERS["client"], IDENTITY)
    assert within(node.server, lambda: done(target.sources.update([row]))) == {}
    assert {each["interface"] for each in view.rows(linked.maps, "sources")} == {node.interface("eth0")}


HOST_UID, OTHER_UID = "0a1b2c3d-0000-4000-8000-0000000000a1", "0a1b2c3d-0000-4000-8000-0000000000a2"

HOST_GROUP = f"kubepods-pod{HOST_UID.replace('-', '_')}.slice/1"


@pytest.fixture(scope="module")
def host(node: World) -> Caller:
    """A pod in the network of the node."""
    return node.call_from(node.cgroup / HOST_GROUP, namespace=node.server)


@pytest.fixture(scope="module")
def stranger(node: World) -> Caller:
    """Another pod in the network of the node, whose account has no number."""
    return node.call_from(node.cgroup / f"pod{OTHER_UID}", namespace=node.server)


@pytest.fixture
def host_signs(guarded: IdentityTarget, host: Caller) -> IdentityTarget:
    """The pod in the network of the node has the account that may call."""
    assert done(guarded.host_sources.update([HostSource("demo/host", HOST_UID, IDENTITY)])) == {}
    return guarded


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pod_in_the_network_of_its_node_is_proven_by_its_socket_and_its_syn_alone_has_the_option(
    host_signs: IdentityTarget, host: Caller, wire: Wire, pods: dict[str, str], family: Family
) -> None:
    for _ in range(20):
        assert host.tcp(family.called, PORT)["answer"]
    assert refused(host_signs) == set()
    others = packet(family.elsewhere, family.called, segment(family.elsewhere, 1, family.called, OPEN_PORT, 1))
    seen = [each[40 if ":" in family.called else 20 :] for each in wire.arrives(pods["outside"], others)]
    with_option = [each for each in seen if b"\xfd\x10\x15\x77" in each[20 : (each[12] >> 4) * 4]]
    assert len({each[:8] for each in with_option}) == 20
    assert all(each[13] & 0x3F == SYN for each in with_option)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pod_in_the_network_of_its_node_is_proven_for_the_backend_of_a_service(
    linked: Datapath, host_signs: IdentityTarget, host: Caller, family: Family
) -> None:
    called = f"[{family.called}]:{PORT}" if ":" in family.called else f"{family.called}:{PORT}"
    programmed(linked.target(), plan("echo", family.vip, group(called)))
    assert host.tcp(family.vip)["answer"]
    assert refused(host_signs) == set()


def test_a_socket_of_ipv6_that_calls_an_address_of_ipv4_is_proven(host_signs: IdentityTarget, host: Caller) -> None:
    assert host.tcp(f"::ffff:{CALLED[0]}", PORT)["answer"]
    assert refused(host_signs) == set()


@needs_multipath
@pytest.mark.parametrize("family", FAMILIES)
def test_a_multipath_call_from_the_network_of_the_node_is_proven(
    host_signs: IdentityTarget, host: Caller, family: Family
) -> None:
    assert host.calls("mptcp", family.called, PORT)[0]["answer"]
    assert refused(host_signs) == set()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pod_in_the_network_of_its_node_is_refused_where_its_account_may_not_call(
    host_signs: IdentityTarget, host: Caller, family: Family
) -> None:
    assert done(host_signs.host_sources.update([HostSource("demo/host", HOST_UID, STRANGER)])) == {}
    assert "error" in host.tcp(family.called, PORT)
    assert refused(host_signs) == {(POLICY, STRANGER, "not-allowed")}
    assert host.tcp(family.called, OPEN_PORT)["answer"], "another port is not guarded"


@pytest.mark.parametrize("family", FAMILIES)
def test_whoever_else_is_in_the_network_of_the_node_proves_nothing(
    host_signs: IdentityTarget, stranger: Caller, family: Family
) -> None:
    assert "error" in stranger.tcp(family.called, PORT)
    assert refused(host_signs) == {(POLICY, 0, "unsigned")}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pod_with_an_interface_of_its_own_is_proven_there_alone(
    host_signs: IdentityTarget, callers: dict[str, Caller], family: Family
) -> None:
    unsigned(host_signs, family.called)
    assert "error" in callers["client"].tcp(family.called, PORT)
    assert refused(host_signs) == {(POLICY, 0, "unsigned")}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_socket_that_called_a_proven_address_leaves_its_next_call_elsewhere_as_it_is(
    host_signs: IdentityTarget, host: Caller, wire: Wire, pods: dict[str, str], family: Family
) -> None:
    in_vain = (REFUSES6 if ":" in family.called else REFUSES).rpartition(":")[0].strip("[]")
    done(host_signs.signed_to.delete(list(host_signs.signed_to.rows.values())))
    assert done(host_signs.signed_to.update([SignedTo(ServiceName("demo/far"), in_vain, C3, OWN)])) == {}
    assert host.calls("again", family.called, OPEN_PORT, first=in_vain)[0].get("answer")
    others = packet(family.elsewhere, family.called, segment(family.elsewhere, 1, family.called, OPEN_PORT, 1))
    seen = [each[40 if ":" in family.called else 20 :] for each in wire.arrives(pods["outside"], others)]
    assert {(each[12] >> 4) * 4 for each in seen if each[13] & 0x3F == SYN} <= {20, 40}, "without room for an option"


HELD: Final = 8090


@pytest.fixture(scope="module")
def holding(node: World, pods: dict[str, str]) -> None:
    """A server in the called pod that keeps its connections, and a process that is in the pod's cgroup."""
    addresses = [f"[{each}]" if ":" in each else each for each in CALLED]
    node.serve(*(f"{each}:{HELD}" for each in addresses), namespace=pods["called"])
    node.call_from(node.cgroup / "called", namespace=pods["called"])


@pytest.mark.usefixtures("holding")
@pytest.mark.parametrize("family", FAMILIES)
async def test_a_change_of_policy_cuts_the_connections_that_it_forbids_and_no_others(
    linked: Datapath, callers: dict[str, Caller], family: Family
) -> None:
    far = ClusterName("c7")
    db = Database(tables.EXPORT_POLICIES, tables.GUARDS, tables.CALLER_ADDRESSES, tables.IDENTITIES, tables.OWN_RANGES)
    policy = ExportPolicy(name=POLICY, allow=(Allow(cluster=far),), cut=True)
    with db.write() as txn:
        txn.put(tables.EXPORT_POLICIES, policy)
        txn.put(tables.OWN_RANGES, OwnRanges(ranges=("192.0.2.0/24",)))
        txn.put(tables.GUARDS, Guard(policy=POLICY, address=family.called, port=HELD, protocol="TCP", cut=True))
        for name, number in {"client": IDENTITY, "other": STRANGER}.items():
            txn.put(tables.IDENTITIES, Identity(cluster=far, number=number, namespace="demo", service_account=name))
            for address in CALLERS[name]:
                txn.put(tables.CALLER_ADDRESSES, CallerAddress(far, address, number))
    for caller in callers.values():
        assert caller.calls("hold", family.called, HELD, local=0)[0]["answer"]
    cutting = Cutting(db, linked, ClusterName("c1"))
    await cutting.look(db.snapshot())
    task = asyncio.create_task(cutting.run())
    for caller in callers.values():
        assert caller.calls("echo", family.called, HELD, text="here") == [{"answer": "here"}]
    with db.write() as txn:
        txn.put(tables.EXPORT_POLICIES, replace(policy, allow=(Allow(cluster=far, service_account="client"),)))
    async with asyncio.timeout(PATIENCE):
        while not cutting.cut:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert cutting.cut == 1
    assert callers["client"].calls("echo", family.called, HELD, text="still") == [{"answer": "still"}]
    assert callers["other"].calls("echo", family.called, HELD, text="gone") == [{"error": "ECONNRESET"}]


@pytest.mark.usefixtures("host", "callers")
def test_the_pod_that_a_process_is_in_is_known_by_its_cgroup(node: World) -> None:
    for name, uid in ((HOST_GROUP, HOST_UID), ("client", "")):
        [pid] = Path(node.cgroup, name, "cgroup.procs").read_text().split()
        assert uid_of(node.cgroup, int(pid)) == uid
    assert uid_of(node.cgroup, 0) == ""


def allowed(target: IdentityTarget) -> None:
    pass


def not_allowed(target: IdentityTarget) -> None:
    assert done(target.host_sources.update([HostSource("demo/host", HOST_UID, STRANGER)])) == {}


def stripped(target: IdentityTarget) -> None:
    """The provider cannot distinguish a removed option from one that was never written."""
    assert done(target.host_sources.delete(list(target.host_sources.rows.values()))) == {}


def rewritten(target: IdentityTarget) -> None:
    other_key(target, "")


PATHS: dict[str, tuple[Callable[[IdentityTarget], None], str]] = {
    "accepted": (allowed, "ok"),
    "proven and not allowed": (not_allowed, "ok"),
    "without the option": (stripped, "stripped"),
    "with a proof that is not valid": (rewritten, "rewritten"),
}


@pytest.mark.parametrize("case", PATHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_probe_finds_out_whether_proofs_arrive(
    host_signs: IdentityTarget, host: Caller, family: Family, case: str
) -> None:
    change, state = PATHS[case]
    change(host_signs)
    assert host.calls("path", family.called, PORT) == [{"path": state}]


@pytest.mark.needs("nft")
@pytest.mark.usefixtures("host_signs")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_error_of_a_firewall_on_the_way_says_nothing_of_proofs(node: World, host: Caller, family: Family) -> None:
    """Of its codes one is "host prohibited", too, by which a proof passed for one that is not valid."""
    matched = f"ip6 daddr {family.called}" if ":" in family.called else f"ip daddr {family.called}"
    error = "icmpv6 type admin-prohibited" if ":" in family.called else "icmp type host-prohibited"
    rule = f"{matched} tcp dport {PORT} reject with {error}"
    nft = ["ip", "netns", "exec", node.server, "nft"]
    table = f"table inet wall {{ chain output {{ type filter hook output priority 0; {rule}; }}; }}"
    subprocess.run([*nft, table], check=True)
    try:
        assert host.calls("path", family.called, PORT) == [{"path": ""}]
    finally:
        subprocess.run([*nft, "delete", "table", "inet", "wall"], check=True)
