"""Any bytes in: a reply that dnspython can read and agrees with, or nothing. dnspython is the oracle."""

from __future__ import annotations

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.dns.respond import FORWARD, failure, respond
from isthmus.model.dns import Name
from isthmus.zone import Zone, codec

ECHO = "echo.demo.svc.clusterset.local"
MANY = "many.demo.svc.clusterset.local"
ROWS = (
    Name(ECHO, "A", ("10.96.0.7",)),
    Name(ECHO, "AAAA", ("fd00::7",)),
    Name(f"_http._tcp.{ECHO}", "SRV", (f"0 100 80 {ECHO}.",)),
    Name("7.0.96.10.in-addr.arpa", "PTR", (f"{ECHO}.",)),
    Name("dns-version.clusterset.local", "TXT", ('"1.1.0"',)),
    Name(MANY, "A", tuple(f"10.1.{n // 250}.{n % 250}" for n in range(300))),
    Name(f"_web._tcp.{MANY}", "SRV", tuple(f"0 1 80 host-{n}.c2.{MANY}." for n in range(100))),
)
ASKED = [row.name for row in ROWS]


def zone(*, complete: bool = True) -> Zone:
    zone = Zone("clusterset.local")
    for row in ROWS:
        zone.replace(None, row)
    zone.complete = complete
    return zone


ZONE = zone()
LABEL = st.text("abcXYZ019-_", min_size=1, max_size=8)
known = st.sampled_from(ASKED).map(lambda name: "".join(c.upper() if n % 3 else c for n, c in enumerate(name)))
below = st.lists(LABEL, max_size=6).map(lambda labels: ".".join([*labels, "clusterset.local"]))
foreign = st.lists(LABEL, min_size=1, max_size=5).map(".".join)
types = st.sampled_from(["A", "AAAA", "SRV", "PTR", "TXT", "SOA", "NS", "HTTPS", "ANY", "AXFR", "CNAME"])
queries = st.builds(
    lambda name, type_, edns, payload, do: dns.message.make_query(
        name, type_, use_edns=edns, payload=payload if edns is not None else None, want_dnssec=do and edns is not None
    ),
    st.one_of(known, known, below, foreign),
    types,
    st.sampled_from([None, 0, 0, 1]),
    st.sampled_from([0, 512, 1232, 4096, 65535]),
    st.booleans(),
)


def model(query: dns.message.Message) -> tuple[int, set[str]] | None:
    """The ten-line version: the code and the records that a question of ours gets; None where it is passed on."""
    name, type_ = query.question[0].name.to_text(omit_final_dot=True).lower(), query.question[0].rdtype
    records: dict[tuple[str, str], set[str]] = {(row.name, row.type): set(row.answers) for row in ROWS}
    text = dns.rdatatype.to_text(type_)
    if not (name == "clusterset.local" or name.endswith(".clusterset.local") or (name, text) in records):
        return None
    if query.edns == 1:
        return dns.rcode.BADVERS, set()
    if text == "AXFR":
        return dns.rcode.REFUSED, set()
    if (name, text) in records:
        return dns.rcode.NOERROR, records[name, text]
    exists = any(row.name == name or row.name.endswith("." + name) for row in ROWS)
    return (dns.rcode.NOERROR if exists else dns.rcode.NXDOMAIN), set()


@settings(max_examples=400, deadline=None)
@given(queries)
def test_every_reply_is_what_the_obvious_model_says(query: dns.message.Message) -> None:
    expected, wire = model(query), respond(query.to_wire(), ZONE, limit=codec.UDP_SIZE)
    if expected is None:
        assert wire == FORWARD
        return
    assert wire is not None
    reply = dns.message.from_wire(wire)
    assert query.is_response(reply)
    assert reply.question[0].name.labels == query.question[0].name.labels  # with its letter case
    assert reply.rcode() == expected[0]
    said = {item.to_text() for rrset in reply.answer for item in rrset}
    apex = str(query.question[0].name).lower() == "clusterset.local." and query.question[0].rdtype in (2, 6)
    if query.question[0].rdtype == dns.rdatatype.ANY or apex:
        assert bool(said) == (expected[0] == dns.rcode.NOERROR and bool(said))
    elif len(wire) > 400:
        assert said <= expected[1], "what does not fit over UDP is a part of the set"
        assert said
    else:
        assert said == expected[1]
    assert not reply.flags & dns.flags.TC
    assert (reply.edns >= 0) == (query.edns >= 0)
    assert len(wire) <= (512 if query.edns < 0 else min(1232, max(512, query.payload)))


@settings(max_examples=400, deadline=None)
@given(queries, st.booleans())
def test_over_tcp_nothing_of_a_usual_size_is_cut(query: dns.message.Message, complete: bool) -> None:
    wire = respond(query.to_wire(), ZONE, limit=codec.TCP_SIZE)
    if wire:
        assert not dns.message.from_wire(wire).flags & dns.flags.TC


def readable(wire: bytes | None, packet: bytes) -> None:
    """What every reply must be, whatever came in: no reply to a reply, the same id, readable."""
    if wire is None or wire == FORWARD:
        return
    assert len(packet) >= 12
    assert not packet[2] & 0x80
    assert wire[:2] == packet[:2]
    assert wire[2] & 0x80
    dns.message.from_wire(wire)


