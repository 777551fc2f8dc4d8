"""A call that a network policy denies by ICMP is no failure of its backend: the application gets the policy's error.

Other ICMP errors say that the backend cannot be reached: they count, and the connect goes on to another backend.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest
from datapath_worlds.bpf_world import Caller, Load, World, group, plan, programmed, target
from datapath_worlds.failing_backends import GOOD, GOOD6, SILENT, VIP, VIP6, host
from labs.lab_running import PATIENCE
from machine.namespaces import put

from isthmus.datapath import Datapath, view
from isthmus.datapath.failures.watch import FailureWatch
from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey, Ejection
from isthmus.model.names import ServiceName
from isthmus.statedb import Database

pytestmark = [pytest.mark.bpf, pytest.mark.needs("nft")]

LONG = Ejection(after=3, first=3600.0, longest=3600.0)
"""Longer than a test takes on an emulated machine."""
DENIALS = [
    pytest.param(VIP, GOOD, "icmp type net-prohibited", id="3/9"),
    pytest.param(VIP, GOOD, "icmp type host-prohibited", id="3/10"),
    pytest.param(VIP, GOOD, "icmp type admin-prohibited", id="3/13"),
    pytest.param(VIP6, GOOD6, "icmpv6 type admin-prohibited", id="1/1"),
    pytest.param(VIP6, GOOD6, "icmpv6 type policy-fail", id="1/5"),
    pytest.param(VIP6, GOOD6, "icmpv6 type reject-route", id="1/6"),
]
OTHERS = [
    pytest.param(VIP, GOOD, "icmp type net-unreachable", id="3/0"),
    pytest.param(VIP, GOOD, "icmp type host-unreachable", id="3/1"),
    pytest.param(VIP, GOOD, "icmp type port-unreachable", id="3/3"),
    pytest.param(VIP6, GOOD6, "icmpv6 type no-route", id="1/0"),
    pytest.param(VIP6, GOOD6, "icmpv6 type addr-unreachable", id="1/3"),
    pytest.param(VIP6, GOOD6, "icmpv6 type port-unreachable", id="1/4"),
]


@pytest.fixture(scope="module", autouse=True)
def node(served: World) -> None:
    """A node that answers by ICMP as often as there is reason to."""
    for setting in ("ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"):
        put(served.server, f"net/{setting}", 0)


@pytest.fixture
def answers_with(served: World) -> Iterator[Callable[[str, str], None]]:
    """Answer what is sent to a backend so: what a network policy makes of it on the node."""

    def rule(backend: str, verdict: str) -> None:
        match = f"{'ip6' if '[' in backend else 'ip'} daddr {host(backend)} meta l4proto {{ tcp, udp }}"
        nft(served, f"table inet denies {{ chain input {{ type filter hook input priority 0; {match} {verdict}; }}; }}")

    yield rule
    nft(served, "delete table inet denies")


def nft(world: World, text: str) -> None:
    subprocess.run(["ip", "netns", "exec", world.server, "nft", text], check=True)


@pytest.fixture
def caller(served: World, rescuing: Datapath) -> Iterator[Caller]:
    made = served.call_from(served.cgroup)
    yield made
    made.close()


def noted(datapath: Datapath) -> dict[str, int]:
    """Denied connects by backend."""
    return {row["backend"]: row["connects"] for row in view.rows(datapath.maps, "denials")}


def counted(datapath: Datapath) -> dict[str, int]:
    """Calls by verdict."""
    return {row["verdict"]: row["calls"] for row in datapath.counters()}


def failures(datapath: Datapath) -> list[dict[str, object]]:
    return [*view.rows(datapath.maps, "failing"), *view.rows(datapath.maps, "caller_failing")]


@pytest.mark.parametrize(("vip", "good", "kind"), DENIALS)
def test_a_denied_connect_ends_as_a_direct_one_and_neither_counts_nor_moves_nor_ejects(
    rescuing: Datapath, load: Load, answers_with: Callable[[str, str], None], vip: str, good: tuple[str, ...], kind: str
) -> None:
    programmed(rescuing.target(), plan("echo", vip, group(good[0]), group(good[1], tier=1), ejection=LONG))
    answers_with(good[0], f"reject with {kind}")
    direct = load.run(host(good[0]), port=8080, calls=3, timeout=PATIENCE)
    result = load.run(vip, calls=12, at_once=6, timeout=PATIENCE)
    assert result.ended.keys() == direct.ended.keys()
    assert result.failed == 12
    assert failures(rescuing) == []
    assert noted(rescuing) == {f"{good[0]}/TCP": 12}
    assert counted(rescuing) == {"called": 12, "denied": 12}


@pytest.mark.parametrize(("vip", "good", "kind"), DENIALS)
def test_a_denied_datagram_gets_its_socket_the_error_of_a_direct_one_and_the_backend_stays(
    served: World,
    rescuing: Datapath,
    caller: Caller,
    answers_with: Callable[[str, str], None],
    vip: str,
    good: tuple[str, ...],
    kind: str,
) -> None:
    row = plan("dns", vip, group(good[0], protocol="UDP"), group(good[1], tier=1, protocol="UDP"), protocol="UDP")
    programmed(rescuing.target(), row)
    answers_with(good[0], f"reject with {kind}")
    direct = caller.udp(host(good[0]), 8080, connected=True)
    assert direct.keys() == {"error"}
    assert caller.calls("udp", vip, 80, times=6, connected=True) == [direct] * 6
    assert failures(rescuing) == []
    assert view.rows(rescuing.maps, "udp_flows") == []
    assert counted(rescuing) == {"called": 6}, "no hook sees what came of a datagram"


@pytest.mark.parametrize(("vip", "good", "kind"), OTHERS)
def test_a_connect_that_any_other_icmp_error_answers_counts_and_is_moved(
    rescuing: Datapath, load: Load, answers_with: Callable[[str, str], None], vip: str, good: tuple[str, ...], kind: str
) -> None:
    programmed(rescuing.target(), plan("echo", vip, group(good[0]), group(good[1], tier=1), ejection=LONG))
    answers_with(good[0], f"reject with {kind}")
    result = load.run(vip, calls=12, at_once=6, timeout=PATIENCE)
    assert (result.ended, result.answered) == ({"ok": 12}, {good[1]: 12})
    assert {(row["backend"], row["reason"]) for row in failures(rescuing)} == {(f"{good[0]}/TCP", "unreachable")}
    assert noted(rescuing) == {}
    assert "denied" not in counted(rescuing)


def test_a_connect_that_was_moved_goes_on_to_the_third_where_the_second_is_denied(
    rescuing: Datapath, load: Load, answers_with: Callable[[str, str], None]
) -> None:
    """The first is silent, so that the call is not denied by what it asked for; the denial is noted all the same."""
    tiers = group(SILENT), group(GOOD[0], tier=1), group(GOOD[1], tier=2)
    programmed(rescuing.target(), plan("echo", VIP, *tiers, ejection=Ejection(50, 60.0, 60.0)))
    answers_with(GOOD[0], "reject with icmp type admin-prohibited")
    assert load.run(VIP, calls=6, at_once=6).answered == {GOOD[1]: 6}
    assert noted(rescuing) == {f"{GOOD[0]}/TCP": 6}
    assert {row["backend"] for row in failures(rescuing)} == {f"{SILENT}/TCP"}


def test_the_agent_has_a_row_for_who_is_denied_what_until_five_minutes_after_the_last(
    rescuing: Datapath, load: Load, answers_with: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = target(GOOD[0])
    key = BackendKey(ServiceName("demo/echo"), of.cluster, of.address, of.port, of.protocol)
    db = Database(tables.BACKENDS, tables.FAILURES, tables.CALLER_FAILURES, tables.DENIALS)
    with db.write() as txn:
        txn.put(tables.BACKENDS, Backend(key=key, port_names=("",)))
    programmed(rescuing.target(), plan("echo", VIP, group(GOOD[0]), ejection=LONG))
    answers_with(GOOD[0], "reject with icmp type admin-prohibited")
    load.run(VIP, calls=4, timeout=PATIENCE)
    watch = FailureWatch(rescuing.maps, rescuing.state, db, longest=60.0)
    watch.step()
    [row] = db.snapshot().all(tables.DENIALS)
    assert (row.key, row.connects) == (key, 4)
    monkeypatch.setattr("isthmus.datapath.failures.watch.DENIED", -1)
    watch.step()
    watch.step()
    assert list(db.snapshot().all(tables.DENIALS)) == []
    assert noted(rescuing) == {}
