"""What became of each sampled call is recorded: every verdict, with names, times and bytes, on a real kernel."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from datapath_worlds.bpf_world import BACKENDS, Caller, Load, World, group, needs_cookies, plan, programmed, refused
from datapath_worlds.failing_backends import GOOD, GOOD6, REFUSES, SILENT, VIP, VIP6

from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath import Datapath, remove
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.flows.reader import FlowReader, is_known
from isthmus.datapath.settings import CONFIG, settings
from isthmus.model import tables
from isthmus.model.balancing import Ejection, Plan
from isthmus.model.flows import End, Flow
from isthmus.model.islands import GatewayCheck, IslandListener
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Node, Pod
from isthmus.statedb import Database

pytestmark = pytest.mark.bpf

NEVER = Ejection(after=0)
LONG = Ejection(after=3, first=3600.0, longest=3600.0)
"""Longer than a test takes on an emulated machine: when it ends, a call tries the backend again."""
CLIENT = "10.7.0.1"
ROOM = 262_144 // (144 + 8)
"""Records that the ring has room for, each with its header."""


class Recorded:
    """A datapath that records every call, on the pod's link, and what was read of it."""

    def __init__(self, datapath: Datapath, world: World) -> None:
        self.datapath = datapath
        self.db = Database(tables.PLANS, tables.PODS, tables.NODES, tables.ISLAND_LISTENERS, tables.GATEWAY_CHECKS)
        with self.db.write() as txn:
            txn.put(tables.PODS, Pod(name="demo/client", uid="1", addresses=(CLIENT, "fd00:7::1")))
            txn.put(tables.NODES, Node(name="n1", addresses=("10.7.0.9",)))
        self.target = datapath.target()
        self.flows: list[Flow] = []
        self.began: set[object] = set()
        self.lost = 0
        found = datapath.flows(self.db, self._receive, datapath.callers(), node="n1")
        assert found is not None
        self.reader: FlowReader = found

    def _receive(self, flows: Sequence[Flow], lost: int) -> None:
        """The end of a connection of an earlier test may come late: it is left out."""
        self.began |= {flow.id for flow in flows if flow.state != "ended"}
        self.flows += [flow for flow in flows if flow.state != "ended" or flow.id in self.began]
        self.lost += lost

    def programmed(self, *rows: Plan) -> None:
        with self.db.write() as txn:
            for row in rows:
                txn.put(tables.PLANS, row)
        programmed(self.target, *rows)

    def read(self, *states: str) -> list[Flow]:
        """What was recorded since the last call, of these states; all, where none is named."""
        self.reader.step()
        found, self.flows = self.flows, []
        return [flow for flow in found if not states or flow.state in states]

    def ended(self, count: int) -> list[Flow]:
        """The ends of so many connections: the last FIN may be under way when a caller is done."""
        found: list[Flow] = []
        deadline = time.monotonic() + 30
        while len(found) < count and time.monotonic() < deadline:
            found += self.read("ended")
            time.sleep(0.01)
        return found

    def counted(self) -> dict[str, int]:
        return {row["verdict"]: row["calls"] for row in self.datapath.counters()}


@pytest.fixture(scope="module")
def recording(served: World) -> Iterator[Datapath]:
    opened = served.open(flows=1)
    with served.on_link(opened):
        yield opened
    opened.close()
    remove(served.pin)


@pytest.fixture
def recorded(recording: Datapath, served: World) -> Iterator[Recorded]:
    """One with nothing in its maps; to open one for each test would take longer than the tests."""
    made = Recorded(recording, served)
    made.programmed()
    for name in ("failing", "trials", "affinity", "counters", "denied"):
        recording.maps.drop(name, [key for key, _ in recording.maps.items(name)])
    recording.maps.drop("traffic", [ID.pack(number) for number in range(64)])
    made.read()
    made.began.clear()
    yield made
    made.reader.close()


@pytest.fixture(scope="module")
def other(served: World) -> Caller:
    """A caller in another pod, which the agent does not know."""
    return served.call_from(served.cgroup, namespace=served.pod(1))


