"""Rows of proven callers as map entries: what is shared, what moves, what an earlier process left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from datapath_worlds.bpf_world import done
from msgspec.structs import replace

from isthmus.datapath.core.maps import DictMaps
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.identity import IdentityTarget, codecs
from isthmus.datapath.identity.interfaces import End, leading
from isthmus.datapath.identity.manifest import MAPS
from isthmus.datapath.services.callers import Identity, uids_of
from isthmus.datapath.services.views import PlanNames
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.signing import Guard, HostSource, Permit, SignedTo, Source

UID, ANOTHER = "0a8f5c1e-1111-4222-8333-444455556666", "0a8f5c1e-7777-4222-8333-444455556666"
INTERFACES = {"10.1.0.1": 11, "fd00:1::1": 11, "10.1.0.2": 12}
REMOTE = SignedTo(ServiceName("demo/echo"), "10.2.0.1", ClusterName("c3"), 3)
SOURCE = Source("demo/web", ("10.1.0.1", "fd00:1::1"), 7 << 16 | 300)
WEB, OTHER = ServiceName("demo/web"), ServiceName("demo/other")
NEW, GONE, NEXT = ServiceName("demo/new"), ServiceName("demo/gone"), ServiceName("demo/next")
GUARD = Guard(policy=WEB, address="10.1.0.1", port=80, protocol="TCP")


class World:
    """Maps and where pods are."""

    def __init__(self, maps: DictMaps | None = None) -> None:
        self.maps = maps if maps is not None else DictMaps()
        self.interfaces = dict(INTERFACES)
        self.groups = {UID: 9}
        self.walks = 0
        self.now = 100.0
        self.target = self.another()

    def another(self) -> IdentityTarget:
        """The target of a process that starts now."""
        return IdentityTarget(self.maps, lambda: dict(self.interfaces), groups=self._walk, clock=lambda: self.now)

    def _walk(self) -> dict[str, int]:
        self.walks += 1
        return dict(self.groups)

    def shown(self, name: str) -> list[dict[str, Any]]:
        """A map as people see it."""
        [show] = [row.show for row in MAPS if row.name == name]
        assert show is not None
        rows = show(PlanNames((), (), (), ()), list(self.maps.items(name)))
        return sorted(rows, key=lambda row: [str(value) for value in row.values()])

    def gate(self) -> int:
        """Flags of the gate."""
        value = dict(self.maps.items("signing")).get(ID.pack(0))
        return codecs.SIGNING.unpack(value)[0] if value else 0


@pytest.fixture
def world() -> World:
    return World()


def test_a_target_without_rows_writes_nothing(world: World) -> None:
    target = world.target
    for entries in (target.sources, target.host_sources, target.signed_to, target.permits, target.guards):
        assert done(entries.prune(())).startswith("0 entries")
    done(world.target.renew())
    assert world.target.put_keys({}, {}) == []
    assert not any(world.maps.maps.values())


def test_a_source_has_an_entry_for_each_address_and_one_for_the_interface(world: World) -> None:
    assert done(world.target.sources.update([SOURCE])) == {}
    assert [(row["interface"], row["address"]) for row in world.shown("sources")] == [
        (11, ""),
        (11, "10.1.0.1"),
        (11, "fd00:1::1"),
    ]
    assert done(world.target.sources.delete([SOURCE])) == {}
    assert world.shown("sources") == []


def test_a_pod_without_an_interface_fails_until_there_is_one(world: World) -> None:
    del world.interfaces["10.1.0.1"], world.interfaces["fd00:1::1"]
    assert done(world.target.sources.update([SOURCE])) == {
        "demo/web": "not one interface of this node leads to demo/web, but 0"
    }
    world.interfaces, world.now = dict(INTERFACES), world.now + 1
    assert done(world.target.sources.update([SOURCE])) == {}
    assert len(world.shown("sources")) == 3


def test_control_groups_are_read_once_for_all_pods_in_the_network_of_the_node(world: World) -> None:
    """Each walks over those of every pod: the event loop stood still for 40 ms of 250 pods every ten seconds."""
    pods = [HostSource(f"demo/web-{n}", UID, 7 << 16 | 300) for n in range(20)]
    assert done(world.target.host_sources.update(pods)) == {}
    assert world.walks == 1
    world.now += 10
    done(world.target.renew())
    assert world.walks == 2


OWNERS = {"10.1.0.1": Identity("demo", UID), "10.1.0.2": Identity("other", ANOTHER), "10.1.0.3": None}
GROUPS = {
    UID: Path(f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-1.scope"),
    ANOTHER: Path(f"/kubepods/burstable/pod{ANOTHER}/2"),
    "": Path("/isthmus/pods"),
}


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        (UID, ANOTHER, {"10.1.0.1": 11, "10.1.0.2": 12}),
        (UID, UID, {"10.1.0.1": 12}),
        ("", "", {"10.1.0.1": 12, "10.1.0.2": 12}),
    ],
    ids=["another pod", "an ended pod's namespace before it", "cgroups that name no pods"],
)
def test_a_pod_that_gives_itself_anothers_address_leaves_that_one_its_interface(
    first: str, second: str, want: dict[str, int]
) -> None:
    ends = [End(11, {"10.1.0.1"}, uids_of(GROUPS[first])), End(12, {"10.1.0.1", "10.1.0.2"}, uids_of(GROUPS[second]))]
    assert leading(ends, OWNERS) == leading(ends[::-1], OWNERS) == want


def test_an_address_without_a_row_yet_or_of_several_is_found_as_before() -> None:
    ends = [End(11, {"10.1.0.3", "10.1.0.4"}, [UID]), End(12, {"10.1.0.3"}, [ANOTHER])]
    assert leading(ends, OWNERS) == {"10.1.0.3": 12, "10.1.0.4": 11}


def test_a_pod_in_the_network_of_its_node_has_an_entry_by_its_cgroup_once_that_is_there(world: World) -> None:
    row, world.groups = HostSource("demo/host", UID, 7 << 16 | 300), {}
    assert done(world.target.host_sources.update([row])) == {
        "demo/host": "demo/host has no cgroup with its UID on this node"
    }
    assert world.gate() & codecs.HOST == 0
    world.groups, world.now = {UID: 9}, world.now + 1
    assert done(world.target.host_sources.update([row])) == {}
    assert world.shown("host_callers") == [{"cgroup": 9, "identity": 7 << 16 | 300}]
    assert world.gate() & codecs.HOST
    world.groups, world.now = {UID: 10}, world.now + 1
    done(world.target.renew())
    assert [each["cgroup"] for each in world.shown("host_callers")] == [10]
    assert done(world.target.host_sources.delete([row])) == {}
    assert world.shown("host_callers") == []
    assert world.gate() & codecs.HOST == 0


def test_a_pod_that_has_another_interface_is_written_anew(world: World) -> None:
    done(world.target.sources.update([SOURCE]))
    done(world.target.guards.update([GUARD, replace(GUARD, address="10.1.0.2")]))
    world.interfaces |= {"10.1.0.1": 21, "fd00:1::1": 21}
    world.now += 1
    done(world.target.renew())
    assert {row["interface"] for row in world.shown("sources")} == {21}
    assert {row["interface"] for row in world.shown("guarded")} == {21, 12}


def test_the_gate_is_open_while_something_is_signed_or_guarded(world: World) -> None:
    done(world.target.sources.update([SOURCE]))
    assert world.gate() == 0
    done(world.target.signed_to.update([REMOTE]))
    assert world.gate() == codecs.SIGNS
    done(world.target.guards.update([GUARD]))
    assert world.gate() == codecs.SIGNS | codecs.GUARDS
    done(world.target.guards.delete([GUARD]))
    done(world.target.signed_to.delete([REMOTE]))
    assert world.gate() == 0


def test_of_an_interface_the_strictest_guard_judges_what_has_no_port(world: World) -> None:
    audited = replace(GUARD, port=81, policy=OTHER, audit=True)
    done(world.target.guards.update([GUARD, audited]))
    [anything] = [row for row in world.shown("guarded") if row["port"] == 0]
    assert (anything["audit"], anything["by_address"]) == (False, False)
    done(world.target.guards.delete([GUARD]))
    assert [(row["port"], row["audit"]) for row in world.shown("guarded")] == [(0, True), (81, True)]


def test_a_port_that_another_policy_judges_is_guarded_all_the_time(world: World) -> None:
    done(world.target.guards.update([GUARD]))
    done(world.target.guards.update([replace(GUARD, policy=OTHER)]))
    names = {row["policy_id"]: row["name"] for row in world.shown("policies")}
    assert [names[row["policy_id"]] for row in world.shown("guarded")] == ["demo/other"] * 2


def test_an_address_of_two_services_is_signed_to_until_neither_has_it(world: World) -> None:
    second = replace(REMOTE, service=ServiceName("demo/second"))
    done(world.target.signed_to.update([REMOTE, second]))
    done(world.target.signed_to.delete([second]))
    assert [row["address"] for row in world.shown("signed_to")] == ["10.2.0.1"]
    done(world.target.signed_to.delete([REMOTE]))
    assert world.shown("signed_to") == []


def test_a_policy_keeps_its_number_over_a_restart_and_loses_it_with_its_last_row(world: World) -> None:
    done(world.target.permits.update([Permit(GONE, 5), Permit(WEB, 6)]))
    done(world.target.guards.update([GUARD]))
    before = world.shown("allowed")
    again = world.another()
    done(again.permits.update([Permit(NEW, 7), Permit(WEB, 6)]))
    done(again.guards.update([GUARD]))
    assert [row for row in world.shown("allowed") if row["identity"] in (5, 6)] == before
    assert done(again.guards.prune([GUARD])) == "0 entries of guarded removed"
    assert done(again.permits.prune([Permit(NEW, 7), Permit(WEB, 6)])) == "1 entries of allowed removed"
    assert {row["name"] for row in world.shown("policies")} == {"demo/web", "demo/new"}
    done(again.permits.update([Permit(NEXT, 8)]))
    numbers = [row["policy_id"] for row in world.shown("policies")]
    assert len(numbers) == len(set(numbers)) == 3


def test_refusals_of_a_policy_that_is_gone_are_never_those_of_the_next_one_with_its_number(world: World) -> None:
    done(world.target.guards.update([GUARD, replace(GUARD, port=81, policy=OTHER)]))
    numbers = {row["name"]: row["policy_id"] for row in world.shown("policies")}
    counted = [(codecs.REFUSAL_KEY.pack(number, 7, 4), codecs.REFUSAL.pack(1, 0)) for number in (*numbers.values(), 0)]
    world.maps.put("refusals", counted)
    done(world.target.permits.prune(()))
    done(world.target.guards.prune([GUARD]))
    assert sorted(row.policy for row in world.target.refusals()) == ["", "demo/web"]
    again = world.another()
    done(again.guards.update([GUARD, replace(GUARD, port=81, policy=NEXT)]))
    assert {row["policy_id"] for row in world.shown("policies")} == {*numbers.values()}, "the number is used again"
    assert sorted(row.policy for row in again.refusals()) == ["", "demo/web"]


def test_what_an_earlier_process_left_is_pruned_and_what_is_wanted_stays(world: World) -> None:
    rows = [REMOTE, replace(REMOTE, address="10.2.0.2")]
    done(world.target.signed_to.update(rows))
    again = world.another()
    done(again.signed_to.update(rows[:1]))
    assert len(world.shown("signed_to")) == 2, "kept until the table is complete"
    done(again.signed_to.prune(rows[:1]))
    assert [row["address"] for row in world.shown("signed_to")] == ["10.2.0.1"]


def test_a_restarted_agent_keeps_the_epoch_until_it_has_keys(world: World) -> None:
    key = {(3, 9): bytes(16)}
    world.target.put_keys(key, key, number=9, passed=5)
    done(world.target.signed_to.update([REMOTE]))
    before = dict(world.maps.items("signing"))
    again = world.another()
    done(again.signed_to.update([REMOTE]))
    done(again.guards.update([GUARD]))
    [(_, gate)] = world.maps.items("signing")
    now, then = codecs.SIGNING.named(gate), codecs.SIGNING.named(before[ID.pack(0)])
    assert (now["began"], now["key_number"]) == (then["began"], then["key_number"]) == (95 * 10**9, 9)
    assert now["flags"] == codecs.SIGNS | codecs.GUARDS


def test_keys_and_ranges_are_exactly_those_given(world: World) -> None:
    world.target.put_keys({(3, 1): bytes(16)}, {(3, 1): bytes(16), (3, 2): bytes(16)})
    world.target.put_keys({(4, 2): bytes(16)}, {(3, 2): bytes(16), (3, 3): bytes(16)})
    assert [codecs.EPOCH_KEY_ID.unpack(key) for key, _ in world.maps.items("sign_keys")] == [(4, 2)]
    assert sorted(codecs.EPOCH_KEY_ID.unpack(key) for key, _ in world.maps.items("verify_keys")) == [(3, 2), (3, 3)]
    world.target.put_own_ranges(["10.1.0.0/16", "fd00:1::/48"])
    world.target.put_own_ranges(["10.1.0.0/16"])
    assert world.shown("own_ranges") == [{"address": "10.1.0.0", "bits_of_128": 112}]


def test_all_of_it_can_be_cleared(world: World) -> None:
    done(world.target.sources.update([SOURCE]))
    done(world.target.host_sources.update([HostSource("demo/host", UID, 7)]))
    done(world.target.signed_to.update([REMOTE]))
    done(world.target.permits.update([Permit(WEB, 6)]))
    done(world.target.guards.update([GUARD]))
    world.target.put_keys({(3, 1): bytes(16)}, {(3, 1): bytes(16)})
    world.target.put_own_ranges(["10.1.0.0/16"])
    world.maps.put("refusals", [(codecs.REFUSAL_KEY.pack(1, 7, 4), codecs.REFUSAL.pack(1, 0))])
    done(world.another().clear())
    assert world.gate() == 0
    assert {name: entries for name, entries in world.maps.maps.items() if entries and name != "signing"} == {}


class Stuck(DictMaps):
    """Maps from which nothing can be removed while they are stuck."""

    stuck = False

    def drop(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        return dict.fromkeys(range(len(keys)), "stuck") if self.stuck else super().drop(name, keys)


def test_an_entry_that_could_not_be_removed_is_removed_when_its_row_is_tried_again() -> None:
    world = World(maps := Stuck())
    done(world.target.sources.update([SOURCE]))
    maps.stuck = True
    for _ in range(2):
        assert done(world.target.sources.delete([SOURCE])) == {"demo/web": "stuck"}
    maps.stuck = False
    assert done(world.target.sources.delete([SOURCE])) == {}
    assert world.shown("sources") == []


def test_an_entry_that_a_row_had_and_that_could_not_be_removed_is_a_failure_of_the_row() -> None:
    world = World(maps := Stuck())
    done(world.target.sources.update([SOURCE]))
    maps.stuck, moved = True, replace(SOURCE, addresses=("10.1.0.1",))
    assert done(world.target.sources.update([moved])) == {"demo/web": "stuck"}
    maps.stuck = False
    assert done(world.target.sources.update([moved])) == {}
    assert [row["address"] for row in world.shown("sources")] == ["", "10.1.0.1"]


def test_a_row_that_raises_leaves_no_entry_of_another_behind(world: World) -> None:
    done(world.target.guards.update([GUARD]))
    world.interfaces["10.1.0.1"] = 13
    world.now += 1
    with pytest.raises(KeyError):
        done(world.target.guards.update([GUARD, replace(GUARD, port=81, protocol="none")]))
    done(world.target.guards.update([GUARD]))
    assert {row["interface"] for row in world.shown("guarded")} == {13}


def test_a_name_that_does_not_fit_fails_alone(world: World) -> None:
    long = Permit(ServiceName("demo/" + "x" * 320), 5)
    failures = done(world.target.permits.update([long, Permit(WEB, 6)]))
    assert [*failures] == [(long.policy, 5)]
    assert len(world.shown("allowed")) == 1
