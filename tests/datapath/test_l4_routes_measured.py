"""A TCPRoute's and a UDPRoute's weights, from their rows to the calls of a pod: no proxy is on the way."""

from __future__ import annotations

from typing import Any

import pytest
from datapath_worlds.bpf_world import BACKENDS, Load, World, group, plan, programmed, refused
from datapath_worlds.failing_backends import GOOD, REFUSES, VIP, host
from rows import balancing_world
from rows.balancing_world import make

from isthmus.datapath import Datapath
from isthmus.datapath.services import codecs
from isthmus.datapath.services.restore import restore
from isthmus.model import names
from isthmus.model.balancing import REFUSAL, Ejection, Group, Plan
from isthmus.model.services import Port

pytestmark = pytest.mark.bpf

V2 = names.service_name("demo", "v2")
CALLS = 3_000
WITHIN = 0.037
"""Five standard deviations of so many calls at 20 %."""


def rows(*backends: Any, port: Port = balancing_world.HTTP) -> balancing_world.World:
    """The import demo/echo with GOOD[0] in c1, demo/v2 with GOOD[1] in c2, and a route for echo with these backends."""
    serving = (Port(port.name, 8080, port.protocol),)
    world = balancing_world.World()
    for name, vip, cluster, endpoint in ((make.ECHO, VIP, "c1", GOOD[0]), (V2, "10.96.7.8", "c2", GOOD[1])):
        service = make.derived(name, cluster_ips=(vip,), ports=(port,))
        answering = make.endpoint(host(endpoint), ports=serving)
        world.put(service, make.imported(name, ips=(vip,), ports=(port,)))
        world.put(make.endpoints(cluster, answering, service=service.name))
    kind = "TCPRoute" if port.protocol == "TCP" else "UDPRoute"
    return world.put(make.l4(*backends, kind=kind)) if backends else world


def of_echo(world: balancing_world.World) -> Plan:
    [found] = [row for row in world.plans if row.key.service == make.DERIVED]
    return found


def test_connects_are_split_over_services_and_the_part_of_an_invalid_one_is_refused(
    load: Load, datapath: Datapath
) -> None:
    world = rows(make.backend("echo", 60), make.backend("v2", 20), make.backend("nothing", 20))
    programmed(datapath.target(), of_echo(world))
    seen = load.run(VIP, calls=CALLS, at_once=20)
    assert set(seen.ended) == {"ok", refused()["error"]}, seen.ended
    for part, wanted in ((seen.answered[GOOD[0]], 0.6), (seen.answered[GOOD[1]], 0.2), (seen.failed, 0.2)):
        assert abs(part / CALLS - wanted) <= WITHIN, seen
    programmed(datapath.target(), of_echo(rows()))
    assert load.run(VIP, calls=100, at_once=20).answered == {GOOD[0]: 100}, "without the route as before"


def test_datagrams_of_many_sockets_are_split_by_a_udp_route(world: World, datapath: Datapath, served: World) -> None:
    port = Port("dns", 80, "UDP")
    table = rows(make.backend("echo", 1, port=80), make.backend("nothing", 1), port=port)
    groups = tuple(
        each if each.targets == (REFUSAL,) else Group(group(BACKENDS[0], protocol="UDP").targets, 0, each.weight)
        for each in of_echo(table).groups
    )
    programmed(datapath.target(), plan("echo", VIP, *groups, protocol="UDP"))
    caller = world.call_from(world.cgroup)
    answers = caller.calls("udp", VIP, 80, times=400)
    caller.close()
    answered = sum(each.get("answer", "").startswith(BACKENDS[0]) for each in answers)
    assert answered + sum("error" in each for each in answers) == 400, answers
    assert 140 <= answered <= 260, "six standard deviations of 400 at a half"


def test_the_refused_part_stays_while_a_backend_is_ejected(load: Load, datapath: Datapath) -> None:
    groups = group(GOOD[0], weight=2), group(REFUSES, weight=2), Group((REFUSAL,), 0, 1)
    programmed(datapath.target(), plan("echo", VIP, *groups, ejection=Ejection(after=1, first=60.0, longest=60.0)))
    load.run(VIP, calls=40, at_once=1)
    seen = load.run(VIP, calls=CALLS, at_once=20)
    assert abs(seen.failed / CALLS - 1 / 3) <= 0.05, seen.ended
    assert seen.answered[GOOD[0]] + seen.failed == CALLS


def test_a_client_with_affinity_is_not_refused_for_having_been_refused(load: Load, datapath: Datapath) -> None:
    groups = group(GOOD[0]), Group((REFUSAL,), 0, 1)
    programmed(datapath.target(), plan("echo", VIP, *groups, affinity=3600))
    load.run(VIP, calls=60, at_once=1)
    assert load.run(VIP, calls=60, at_once=1).ended == {"ok": 60}, "it keeps the backend that it found"


def test_an_agent_that_starts_takes_over_refusing_slots_as_they_are(datapath: Datapath) -> None:
    row = plan("echo", VIP, group(GOOD[0]), Group((REFUSAL,), 0, 1))
    programmed(datapath.target(), row)
    state = restore(datapath.maps)
    [unit] = state.units.values()
    assert unit.current is not None
    assert unit.current.doubt is None
    assert [tuple(each) for each in unit.current.slots][1] == (codecs.REFUSING,)
    assert state.sizes() == datapath.state.sizes()


def test_a_refusing_slot_is_no_entry_of_backends_and_goes_with_its_plan(datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", VIP, Group((REFUSAL,), 0, 1)))
    assert [*datapath.maps.items("backends")] == []
    programmed(datapath.target())
    assert [*datapath.maps.items("slots")] == []
    assert datapath.state.sizes()["backends"] == 0
