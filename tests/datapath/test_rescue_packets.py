"""Packets of a moved connection that a network can send and a test cannot wait for, made by hand."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from datapath_worlds.bpf_testrun import PASS, TestRun
from datapath_worlds.bpf_world import Caller, World, group, plan, programmed
from datapath_worlds.failing_backends import GOOD, GOOD6, REFUSES, REFUSES6, VIP, VIP6, host

from isthmus.datapath import Datapath, view
from isthmus.model.balancing import Ejection

pytestmark = pytest.mark.bpf

PORT = 30155
POD, POD6 = "10.7.0.1", "fd00:7::1"
FIN, ACK = 0x01, 0x10
FAMILIES = [
    pytest.param(POD, VIP, REFUSES, GOOD[0], id="IPv4"),
    pytest.param(POD6, VIP6, REFUSES6, GOOD6[0], id="IPv6"),
]


def binary(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def folded(data: bytes) -> int:
    """The Internet's checksum of what has one in it: 0 where that is right."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def packet(source: str, target: str, protocol: int, payload: bytes) -> bytes:
    """A frame of Ethernet."""
    if ":" in source:
        head = struct.pack("!IHBB", 6 << 28, len(payload), protocol, 64) + binary(source) + binary(target)
        return bytes(12) + b"\x86\xdd" + head + payload
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0) + binary(source) + binary(target)
    return bytes(12) + b"\x08\x00" + head[:10] + struct.pack("!H", folded(head)) + head[12:] + payload


def segment(source: str, sport: int, target: str, dport: int, *, flags: int, seq: int, ack: int) -> bytes:
    return packet(source, target, 6, struct.pack("!HHIIBBHHH", sport, dport, seq, ack, 0x50, flags, 65_535, 0, 0))


def too_big(router: str, pod: str, quoted: bytes) -> bytes:
    """A router's error about a packet that does not fit."""
    version6 = ":" in router
    body = quoted[14:]
    kind = struct.pack("!BBHI", *((2, 0, 0, 1280) if version6 else (3, 4, 0, 1300))) + body
    pseudo = binary(router) + binary(pod) + struct.pack("!II", len(kind), 58) if version6 else b""
    kind = kind[:2] + struct.pack("!H", folded(pseudo + kind)) + kind[4:]
    return packet(router, pod, 58 if version6 else 1, kind)


@contextmanager
def moved(datapath: Datapath, caller: Caller, vip: str, bad: str, good: str) -> Iterator[None]:
    """A connection from PORT that was moved from one backend to another."""
    tiers = group(bad), group(good, tier=1)
    programmed(datapath.target(), plan("echo", vip, *tiers, ejection=Ejection(after=0)))
    assert caller.calls("hold", vip, 80, local=PORT) == [{"answer": good}]
    yield
    caller.calls("drop", vip, 80)


@pytest.mark.parametrize(("pod", "vip", "bad", "good"), FAMILIES)
def test_the_entries_of_a_moved_connection_last_until_both_ends_have_acknowledged_the_others_fin(
    rescuing: Datapath, world: World, pod: str, vip: str, bad: str, good: str
) -> None:
    """A FIN takes a sequence number: to have acknowledged the data before it is not enough, where the two cross."""
    to_pod, from_pod = (TestRun(rescuing.program_fd(name)) for name in ("to_pod", "from_pod"))

    def sends(*, flags: int, seq: int, ack: int) -> int:
        assert from_pod(segment(pod, PORT, host(bad), 8080, flags=flags, seq=seq, ack=ack))[0] == PASS
        return len(view.rows(rescuing.maps, "flows"))

    def gets(*, flags: int, seq: int, ack: int) -> int:
        assert to_pod(segment(host(good), 8080, pod, PORT, flags=flags, seq=seq, ack=ack))[0] == PASS
        return len(view.rows(rescuing.maps, "flows"))

    with moved(rescuing, world.caller, vip, bad, good):
        entries = len(view.rows(rescuing.maps, "flows"))
        assert entries > 0
        assert gets(flags=FIN | ACK, seq=5000, ack=700) == entries
        assert sends(flags=ACK, seq=700, ack=5000) == entries
        assert sends(flags=FIN | ACK, seq=700, ack=5000) == entries
        assert gets(flags=ACK, seq=5001, ack=700) == entries
        assert gets(flags=ACK, seq=5001, ack=701) == entries
        assert sends(flags=ACK, seq=701, ack=5001) == 0


@pytest.mark.parametrize(("pod", "vip", "bad", "good"), FAMILIES)
def test_an_icmp_error_of_the_backend_itself_comes_from_the_peer_that_the_socket_has(
    rescuing: Datapath, world: World, pod: str, vip: str, bad: str, good: str
) -> None:
    to_pod = TestRun(rescuing.program_fd("to_pod"))
    sent, known = (segment(pod, PORT, host(to), 8080, flags=ACK, seq=700, ack=5000) for to in (good, bad))
    router = "fd00:9::1" if ":" in pod else "10.9.9.9"
    with moved(rescuing, world.caller, vip, bad, good):
        assert to_pod(too_big(host(good), pod, sent)) == (PASS, too_big(host(bad), pod, known))
        assert to_pod(too_big(router, pod, sent)) == (PASS, too_big(router, pod, known))


@pytest.mark.parametrize("fragment", [0x2000, 0x2003, 0x0003], ids=["the first", "one between", "the last"])
def test_fragments_are_not_read_as_segments(rescuing: Datapath, world: World, fragment: int) -> None:
    """What stands where the ports would be is data, of any content."""
    from_pod = TestRun(rescuing.program_fd("from_pod"))
    whole = segment(POD, PORT, host(REFUSES), 8080, flags=ACK, seq=700, ack=5000)
    head = whole[14:20] + struct.pack("!H", fragment) + whole[22:24] + bytes(2) + whole[26:34]
    part = whole[:14] + head[:10] + struct.pack("!H", folded(head)) + head[12:] + whole[34:]
    with moved(rescuing, world.caller, VIP, REFUSES, GOOD[0]):
        assert from_pod(whole)[1] != whole
        assert from_pod(part) == (PASS, part)
