"""Random clusters of one or two families, flat or islands, and policies: every share is that of a model of ten lines.

A backend is one pod, whichever addresses it has: the kernel's plan of a family has the pods with an address of it and
all pods of islands, which the node's Envoy calls; Envoy's plan of a routed port has the pods of all clusters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes.route_world import C1, RouteWorld, route
from msgspec import structs
from rows.shares_model import CLUSTERS, Topology, in_envoy, in_kernel, labels, model, tiers

from isthmus.gateway.listeners import NodeSettings
from isthmus.loadbalancer import checks, own_ranges, policy_objects, shares
from isthmus.loadbalancer.services import resolve
from isthmus.model import tables
from isthmus.model.balancing import BackendKey, Plan, Probe
from isthmus.model.clusters import Cluster
from isthmus.model.islands import GatewayCheck
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.policies import ANY_OTHER, Policy, Share, Tier
from isthmus.model.services import Endpoint, EndpointSet, Family, Import, Port, Service
from isthmus.model.xds import ServedListener
from isthmus.processes.start import tables_of
from isthmus.statedb import Database

ECHO: Final = ServiceName("demo/echo")
DERIVED: Final = derived(ECHO)
FAMILIES: Final[tuple[Family, ...]] = ("IPv4", "IPv6")
HTTP: Final = (Port("", 80, app_protocol="http"),)
LISTENING: Final = ("127.7.7.7", "fd00:7::7")
SETTINGS: Final = NodeSettings(C1, "clusterset.local", Path("/run/isthmus/proxy"), LISTENING, 19_100, 4_000)
EVENLY: Final = [Tier((Share(cluster=ClusterName(ANY_OTHER)),))]
"""The tiers that a policy without any acts as."""
ROUTE: Final = route("""
parentRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: echo}]
rules: [{backendRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: echo, port: 80}]}]
""")


class Site(Cluster, frozen=True, gc=False, kw_only=True):
    """A cluster with its families, whether it is an island, and its pods: alive, found dead."""

    families: tuple[Family, ...] = FAMILIES
    alive: int = 0
    dead: int = 0

    @property
    def is_island(self) -> bool:
        return bool(self.network)

    def counts(self, *, family: Family | None = None) -> tuple[int, int, int]:
        """Pods that can be called by a family; an island answers as a whole, at its gateways."""
        if family is not None and not self.is_island and family not in self.families:
            return 0, 0, 0
        return self.alive, self.dead, 0

    def endpoint_set(self) -> EndpointSet:
        number = int(self.name[1:])
        prefix = {"IPv4": f"10.{number}.0.", "IPv6": f"fd00:{number}::"}
        rows = [
            Endpoint(f"{prefix[family]}{host}", (Port("", 8080),))
            for family in self.families
            for host in range(1, self.alive + self.dead + 1)
        ]
        source = "kubernetes" if self.own else "clusterset"
        ordered = tuple(sorted(rows, key=lambda row: row.address))
        return EndpointSet(DERIVED, self.name, source, "record", ordered)

    def rows(self) -> list[tuple[Any, Any]]:
        """The cluster, its endpoints, and the probes by which its dead pods are known."""
        fields = {name: getattr(self, name) for name in Cluster.__struct_fields__}
        return [(tables.CLUSTERS, Cluster(**fields)), (tables.ENDPOINT_SETS, self.endpoint_set()), *self.verdicts()]

    def verdicts(self) -> list[tuple[Any, Any]]:
        """The rows of probes: of an island those of its gateway, by the node's Envoy and by the operator."""
        if self.is_island:
            healthy, key = not self.dead, checks.gateway_key(self.name, self.gateways[0])
            assert key is not None
            check = GatewayCheck(cluster=self.name, address=self.gateways[0], healthy=healthy)
            return [(tables.GATEWAY_CHECKS, check), (tables.PROBES, Probe(key, healthy))]
        dead = [each for each in self.endpoint_set().endpoints if _host(each.address) > self.alive]
        keys = [BackendKey(DERIVED, self.name, each.address, 8080, "TCP") for each in dead]
        return [(tables.PROBES, Probe(key, healthy=False)) for key in keys]


def _host(address: str) -> int:
    return int(address.rpartition(".")[2]) if "." in address else int(address.rpartition(":")[2])


def site(
    name: ClusterName, region: str, tags: tuple[tuple[str, str], ...], island: bool, alive: int, dead: int
) -> Site:
    number = int(name[1:])
    network = name if island and name != C1 else ""
    if network and dead:
        alive, dead = 0, alive + dead
    return Site(
        name=name,
        own=name == C1,
        state="ready",
        region=region,
        labels=tags,
        network=network,
        gateways=(f"192.0.2.{number}:15443",) if network else (),
        alive=alive,
        dead=dead,
    )


