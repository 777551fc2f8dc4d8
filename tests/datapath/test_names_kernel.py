"""Names answered in the kernel: the same bytes as the server's, and nothing else touched. By BPF_PROG_TEST_RUN."""

from __future__ import annotations

from collections.abc import Iterator

import dns.edns
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdatatype
import pytest
from answers.names_judge import judge, question
from answers.names_rows import BOTH, ECHO, HUGE, LONG, MANY, NATIVE, PATHS, ROWS, SERVED, ZONE
from answers.names_world import (
    CLUSTER_DNS,
    CLUSTER_DNS6,
    POD,
    POD6,
    SECTION,
    SERVER,
    SERVER6,
    NamesWorld,
    message,
    packet,
)
from datapath_worlds.bpf_testrun import DROP, PASS, REDIRECT
from datapath_worlds.bpf_world import done
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from isthmus.datapath.names import NamesTarget
from isthmus.datapath.names.route import route
from isthmus.dns.respond import FORWARD, respond
from isthmus.model.dns import Name

pytestmark = pytest.mark.bpf


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamesWorld]:
    made = NamesWorld(tmp_path_factory.mktemp("names") / "pins")
    made.hold(ROWS)
    yield made
    made.close()


LABEL = st.text("abcXYZ019-_", min_size=1, max_size=8)
SUFFIXES = ["", ".demo.svc.cluster.local", ".svc.cluster.local", ".cluster.local", ".a.b.svc.cluster.local", ".com"]
known = st.tuples(st.sampled_from([row.name for row in ROWS]), st.sampled_from(SUFFIXES), st.integers(1, 5)).map(
    lambda each: "".join(c.upper() if n % each[2] == 0 else c for n, c in enumerate(each[0] + each[1]))
)
in_zone = st.tuples(st.lists(LABEL, max_size=6), st.sampled_from(["", ".demo", ".svc"])).map(
    lambda each: ".".join([*each[0], f"x{each[1]}.{ZONE}" if each[1] else ZONE])
)
foreign = st.lists(LABEL, min_size=1, max_size=5).map(".".join)
TYPES = ["A", "AAAA", "A", "AAAA", "SRV", "PTR", "TXT", "SOA", "NS", "HTTPS", "MX", "ANY", "AXFR", "CNAME", "TYPE127"]


@st.composite
def queries(draw: st.DrawFn) -> bytes:
    edns = draw(st.sampled_from([None, None, 0, 0, 0, 1]))
    options: list[dns.edns.Option] = [dns.edns.CookieOption(b"12345678", b"")]
    cookie = edns is not None and draw(st.booleans())
    query = dns.message.make_query(
        draw(st.one_of(known, known, in_zone, foreign)),
        draw(st.sampled_from(TYPES)),
        draw(st.sampled_from(["IN", "IN", "IN", "IN", "CH"])),
        use_edns=edns,
        payload=draw(st.sampled_from([0, 512, 600, 1232, 4096, 65535])) if edns is not None else None,
        want_dnssec=edns is not None and draw(st.booleans()),
        options=options if cookie else None,
    )
    if draw(st.integers(0, 5)) == 0:
        query.flags ^= draw(st.sampled_from([dns.flags.RD, dns.flags.CD, dns.flags.AD, dns.flags.AA, dns.flags.TC]))
    return query.to_wire()


paths = st.sampled_from(PATHS)
checks = st.sampled_from(["full", "partial"])


@settings(max_examples=2_000, deadline=None)
@given(queries(), paths, checks)
@pytest.mark.slow
def test_every_answer_is_the_servers_and_the_rest_is_steered_or_left_alone(
    world: NamesWorld, query: bytes, path: tuple[str, str], check: str
) -> None:
    world.alive()
    frame = packet(query, source=path[0], target=path[1], check=check)
    verdict, out = world.ingress(frame)
    did = judge(frame, verdict, out, SERVED)
    if did == "answered":
        assert dns.message.from_wire(query).is_response(dns.message.from_wire(message(out)))
    if did == "passed" and path[1] in (CLUSTER_DNS, CLUSTER_DNS6) and not query[2] & 0x02:
        assert respond(query, SERVED, limit=1232) == FORWARD, "ours went to somebody else"


