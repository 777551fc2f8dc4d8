"""The final rows alone decide which names there are, whatever order they came in."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus import dns, loadbalancer
from isthmus.loadbalancer import ClaimRules
from isthmus.model.mcs import MANAGED_BY
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Condition, Endpoint, EndpointSet, Import, Namespace, Node, Port, Service
from isthmus.model.tables import (
    ENDPOINT_SETS,
    IMPORTS,
    NAMES,
    NAMESPACES,
    NODES,
    POLICIES,
    SERVICES,
)
from isthmus.processes.start import tables_of
from isthmus.statedb import Database, Derivations

INPUTS = (SERVICES, ENDPOINT_SETS, IMPORTS, NAMESPACES, NODES, POLICIES)
TABLES: dict[type, Any] = {table.row: table for table in INPUTS}
NAMED = [ServiceName(name) for name in ("demo/a", "demo/b", "other/a")]
PORTS = st.lists(st.sampled_from([Port("http", 80), Port("", 81), Port("http", 80, "UDP")]), max_size=2).map(tuple)

imports = st.builds(
    Import,
    name=st.sampled_from(NAMED),
    type=st.sampled_from(["ClusterSetIP", "ClusterSetIP", "Headless"]),
    ports=PORTS,
    ips=st.sampled_from([(), ("10.96.0.1",), ("10.96.0.1", "fd00::1"), ("10.96.0.2",)]),
    annotations=st.sampled_from([(), ((MANAGED_BY, "isthmus-operator"),)]),
)
services = st.sampled_from(NAMED).flatmap(
    lambda name: st.builds(
        Service,
        name=st.just(derived(name)),
        source=st.just("kubernetes"),
        ports=PORTS,
        headless=st.booleans(),
        cluster_ips=st.sampled_from([(), ("10.96.0.1",), ("fd00::1",), ("10.96.0.2",)]),
        import_of=st.sampled_from([name, name, ServiceName("")]),
    )
)
endpoints = st.builds(
    EndpointSet,
    service=st.sampled_from([derived(name) for name in NAMED]),
    cluster=st.sampled_from([ClusterName("c1"), ClusterName("c2")]),
    source=st.just("clusterset"),
    part=st.just("record"),
    endpoints=st.lists(
        st.builds(
            Endpoint,
            address=st.sampled_from(["10.1.0.1", "fd01::1", "10.1.0.2"]),
            ports=PORTS,
            condition=st.sampled_from([Condition.READY, Condition.NOT_READY]),
            hostname=st.sampled_from(["", "web-0", "not.a.label"]),
        ),
        max_size=2,
    ).map(tuple),
)
namespaces = st.builds(Namespace, name=st.sampled_from(["demo", "demo", "other"]), terminating=st.booleans())
nodes = st.builds(Node, name=st.just("n2"), addresses=st.sampled_from([(), ("10.96.0.2",)]))
row = st.one_of(imports, imports, services, endpoints, namespaces, nodes)
RULES = ClaimRules(clusterset_ranges=(ip_network("10.96.0.0/16"),))


class World:
    def __init__(self, per_pass: int = 2_000) -> None:
        derived = [*loadbalancer.derived(ClusterName("c1"), "n1"), dns.derived("clusterset.local", rules=RULES)]
        self.db = Database(*tables_of(derived, *INPUTS))
        self.derivations = Derivations(self.db, *derived, units_per_pass=per_pass)

    def change(self, key: Any, row: Any) -> None:
        with self.db.write() as txn:
            if row is None:
                txn.delete(*key)
            else:
                txn.put(key[0], row)

    def names(self) -> list[Any]:
        while self.derivations.step():
            pass
        return sorted(self.db.snapshot().all(NAMES), key=NAMES.key)


@settings(max_examples=250, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["put", "put", "delete", "pass"]), row), max_size=30),
    per_pass=st.sampled_from([1, 2_000]),
)
@pytest.mark.slow
def test_any_order_of_changes_ends_where_the_final_rows_do(steps: list[tuple[str, Any]], per_pass: int) -> None:
    world, final = World(per_pass), dict[Any, Any]()
    for step, each in steps:
        if step == "pass":
            world.derivations.step()
            continue
        table = TABLES[type(each)]
        key = (table, table.key(each))
        final[key] = each if step == "put" else None
        world.change(key, final[key])
    fresh = World()
    for key, each in final.items():
        fresh.change(key, each)
    settled = [name for name in world.names() if name.service]
    assert settled == [name for name in fresh.names() if name.service]
    for key in final:
        world.change(key, None)
    assert [name for name in world.names() if name.service] == []