def sites(name: ClusterName) -> st.SearchStrategy[Site]:
    built = st.builds(
        site,
        st.just(name),
        st.sampled_from(["", "r1", "r2"]),
        labels,
        st.booleans(),
        st.integers(0, 3),
        st.sampled_from([0, 0, 1, 2]),
    )
    return st.tuples(built, st.sampled_from([("IPv4",), ("IPv6",), FAMILIES])).map(
        lambda pair: structs.replace(pair[0], families=pair[1])
    )


class Node:
    """What a node of c1 with an Envoy plans for an import of these clusters, and what the operator expects of it."""

    def __init__(self, policy: Policy, clusters: tuple[Site, ...]) -> None:
        world = RouteWorld(*LISTENING, island=SETTINGS)
        imported = Import(
            name=ECHO, ports=HTTP, clusters=CLUSTERS, families=FAMILIES, derived=DERIVED.partition("/")[2]
        )
        ips = "10.96.0.1", "fd00:96::1"
        service = Service(DERIVED, "kubernetes", ports=HTTP, cluster_ips=ips, import_of=ECHO)
        rows = [(tables.IMPORTS, imported), (tables.SERVICES, service), (tables.POLICIES, policy)]
        rows += [pair for each in clusters for pair in each.rows()]
        put(world.db, *rows, (tables.ROUTES, ROUTE))
        served = [ServedListener(row.name) for row in world.derive().rows(tables.ISLAND_LISTENERS)]
        put(world.db, *((tables.XDS_SERVED, row) for row in served))
        self._node = world.derive().db.snapshot()
        operator = Database(*tables_of([own_ranges.derived(C1), policy_objects.derived(C1)]))
        put(operator, *(pair for pair in rows if pair[0] is not tables.GATEWAY_CHECKS))
        self._operator = operator.snapshot()

    def of_kernel(self, family: Family) -> Plan:
        [plan] = [each for each in self._node.by(tables.PLANS, "service", DERIVED) if each.key.family == family]
        return plan

    def of_envoy(self) -> Plan:
        [plan] = self._node.by(tables.ROUTE_PLANS, "service", DERIVED)
        return plan

    def of_status(self) -> dict[str, Plan]:
        """The plans whose shares the operator writes, by family: none without backends of it."""
        subject = resolve(self._operator, DERIVED, which="multicluster")
        [policy] = self._operator.all(tables.POLICIES)
        assert subject is not None
        found = policy_objects.planned(self._operator, subject, policy, cluster=C1)
        return {each.key.family: each for each in found}


@settings(max_examples=100, deadline=None)
@given(policy=st.lists(tiers, max_size=3), clusters=st.tuples(*map(sites, CLUSTERS)), refuse=st.booleans())
@pytest.mark.slow
def test_shares_of_kernel_envoy_and_status_are_those_of_the_model(
    policy: list[Tier], clusters: tuple[Site, ...], refuse: bool
) -> None:
    hold(policy, clusters, refuse=refuse)


def test_a_pod_of_two_families_an_island_of_one_and_a_cluster_of_the_other_share_alike() -> None:
    """The random examples' rule in a quick one: two pods each."""
    clusters = (
        site(CLUSTERS[0], "", (), False, 2, 0),
        structs.replace(site(CLUSTERS[1], "", (), True, 2, 0), families=("IPv4",)),
        structs.replace(site(CLUSTERS[2], "", (), False, 2, 0), families=("IPv6",)),
    )
    node = hold([], clusters)
    third = pytest.approx(1 / 3)
    assert shares.by_cluster(node.of_envoy()) == {"c1": third, "c2": third, "c3": third}
    assert shares.by_cluster(node.of_kernel("IPv4")) == {"c1": 0.5, "c2": 0.5}


def hold(policy: list[Tier], clusters: tuple[Site, ...], *, refuse: bool = False) -> Node:
    """Every share is the model's."""
    node = Node(Policy(name=ECHO, target=ECHO, tiers=tuple(policy), refuse=refuse), clusters)

    def expected(family: Family | None) -> object:
        counts = {each.name: each.counts(family=family) for each in clusters}
        topology = Topology(clusters, dict.fromkeys(CLUSTERS, (0, 0, 0)) | counts)
        return pytest.approx(model(policy or EVENLY, topology, refuse=refuse), abs=1e-4)

    of_status = node.of_status()
    for family in FAMILIES:
        plan = node.of_kernel(family)
        assert shares.by_cluster(plan) == expected(family)
        assert in_kernel(plan) == expected(family)
        if family in of_status:
            assert shares.by_cluster(of_status[family]) == expected(family)
    assert shares.by_cluster(node.of_envoy()) == expected(None)
    assert in_envoy(node.of_envoy()) == expected(None)
    return node


def put(db: Database, *rows: tuple[Any, Any]) -> None:
    with db.write() as txn:
        for table, row in rows:
            txn.put(table, row)