def ask(world: NamesWorld, name: str, type_: str = "A", *, path: tuple[str, str] = PATHS[0], **more: object) -> str:
    """What becomes of a question: the code and the addresses of an answer, or "steered", "passed", "dropped"."""
    frame = packet(dns.message.make_query(name, type_, **more).to_wire(), source=path[0], target=path[1])  # type: ignore[arg-type]
    verdict, out = world.ingress(frame)
    if verdict != REDIRECT:
        return {DROP: "dropped", PASS: "passed" if out == frame else "steered"}[verdict]
    reply = dns.message.from_wire(message(out))
    return " ".join([dns.rcode.to_text(reply.rcode()), *sorted(str(item) for rrset in reply.answer for item in rrset)])


@pytest.mark.parametrize("path", PATHS[:2])
def test_addresses_are_answered_over_both_transports(world: NamesWorld, path: tuple[str, str]) -> None:
    assert ask(world, ECHO, path=path) == "NOERROR 10.96.0.7"
    assert ask(world, ECHO, "AAAA", path=path) == "NOERROR fd00::7"
    assert ask(world, f"web-0.c2.{MANY}", path=path) == "NOERROR 10.1.0.1"
    assert len(ask(world, MANY, use_edns=0, path=path).split()) == 29
    assert ask(world, MANY, "MX", path=path) == "NOERROR"
    assert ask(world, f"demo.svc.{ZONE}", path=path) == "NOERROR"
    assert ask(world, f"c2.{MANY}", path=path) == "NXDOMAIN"
    for suffix in ("demo.svc.cluster.local", "svc.cluster.local", "cluster.local"):
        assert ask(world, f"{ECHO}.{suffix}", path=path) == "NXDOMAIN"


@pytest.mark.parametrize(
    ("name", "type_"),
    [(ECHO, "SRV"), (HUGE, "A"), (LONG, "A"), (f"dns-version.{ZONE}", "TXT"), ("7.0.96.10.in-addr.arpa", "PTR")],
)
def test_what_only_the_server_has_is_steered_while_it_lives_and_dropped_while_it_does_not(
    world: NamesWorld, name: str, type_: str
) -> None:
    world.alive()
    assert ask(world, name, type_) == "steered"
    world.alive(-1)
    assert ask(world, name, type_) == "dropped", "another server would deny it"
    assert ask(world, name, type_, path=(POD, "10.96.0.99")) == "passed"


@pytest.mark.parametrize(
    "name", ["kubernetes.default.svc.cluster.local", "example.com", "notclusterset.local", "local"]
)
def test_what_is_not_ours_passes_untouched_whoever_lives(world: NamesWorld, name: str) -> None:
    for seconds in (60, -1):
        world.alive(seconds)
        assert ask(world, name) == ask(world, name, "SRV") == "passed"


def test_other_types_of_a_reverse_name_are_anothers(world: NamesWorld) -> None:
    world.alive()
    assert ask(world, "7.0.96.10.in-addr.arpa", "A") == "passed"


def test_a_native_name_is_ours_for_every_type_and_its_neighbours_are_anothers(world: NamesWorld) -> None:
    world.alive()
    assert ask(world, NATIVE) == "NOERROR 10.96.0.9"
    frame = packet(dns.message.make_query(NATIVE, "AAAA").to_wire())
    reply = dns.message.from_wire(message(world.ingress(frame)[1]))
    assert (reply.rcode(), reply.answer, reply.authority) == (dns.rcode.NOERROR, [], [])
    assert not reply.flags & dns.flags.AA, "the cluster's domain is another's"
    assert ask(world, f"_http._tcp.{NATIVE}", "SRV") == "steered"
    for name in ("demo.svc.cluster.local", "other.demo.svc.cluster.local", f"x.{NATIVE}"):
        assert ask(world, name) == "passed"


def test_a_name_that_a_service_of_the_cluster_could_have_is_not_denied(world: NamesWorld) -> None:
    """Service "clusterset" in namespace "local", and a pod of it called "svc"."""
    for name in ("clusterset.local", "svc.clusterset.local", "_a._tcp.clusterset.local"):
        assert ask(world, f"{name}.svc.cluster.local") == "passed"


QUESTIONS = [
    (name, type_)
    for name in (*dict.fromkeys(row.name for row in ROWS), ZONE, f"x.{ZONE}", f"{ECHO}.svc.cluster.local", "a.b")
    for type_ in ("A", "AAAA", "SRV", "TXT", "PTR", "SOA", "MX")
]


@pytest.mark.parametrize(("name", "type_"), QUESTIONS)
def test_isthmus_dns_query_prints_what_the_kernel_does(world: NamesWorld, name: str, type_: str) -> None:
    world.alive()
    number = int(dns.rdatatype.from_text(type_))
    found = route(SERVED, ROWS, name, type_, number, mode="kernel")
    did = ask(world, name, type_, use_edns=0)
    expected = {"steered": "server", "passed": "cluster DNS"}.get(did, "kernel")
    assert found.answerer == expected, found.why
    if expected == "kernel":
        assert did == " ".join([found.rcode, *sorted(found.answers)])
        assert ("the addresses are" in found.why) == bool(found.answers)


