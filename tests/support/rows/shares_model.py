"""Random policies over clusters, the rule of their shares in ten lines, and the shares that kernel and Envoy read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from datapath_worlds.bpf_model import TellingMaps
from datapath_worlds.bpf_world import done
from hypothesis import strategies as st
from rows.balancing_world import make

from isthmus.datapath import PlanTarget
from isthmus.datapath.services.installed import State
from isthmus.model.balancing import Plan
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import ANY_OTHER, THIS_CLUSTER, Share, Tier
from isthmus.proxy.clusters import of_plans
from isthmus.proxy.messages import message

CLUSTERS = tuple(ClusterName(f"c{n}") for n in range(1, 6))
ECHO = ServiceName("demo/echo")


class Topology(NamedTuple):
    """Clusters, and of each its endpoints: ready and alive, ready and found dead, not ready."""

    clusters: tuple[Cluster, ...]
    endpoints: dict[ClusterName, tuple[int, int, int]]


names = st.sampled_from([*CLUSTERS, THIS_CLUSTER, ANY_OTHER])
labels = st.sampled_from([(), (("class", "gold"),), (("class", "gold"), ("tested", "yes"))])
places = st.builds(Share, region=st.sampled_from(["", "r1", "r2"]), zone=st.sampled_from(["", "z1"]), labels=labels)
weights = st.one_of(st.none(), st.integers(0, 5))
some = st.one_of(st.builds(Share, cluster=names), places.filter(lambda s: bool(s.region or s.zone or s.labels)))
weighted = st.builds(lambda s, w: Share(s.cluster, w, s.region, s.zone, s.labels), some, weights)
tiers = st.builds(
    lambda shares, least, percent: Tier(tuple(shares), least, percent),
    st.lists(weighted, min_size=1, max_size=3),
    st.integers(1, 6),
    st.sampled_from([0, 0, 30, 50, 100]),
)
topologies = st.builds(
    lambda places, counts: Topology(
        tuple(make.cluster(n, own=n == "c1", state="ready", **p) for n, p in zip(CLUSTERS, places, strict=True)),
        dict(zip(CLUSTERS, counts, strict=True)),
    ),
    st.lists(
        st.fixed_dictionaries(
            {"region": st.sampled_from(["", "r1", "r2"]), "zone": st.sampled_from(["", "z1"]), "labels": labels}
        ),
        min_size=5,
        max_size=5,
    ),
    st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=5, max_size=5),
)


def means(share: Share, cluster: Cluster) -> int | None:
    """How exactly a share means a cluster."""
    if share.cluster:
        here = share.cluster in (cluster.name, "." if cluster.own else cluster.name)
        return 0 if here else 2 if share.cluster == "*" else None
    same = share.region in ("", cluster.region) and share.zone in ("", cluster.zone)
    return 1 if same and all(each in cluster.labels for each in share.labels) else None


def model(policy: Sequence[Tier], of: Topology, *, refuse: bool = False) -> dict[str, float]:
    """The rule in ten lines: a call meets the tiers in order, and each takes it as often as it can.

    ``refuse``: what probes find dead is not called where they find all dead either.
    """
    spots = {(t, s): share for t, tier in enumerate(policy) for s, share in enumerate(tier.shares)}
    homes: dict[tuple[int, int], list[ClusterName]] = {spot: [] for spot in spots}
    for cluster in of.clusters:
        if ranked := sorted((m, spot) for spot, each in spots.items() if (m := means(each, cluster)) is not None):
            homes[ranked[0][1]].append(cluster.name)
    called = {name for spot, cs in homes.items() if spots[spot].weight != 0 for name in cs if sum(of.endpoints[name])}
    panic = not refuse and not any(of.endpoints[name][0] for name in called)
    usable = {name: of.endpoints[name][0] + (of.endpoints[name][1] if panic else 0) for name in called}
    found, left = dict.fromkeys(CLUSTERS, 0.0), 1.0
    for t, tier in enumerate(policy):
        members = {
            s: [c for c in homes[t, s] if c in called] for s, share in enumerate(tier.shares) if share.weight != 0
        }
        known = sum(sum(of.endpoints[c]) for cs in members.values() for c in cs)
        wanted = max(1, -(-tier.min_percent * known // 100)) if tier.min_percent else tier.min_healthy
        counts = {s: sum(usable[c] for c in cs) for s, cs in members.items()}
        taken = left * min(1.0, sum(counts.values()) / wanted)
        there = {s: tier.shares[s].weight for s, n in counts.items() if n}
        bare = all(weight is None for weight in there.values())
        parts = {s: counts[s] if bare else 1 if w is None else w for s, w in there.items()}
        for s, part in parts.items():
            for c in members[s]:
                found[c] += taken * part / sum(parts.values()) * usable[c] / counts[s]
        left -= taken if there else 0.0
    total = sum(found.values())
    return {name: part / total for name, part in found.items() if part}


def in_kernel(plan: Plan) -> dict[Any, float]:
    """The shares of connects, read off the maps as the kernel reads them."""
    maps = TellingMaps()
    assert done(PlanTarget(maps, State()).update([plan])) == {}
    found = maps.find(plan.frontends[0])
    assert found is not None
    return maps.shares(found)


def in_envoy(plan: Plan) -> dict[Any, float]:
    """The shares of requests, read off the endpoints that Envoy is sent: those of priority 0 count, none is unhealthy.

    A locality is picked by its weight, and in it each endpoint as often as any other (Envoy: "Locality weighted load
    balancing"); an endpoint in two priorities would be in one of them only.
    """
    [endpoints] = [each for each in of_plans([plan], http2=frozenset()) if each.type == "endpoints"]
    sent = message("envoy.config.endpoint.v3.ClusterLoadAssignment").FromString(endpoints.body)
    hosts = [
        (locality, (each.endpoint.address.socket_address.address, each.endpoint.address.socket_address.port_value))
        for locality in sent.endpoints
        for each in locality.lb_endpoints
    ]
    assert len({host for _, host in hosts}) == len(hosts)
    first = [locality for locality in sent.endpoints if locality.priority == 0]
    total = sum(locality.load_balancing_weight.value for locality in first)
    found = dict.fromkeys(CLUSTERS, 0.0)
    clusters = {(target.address, target.port): target.cluster for group in plan.groups for target in group.targets}
    for locality, host in hosts:
        if locality.priority == 0:
            part = locality.load_balancing_weight.value / total / len(locality.lb_endpoints)
            found[clusters[host]] += part
    return {name: part for name, part in found.items() if part}
