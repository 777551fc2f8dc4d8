"""Calls of a pod on a real kernel: what is ours goes to a backend, what is not goes where it was going."""

from __future__ import annotations

import pytest
from bpf_world import BACKENDS, CLUSTER_DNS, World, group, plan, programmed

from isthmus.datapath import Datapath

pytestmark = pytest.mark.bpf

VIP = "10.96.7.7"


def test_a_tcp_call_reaches_a_backend_and_its_peer_is_the_service(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(BACKENDS[0])))
    assert world.caller.tcp(VIP) == {"answer": f"{BACKENDS[0]} 10.7.0.1", "peer": f"{VIP}:80"}


@pytest.mark.parametrize("connected", [True, False])
def test_a_udp_answer_comes_from_the_service(world: World, datapath: Datapath, connected: bool) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(BACKENDS[0], protocol="UDP"), protocol="UDP"))
    said = world.caller.udp(VIP, connected=connected)
    assert said["answer"] == f"{BACKENDS[0]} 10.7.0.1"
    assert said["from"] == f"{VIP}:80"
    assert said["peer"] == (f"{VIP}:80" if connected else "")


def test_a_call_that_is_not_ours_is_untouched(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(BACKENDS[0])))
    direct = world.caller.tcp("10.8.0.2", 8080)
    assert direct == {"answer": "10.8.0.2:8080 10.7.0.1", "peer": "10.8.0.2:8080"}
    assert world.caller.tcp(CLUSTER_DNS)["answer"] == f"{CLUSTER_DNS}:80 10.7.0.1"
    assert datapath.counters() == []
