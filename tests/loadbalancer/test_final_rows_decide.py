"""The final rows alone decide: whatever order they came in, through whatever passes, the derived rows are the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from datapath_worlds.bpf_world import done
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rows.balancing_world import MANAGED, PERMISSIVE, World, key, make
from rows.scenario import MADE_OF_PLANS, Agent, FaultyMaps, shown
from rows.small_chunks import small_chunks

from isthmus.datapath.core.maps import DictMaps
from isthmus.loadbalancer import backends, frontends, plans
from isthmus.model import chunked
from isthmus.model.balancing import BackendKey, Probe
from isthmus.model.chunked import Chunked
from isthmus.model.drains import Drain, Draining
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.policies import ANY_OTHER, Policy, Share, Tier
from isthmus.model.redirects import Listener, LocalRedirect, ProxyRedirect, Requirement
from isthmus.model.services import Condition, Endpoint, EndpointSet, Import, Node, Pod, Port, Service
from isthmus.model.tables import REDIRECTS

IMPORTS_ = [ServiceName("demo/a"), ServiceName("demo/b")]
NAMES = [derived(IMPORTS_[0]), derived(IMPORTS_[0]), derived(IMPORTS_[1]), IMPORTS_[0]]
ADDRESSES = ["10.96.0.1", "fd00::1", "172.30.1.11"]
PORTS = [
    Port("http", 80, node_port=30080),
    Port("http", 80, "UDP"),
    Port("admin", 30080),
    Port("", 81, node_port=30081),
]
POLICIES = st.sampled_from(["Cluster", "Local"])


def subsets(values: list[Any], most: int = 2) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.sampled_from(values), max_size=most, unique=True).map(tuple)


services = st.builds(
    Service,
    name=st.sampled_from(NAMES),
    source=st.sampled_from(["kubernetes", "files"]),
    type=st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer", "HostPort"]),
    ports=subsets(PORTS, 3),
    cluster_ips=subsets(ADDRESSES),
    external_ips=subsets(ADDRESSES, 1),
    load_balancer_ips=subsets(ADDRESSES, 1),
    headless=st.booleans(),
    affinity=st.sampled_from(["None", "ClientIP"]),
    internal_policy=POLICIES,
    external_policy=POLICIES,
    distribution=st.sampled_from(["", "PreferClose", "PreferSameNode"]),
    annotations=st.sampled_from([(), (("service.cilium.io/affinity", "local"), ("service.cilium.io/global", "true"))]),
    created=st.sampled_from(["", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
    import_of=st.sampled_from([ServiceName(""), IMPORTS_[0], *IMPORTS_]),
)
imports = st.builds(
    Import,
    name=st.sampled_from(IMPORTS_),
    type=st.sampled_from(["ClusterSetIP", "Headless"]),
    ports=subsets(PORTS),
    ips=subsets(ADDRESSES),
    affinity=st.sampled_from(["None", "ClientIP"]),
    distribution=st.sampled_from([None, "PreferSameZone"]),
    annotations=st.sampled_from([(), MANAGED]),
)
endpoint = st.builds(
    Endpoint,
    address=st.sampled_from(["10.1.0.1", "10.1.0.2", "fd01::1"]),
    ports=subsets([Port("http", 8080), Port("", 8081), Port("", 8080)]),
    condition=st.sampled_from(list(Condition)),
    node=st.sampled_from(["", "n1", "n2"]),
    for_zones=st.sampled_from([(), ("z1",), ("z2",)]),
)
endpoints = st.builds(
    EndpointSet,
    service=st.sampled_from(NAMES),
    cluster=st.sampled_from([ClusterName(name) for name in ("", "c1", "c2")]),
    source=st.sampled_from(["clusterset", "kubernetes", "files"]),
    part=st.sampled_from(["x", "y"]),
    endpoints=st.lists(endpoint, max_size=2).map(tuple),
    shared=st.booleans(),
)
nodes = st.builds(
    Node,
    name=st.sampled_from(["n1", "n2"]),
    addresses=subsets(["172.30.1.11", "172.30.1.12", "10.96.0.1"]),
    zone=st.sampled_from(["", "z1", "z2"]),
)
policies = st.builds(
    Policy,
    name=st.sampled_from([ServiceName("demo/p"), ServiceName("demo/q")]),
    target=st.sampled_from(IMPORTS_),
    kind=st.sampled_from(["ServiceImport", "Service"]),
    tiers=subsets([Tier((Share(ClusterName("c1")),)), Tier((Share(ANY_OTHER, 2),), 2)]),
    affinity=st.sampled_from([None, "ClientIP"]),
)
REDIRECTED = [Port("http", 80), Port("http", 80, "UDP"), Port("", 81)]
locals_ = st.builds(
    LocalRedirect,
    name=st.sampled_from([ServiceName("demo/l"), ServiceName("demo/m")]),
    service=st.sampled_from([*NAMES, ServiceName("")]),
    address=st.sampled_from(["10.96.0.1", "10.96.0.9", "fd00::1"]),
    ports=subsets(REDIRECTED),
    selector=subsets([Requirement("app", "In", ("x",)), Requirement("old", "DoesNotExist")]),
    backend_ports=subsets([Port("http", 8080), Port("", 8081), Port("", 8080, "UDP")]),
    skip_from_backend=st.booleans(),
    created=st.sampled_from(["", "2026-01-01T00:00:00Z"]),
).map(lambda row: replace(row, address="") if row.service else row)
pods = st.builds(
    Pod,
    name=st.sampled_from(["demo/p", "demo/q", "other/p"]),
    uid=st.just("1"),
    node=st.sampled_from(["n1", "n2"]),
    addresses=subsets(["10.1.0.8", "10.1.0.9", "fd01::9"]),
    ready=st.booleans(),
    labels=subsets([("app", "x"), ("old", "")]),
    ports=subsets([Port("HTTP", 8080), Port("", 8081), Port("", 8080, "UDP")]),
)
proxies = st.builds(
    ProxyRedirect,
    service=st.sampled_from(NAMES),
    owner=st.sampled_from(["HTTPRoute demo/r", "HTTPRoute demo/s"]),
    listeners=subsets([Listener("169.254.7.2", 15001), Listener("169.254.7.2", 15002, (80,))]),
)
probes = st.builds(
    Probe,
    key=st.builds(
        BackendKey,
        service=st.sampled_from(NAMES),
        cluster=st.sampled_from([ClusterName("c1"), ClusterName("c2")]),
        address=st.sampled_from(["10.1.0.1", "10.1.0.2"]),
        port=st.sampled_from([8080, 8081]),
        protocol=st.just("TCP"),
    ),
    healthy=st.booleans(),
)
row = st.one_of(services, services, imports, endpoints, endpoints, nodes, policies, locals_, pods, proxies, probes)
steps = st.lists(st.tuples(st.sampled_from(["put", "put", "delete", "pass"]), row), max_size=40)


def tables(world: World) -> tuple[Any, ...]:
    return world.frontends, world.backends, world.plans


def by_the_general_rules(world: World, which: Any, *others: ServiceName) -> tuple[Any, ...]:
    """The same tables, slowly: every claim compared at every address, every service by itself, nothing kept."""
    cluster, reader = ClusterName("c1"), world.db.snapshot()
    redirected = [row.service for row in reader.all(REDIRECTS)]
    names = {*redirected, *NAMES, *(derived(name) for name in (*IMPORTS_, SECOND)), make.DERIVED, *others}
    claimed = {each for name in names for each in frontends.claimed(reader, name, node="n1")}
    called = [
        row for each in claimed for row in frontends.compute(reader, each, node="n1", which=which, rules=PERMISSIVE)
    ]
    answering = [
        row for name in names for row in backends.compute(reader, name, cluster=cluster, which=which, cache={})
    ]
    planned = [row for name in names for row in plans.compute(reader, name, cluster=cluster, node="n1")]
    return (*(sorted(rows, key=lambda row: row.key) for rows in (called, answering, planned)),)


@settings(max_examples=250, deadline=None)
@given(
    steps=steps,
    which=st.sampled_from(["all", "multicluster"]),
    per_pass=st.sampled_from([1, 2, 2_000]),
    large=st.sampled_from([0, 1, 64]),
)
@pytest.mark.slow
def test_any_order_of_changes_ends_where_the_final_rows_do(
    steps: list[tuple[str, Any]], which: str, per_pass: int, large: int
) -> None:
    world, final = World(which, units_per_pass=per_pass, rules=PERMISSIVE, large=large), {}
    for step, each in steps:
        if step == "pass":
            world.derivations.step()
            continue
        getattr(world, step)(each)
        name = key(each)
        if step == "put":
            final[name] = each
        else:
            final.pop(name, None)
    assert tables(world) == tables(World(which, rules=PERMISSIVE).put(*final.values()))
    assert tables(world) == by_the_general_rules(world, which)
    world.delete(*final.values())
    assert tables(world) == ([], [], [])


SECOND = ServiceName("demo/second")
ELSEWHERE = make.service("demo/plain", cluster_ips=("10.96.0.8",))


@pytest.mark.parametrize(
    ("there", "changed"),
    [
        pytest.param(
            [make.imported()], make.service("demo/other", import_of=make.ECHO), id="a-service-of-another-name"
        ),
        pytest.param(
            [make.imported(), make.imported(SECOND, ips=("10.96.0.9",))],
            make.derived(SECOND, import_of=make.ECHO, cluster_ips=("10.96.0.9",)),
            id="labelled-as-another-import",
        ),
        pytest.param(
            [make.imported(ips=("10.96.0.7", "10.96.0.8")), ELSEWHERE],
            make.derived(),
            id="an-address-of-the-import-that-another-service-has",
        ),
        pytest.param(
            [make.imported(), make.service("demo/other", import_of=make.ECHO, cluster_ips=("10.96.0.8",)), ELSEWHERE],
            make.derived(),
            id="two-services-of-one-import",
        ),
    ],
)
def test_a_service_of_an_import_that_comes_and_goes_ends_where_the_rows_do(there: list[Any], changed: Service) -> None:
    """Each is what the quick way, for a Service that stands for its import and that nothing else concerns, is not."""
    world = World("all", rules=PERMISSIVE).put(*there)
    without = tables(world)
    for _ in range(2):
        world.put(changed)
        assert tables(world) == by_the_general_rules(world, "all", SECOND, ELSEWHERE.name, ServiceName("demo/other"))
        world.delete(changed)
        assert tables(world) == without


parts = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["c1", "c2"]),
        st.sets(st.integers(1, 30), max_size=20),
        st.sampled_from([Condition.READY, Condition.READY, Condition.TERMINATING]),
        st.sampled_from([(Port("http", 8080),), (Port("http", 8080), Port("admin", 9090)), (Port("admin", 8080),)]),
    ),
    max_size=10,
)
"""Parts of a big service, time after time: the same address may be in several, as while it moves."""


@settings(max_examples=100, deadline=None)
@given(parts=parts, ports=subsets([Port("http", 80), Port("admin", 90)], 2), large=st.sampled_from([0, 3, 64]))
@pytest.mark.slow
def test_a_big_service_of_several_parts_ends_where_its_final_rows_do(
    parts: list[Any], ports: tuple[Port, ...], large: int
) -> None:
    """Parts that stay as they are, and rows that are the very same, are not computed and compared again."""
    service = make.derived()
    world = World(rules=PERMISSIVE, large=large).put(service)
    final: dict[Any, Any] = {key(service): service}
    for name, cluster, numbers, condition, offers in parts:
        found = [make.endpoint(f"10.1.0.{n}", ports=offers, condition=condition) for n in sorted(numbers)]
        for each in (make.endpoints(cluster, *found, part=name), make.derived(ports=ports or service.ports)):
            world.put(each).settle()
            final[key(each)] = each
            assert tables(world) == tables(World(rules=PERMISSIVE).put(*final.values()))


parted = st.dictionaries(st.integers(1, 30), st.tuples(st.sampled_from("abc"), st.sampled_from([0, 0, 0, 1, 2, 3])))
"""By number of an endpoint: the part that it is in, and its condition."""
beside = st.sampled_from(
    [
        make.derived(ports=(Port("http", 80), Port("admin", 90))),
        make.derived(cluster_ips=("10.96.0.7", "fd00::7")),
        make.derived(distribution="PreferClose"),
        make.derived(internal_policy="Local"),
        make.derived(annotations=(("service.cilium.io/affinity", "local"),)),
        make.probe("10.1.0.4", cluster="c2", service=make.DERIVED, healthy=False),
        make.cluster("c2", network="elsewhere"),
        make.endpoints("c2", "10.1.0.5", source="files", part="other"),
        make.endpoints("c2", "10.1.0.6", "10.1.0.7", part="other"),
        make.endpoints("c2", "10.1.0.8", part="a", lapsed=True),
        make.endpoints("c2", "10.1.0.8", part="b", shared=False),
        Policy(name=IMPORTS_[0], target=make.ECHO, kind="ServiceImport", tiers=(Tier((Share(ClusterName("c2")),)),)),
        Draining(by=ClusterName("c2"), drain=Drain(kind="Node", target="n4", reason="test"), left=0),
        Draining(by=ClusterName("c2"), drain=Drain(kind="Node", target="n5", reason="test"), left=45),
    ]
)
"""What makes more count than each endpoint by itself."""


@settings(max_examples=60, deadline=None)
@given(data=st.data(), first=parted, steps=st.lists(st.tuples(parted, st.none() | beside), max_size=5))
@pytest.mark.slow
def test_a_followed_service_is_what_all_of_its_endpoints_make_of_it(data: Any, first: Any, steps: Any) -> None:
    """A few endpoints come, go, move or change; now and then a row beside them makes more than each by itself count."""
    with small_chunks(chunk=3, small=4):
        world = World(rules=PERMISSIVE, large=data.draw(st.sampled_from([0, 2]))).put(make.derived(), make.imported())
        there = dict(first)
        others: dict[Any, Any] = {}
        known: dict[str, Any] = dict.fromkeys("abc", ())  # as the decoder of a large record hands on what has changed
        for some, other in [({}, None), *steps]:
            there.update(some)
            for gone in data.draw(st.sets(st.sampled_from(sorted(there)), max_size=2)) if there else ():
                del there[gone]
            for name in data.draw(st.permutations("abc")):
                rows = [
                    make.endpoint(f"10.1.0.{n}", condition=Condition(condition), node=f"n{n}")
                    for n, (part, condition) in sorted(there.items())
                    if part == name
                ]
                if rows and data.draw(st.sampled_from([False, False, True])):  # an address that is written in two ways
                    rows.append(replace(data.draw(st.sampled_from(rows)), condition=Condition.TERMINATING, node="n9"))
                rows.sort(key=lambda each: each.address)
                row = make.endpoints("c2", *rows, part=name)
                if data.draw(st.booleans()) and len({each.address for each in rows}) == len(rows):
                    gone, come = (set(known[name]) - set(rows), set(rows) - set(known[name]))
                    row = replace(row, endpoints=chunked.changed(known[name], removed=gone, added=come))
                    known[name] = row.endpoints
                (world.put if rows or data.draw(st.booleans()) else world.delete)(row)
                if data.draw(st.booleans()):
                    world.settle()
            for each in others.values() if data.draw(st.booleans()) else ():
                world.delete(each)
            if other is not None:
                world.put(other)
                others[key(other)] = other
            if data.draw(st.booleans()):
                world.put(make.derived())
            assert tables(world.settle()) == by_the_general_rules(world, "multicluster")


def test_a_change_of_one_endpoint_leaves_the_rest_of_a_large_plan_the_same_objects() -> None:
    world = World().put(make.derived())
    sets = [
        make.endpoints("c2", *[f"10.{part}.{n >> 8}.{n & 255}" for n in range(900)], part=str(part)) for part in (1, 2)
    ]
    world.put(*sets)
    [before] = [group for row in world.plans for group in row.groups]
    world.put(replace(sets[1], endpoints=(*sets[1].endpoints[1:], make.endpoint("10.9.9.9"))))
    [after] = [group for row in world.plans for group in row.groups]
    assert (set(before.targets) - set(after.targets)) == {replace(before.targets[900], address="10.2.0.0")}
    assert {each.address for each in set(after.targets) - set(before.targets)} == {"10.9.9.9"}
    assert tables(world) == by_the_general_rules(world, "multicluster")
    assert isinstance(before.targets, Chunked)
    assert isinstance(after.targets, Chunked)
    shared = {id(chunk) for chunk in before.targets.chunks} & {id(chunk) for chunk in after.targets.chunks}
    assert len(shared) == len(before.targets.chunks) - 2, "of where it was, and of where it is"


def maps_of(rows: Iterable[Any], which: str) -> list[str]:
    """What the maps hold when these rows are all there ever was."""
    maps = FaultyMaps(DictMaps(), 0)
    Agent(maps, rows, takes=which).settle()
    return shown(maps)


@settings(max_examples=100, deadline=None)
@given(steps=steps, which=st.sampled_from(["all", "multicluster"]), seed=st.integers(0, 1000))
@pytest.mark.slow
def test_any_order_of_changes_ends_in_the_maps_of_the_final_rows_although_writes_fail(
    steps: list[tuple[str, Any]], which: str, seed: int
) -> None:
    maps, final = FaultyMaps(DictMaps(), seed), {}
    agent = Agent(maps, (), takes=which)
    for step, each in steps:
        if step == "pass":
            agent.world.settle()
            done(agent.reconciler.step())
            continue
        getattr(agent.world, step)(each)
        if step == "put":
            final[key(each)] = each
        else:
            final.pop(key(each), None)
    agent.settle()
    assert shown(maps) == maps_of(final.values(), which)
    agent.world.delete(*final.values())
    agent.settle()
    assert not [name for name in MADE_OF_PLANS if list(maps.items(name))]
    assert set(agent.target.state.sizes().values()) == {0}
