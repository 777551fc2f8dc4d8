"""What the kernel may do with a frame, worked out from the server's own reply: the oracle of the kernel's answers."""

from __future__ import annotations

from functools import lru_cache

import dns.message
from answers.names_world import CLUSTER_DNS, CLUSTER_DNS6, SERVER, SERVER6, checksum, message, packed, pseudo
from datapath_worlds.bpf_testrun import DROP, PASS, REDIRECT

from isthmus.dns.respond import FORWARD, respond
from isthmus.zone import Zone, codec

RESOLVERS = {packed(each) for each in (CLUSTER_DNS, CLUSTER_DNS6, SERVER, SERVER6)}
NODE = {packed(each) for each in (SERVER, SERVER6)}


def question(frame: bytes) -> bytes | None:
    """The message of a plain UDP datagram to port 53 of a resolver with right checksums; None for anything else."""
    kind, ip = frame[12:14], frame[14:]
    if kind == b"\x08\x00" and len(ip) >= 28:
        source, target, protocol, at = ip[12:16], ip[16:20], ip[9], 20
        length = int.from_bytes(ip[2:4], "big") - at
        plain = ip[0] == 0x45 and not int.from_bytes(ip[6:8], "big") & 0x3FFF and checksum(ip[:20]) == 0
    elif kind == b"\x86\xdd" and len(ip) >= 48:
        source, target, protocol, at = ip[8:24], ip[24:40], ip[6], 40
        length = int.from_bytes(ip[4:6], "big")
        plain = ip[0] >> 4 == 6
    else:
        return None
    udp = ip[at : at + length]
    if not plain or protocol != 17 or target not in RESOLVERS or len(udp) != length or length < 25:
        return None
    if udp[2:4] != b"\0\x35" or int.from_bytes(udp[4:6], "big") != length or length > 8 + 512:
        return None
    over, check = pseudo(source, target, length), int.from_bytes(udp[6:8], "big")
    absent = check == 0 and len(source) == 4
    if not (absent or check == checksum(over) ^ 0xFFFF or checksum(over + udp) == 0):
        return None
    return udp[8:]


def judge(frame: bytes, verdict: int, out: bytes, zone: Zone) -> str:
    """Fail where the kernel did what it must not; else what it did: "answered", "steered", "passed" or "dropped"."""
    asked = question(frame)
    if verdict == REDIRECT:
        assert asked is not None, "answered what is no plain question to a resolver"
        assert codec.parse(asked, limit=codec.UDP_SIZE) is not None, "answered what is no ordinary question"
        expected = respond(asked, zone, limit=codec.UDP_SIZE)
        assert expected, "answered what is not ours"
        same(message(out), expected)
        return "answered"
    if verdict == DROP:
        assert asked is not None, "dropped what is no plain question to a resolver"
        assert respond(asked, zone, limit=codec.UDP_SIZE) != FORWARD, "dropped what is not ours"
        return "dropped"
    assert verdict == PASS
    if out == frame:
        return "passed"
    assert asked is not None, "changed what is no plain question to a resolver"
    assert respond(asked, zone, limit=codec.UDP_SIZE) != FORWARD, "steered what is not ours"
    at = 34 if out[12:14] == b"\x08\x00" else 54
    if is_partial(frame, at):  # BPF_PROG_TEST_RUN makes no skb whose checksum is still to be made: real packets show it
        assert out[at + 8 :] == frame[at + 8 :], "a steered question is whole"
    else:
        assert question(out) == asked, "a steered question is whole"
    target = out[30:34] if out[12:14] == b"\x08\x00" else out[38:54]
    assert target in NODE
    return "steered"


def is_partial(frame: bytes, at: int) -> bool:
    """Whether the UDP checksum at an offset is the pseudo header's sum alone."""
    source, target = (frame[26:30], frame[30:34]) if at == 34 else (frame[22:38], frame[38:54])
    over = pseudo(source, target, int.from_bytes(frame[at + 4 : at + 6], "big"))
    return int.from_bytes(frame[at + 6 : at + 8], "big") == checksum(over) ^ 0xFFFF


def same(reply: bytes, expected: bytes) -> None:
    """Two replies are equal byte for byte, but for the order of the answers."""
    if reply == expected:
        return
    end = codec.name_end(expected, 12) + 4
    assert reply[:end] == expected[:end]
    same_behind(reply[:12] + b"\0" + reply[end - 4 :], expected[:12] + b"\0" + expected[end - 4 :])


@lru_cache(65_536)
def same_behind(reply: bytes, expected: bytes) -> None:
    """The same of two replies about the root, which share what stands behind the name with many others."""
    assert len(reply) == len(expected)
    one, other = dns.message.from_wire(reply), dns.message.from_wire(expected)
    assert len(one.answer) == len(other.answer) == 1
    assert set(one.answer[0]) == set(other.answer[0])
    assert one.answer[0].ttl == other.answer[0].ttl
    assert (one.authority, one.edns, one.ednsflags, one.payload) == (
        other.authority,
        other.edns,
        other.ednsflags,
        other.payload,
    )