def test_a_set_turns(world: NamesWorld) -> None:
    first = set()
    for _ in range(200):
        _, out = world.ingress(packet(dns.message.make_query(BOTH, "A").to_wire()))
        first.add(str(dns.message.from_wire(message(out)).answer[0][0]))
    assert len(first) == 10


def test_what_is_no_plain_question_passes_untouched(world: NamesWorld) -> None:
    world.alive()
    wire = dns.message.make_query(ECHO, "A").to_wire()
    two = wire[:5] + b"\2" + wire[6:] + wire[12:]
    update = dns.message.make_query(ECHO, "SOA")
    update.set_opcode(dns.opcode.UPDATE)
    compressed = wire[:12] + b"\4echo\xc0\x0c\0\1\0\1"
    reply = dns.message.make_response(dns.message.make_query(ECHO, "A")).to_wire()
    frames = [
        packet(wire, fragment=0x2000),
        packet(wire, fragment=3),
        packet(wire, options=b"\1\1\1\1"),
        packet(wire, check=0x1234),
        packet(wire, source=POD6, target=CLUSTER_DNS6, check=0),
        packet(wire, ports=(40000, 5353)),
        packet(wire, target="8.8.8.8"),
        *(packet(each) for each in (two, update.to_wire(), compressed, reply, b"", wire[:11], wire[:20], bytes(600))),
        packet(wire)[:40],
        packet(wire)[:-1],
    ]
    bad = bytearray(packet(wire))
    bad[24] ^= 0xFF  # the checksum of the IP header
    for frame in (*frames, bytes(bad)):
        assert world.ingress(frame) == (PASS, frame)


def test_replies_of_the_server_come_from_whom_was_asked(world: NamesWorld) -> None:
    world.alive()
    for (pod, asked), server in ((PATHS[0], SERVER), (PATHS[1], SERVER6)):
        query = dns.message.make_query(ECHO, "SRV").to_wire()
        _, steered = world.ingress(packet(query, source=pod, target=asked, ports=(41000, 53)))
        assert question(steered) == query
        answered = packet(b"reply of some length", source=server, target=pod, ports=(53, 41000))
        verdict, out = world.egress(answered)
        assert (verdict, out) == (PASS, packet(b"reply of some length", source=asked, target=pod, ports=(53, 41000)))
        other = packet(b"x", source=server, target=pod, ports=(53, 41001))
        assert world.egress(other) == (PASS, other), "who asked the server itself gets it from there"
        other = packet(b"x", source="10.1.1.1" if server == SERVER else "fd00:5::5", target=pod, ports=(53, 41000))
        assert world.egress(other) == (PASS, other)


def test_a_reply_with_ip_options_passes_untouched_though_they_look_like_its_ports(world: NamesWorld) -> None:
    """Its UDP header is elsewhere: what is rewritten there would be other bytes."""
    world.alive()
    (pod, asked), ports = PATHS[0], (53, 41002)
    world.ingress(packet(dns.message.make_query(ECHO, "SRV").to_wire(), source=pod, target=asked, ports=(41002, 53)))
    options = b"".join(port.to_bytes(2, "big") for port in ports)
    frame = packet(b"a reply", source=SERVER, target=pod, ports=ports, options=options)
    assert world.egress(frame) == (PASS, frame)


def test_before_the_names_are_complete_an_unknown_one_is_the_servers(world: NamesWorld) -> None:
    world.empty()
    world.target.complete = False
    world.target.renew()
    try:
        world.target = fresh = world.restarted()
        world.hold(ROWS[:2], complete=False)
        world.alive()
        assert ask(world, ECHO) == "NOERROR 10.96.0.7"
        assert ask(world, f"absent.demo.svc.{ZONE}") == "steered"
        done(fresh.prune(ROWS[:2]))
        assert ask(world, f"absent.demo.svc.{ZONE}") == "NXDOMAIN"
    finally:
        world.hold(ROWS)


def test_answers_outlive_the_agent_until_their_deadline(world: NamesWorld) -> None:
    NamesTarget(world.maps, world.section, lifetime=1.0, clock=lambda: 0).renew()
    assert ask(world, ECHO) == "passed", "1 s after the machine started is long ago"
    world.restarted().renew()
    assert ask(world, ECHO) == "NOERROR 10.96.0.7"


