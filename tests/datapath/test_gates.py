"""The words that spare calls a look at empty maps: the agent closes them, and never on what came while it looked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from datapath_worlds.bpf_world import Caller, World, group, plan, programmed
from datapath_worlds.failing_backends import GOOD, REFUSES, VIP
from labs.lab_running import until

from isthmus.datapath import Datapath, view
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.failures.watch import FailureWatch
from isthmus.model import tables
from isthmus.model.balancing import Ejection
from isthmus.statedb import Database

pytestmark = pytest.mark.bpf

AGAIN = Ejection(1, 0.001, 0.001)
"""What refuses has an entry in ``failing``, and is called again at once."""


class MapsInUse:
    """Maps of a node whose pods call: after each look of the agent's at ``flows`` a call is made."""

    def __init__(self, maps: Maps, call: Callable[[], None]) -> None:
        self._maps = maps
        self._call = call

    def items(self, name: str) -> Iterable[tuple[bytes, bytes]]:
        found = list(self._maps.items(name))
        if name == "flows":
            self._call()
        return found

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Mapping[int, str]:
        return self._maps.put(name, items)

    def drop(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        return self._maps.drop(name, keys)


def watching(datapath: Datapath, call: Callable[[], None] = lambda: None) -> FailureWatch:
    """The agent's part; ``call`` is made while it looks."""
    maps: Any = MapsInUse(datapath.maps, call)
    return FailureWatch(
        maps,
        datapath.state,
        Database(tables.BACKENDS, tables.FAILURES, tables.CALLER_FAILURES, tables.DENIALS),
        longest=0.0,
    )


def closed(datapath: Datapath) -> bool:
    return list(datapath.maps.items("gates")) == list(datapath.maps.items("settled"))


@pytest.fixture
def caller(world: World, rescuing: Datapath) -> Caller:
    """Its calls meet a backend that refuses, then one that answers."""
    steps = (group(REFUSES), group(GOOD[0], tier=1))
    programmed(rescuing.target(), plan("echo", VIP, *steps, ejection=AGAIN))
    return world.call_from(world.cgroup)


def test_calls_that_are_moved_while_the_agent_looks_go_on_and_so_do_those_after_them(
    rescuing: Datapath, caller: Caller
) -> None:
    """Of a count that both wrote, the agent's write took one away for good: where one connection was moved at a time,
    its packets went to the backend that refuses, and at the last one the call was refused."""
    assert caller.calls("hold", VIP, 80, local=30131) == [{"answer": GOOD[0]}]
    assert caller.calls("drop", VIP, 80) == [{}]
    until(lambda: not view.rows(rescuing.maps, "flows"), what="the last segments have passed")
    held: list[str] = []

    def hold() -> None:
        assert caller.calls("hold", VIP, 80, local=30132) == [{"answer": GOOD[0]}]
        held.append(VIP)

    watching(rescuing, hold).step()
    assert held, "no connection was moved while the agent looked: this test has shown nothing"
    assert caller.calls("echo", VIP, 80, text="bytes") == [{"answer": "bytes"}]
    assert caller.calls("drop", VIP, 80) == [{}]
    until(lambda: not view.rows(rescuing.maps, "flows"), what="the last segments have passed")
    assert caller.calls("hold", VIP, 80, local=30134) == [{"answer": GOOD[0]}]
    assert caller.calls("drop", VIP, 80) == [{}]


def test_what_is_closed_over_connections_that_are_moved_is_opened(rescuing: Datapath, caller: Caller) -> None:
    """As when maps are carried over: the words are new, and connections are not."""
    assert caller.calls("hold", VIP, 80, local=30135) == [{"answer": GOOD[0]}]
    rescuing.maps.put("settled", list(rescuing.maps.items("gates")))
    watching(rescuing).step()
    assert not closed(rescuing)
    assert caller.calls("echo", VIP, 80, text="bytes") == [{"answer": "bytes"}]
    assert caller.calls("drop", VIP, 80) == [{}]


def test_when_nothing_fails_or_is_moved_any_more_calls_need_not_look(rescuing: Datapath, caller: Caller) -> None:
    assert caller.calls("hold", VIP, 80, local=30136) == [{"answer": GOOD[0]}]
    assert not closed(rescuing)
    assert caller.calls("drop", VIP, 80) == [{}]
    until(lambda: not view.rows(rescuing.maps, "flows"), what="the last segments have passed")
    until(lambda: watching(rescuing).step() == 0 and closed(rescuing), what="the failure is forgiven")
