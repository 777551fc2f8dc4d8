"""Consistent hashing on a real kernel: a pod's calls go to one backend, and every node would say the same one."""

from __future__ import annotations

from collections import Counter

import pytest
from datapath_worlds.bpf_world import BACKENDS, World, done, group, plan, programmed, refused, target

from isthmus.datapath import Datapath, remove, view
from isthmus.datapath.core import shapes
from isthmus.datapath.services import codecs, rings
from isthmus.loadbalancer import maglev

pytestmark = pytest.mark.bpf

VIP = "10.96.7.7"
POD = "10.7.0.1"
ROW = plan("echo", VIP, group(*BACKENDS), consistent=True)


def expected(pod: str, endpoints: tuple[str, ...] = BACKENDS) -> str:
    """The backend of a pod, computed from nothing but its address and the backends': no number, no order."""
    targets = [target(endpoint) for endpoint in endpoints]
    place = maglev.table(targets, size=codecs.RING_CELLS)[rings.cell(shapes.address(pod))]
    return endpoints[place]


def called(world: World, times: int = 5) -> set[str]:
    return {
        result.get("error") or result["answer"].split()[0] for result in world.caller.calls("tcp", VIP, 80, times=times)
    }


@pytest.fixture
def known(datapath: Datapath) -> Datapath:
    """One that knows the caller's pod."""
    assert datapath.callers().renew({POD: None, "10.9.9.9": None}) == 1
    return datapath


def test_calls_of_a_pod_go_where_its_address_hashes_to(world: World, known: Datapath) -> None:
    programmed(known.target(), ROW)
    assert called(world) == {expected(POD)}


def test_the_kernel_finds_the_cell_that_every_node_finds(world: World, known: Datapath) -> None:
    programmed(known.target(), ROW)
    [(cookie, _)] = known.maps.items("callers")
    pods = [f"10.{n}.{7 * n}.{n * n % 250}" for n in range(1, 20)] + [f"fd00::{n}" for n in range(5)]
    for pod in pods:
        known.maps.put("callers", [(cookie, codecs.CALLER.pack(shapes.address(pod), 0))])
        assert called(world, 1) == {expected(pod)}
    assert len({expected(pod) for pod in pods}) > 4


def test_another_node_with_other_numbers_chooses_the_same(world: World, known: Datapath) -> None:
    noise = [plan(f"n{n}", f"10.97.0.{n}", group(*BACKENDS[n : n + 2])) for n in range(5)]
    programmed(known.target(), *noise, plan("echo", VIP, group(*reversed(BACKENDS)), consistent=True), *noise[:2])
    assert called(world) == {expected(POD)}


def test_an_unknown_caller_stays_with_one_backend(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), ROW)
    assert len(called(world, 20)) == 1


def test_who_loses_its_backend_goes_on_to_another_and_the_others_stay(world: World, known: Datapath) -> None:
    to = known.target()
    programmed(to, ROW)
    others = tuple(each for each in BACKENDS if each != expected(POD))
    programmed(to, plan("echo", VIP, group(*others), consistent=True))
    assert called(world) == {expected(POD, others)}
    programmed(to, ROW)
    assert called(world) == {expected(POD)}


def test_datagrams_of_all_sockets_of_a_pod_go_there_too(world: World, known: Datapath) -> None:
    programmed(known.target(), plan("echo", VIP, group(*BACKENDS, protocol="UDP"), protocol="UDP", consistent=True))
    answers = {world.caller.udp(VIP)["answer"].split()[0] for _ in range(5)}
    assert len(answers) == 1


def test_a_ring_of_nothing_refuses(world: World, known: Datapath) -> None:
    programmed(known.target(), plan("echo", VIP, consistent=True))
    assert called(world) == set(refused().values())


def test_groups_share_a_ring_by_weight(known: Datapath) -> None:
    programmed(known.target(), plan("echo", VIP, group(*BACKENDS[:2], weight=3), group(BACKENDS[2]), consistent=True))
    cells = {row["backend"]: row["cells"] for row in view.dump(known.maps)["rings"]}
    assert sum(cells.values()) == codecs.RING_CELLS
    assert 0.23 < cells[f"{BACKENDS[2]}/TCP"] / codecs.RING_CELLS < 0.27


def test_a_lower_tier_has_the_ring_alone(world: World, known: Datapath) -> None:
    programmed(known.target(), plan("echo", VIP, group(BACKENDS[0]), group(*BACKENDS[1:], tier=1), consistent=True))
    assert called(world) == {BACKENDS[0]}


def test_no_call_fails_while_the_ring_changes(world: World) -> None:
    opened = world.open(grace=1.0)
    to = opened.target()
    done(to.update([ROW]))
    answers: Counter[str] = Counter()
    for turn in range(30):
        endpoints = BACKENDS[turn % 3 : turn % 3 + 4]
        done(to.update([plan("echo", VIP, group(*endpoints), consistent=True)]))
        answers.update(result.get("error", "") for result in world.caller.calls("tcp", VIP, 80, times=3))
        to.sweep_due()
    opened.close()
    remove(world.pin)
    assert set(answers) == {""}


@pytest.mark.own_datapath
def test_a_restart_writes_no_ring_again(world: World, known: Datapath) -> None:
    programmed(known.target(), ROW)
    before = view.dump(known.maps)
    known.close()
    reopened = world.open()
    programmed(reopened.target(), ROW)
    after = view.dump(reopened.maps)
    reopened.close()
    assert before == after


def test_a_deleted_ring_is_back_after_pruning(world: World, known: Datapath) -> None:
    to = known.target()
    programmed(to, ROW)
    known.maps.drop("rings", [key for key, _ in known.maps.items("rings")])
    assert called(world) == set(refused().values())
    assert "repaired 1" in done(to.prune([ROW]))
    assert called(world) == {expected(POD)}


def test_pods_that_have_gone_are_forgotten(known: Datapath) -> None:
    callers = known.callers()
    assert [row["caller"] for row in view.dump(known.maps)["callers"]] == [POD]
    assert callers.renew({"10.9.9.9": None}) == 0
    assert view.dump(known.maps)["callers"] == []
