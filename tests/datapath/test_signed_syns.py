"""SYNs signed where they leave a pod and verified where they enter one, byte by byte. By BPF_PROG_TEST_RUN."""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from datapath_worlds.bpf_testrun import DROP, PASS, REDIRECT, TestRun
from datapath_worlds.bpf_world import done
from datapath_worlds.signed_syn import (
    ACK,
    CWR,
    ECE,
    FIN,
    PLAIN,
    PSH,
    RST,
    SYN,
    URG,
    binary,
    checksum,
    frame,
    option,
    packet,
    segment,
    siphash,
)
from msgspec.structs import replace

from isthmus.datapath import Datapath
from isthmus.datapath.flows.names import FlowNames
from isthmus.datapath.flows.reader import FlowReader
from isthmus.datapath.identity import IdentityTarget
from isthmus.datapath.identity.target import SHIFT_511
from isthmus.datapath.settings import CONFIG
from isthmus.identity import pairs, schedule
from isthmus.identity.epoch_keys import EpochKeys
from isthmus.model import tables
from isthmus.model.flows import Flow
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.signing import AddressIdentity, Guard, Permit, SignedTo, Source
from isthmus.statedb import Database

pytestmark = pytest.mark.bpf

INTERFACE = 1
"""Of the loopback, which BPF_PROG_TEST_RUN takes."""
CALLER, CALLER6, CALLED, CALLED6 = "10.7.0.1", "fd00:7::1", "10.8.0.1", "fd00:8::1"
FAMILIES = [pytest.param(CALLER, CALLED, id="IPv4"), pytest.param(CALLER6, CALLED6, id="IPv6")]
PORT, SPORT, SEQUENCE = 8080, 40_001, 0xFEDC_BA98
KEY, NUMBER = bytes(range(16)), 201
OTHER_KEY = bytes(range(100, 116))
CLUSTER, IDENTITY, STRANGER = 7, 7 << 16 | 0x1234, 7 << 16 | 0x4321
OWN = 3
POLICY = ServiceName("demo/echo")
REMOTE = SignedTo(ServiceName("demo/far"), CALLED, ClusterName("c3"), OWN)
GUARD = Guard(policy=POLICY, address=CALLED, port=PORT, protocol="TCP")


@pytest.fixture
def target(datapath: Datapath) -> IdentityTarget:
    """The maps of a node with one pod, at the interface that programs are run on."""
    return IdentityTarget(datapath.maps, lambda: dict.fromkeys((CALLER, CALLER6, CALLED, CALLED6), INTERFACE))


@pytest.fixture
def signing(target: IdentityTarget) -> IdentityTarget:
    """The caller's node."""
    assert done(target.sources.update([Source("demo/client", (CALLER, CALLER6), IDENTITY)])) == {}
    assert done(target.signed_to.update([REMOTE, replace(REMOTE, address=CALLED6)])) == {}
    assert target.put_keys({(OWN, NUMBER): KEY}, {}, number=NUMBER) == []
    return target


@pytest.fixture
def guarding(target: IdentityTarget) -> IdentityTarget:
    """The provider's node."""
    assert done(target.permits.update([Permit(POLICY, IDENTITY)])) == {}
    assert done(target.guards.update([GUARD])) == {}
    assert target.put_keys({}, {(CLUSTER, NUMBER): KEY}, number=NUMBER) == []
    assert target.put_own_ranges(["10.8.0.0/16", "fd00:8::/32", "192.0.2.1/32"]) == []
    return target


@pytest.fixture
def leave(datapath: Datapath) -> TestRun:
    return TestRun(datapath.program_fd("from_pod"))


@pytest.fixture
def enter(datapath: Datapath) -> TestRun:
    return TestRun(datapath.program_fd("to_pod"))


def syn(source: str, called: str, *, port: int = PORT, **more: Any) -> bytes:
    return frame(packet(source, called, segment(source, SPORT, called, port, SEQUENCE, **more)))


def proof(source: str, called: str, *, key: bytes = KEY, number: int = NUMBER, identity: int = IDENTITY) -> bytes:
    return option(key, number, identity, source, SPORT, called, PORT, SEQUENCE)