@pytest.mark.slow
def test_a_call_of_an_island_has_its_gateways_that_answered_then(recorded: Recorded, load: Load) -> None:
    """Its backend is the listener of this node's Envoy."""
    host, port = GOOD[0].split(":")
    here = IslandListener(
        service=ServiceName("demo/echo"), cluster=ClusterName("c2"), port=80, addresses=(host,), listen_port=int(port)
    )
    checks = [GatewayCheck(cluster=here.cluster, address=f"172.30.2.{n}:15443", healthy=n != 12) for n in (11, 12, 13)]
    with recorded.db.write() as txn:
        txn.put(tables.ISLAND_LISTENERS, here)
        txn.put_all(tables.GATEWAY_CHECKS, checks)
    recorded.programmed(plan("echo", VIP, group(GOOD[0], cluster="c2")))
    load.run(VIP, calls=1)
    [flow] = recorded.read("connected")
    assert flow.asked == End("c2", GOOD[0], ("172.30.2.11:15443", "172.30.2.13:15443"))
    with recorded.db.write() as txn:
        txn.delete(tables.ISLAND_LISTENERS, tables.ISLAND_LISTENERS.key(here))
        txn.delete_all(tables.GATEWAY_CHECKS, [tables.GATEWAY_CHECKS.key(each) for each in checks])


@pytest.mark.parametrize(("vip", "good", "client"), [(VIP, GOOD[0], CLIENT), (VIP6, GOOD6[0], "[fd00:7::1]")])
def test_a_call_is_recorded_with_its_pod_service_backend_times_and_bytes(
    recorded: Recorded, load: Load, vip: str, good: str, client: str
) -> None:
    recorded.programmed(plan("echo", vip, group(good, cluster="c2")))
    result = load.run(vip, calls=3, bytes=300_000, timeout=20.0)
    assert result.answered == {good: 3}
    found = recorded.read()
    began = [flow for flow in found if flow.state == "connected"]
    ends = [flow for flow in found if flow.state == "ended"]
    ends += recorded.ended(3 - len(ends))
    assert len(began) == len(ends) == 3
    for flow in began:
        assert (flow.verdict, flow.pod, flow.node, flow.protocol) == ("called", "demo/client", "n1", "TCP")
        assert (flow.service, flow.called) == ("demo/echo:80", f"[{vip}]:80" if ":" in vip else f"{vip}:80")
        assert flow.source.rpartition(":")[0] == client
        assert flow.asked == flow.answered == End("c2", good)
        assert 0 < flow.took < 10
        assert abs(time.time() - flow.time) < 60
    name = len(good) + 1
    assert {(flow.sent, flow.received) for flow in ends} == {(300_000, 300_000 + name)}
    assert {flow.id for flow in began} == {flow.id for flow in ends}
    assert recorded.datapath.traffic()["c2"] == (900_000, 900_000 + 3 * name)


@pytest.mark.parametrize("bad", [REFUSES, SILENT])
def test_a_rescued_call_has_the_backend_that_was_asked_and_the_one_that_answered(
    recorded: Recorded, load: Load, bad: str
) -> None:
    groups = group(bad, cluster="c1"), group(GOOD[0], tier=1, cluster="c2")
    recorded.programmed(plan("echo", VIP, *groups, ejection=NEVER))
    assert load.run(VIP, calls=5, at_once=5).answered == {GOOD[0]: 5}
    found = recorded.read("connected")
    assert [(flow.verdict, flow.asked, flow.answered) for flow in found] == [
        ("rescued", End("c1", bad), End("c2", GOOD[0]))
    ] * 5
    assert recorded.counted()["rescued"] == 5
    assert recorded.datapath.traffic().get("c1") is None, "bytes are of the cluster that answered"


def test_a_call_that_passes_over_an_ejected_backend_has_it_as_the_one_asked(recorded: Recorded, load: Load) -> None:
    recorded.programmed(plan("echo", VIP, group(GOOD[0], REFUSES), ejection=LONG))
    load.run(VIP, calls=60)
    recorded.read()
    before = recorded.counted().get("ejected", 0)
    result = load.run(VIP, calls=60, at_once=5)
    found = recorded.read("connected")
    assert (len(found), result.answered) == (60, {GOOD[0]: 60})
    passed = [flow for flow in found if flow.verdict == "ejected"]
    assert {flow.asked.address for flow in passed} == {REFUSES}
    assert {flow.asked.address for flow in found if flow.verdict == "called"} == {GOOD[0]}
    assert {flow.answered.address for flow in found} == {GOOD[0]}
    assert {flow.for_caller for flow in passed} == {True}, "one pod alone has met it"
    assert len(passed) == recorded.counted()["ejected"] - before
    assert 5 < len(passed) < 55


