"""A process comes back over pinned maps: calls never noticed, numbers are what they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from datapath_worlds.bpf_world import BACKENDS, CLUSTER_DNS, World, done, group, plan, programmed

from isthmus.datapath import Datapath, DatapathError, open_maps, remove, view

pytestmark = [pytest.mark.bpf, pytest.mark.own_datapath]

VIP = "10.96.7.7"
ROW = plan("echo", VIP, group(*BACKENDS[:3]), affinity=600)


def test_calls_go_on_while_no_agent_runs(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), ROW)
    datapath.close()
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"


def test_a_restart_changes_no_number_and_writes_nothing(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), ROW, plan("other", "10.96.7.8", group(BACKENDS[0], cluster="c2")))
    before = view.dump(datapath.maps)
    datapath.close()
    reopened = world.open()
    assert reopened.restored
    programmed(reopened.target(), ROW, plan("other", "10.96.7.8", group(BACKENDS[0], cluster="c2")))
    after = view.dump(reopened.maps)
    reopened.close()
    assert before == after


def test_maps_that_the_version_before_did_not_have_are_made_beside_those_in_use(
    world: World, datapath: Datapath
) -> None:
    """A new map is no other layout: numbers and counters go on."""
    programmed(datapath.target(), ROW)
    world.caller.tcp(VIP)
    counted = datapath.counters()
    datapath.close()
    added = [path for path in Path(world.pin).rglob("*") if path.name in ("denials", "denied")]
    assert len(added) == 2
    for path in added:
        path.unlink()
    reopened = world.open()
    assert (reopened.restored, reopened.waiting) == (True, False)
    assert reopened.counters() == counted
    assert all(path.exists() for path in added)
    reopened.close()


def test_what_came_and_went_meanwhile_is_put_right(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), ROW, plan("gone", "10.96.7.8", group(BACKENDS[5], cluster="c9")))
    datapath.close()
    reopened = world.open()
    programmed(reopened.target(), plan("echo", VIP, group(*BACKENDS[1:4]), affinity=600))
    dumped = view.dump(reopened.maps, masked=True)
    reopened.close()
    assert [row["frontend"] for row in dumped["frontends"]] == [f"{VIP}:80/TCP"]
    assert [row["backend"] for row in dumped["backends"]] == [f"{each}/TCP" for each in BACKENDS[1:4]]
    assert dumped["clusters"] == [{"name": "c1"}]
    assert {row["backend"] for row in dumped["members"]} == {f"{each}/TCP" for each in BACKENDS[1:4]}


def test_counters_go_on_from_where_they_were(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), ROW)
    world.caller.tcp(VIP)
    datapath.close()
    reopened = world.open()
    programmed(reopened.target(), ROW)
    world.caller.tcp(VIP)
    [row] = reopened.counters()
    reopened.close()
    assert row == {"service": "demo/echo:80/TCP/IPv4", "cluster": "c1", "verdict": "called", "calls": 2}


def test_nothing_is_programmed_away_before_its_cluster_is_listed(world: World, datapath: Datapath) -> None:
    both = group(BACKENDS[0], cluster="c1"), group(BACKENDS[1], cluster="c2")
    programmed(datapath.target(), plan("echo", VIP, *both))
    datapath.close()
    reopened = world.open()
    target = reopened.target()
    own = plan("echo", VIP, group(BACKENDS[0], cluster="c1"))
    waiting = type(own)(key=own.key, frontends=own.frontends, groups=own.groups, awaited=("clusterset/c2",))
    programmed(target, waiting)
    kept = [row["backend"] for row in view.dump(reopened.maps)["backends"]]
    programmed(target, own)
    left = [row["backend"] for row in view.dump(reopened.maps)["backends"]]
    reopened.close()
    assert (kept, left) == ([f"{BACKENDS[0]}/TCP", f"{BACKENDS[1]}/TCP"], [f"{BACKENDS[0]}/TCP"])


def test_a_cgroup_made_anew_is_attached_anew(world: World, datapath: Datapath) -> None:
    other = world.cgroup / "other"
    datapath.close()
    remove(world.pin)
    other.mkdir()
    world.open(cgroup=str(other)).close()
    other.rmdir()
    reopened = world.open()
    programmed(reopened.target(), ROW)
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"
    reopened.close()


@pytest.mark.slow
def test_another_cgroup_in_the_configuration_takes_the_place_of_the_old(world: World, datapath: Datapath) -> None:
    below = world.cgroup / "below"
    inside = world.call_from(below)
    programmed(datapath.target(), plan("echo", CLUSTER_DNS, group(BACKENDS[0])))
    datapath.close()
    world.open(cgroup=str(below)).close()
    assert inside.tcp(CLUSTER_DNS)["answer"].startswith(BACKENDS[0])
    assert world.caller.tcp(CLUSTER_DNS)["answer"].startswith(CLUSTER_DNS)


def test_removing_detaches_at_once_and_leaves_no_file(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", "10.96.0.10", group(BACKENDS[0])))
    assert world.caller.tcp("10.96.0.10")["answer"].startswith(BACKENDS[0])
    remove(world.pin)
    assert world.caller.tcp("10.96.0.10")["answer"].startswith("10.96.0.10:80")
    assert not Path(world.pin).exists()
    remove(world.pin)


def test_maps_can_be_looked_at_without_the_agent(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(BACKENDS[0])))
    maps = open_maps(world.pin)
    text = view.render(view.dump(maps, masked=True))
    maps.close()
    assert f"frontend={VIP}:80/TCP plan=demo/echo:80/TCP/IPv4" in text
    with pytest.raises(DatapathError, match="no datapath at"):
        open_maps(str(world.bpffs / "nowhere"))


def test_a_pin_that_is_not_on_a_bpffs_is_one_clear_line(world: World, tmp_path: Path) -> None:
    with pytest.raises(DatapathError, match=f"datapath.pin {tmp_path}/x is not on a BPF file system"):
        world.open(pin=str(tmp_path / "x"))


def test_a_cgroup_that_is_not_there_is_one_clear_line(world: World) -> None:
    with pytest.raises(DatapathError, match=r"datapath\.cgroup /nowhere: No such file"):
        world.open(cgroup="/nowhere")
    remove(world.pin)


@pytest.mark.slow
def test_two_datapaths_share_a_cgroup(world: World, datapath: Datapath) -> None:
    second = world.open(pin=f"{world.pin}-too")
    programmed(datapath.target(), plan("echo", VIP, group(BACKENDS[0])))
    programmed(second.target(), plan("echo", "10.96.7.8", group(BACKENDS[1])))
    assert world.caller.tcp(VIP)["answer"].startswith(BACKENDS[0])
    assert world.caller.tcp("10.96.7.8")["answer"].startswith(BACKENDS[1])
    second.close()
    remove(f"{world.pin}-too")
    assert world.caller.tcp(VIP)["answer"].startswith(BACKENDS[0])


def test_a_full_map_fails_one_plan_and_spares_the_rest(world: World) -> None:
    small = world.open(max_entries=2)
    target = small.target()
    rows = [plan(f"s{n}", f"10.96.1.{n}", group(BACKENDS[0])) for n in range(1, 5)]
    failures = done(target.update(rows))
    assert {row.key.service for row in rows[2:]} == {key.service for key in failures}
    assert set(failures.values()) == {"map services is full (2 entries): raise datapath.max_entries"}
    assert world.caller.tcp("10.96.1.1")["peer"] == "10.96.1.1:80"
    done(target.delete(rows[:2]))
    target.sweep_due()
    assert done(target.update(rows[2:])) == {}
    small.close()
    remove(world.pin)


def test_deleted_entries_are_back_after_pruning(world: World, datapath: Datapath) -> None:
    target = datapath.target()
    programmed(target, ROW)
    before = view.dump(datapath.maps, masked=True)
    for name in ("slots", "plans", "backends", "members", "services"):
        datapath.maps.drop(name, [key for key, _ in datapath.maps.items(name)])
    assert "error" in world.caller.tcp(VIP)
    assert "repaired 1" in done(target.prune([ROW]))
    target.sweep_due()
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"
    after = view.dump(datapath.maps, masked=True)
    assert [after[name] for name in ("slots", "members")] == [before[name] for name in ("slots", "members")]