def refused(target: IdentityTarget) -> dict[tuple[str, int, str], int]:
    return {(row.policy, row.identity, row.reason): row.count for row in target.refusals()}


@pytest.mark.parametrize(
    ("length", "wanted"),
    [(0, "310e0edd47db6f72"), (8, "6224939a79f5f593"), (15, "e545be4961ca29a1"), (48, "51a9cb9ecba312e6")],
)
def test_the_tests_siphash_has_the_published_vectors(length: int, wanted: str) -> None:
    assert siphash(bytes(range(16)), bytes(range(length))).hex() == wanted


@pytest.mark.parametrize("options", [b"", PLAIN, PLAIN + b"\1\1\1\1"], ids=["bare", "ordinary", "the most that fits"])
@pytest.mark.parametrize("flags", [SYN, SYN | ECE | CWR], ids=["SYN", "with ECN"])
@pytest.mark.parametrize(("source", "called"), FAMILIES)
@pytest.mark.usefixtures("signing")
def test_a_syn_towards_a_cluster_that_verifies_has_the_option_at_the_end_and_all_sums_and_lengths_right(
    leave: TestRun, source: str, called: str, flags: int, options: bytes
) -> None:
    wanted = syn(source, called, options=options + proof(source, called), flags=flags)
    assert leave(syn(source, called, options=options, flags=flags)) == (PASS, wanted)


@pytest.mark.parametrize(("source", "called"), FAMILIES)
@pytest.mark.usefixtures("signing")
def test_the_mac_is_that_of_any_key_tuple_and_sequence_number(
    leave: TestRun, signing: IdentityTarget, source: str, called: str
) -> None:
    dice = random.Random(36)
    for _ in range(50):
        key, number, sport, port, sequence = dice.randbytes(16), *(dice.randrange(1, 1 << n) for n in (8, 16, 16, 32))
        signing.put_keys({(OWN, number): key}, {}, number=number)
        wanted = option(key, number, IDENTITY, source, sport, called, port, sequence)
        _, out = leave(frame(packet(source, called, segment(source, sport, called, port, sequence))))
        assert out[-16:] == wanted
        assert out == frame(
            packet(source, called, segment(source, sport, called, port, sequence, options=PLAIN + wanted))
        )


@pytest.mark.parametrize(("source", "called"), FAMILIES)
@pytest.mark.usefixtures("signing")
def test_a_pods_own_option_of_our_kind_is_overwritten(leave: TestRun, source: str, called: str) -> None:
    forged = proof(source, called, key=OTHER_KEY, identity=STRANGER)
    wanted = syn(source, called, options=PLAIN + proof(source, called))
    assert leave(syn(source, called, options=PLAIN + forged)) == (PASS, wanted)


UNSIGNED: dict[str, Callable[[str, str], bytes]] = {
    "SYN-ACK": lambda a, b: syn(a, b, flags=SYN | ACK),
    "SYN and FIN": lambda a, b: syn(a, b, flags=SYN | FIN),
    "SYN, PSH and URG": lambda a, b: syn(a, b, flags=SYN | PSH | URG),
    "SYN and RST": lambda a, b: syn(a, b, flags=SYN | RST),
    "ACK": lambda a, b: syn(a, b, flags=ACK),
    "data in it": lambda a, b: syn(a, b, payload=b"hello"),
    "no room: MP_JOIN, MD5, a TFO cookie": lambda a, b: syn(a, b, options=PLAIN + bytes(12)),
    "padded by a raw socket": lambda a, b: syn(a, b) + bytes(6),
    "options of IP": lambda a, b: options_of_ip(a, b),
    "to another cluster": lambda a, b: syn(a, "fd00:99::1" if ":" in b else "10.99.0.1"),
}


def options_of_ip(source: str, called: str, body: bytes = b"") -> bytes:
    """With IPv4's no-operations or IPv6's destination options before TCP."""
    body = body or segment(source, SPORT, called, PORT, SEQUENCE)
    if ":" in source:
        return frame(packet(source, called, body, protocol=60, options=bytes.fromhex("0600010400000000")))
    return frame(packet(source, called, body, options=b"\1\1\1\0"))