def test_a_client_with_affinity_to_an_ejected_backend_passes_it_over(recorded: Recorded, load: Load) -> None:
    recorded.programmed(plan("echo", VIP, group(GOOD[0], REFUSES), affinity=600, ejection=LONG))
    for _ in range(60):
        load.run(VIP, calls=1)
        if (found := recorded.read("connected")) and found[-1].verdict == "ejected":
            break
        recorded.datapath.maps.drop("affinity", [key for key, _ in recorded.datapath.maps.items("affinity")])
    assert (found[-1].asked.address, found[-1].answered.address) == (REFUSES, GOOD[0])


def test_a_call_that_all_backends_refuse_failed(recorded: Recorded, load: Load) -> None:
    recorded.programmed(plan("echo", VIP, group(REFUSES), ejection=NEVER))
    assert load.run(VIP, calls=4).ended == {"ECONNREFUSED": 4}
    found = recorded.read()
    assert [(flow.state, flow.verdict, flow.reason, flow.pod) for flow in found] == [
        ("failed", "failed", "refused", "demo/client")
    ] * 4
    assert {(flow.asked, flow.answered) for flow in found} == {(End("c1", REFUSES), End())}
    assert recorded.counted()["failed"] == 4


@pytest.mark.needs("nft")
def test_a_call_that_a_policy_denies_is_denied_not_failed(recorded: Recorded, load: Load, served: World) -> None:
    recorded.programmed(plan("echo", VIP, group(GOOD[0]), group(GOOD[1], tier=1), ejection=LONG))
    rule = f"ip daddr {GOOD[0].split(':')[0]} tcp dport 8080 reject with icmp type host-prohibited"
    nft = ["ip", "netns", "exec", served.server, "nft"]
    chain = "type filter hook input priority 0"
    subprocess.run([*nft, f"table inet denies {{ chain input {{ {chain}; {rule}; }}; }}"], check=True)
    try:
        assert load.run(VIP, calls=4).ended == {"EHOSTUNREACH": 4}
    finally:
        subprocess.run([*nft, "delete table inet denies"], check=True)
    found = [(flow.state, flow.verdict, flow.reason, flow.pod, flow.asked) for flow in recorded.read()]
    assert found == [("failed", "denied", "denied", "demo/client", End("c1", GOOD[0]))] * 4
    assert recorded.counted() == {"called": 4, "denied": 4}


def test_a_call_that_the_application_gave_up_is_no_failure_of_ours(recorded: Recorded, load: Load) -> None:
    recorded.programmed(plan("echo", VIP, group(SILENT), ejection=NEVER))
    with configured(recorded.datapath, syn_timeout=30_000):  # jiffies, of which a second has at least 100: long after
        load.run(VIP, calls=1, timeout=0.1)
    [flow] = recorded.read()
    assert (flow.state, flow.verdict) == ("given up", "called")


@needs_cookies
def test_a_call_without_a_backend_is_refused_and_its_pod_known(recorded: Recorded, world: World) -> None:
    recorded.programmed(plan("echo", VIP))
    assert world.caller.tcp(VIP) == refused()
    [flow] = recorded.read()
    assert (flow.state, flow.verdict, flow.pod, flow.source) == ("failed", "refused", "demo/client", CLIENT)
    assert (flow.service, flow.asked, flow.answered) == ("demo/echo:80", End(), End())


def test_a_call_whose_entry_is_missing_is_lost(recorded: Recorded, world: World) -> None:
    recorded.programmed(plan("echo", VIP, group(GOOD[0])))
    recorded.datapath.maps.drop("backends", [key for key, _ in recorded.datapath.maps.items("backends")])
    assert world.caller.tcp(VIP) == refused()
    [flow] = recorded.read()
    assert (flow.state, flow.verdict, flow.service) == ("failed", "lost", "demo/echo:80")


