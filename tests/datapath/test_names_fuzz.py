"""Mutated frames through the programs that read names, by BPF_PROG_TEST_RUN, and through the server.

ISTHMUS_FUZZ=1000000 for the long run (make fuzz-names).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator

import dns.message
import pytest
from answers.names_judge import judge, question
from answers.names_rows import ECHO, HUGE, LONG, MANY, PATHS, ROWS, SERVED, ZONE
from answers.names_world import (
    CLUSTER_DNS,
    CLUSTER_DNS6,
    POD,
    POD6,
    SERVER,
    SERVER6,
    NamesWorld,
    checksum,
    packed,
    packet,
    pseudo,
)
from datapath_worlds.bpf_testrun import PASS

from isthmus.dns.respond import respond
from isthmus.zone import codec

pytestmark = pytest.mark.bpf

COUNT = int(os.environ.get("ISTHMUS_FUZZ", "5000"))
SEED = int(os.environ.get("ISTHMUS_FUZZ_SEED", "1"))
SHORTEST = 54
"""Bytes of a frame; the kernel runs no program on one that is cut within its IP header."""
PORT = 40_000
QUESTIONS = [
    dns.message.make_query(name, type_, use_edns=edns, id=0x1571).to_wire()
    for name in (ECHO, MANY, HUGE, LONG, f"{ECHO}.demo.svc.cluster.local", f"x.{ZONE}", "a.b")
    for type_ in ("A", "AAAA", "SRV")
    for edns in (None, 0)
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamesWorld]:
    made = NamesWorld(tmp_path_factory.mktemp("names") / "pins")
    made.hold(ROWS)
    made.alive(86_400)
    yield made
    made.close()


def mutated(rng: random.Random, frame: bytes) -> bytes:
    """A frame with some bytes changed, cut or grown."""
    made = bytearray(frame)
    for _ in range(below(rng, 3) + 1):
        at = 14 + below(rng, len(made) - 14)
        match below(rng, 5):
            case 0:
                made[at] = below(rng, 256)
            case 1:
                made[at] ^= 1 << below(rng, 8)
            case 2:
                made = made[: 34 + below(rng, len(made) - 33)]
            case 3:
                made += rng.randbytes(below(rng, 20))
            case _:
                made[at:at] = rng.randbytes(1 + below(rng, 4))
    return bytes(made)


def below(rng: random.Random, bound: int) -> int:
    """A number from 0 to one less than ``bound``; three times as fast as randrange."""
    return int(rng.random() * bound)


def payload(frame: bytes) -> bytes:
    """What stands behind the headers."""
    return frame[(42 if frame[12:14] == b"\x08\x00" else 62) :]


def each(corpus: list[bytes], again: Callable[[bytes], bytes], act: Callable[[bytes], str]) -> Counter[str]:
    """What became of COUNT mutated frames, by ``act``; a failure has the frame. Most have right checksums ``again``."""
    rng = random.Random(SEED)
    did: Counter[str] = Counter()
    for number in range(COUNT):
        frame = mutated(rng, corpus[below(rng, len(corpus))])
        if len(frame) >= 62 and rng.random() < 0.7:
            frame = again(frame)
        try:
            did[act(frame)] += 1
        except AssertionError as wrong:
            raise AssertionError(f"seed {SEED}, frame {number}: {frame.hex()}: {wrong}") from None
    print(f"\nseed {SEED}: {did.total():,} frames: {', '.join(f'{count:,} {name}' for name, count in did.items())}")
    return did


def test_mutated_questions_are_answered_as_the_server_does_or_left_alone(world: NamesWorld) -> None:
    corpus = [
        packet(wire, source=source, target=target, check=check)
        for wire in QUESTIONS
        for source, target in PATHS[:2]
        for check in ("full", "partial")
    ]

    def again(frame: bytes) -> bytes:
        source, target = PATHS[0] if frame[12:14] == b"\x08\x00" else PATHS[1]
        return packet(payload(frame), source=source, target=target, check=("full", "partial")[frame[-1] & 1])

    def act(frame: bytes) -> str:
        try:
            verdict, out = world.ingress(frame)
        except OSError:
            assert len(frame) < SHORTEST
            return "refused by the kernel"
        result = judge(frame, verdict, out, SERVED)
        if result == "answered":
            assert world.ingress(out) == (PASS, out), "an answer is no question"
        return result

    did = each(corpus, again, act)
    assert set(did) >= {"answered", "steered", "passed"}, did


def test_mutated_replies_show_who_was_asked_or_are_left_alone(world: NamesWorld) -> None:
    """Where the server's replies pass to a pod; another's packets, and those to another, come as they were sent."""
    world.empty(["steered"])
    for source, target in ((POD, CLUSTER_DNS), (POD6, CLUSTER_DNS6)):
        wire = dns.message.make_query(ECHO, "SRV").to_wire()
        _, steered = world.ingress(packet(wire, source=source, target=target, ports=(PORT, 53)))
        assert question(steered) == wire
    replies = [respond(wire, SERVED, limit=codec.UDP_SIZE) or wire for wire in QUESTIONS]
    ends = {SERVER: (POD, CLUSTER_DNS), SERVER6: (POD6, CLUSTER_DNS6)}
    corpus = [
        packet(wire, source=server, target=pod, ports=(53, PORT))
        for wire in replies
        for server, (pod, _) in ends.items()
    ]

    def again(frame: bytes) -> bytes:
        server = SERVER if frame[12:14] == b"\x08\x00" else SERVER6
        return packet(payload(frame), source=server, target=ends[server][0], ports=(53, PORT))

    def act(frame: bytes) -> str:
        try:
            verdict, out = world.egress(frame)
        except OSError:
            assert len(frame) < SHORTEST
            return "refused by the kernel"
        assert verdict == PASS
        if out == frame:
            return "passed"
        is_ipv4 = frame[12:14] == b"\x08\x00"
        server, (pod, asked) = list(ends.items())[not is_ipv4]
        at, size = (26, 4) if is_ipv4 else (22, 16)
        udp = 34 if is_ipv4 else 54
        assert frame[udp : udp + 4] == (53).to_bytes(2, "big") + PORT.to_bytes(2, "big")
        assert frame[at : at + 2 * size] == packed(server) + packed(pod)
        assert out[at : at + size] == packed(asked)
        checks = {24, 25, udp + 6, udp + 7} if is_ipv4 else {udp + 6, udp + 7}
        changed = {n for n in range(len(frame)) if frame[n] != out[n]} - set(range(at, at + size)) - checks
        assert (len(out), changed) == (len(frame), set()), "nothing else is touched"
        assert right(frame, server, pod, udp) == right(out, asked, pod, udp)
        return "rewritten"

    did = each(corpus, again, act)
    assert set(did) >= {"rewritten", "passed"}, did


def right(frame: bytes, source: str, target: str, udp: int) -> bool:
    """Whether the checksum of a datagram is right, as far as its length can be trusted."""
    length = int.from_bytes(frame[udp + 4 : udp + 6], "big")
    return checksum(pseudo(packed(source), packed(target), length) + frame[udp : udp + length]) == 0


def test_mutated_messages_get_a_reply_of_the_server_that_can_be_read_or_none() -> None:
    corpus = [packet(wire) for wire in QUESTIONS]
    read: set[bytes] = set()
    """What stood behind the question's name of replies: to read it again would take most of the time."""

    def act(frame: bytes) -> str:
        wire = payload(frame)
        limit = codec.UDP_SIZE if len(frame) % 4 else codec.TCP_SIZE
        reply = respond(wire, SERVED, limit=limit)
        if not reply:
            return "not replied to" if reply is None else "forwarded"
        assert len(reply) <= limit
        assert reply[:2] == wire[:2]
        assert reply[2] & 0x80
        end = max(codec.name_end(reply, 12), 12) if int.from_bytes(reply[4:6], "big") else 12
        assert reply[12:end] == wire[12:end]
        if (behind := reply[2:12] + reply[end:]) not in read:
            dns.message.from_wire(reply)
            read.add(behind)
        return "answered"

    did = each(corpus, lambda frame: frame, act)
    assert set(did) == {"answered", "forwarded", "not replied to"}, did