@pytest.mark.parametrize("case", UNSIGNED)
@pytest.mark.parametrize(("source", "called"), FAMILIES)
@pytest.mark.usefixtures("signing")
def test_what_is_not_signed_leaves_the_pod_as_it_was(leave: TestRun, source: str, called: str, case: str) -> None:
    sent = UNSIGNED[case](source, called)
    assert leave(sent) == (PASS, sent)


@pytest.mark.parametrize(("source", "called"), [(f"{CALLER[:-1]}9", CALLED), (f"{CALLER6}9", CALLED6)])
def test_a_syn_with_an_address_that_its_pod_has_not_goes_nowhere_and_is_counted(
    leave: TestRun, signing: IdentityTarget, source: str, called: str
) -> None:
    assert leave(syn(source, called))[0] == DROP
    assert refused(signing) == {("", IDENTITY, "spoofed"): 1}
    elsewhere = syn(source, "fd00:99::1" if ":" in called else "10.99.0.1")
    assert leave(elsewhere) == (PASS, elsewhere)


@pytest.mark.parametrize(("source", "called"), FAMILIES)
def test_without_entries_nothing_is_written_and_nothing_refused(
    leave: TestRun, enter: TestRun, source: str, called: str
) -> None:
    for sent in (syn(source, called), syn(source, called, options=PLAIN + proof(source, called, key=OTHER_KEY))):
        assert leave(sent) == (PASS, sent)
        assert enter(sent) == (PASS, sent)


@pytest.mark.parametrize("missing", ["sources", "signed_to", "sign_keys"])
def test_without_an_entry_of_each_kind_nothing_is_signed(
    datapath: Datapath, signing: IdentityTarget, leave: TestRun, missing: str
) -> None:
    datapath.maps.drop(missing, [key for key, _ in datapath.maps.items(missing)])
    assert leave(syn(CALLER, CALLED)) == (PASS, syn(CALLER, CALLED))


@pytest.mark.parametrize("flags", [SYN, SYN | ECE | CWR], ids=["SYN", "with ECN"])
@pytest.mark.parametrize(("source", "called"), FAMILIES)
def test_a_syn_that_proves_an_identity_that_may_call_passes_as_it_is(
    enter: TestRun, guarding: IdentityTarget, source: str, called: str, flags: int
) -> None:
    sent = syn(source, called, options=PLAIN + proof(source, called), flags=flags)
    assert enter(sent) == (PASS, sent)
    assert refused(guarding) == {}


def spoiled(sent: bytes, at: int) -> bytes:
    return sent[:at] + bytes([sent[at] ^ 1]) + sent[at + 1 :]


def signed(source: str, called: str, **more: Any) -> bytes:
    return syn(source, called, options=PLAIN + proof(source, called, **more))


def with_flags(flags: int) -> Callable[[str, str], bytes]:
    return lambda a, b: syn(a, b, options=PLAIN + proof(a, b), flags=flags)


def fragment(source: str, called: str) -> bytes:
    """The first 24 bytes of a signed SYN."""
    body = segment(source, SPORT, called, PORT, SEQUENCE, options=PLAIN + proof(source, called))
    if ":" in source:
        return frame(packet(source, called, body[:24], protocol=44, options=bytes.fromhex("0600000100000007")))
    return frame(packet(source, called, body[:24], fragment=0x2000))


def chain(source: str, called: str) -> bytes:
    """Seven headers before TCP, one more than is looked at; of IPv4 the longest options."""
    body = segment(source, SPORT, called, PORT, SEQUENCE, options=PLAIN + proof(source, called))
    if ":" in source:
        headers = bytes.fromhex("3c00010400000000") * 6 + bytes.fromhex("0600010400000000")
        return frame(packet(source, called, body, protocol=60, options=headers))
    return frame(packet(source, called, body, options=b"\1" * 39 + b"\0"))