@settings(max_examples=1000, deadline=None)
@given(st.binary(max_size=80), st.sampled_from([codec.UDP_SIZE, codec.TCP_SIZE]))
def test_random_bytes_never_crash_it(packet: bytes, limit: int) -> None:
    readable(respond(packet, ZONE, limit=limit), packet)
    failure(packet, limit=limit)


@settings(max_examples=1000, deadline=None)
@given(queries, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.integers(0, 200))
@pytest.mark.slow
def test_mangled_questions_never_crash_it(
    query: dns.message.Message, changes: list[tuple[int, int]], length: int
) -> None:
    packet = bytearray(query.to_wire())
    for at, value in changes:
        packet[at % len(packet)] = value
    mangled = bytes(packet[: max(length, 12)])
    readable(respond(mangled, ZONE, limit=codec.UDP_SIZE), mangled)


@given(st.lists(st.text("abc-0", min_size=1, max_size=70), max_size=6), st.booleans())
def test_names_are_written_as_dnspython_writes_them(labels: list[str], dot: bool) -> None:
    text = ".".join(labels) + ("." if dot else "")
    try:
        expected = dns.name.from_text(text or ".").to_wire()
    except dns.exception.DNSException:
        with pytest.raises(codec.Unwritable):
            codec.wire_name(text)
    else:
        assert codec.wire_name(text) == expected


@given(st.integers(0, 3000))
def test_records_are_cut_whole(room: int) -> None:
    count, blob = codec.records(ROWS[-1])
    fitted, records = codec.fit(blob, room)
    assert len(records) <= room
    assert fitted <= count
    assert blob.startswith(records)
    assert fitted == count or len(codec.fit(blob, room + 100)[1]) > len(records)


def test_other_opcodes_for_our_zone_are_not_implemented_and_for_others_passed_on() -> None:
    ours, other = dns.message.make_query(ECHO, "SOA"), dns.message.make_query("a.cluster.local", "SOA")
    for query in (ours, other):
        query.set_opcode(dns.opcode.UPDATE)
    reply = respond(ours.to_wire(), ZONE, limit=512)
    assert reply
    assert dns.message.from_wire(reply, one_rr_per_rrset=True).rcode() == dns.rcode.NOTIMP
    assert respond(other.to_wire(), ZONE, limit=512) == FORWARD


def test_errors_carry_opt_where_the_question_did() -> None:
    update, two = dns.message.make_query(ECHO, "SOA", use_edns=0), dns.message.make_query(ECHO, "A", use_edns=0)
    update.set_opcode(dns.opcode.NOTIFY)
    two.flags |= dns.flags.TC
    for query, rcode in ((update, dns.rcode.NOTIMP), (two, dns.rcode.FORMERR)):
        reply = respond(query.to_wire(), ZONE, limit=codec.UDP_SIZE)
        assert reply
        read = dns.message.from_wire(reply)
        assert (read.rcode(), read.edns) == (rcode, 0)


@pytest.mark.parametrize(("name", "type_"), [(MANY, "A"), (f"_web._tcp.{MANY}", "SRV")])
def test_a_set_that_does_not_fit_is_given_in_parts_that_take_turns(name: str, type_: str) -> None:
    zone, [expected] = ZONE, [set(row.answers) for row in ROWS if (row.name, row.type) == (name, type_)]
    seen: set[str] = set()
    for _ in range(len(expected)):
        wire = respond(dns.message.make_query(name, type_).to_wire(), zone, limit=codec.UDP_SIZE)
        assert wire
        reply = dns.message.from_wire(wire)
        assert not reply.flags & dns.flags.TC
        seen |= {item.to_text() for rrset in reply.answer for item in rrset}
    assert seen == expected


def test_two_questions_in_one_message_are_a_format_error() -> None:
    wire = bytearray(dns.message.make_query(ECHO, "A").to_wire())
    wire[5] = 2
    reply = respond(bytes(wire) + wire[12:], ZONE, limit=512)
    assert reply
    assert dns.message.from_wire(reply).rcode() == dns.rcode.FORMERR


def test_a_name_that_only_ends_in_the_same_bytes_is_not_ours() -> None:
    query = dns.message.make_query(dns.name.Name([b"x\x0aclusterset", b"local", b""]), "A")
    assert respond(query.to_wire(), ZONE, limit=512) == FORWARD


def test_names_that_cannot_be_written_are_left_out_and_counted() -> None:
    zone = Zone("clusterset.local")
    bad = Name("x" * 64 + ".clusterset.local", "A", ("10.0.0.1",))
    for old, new in ((None, bad), (None, Name("a.clusterset.local", "A", ("nonsense",))), (bad, None)):
        zone.replace(old, new)
    assert (len(zone), zone.unwritable) == (0, 2)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(ROWS)), max_size=30))
def test_what_exists_after_any_changes_is_what_the_rows_say(steps: list[tuple[bool, Name]]) -> None:
    zone = Zone("clusterset.local")
    rows: dict[tuple[str, str], Name] = {}
    for put, row in steps:
        zone.replace(rows.get((row.name, row.type)), row if put else None)
        rows.pop((row.name, row.type), None)
        if put:
            rows[row.name, row.type] = row
    fresh = Zone("clusterset.local")
    for row in rows.values():
        fresh.replace(None, row)
    assert (zone._records, zone._existing) == (fresh._records, fresh._existing)