@needs_cookies
def test_a_question_by_udp_is_sent_and_recorded_once_for_each_socket(recorded: Recorded, world: World) -> None:
    recorded.programmed(plan("dns", VIP, group(BACKENDS[0], protocol="UDP"), protocol="UDP"))
    for _ in range(3):
        world.caller.udp(VIP, name="kept")
    world.caller.udp(VIP, connected=True)
    found = recorded.read()
    assert [(flow.state, flow.verdict, flow.protocol, flow.answered.address) for flow in found] == [
        ("sent", "called", "UDP", BACKENDS[0])
    ] * 2
    assert {flow.pod for flow in found} == {"demo/client"}


def test_what_the_application_sees_as_its_peer_is_what_was_called(recorded: Recorded, world: World) -> None:
    recorded.programmed(plan("echo", VIP, group(REFUSES), group(GOOD[1], tier=1), ejection=NEVER))
    seen = world.caller.tcp(VIP)
    [flow] = recorded.read("connected")
    assert (seen["peer"], seen["answer"].strip()) == (flow.called, flow.answered.address)


def test_an_import_has_its_own_name(recorded: Recorded, load: Load) -> None:
    row = plan("derived-1", VIP, group(GOOD[0]))
    recorded.programmed(Plan(row.key, row.frontends, row.groups, import_of=ServiceName("demo/echo")))
    load.run(VIP, calls=1)
    assert {flow.service for flow in recorded.read()} == {"demo/echo:80"}


def test_names_are_known_although_service_pod_and_backend_went_before_the_record_was_read(
    recorded: Recorded, load: Load
) -> None:
    recorded.programmed(plan("echo", VIP, group(GOOD[0], cluster="c2")))
    recorded.read()
    recorded.programmed(plan("late", VIP, group(GOOD[0], cluster="c2")))
    load.run(VIP, calls=1)
    recorded.programmed()
    with recorded.db.write() as txn:
        txn.delete(tables.PODS, "demo/client")
    assert recorded.datapath.state.sizes()["service_ids"] == 0, "the maps know nothing of it any more"
    found = recorded.read("connected")
    assert [(flow.pod, flow.service, flow.answered) for flow in found] == [
        ("demo/client", "demo/late:80", End("c2", GOOD[0]))
    ]


def test_the_end_of_a_connection_has_its_names_long_after_the_service_went(recorded: Recorded, world: World) -> None:
    recorded.programmed(plan("echo", VIP, group(GOOD[0], cluster="c2")))
    world.caller.calls("hold", VIP, 80, local=30777)
    assert len(recorded.read("connected")) == 1
    recorded.programmed()
    recorded.reader._names._services = type(recorded.reader._names._services)()  # as after 20,000 others
    world.caller.calls("drop", VIP, 80)
    [flow] = recorded.ended(1)
    assert (flow.service, flow.answered, flow.source) == ("demo/echo:80", End("c2", GOOD[0]), f"{CLIENT}:30777")
    assert (flow.sent, flow.received) == (0, len(GOOD[0]) + 1)


@contextmanager
def configured(recording: Datapath, **settings: int) -> Iterator[None]:
    """Other settings, as an agent that starts again would write them."""
    [(key, value)] = recording.maps.items("config")
    recording.maps.put("config", [(key, CONFIG.pack(*(CONFIG.named(value) | settings).values()))])
    try:
        yield
    finally:
        recording.maps.put("config", [(key, value)])


def test_one_call_of_sixteen_is_recorded(recorded: Recorded, load: Load) -> None:
    recorded.programmed(plan("echo", VIP, group(GOOD[0])))
    with configured(recorded.datapath, flows=16):
        load.run(VIP, calls=1600, at_once=20)
    assert 50 < len(recorded.read("connected")) < 150, "of 1,600 calls 100 ± 10"


SELDOM = 0xFFFF_FFFF
"""One call of so many is sampled: none of a test's."""