def test_an_agent_that_restarts_takes_nothing_away_and_prunes_when_it_knows_all(world: NamesWorld) -> None:
    stale = f"stale.demo.svc.{ZONE}"
    world.hold((*ROWS, Name(stale, "A", ("10.96.0.9",))))
    again = world.restarted()
    assert again.complete
    assert done(again.update(ROWS[:3])) == {}
    assert ask(world, stale) == "NOERROR 10.96.0.9"
    assert ask(world, MANY, use_edns=0).startswith("NOERROR 10.1.0.0")
    done(again.update(ROWS[3:]))
    assert done(again.prune(ROWS)).startswith("1 names removed")
    assert ask(world, stale) == "NXDOMAIN"
    world.target = again


def test_a_deleted_import_does_not_exist_from_the_next_question_on(world: NamesWorld) -> None:
    gone = (
        Name(f"gone.demo.svc.{ZONE}", "A", ("10.96.0.9",)),
        Name(f"_a._tcp.gone.demo.svc.{ZONE}", "SRV", ("0 1 1 a.",)),
    )
    world.hold((*ROWS, *gone))
    assert ask(world, gone[0].name) == "NOERROR 10.96.0.9"
    assert done(world.target.delete(gone)) == {}
    assert ask(world, gone[0].name) == "NXDOMAIN"
    assert ask(world, f"_tcp.gone.demo.svc.{ZONE}") == "NXDOMAIN", "nor do the names between"


def test_five_thousand_names_are_answered_each_with_its_own_address(world: NamesWorld) -> None:
    many = [Name(f"s{n}.ns{n % 50}.svc.{ZONE}", "A", (f"10.97.{n // 250}.{n % 250}",)) for n in range(5_000)]
    try:
        world.hold((*ROWS, *many))
        for row in many[::37]:
            assert ask(world, row.name) == f"NOERROR {row.answers[0]}"
        assert ask(world, f"s5000.ns0.svc.{ZONE}") == "NXDOMAIN"
    finally:
        world.hold(ROWS)


def test_off_means_that_nothing_is_touched(world: NamesWorld) -> None:
    world.alive()
    try:
        for mode in ("off", "redirect"):
            world.section = replace(SECTION, mode=mode)
            world.restarted()
            assert ask(world, ECHO) == ask(world, ECHO, "SRV") == "passed"
    finally:
        world.section = SECTION
        world.target.renew()


def test_a_pod_may_ask_the_server_so_many_questions_at_once_and_the_kernel_any_number(world: NamesWorld) -> None:
    world.alive()
    try:
        world.section = replace(SECTION, pod_rate=0.3)
        world.empty(["pod_allowances"])
        world.restarted()
        before = world.questions()
        for path in PATHS:
            for _ in range(100):
                assert ask(world, ECHO) == "NOERROR 10.96.0.7"
                ask(world, ECHO, "SRV", path=path)
        counted = world.questions()
    finally:
        world.section = SECTION
        world.target.renew()
    grown = {kind: count - before.get(kind, 0) for kind, count in counted.items()}
    limited = grown.get(("SRV", "limited"), 0) + grown["other", "limited"]
    assert grown["A", "answered"] == 400
    assert grown["SRV", "steered"] == 200
    assert 256 <= 400 - limited < 300, "one more in three seconds"


def test_questions_are_counted_by_kind_and_result(world: NamesWorld) -> None:
    world.alive()
    before = world.questions()
    for name, type_ in ((ECHO, "A"), (ECHO, "A"), (ECHO, "SRV"), ("a.b", "AAAA"), (f"y.{ZONE}", "MX")):
        ask(world, name, type_)
    after = world.questions()
    grown = {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)}
    assert grown == {
        ("A", "answered"): 2,
        ("SRV", "steered"): 1,
        ("AAAA", "passed"): 1,
        ("other", "nxdomain"): 1,
    }


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(ROWS)), max_size=20))
def test_the_map_after_any_changes_is_that_of_the_final_rows(world: NamesWorld, steps: list[tuple[bool, Name]]) -> None:
    world.empty()
    target, rows = world.restarted(), dict[tuple[str, str], Name]()
    for put, row in steps:
        if put:
            rows[row.name, row.type] = row
            assert done(target.update([row])) == {}
        else:
            rows.pop((row.name, row.type), None)
            assert done(target.delete([row])) == {}
    changed = dict(world.maps.items("names"))
    world.empty()
    fresh = world.restarted()
    assert done(fresh.update(list(rows.values()))) == {}
    assert dict(world.maps.items("names")) == changed
    world.hold(ROWS)