ZERO = CLUSTER << 16
REFUSED: dict[str, tuple[Callable[[str, str], bytes], int, str]] = {
    "no option": (lambda a, b: syn(a, b), 0, "unsigned"),
    "an option that is not the last": (
        lambda a, b: syn(a, b, options=proof(a, b) + PLAIN),
        0,
        "unsigned",
    ),
    "another experiment": (
        lambda a, b: syn(a, b, options=PLAIN + b"\xfd\x10\x15\x78" + proof(a, b)[4:]),
        0,
        "unsigned",
    ),
    "SYN and FIN": (with_flags(SYN | FIN), 0, "unsigned"),
    "SYN, PSH and URG": (with_flags(SYN | PSH | URG), 0, "unsigned"),
    "data in it, as with TCP Fast Open": (
        lambda a, b: syn(a, b, options=PLAIN + proof(a, b), payload=b"hello"),
        0,
        "unsigned",
    ),
    "MP_JOIN": (lambda a, b: syn(a, b, options=PLAIN + b"\x1e\x0c\x10\1" + bytes(8)), 0, "unsigned"),
    "a key that nobody has": (lambda a, b: signed(a, b, key=OTHER_KEY), ZERO, "bad-mac"),
    "a MAC with one bit changed": (lambda a, b: spoiled(signed(a, b), -1), ZERO, "bad-mac"),
    "another identity under its MAC": (lambda a, b: spoiled(signed(a, b), -9), ZERO, "bad-mac"),
    "a replay with another sequence number": (
        lambda a, b: frame(packet(a, b, segment(a, SPORT, b, PORT, SEQUENCE + 1, options=PLAIN + proof(a, b)))),
        ZERO,
        "bad-mac",
    ),
    "a replay from another port": (
        lambda a, b: frame(packet(a, b, segment(a, SPORT + 1, b, PORT, SEQUENCE, options=PLAIN + proof(a, b)))),
        ZERO,
        "bad-mac",
    ),
    "a replay from another address": (
        lambda a, b: frame(packet(a + "9", b, segment(a + "9", SPORT, b, PORT, SEQUENCE, options=PLAIN + proof(a, b)))),
        ZERO,
        "bad-mac",
    ),
    "the key of a retired epoch": (lambda a, b: signed(a, b, number=NUMBER - 3), ZERO, "unknown-key"),
    "the key of another cluster": (lambda a, b: signed(a, b, identity=8 << 16 | 0x1234), 8 << 16, "unknown-key"),
    "an identity that may not call": (lambda a, b: signed(a, b, identity=STRANGER), STRANGER, "not-allowed"),
    "options of IP": (
        lambda a, b: options_of_ip(a, b, segment(a, SPORT, b, PORT, SEQUENCE, options=PLAIN + proof(a, b))),
        0,
        "unreadable",
    ),
    "a first fragment": (fragment, 0, "unreadable"),
    "a chain of headers": (chain, 0, "unreadable"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize(("source", "called"), FAMILIES)
def test_the_deny_matrix_by_packets(
    enter: TestRun, guarding: IdentityTarget, source: str, called: str, case: str
) -> None:
    make, identity, reason = REFUSED[case]
    assert enter(make(source, called))[0] != PASS
    assert refused(guarding) == {(POLICY, identity, reason): 1}


@pytest.mark.parametrize(
    ("options", "proven"),
    [(b"", False), (PLAIN, False), (PLAIN + bytes(20), False), (PLAIN, True)],
    ids=["bare", "ordinary", "longest", "proven"],
)
@pytest.mark.parametrize(("source", "called"), FAMILIES)
@pytest.mark.usefixtures("guarding")
def test_a_refusal_is_an_icmp_error_of_the_pod_with_the_whole_syn_in_it_and_its_sum_right(
    enter: TestRun, source: str, called: str, options: bytes, proven: bool
) -> None:
    more = proof(source, called, identity=STRANGER) if proven else b""
    sent = syn(source, called, options=options + more)
    if ":" in source:
        error = struct.pack("!BBHI", 1, 1 if proven else 5, 0, 0) + sent[14:]
        sums = checksum(binary(called) + binary(source) + struct.pack("!II", len(error), 58) + error)
    else:
        error = struct.pack("!BBHI", 3, 13 if proven else 10, 0, 0) + sent[14:]
        sums = checksum(error)
    error = error[:2] + struct.pack("!H", sums) + error[4:]
    verdict, out = enter(sent)
    assert verdict == REDIRECT
    assert (out[:14], out[14:].hex()) == (sent[6:12] + sent[:6] + sent[12:14], answer(called, source, error).hex())


def answer(called: str, source: str, error: bytes) -> bytes:
    if ":" in called:
        return packet(called, source, error, protocol=58)
    sent = bytearray(packet(called, source, error, protocol=1))
    sent[4:6] = sent[10:12] = bytes(2)  # no identification
    sent[10:12] = struct.pack("!H", checksum(bytes(sent[:20])))
    return bytes(sent)


@pytest.mark.usefixtures("guarding")
def test_a_syn_that_does_not_fit_an_error_is_dropped(enter: TestRun) -> None:
    assert enter(syn(CALLER, CALLED, payload=bytes(1200)))[0] == DROP


@pytest.fixture
def flows(datapath: Datapath) -> Iterator[Callable[[], list[Flow]]]:
    """Flow records of the node, which records one call of a million, and each failure."""
    [(key, before)] = datapath.maps.items("config")
    datapath.maps.put("config", [(key, CONFIG.pack(*(CONFIG.named(before) | {"flows": 1_000_000}).values()))])
    datapath.maps.drop("flow_allowances", [each for each, _ in datapath.maps.items("flow_allowances")])
    db = Database(tables.PLANS, tables.PODS, tables.NODES, tables.ISLAND_LISTENERS, tables.GATEWAY_CHECKS)
    found: list[Flow] = []
    names = FlowNames(
        db, datapath.maps, datapath.state, datapath.callers(), node="n1", account=lambda number: f"c{number >> 16}"
    )
    reader = FlowReader(datapath.maps, names, lambda rows, lost: found.extend(rows), one_of=1_000_000, node="n1")
    reader.step()
    found.clear()

    def read() -> list[Flow]:
        reader.step()
        rows, found[:] = found[:], []
        return rows

    yield read
    reader.close()
    datapath.maps.put("config", [(key, before)])


@pytest.mark.parametrize("case", ["MP_JOIN", "a key that nobody has", "an identity that may not call", "options of IP"])
@pytest.mark.parametrize(("source", "called"), FAMILIES)
def test_each_refusal_is_a_flow_with_the_number_and_account_of_the_caller_and_the_reason(
    enter: TestRun, guarding: IdentityTarget, flows: Callable[[], list[Flow]], source: str, called: str, case: str
) -> None:
    make, identity, reason = REFUSED[case]
    for guard, ended in ((GUARD, ("denied", "failed")), (replace(GUARD, audit=True), ("audited", "sent"))):
        done(guarding.guards.update([replace(guard, address=CALLED)]))
        enter(make(source, called))
        [flow] = flows()
        assert (flow.verdict, flow.state) == ended
        assert (flow.policy, flow.reason, flow.identity) == (POLICY, reason, identity)
        assert flow.caller == f"c{identity >> 16}"
        assert flow.pod == flow.service == ""
        assert flow.source.strip("[").startswith(source)


def test_a_refused_callers_flow_has_both_ends(
    enter: TestRun, guarding: IdentityTarget, flows: Callable[[], list[Flow]]
) -> None:
    enter(signed(CALLER, CALLED, identity=STRANGER))
    [flow] = flows()
    assert (flow.source, flow.called, flow.protocol) == (f"{CALLER}:{SPORT}", f"{CALLED}:{PORT}", "TCP")


@pytest.mark.usefixtures("guarding")
def test_who_is_let_in_is_no_flow(enter: TestRun, flows: Callable[[], list[Flow]]) -> None:
    enter(signed(CALLER, CALLED))
    assert flows() == []


def test_whoever_knocks_again_and_again_fills_the_share_of_the_pod_and_no_more(
    datapath: Datapath, enter: TestRun, guarding: IdentityTarget, flows: Callable[[], list[Flow]]
) -> None:
    for _ in range(400):
        enter(syn(CALLER, CALLED))
    assert 100 <= len(flows()) < 300
    assert refused(guarding) == {(POLICY, 0, "unsigned"): 400}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize(("source", "called"), FAMILIES)
def test_under_audit_each_row_of_the_matrix_passes_and_is_counted(
    enter: TestRun, guarding: IdentityTarget, source: str, called: str, case: str
) -> None:
    make, identity, reason = REFUSED[case]
    sent = make(source, called)
    done(guarding.guards.update([replace(GUARD, audit=True)]))
    assert enter(sent) == (PASS, sent)
    assert refused(guarding) == {(POLICY, identity, reason): 1}


def known(target: IdentityTarget, identity: int) -> None:
    """Map the callers' addresses to an identity by records, and make guards judge by it."""
    addresses = (CALLER, CALLER + "9", CALLER6, CALLER6 + "9")
    done(target.addresses.update([AddressIdentity(each, identity) for each in addresses]))
    done(target.guards.update([replace(GUARD, require=False), replace(GUARD, protocol="UDP")]))


@pytest.mark.parametrize(("source", "called"), FAMILIES)
def test_by_address_who_proves_nothing_passes_if_the_account_of_its_address_may_call(
    enter: TestRun, guarding: IdentityTarget, source: str, called: str
) -> None:
    known(guarding, IDENTITY)
    for case, (make, _, reason) in REFUSED.items():
        assert (enter(make(source, called))[0] == PASS) == (reason != "not-allowed"), case
    assert refused(guarding) == {(POLICY, STRANGER, "not-allowed"): 1}, "a proof counts more than an address"


@pytest.mark.parametrize(("source", "called"), FAMILIES)
def test_by_address_who_proves_nothing_is_refused_by_address_if_that_account_may_not_call(
    enter: TestRun, guarding: IdentityTarget, source: str, called: str
) -> None:
    known(guarding, STRANGER)
    for case, (make, _, _) in REFUSED.items():
        assert enter(make(source, called))[0] != PASS, case
    counts = {"not-allowed": 1, "not-allowed-by-address": len(REFUSED) - 1}
    assert refused(guarding) == {(POLICY, STRANGER, reason): count for reason, count in counts.items()}


@pytest.mark.parametrize(("source", "called"), FAMILIES)
def test_by_address_an_address_without_a_record_is_refused_as_if_proof_were_required(
    enter: TestRun, guarding: IdentityTarget, source: str, called: str
) -> None:
    done(guarding.guards.update([replace(GUARD, require=False)]))
    for case, (make, _, _) in REFUSED.items():
        assert enter(make(source, called))[0] != PASS, case
    assert refused(guarding) == Counter((POLICY, identity, reason) for _, identity, reason in REFUSED.values())


def datagram(source: str, called: str, *, port: int = PORT) -> bytes:
    return frame(packet(source, called, struct.pack("!HHHH", SPORT, port, 8, 0), protocol=17))


def first_fragment(source: str, called: str) -> bytes:
    body = struct.pack("!HHHH", SPORT, PORT, 8, 0)
    if ":" in source:
        return frame(packet(source, called, body, protocol=44, options=bytes.fromhex("1100000100000007")))
    return frame(packet(source, called, body, protocol=17, fragment=0x2000))


def datagram_behind_options(source: str, called: str) -> bytes:
    body = struct.pack("!HHHH", SPORT, PORT, 8, 0)
    if ":" in source:
        return frame(packet(source, called, body, protocol=60, options=bytes.fromhex("1100010400000000")))
    return frame(packet(source, called, body, protocol=17, options=b"\1\1\1\0"))


@pytest.mark.parametrize("make", [datagram, first_fragment, datagram_behind_options])
@pytest.mark.parametrize(("source", "called"), FAMILIES)
def test_a_datagram_to_a_guarded_port_is_judged_by_its_address(
    enter: TestRun, guarding: IdentityTarget, source: str, called: str, make: Callable[[str, str], bytes]
) -> None:
    sent = make(source, called)
    known(guarding, IDENTITY)
    assert enter(sent) == (PASS, sent)
    assert refused(guarding) == {}
    known(guarding, STRANGER)
    assert enter(sent)[0] == DROP
    assert refused(guarding) == {(POLICY, STRANGER, "not-allowed-by-address"): 1}
    done(guarding.addresses.prune(()))
    assert enter(sent)[0] == DROP
    assert refused(guarding)[POLICY, 0, "unknown-address"] == 1
    done(guarding.guards.update([replace(GUARD, protocol="UDP", audit=True)]))
    assert enter(sent) == (PASS, sent)
    assert refused(guarding)[POLICY, 0, "unknown-address"] == 2


@pytest.mark.parametrize(("source", "called"), FAMILIES)
def test_no_other_datagram_is_looked_at(enter: TestRun, guarding: IdentityTarget, source: str, called: str) -> None:
    done(guarding.guards.update([replace(GUARD, protocol="UDP")]))
    own = "fd00:8:0:5::1" if ":" in source else "10.8.77.1"
    for sent in (datagram(source, called, port=PORT + 1), datagram(own, called)):
        assert enter(sent) == (PASS, sent)
    assert refused(guarding) == {}


NOT_LOOKED_AT: dict[str, Callable[[str, str], bytes]] = {
    "another port": lambda a, b: syn(a, b, port=PORT + 1),
    "a segment of a connection": lambda a, b: syn(a, b, flags=ACK),
    "SYN-ACK": lambda a, b: syn(a, b, flags=SYN | ACK),
    "RST": lambda a, b: syn(a, b, flags=RST),
    "SYN and RST, which opens nothing": lambda a, b: syn(a, b, flags=SYN | RST),
    "from the own cluster": lambda a, b: syn("fd00:8:0:5::1" if ":" in a else "10.8.77.1", b),
    "UDP": lambda a, b: frame(packet(a, b, struct.pack("!HHHH", SPORT, PORT, 8, 0), protocol=17)),
    "a fragment that is not the first": lambda a, b: (
        frame(packet(a, b, bytes(24), protocol=44, options=bytes.fromhex("0600001100000007")))
        if ":" in a
        else frame(packet(a, b, bytes(24), fragment=0x2002))
    ),
    "a fragment of UDP": lambda a, b: (
        frame(
            packet(
                a, b, struct.pack("!HHHH", SPORT, PORT, 8, 0), protocol=44, options=bytes.fromhex("1100000100000007")
            )
        )
        if ":" in a
        else frame(packet(a, b, struct.pack("!HHHH", SPORT, PORT, 8, 0), protocol=17, fragment=0x2000))
    ),
}


@pytest.mark.parametrize("case", NOT_LOOKED_AT)
@pytest.mark.parametrize(("source", "called"), FAMILIES)
def test_what_opens_no_connection_to_a_guarded_port_from_another_cluster_passes(
    enter: TestRun, guarding: IdentityTarget, source: str, called: str, case: str
) -> None:
    sent = NOT_LOOKED_AT[case](source, called)
    assert enter(sent) == (PASS, sent)
    assert refused(guarding) == {}


def test_a_rotation_of_keys_loses_no_call(
    signing: IdentityTarget, guarding: IdentityTarget, leave: TestRun, enter: TestRun
) -> None:
    """The signer may be in the epoch before the verifier's, or in the next."""
    keys = {epoch % 256: os.urandom(16) for epoch in range(254, 264)}
    sign, verify = ({(cluster, number): key for number, key in keys.items()} for cluster in (OWN, CLUSTER))
    for epoch in range(255, 262):
        for other in (epoch - 1, epoch, epoch + 1):
            assert signing.put_keys(sign, verify, number=other % 256) == []
            _, sent = leave(syn(CALLER, CALLED))
            assert guarding.put_keys(sign, verify, number=epoch % 256) == []
            assert enter(sent) == (PASS, sent)


def test_a_rotation_of_the_clusters_own_pairs_loses_no_call(
    signing: IdentityTarget, guarding: IdentityTarget, leave: TestRun, enter: TestRun
) -> None:
    """Both publish their next pair on one day, and nodes switch at the same midnight, by clocks a minute apart."""
    caller, called = ClusterName("c7"), ClusterName("c3")
    announced = 1_795_780_800.0
    private = {name: schedule.new(announced).begun(announced) for name in (caller, called)}
    midnight = private[called].day * 86_400.0
    nodes = {}
    for own, peer, now in ((caller, called, midnight - 86_400), (called, caller, midnight - 60)):  # written days apart
        nodes[own] = made = EpochKeys()
        made.update({peer: pairs.encode(pairs.pair(private[own], private[peer].public(), own=own, peer=peer, now=now))})
    seen = set()
    for minute, skew in product(range(-3, 4), (-60, 0, 60)):
        now = midnight + 60 * minute
        sign = nodes[caller].current(now + skew, {called: OWN})
        verify = nodes[called].current(now, {caller: CLUSTER})
        assert signing.put_keys(sign.sign, {}, number=sign.epoch % 256) == []
        _, sent = leave(syn(CALLER, CALLED))
        assert guarding.put_keys({}, verify.verify, number=verify.epoch % 256) == []
        assert enter(sent) == (PASS, sent)
        seen.add(sent[-8:])
    assert len(seen) == 9, "a key for each epoch"


def test_in_a_clusterset_of_511_the_clusters_id_has_nine_bits(datapath: Datapath, enter: TestRun) -> None:
    target = IdentityTarget(datapath.maps, lambda: {CALLED: INTERFACE}, shift=SHIFT_511)
    identity = 300 << SHIFT_511 | 0x1234
    done(target.permits.update([Permit(POLICY, identity)]))
    done(target.guards.update([GUARD]))
    target.put_keys({}, {(300, NUMBER): KEY}, number=NUMBER)
    sent = signed(CALLER, CALLED, identity=identity)
    assert enter(sent) == (PASS, sent)
    enter(signed(CALLER, CALLED, identity=301 << SHIFT_511 | 0x1234))
    assert refused(target) == {(POLICY, 301 << SHIFT_511, "unknown-key"): 1}


@pytest.mark.parametrize("other", [-2, 2, 30, 128, -30])
def test_a_key_of_another_epoch_is_unknown_although_the_node_has_it(
    signing: IdentityTarget, guarding: IdentityTarget, leave: TestRun, enter: TestRun, other: int
) -> None:
    number = (NUMBER + other) % 256
    sign, verify = ({(cluster, each): KEY for each in (NUMBER, number)} for cluster in (OWN, CLUSTER))
    signing.put_keys(sign, verify, number=number)
    _, sent = leave(syn(CALLER, CALLED))
    guarding.put_keys(sign, verify, number=NUMBER)
    verdict, _ = enter(sent)
    assert verdict != PASS
    assert refused(guarding) == {(POLICY, CLUSTER << 16, "unknown-key"): 1}


@pytest.mark.parametrize(("passed", "number"), [(0, 255), (59, 255), (61, 0), (3_599, 58)])
def test_without_an_agent_the_kernel_goes_on_to_the_next_keys(
    signing: IdentityTarget, guarding: IdentityTarget, leave: TestRun, enter: TestRun, passed: int, number: int
) -> None:
    keys = {epoch % 256: os.urandom(16) for epoch in range(254, 255 + 61)}
    sign, verify = ({(cluster, each): key for each, key in keys.items()} for cluster in (OWN, CLUSTER))
    signing.put_keys(sign, verify, number=255, passed=passed)
    _, sent = leave(syn(CALLER, CALLED))
    assert sent[-12] == number
    assert enter(sent) == (PASS, sent)


@pytest.mark.parametrize(
    "count", [pytest.param(20_000, id="20,000"), pytest.param(1_000_000, id="a million", marks=pytest.mark.slow)]
)
@pytest.mark.timeout(600)
def test_of_random_syns_none_passes(enter: TestRun, guarding: IdentityTarget, count: int) -> None:
    """Half have an option of our form with a key that exists, so that the MAC alone is guessed."""
    head = binary(CALLER) + binary(CALLED)
    ip = syn(CALLER, CALLED)[:26] + head
    ours = struct.pack("!BBHB", 253, 16, 0x1577, NUMBER) + struct.pack("!I", IDENTITY)[1:]
    passed = 0
    for number in range(count):
        noise = os.urandom(40)
        body = struct.pack("!HHII", SPORT, PORT, number, 0) + bytes([(5 + number % 11) << 4, SYN]) + noise[:6]
        if number % 2:
            body = struct.pack("!HHIIBB", SPORT, PORT, number, 0, 0x90, SYN) + noise[:6] + ours + noise[32:]
        size = struct.pack("!H", 20 + len(body))
        passed += enter(ip[:16] + size + ip[18:] + body)[0] == PASS
    assert passed == 0
    assert sum(refused(guarding).values()) == count
