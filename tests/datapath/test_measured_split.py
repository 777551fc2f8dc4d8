"""A policy's weights, from its row to the connections that a pod makes."""

from __future__ import annotations

from datapath_worlds.bpf_world import Load, programmed
from datapath_worlds.failing_backends import GOOD, VIP, host
from rows import balancing_world
from rows.balancing_world import make

from isthmus.datapath import Datapath
from isthmus.loadbalancer import shares
from isthmus.model.names import ClusterName
from isthmus.model.policies import Policy, Share, Tier

CALLS = 3_000
WITHIN = 0.028
"""Five standard deviations of so many calls at 10 %; make demo-failover measures 10,000."""


def test_calls_by_tcp_are_split_as_a_policy_says(load: Load, datapath: Datapath) -> None:
    weights = Tier((Share(ClusterName("c1"), 90), Share(ClusterName("c2"), 10)))
    world = balancing_world.World().put(make.derived(cluster_ips=(VIP,)), make.imported(ips=(VIP,)))
    world.put(Policy(name=make.ECHO, target=make.ECHO, tiers=(weights,)))
    world.put(*(make.endpoints(f"c{n}", host(each)) for n, each in enumerate(GOOD, 1)))
    [plan] = world.plans
    programmed(datapath.target(), plan)
    seen = load.run(VIP, calls=CALLS, at_once=20)
    assert seen.failed == 0, seen.ended
    wanted = shares.by_cluster(plan)
    assert wanted == {"c1": 0.9, "c2": 0.1}
    for each, part in zip(GOOD, wanted.values(), strict=True):
        assert abs(seen.answered[each] / CALLS - part) <= WITHIN, seen.answered