@needs_cookies
def test_every_call_that_fails_or_is_rescued_is_recorded_however_few_are_sampled(
    recorded: Recorded, load: Load, world: World
) -> None:
    good, bad = group(GOOD[0]), group(REFUSES)
    with configured(recorded.datapath, flows=SELDOM):
        recorded.programmed(plan("echo", VIP, good))
        load.run(VIP, calls=5)
        assert recorded.read() == []
        recorded.programmed(plan("echo", VIP, bad, ejection=NEVER))
        load.run(VIP, calls=5)
        failed = recorded.read()
        assert [(flow.state, flow.verdict, flow.reason, flow.pod) for flow in failed] == [
            ("failed", "failed", "refused", "demo/client")
        ] * 5
        assert all(abs(time.time() - flow.time) < 60 and 0 < flow.took < 10 for flow in failed)
        recorded.programmed(plan("echo", VIP, bad, group(GOOD[0], tier=1), ejection=NEVER))
        load.run(VIP, calls=5)
        rescued = recorded.read()
        assert [flow.verdict for flow in rescued if flow.state == "connected"] == ["rescued"] * 5
        ended = sum(flow.state == "ended" for flow in rescued)
        assert len(recorded.ended(5 - ended)) == 5 - ended
        recorded.programmed(plan("echo", VIP))
        assert world.caller.tcp(VIP) == refused()
        assert [flow.verdict for flow in recorded.read()] == ["refused"]
        recorded.programmed(plan("echo", VIP, group(SILENT), ejection=NEVER))
        with configured(recorded.datapath, flows=SELDOM, syn_timeout=30_000):
            load.run(VIP, calls=1, timeout=0.1)
        assert [flow.state for flow in recorded.read()] == ["given up"]


def test_a_pod_that_fails_without_end_is_recorded_a_hundred_times_at_once(
    recorded: Recorded, world: World, other: Caller
) -> None:
    """Another pod's failures are, too; what is left out is counted."""
    recorded.programmed(plan("echo", VIP))
    with configured(recorded.datapath, flows=SELDOM):
        recorded.datapath.maps.drop(
            "flow_allowances", [key for key, _ in recorded.datapath.maps.items("flow_allowances")]
        )
        began = time.monotonic()
        world.caller.calls("tcp", VIP, 80, times=1000)
        other.calls("tcp", VIP, 80, times=50)
        since = time.monotonic() - began
        callers = Counter(flow.source.partition(":")[0] for flow in recorded.read())
    assert 100 <= callers.pop(CLIENT) <= 101 + 50 * since
    assert callers.total() == 50
    assert recorded.lost >= 900 - 50 * since - 1


def test_off_means_that_nothing_is_written(recorded: Recorded, load: Load) -> None:
    recorded.programmed(plan("echo", VIP, group(GOOD[0])))
    with configured(recorded.datapath, flows=0):
        load.run(VIP, calls=20)
    assert recorded.read() == []
    section = DatapathSection(cgroup="/", flows="off")
    assert CONFIG.named(settings(section, DnsSection()))["flows"] == 0


def test_records_that_find_no_room_are_counted(recorded: Recorded, world: World) -> None:
    recorded.programmed(plan("echo", VIP))
    calls, before = ROOM + 300, recorded.reader.stats().lost
    world.caller.calls("tcp", VIP, 80, times=calls)
    found = recorded.read()
    assert len(found) + recorded.lost == calls
    assert recorded.lost >= 250
    assert recorded.reader.stats().lost - before == recorded.lost
    world.caller.tcp(VIP)
    assert len(recorded.read()) == 1, "it goes on"


def test_a_pod_that_calls_without_end_leaves_room_for_the_records_of_another(
    recorded: Recorded, world: World, other: Caller
) -> None:
    recorded.programmed(plan("echo", VIP))
    other.tcp(VIP)
    recorded.read()
    world.caller.calls("tcp", VIP, 80, times=ROOM + 300)
    other.calls("tcp", VIP, 80, times=50)
    callers = Counter(flow.source.partition(":")[0] for flow in recorded.read())
    assert callers.pop("10.7.0.1")
    assert callers.total() == 50, "of the other pod, which is none that the agent knows"
    assert recorded.lost >= 300


def test_a_record_of_a_later_version_is_passed_over() -> None:
    known = {"state": 5, "verdict": 6, "reason": 3}
    assert is_known(known)
    assert not any(is_known(known | {field: 99}) for field in known)


def test_a_program_of_the_nodes_own_network_has_no_pod(recorded: Recorded, world: World) -> None:
    """As a pod with hostNetwork: several can have the node's address, so none of them is named."""
    with recorded.db.write() as txn:
        txn.put(tables.NODES, Node(name="n1", addresses=(CLIENT,)))
    recorded.programmed(plan("echo", VIP, group(GOOD[0])))
    world.caller.tcp(VIP)
    [flow] = recorded.read("connected")
    assert (flow.pod, flow.source.rpartition(":")[0]) == ("", CLIENT)
