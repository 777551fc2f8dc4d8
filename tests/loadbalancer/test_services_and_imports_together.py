"""Services and imports that change in one transaction: who is affected is looked up once for both."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rows.balancing_world import MANAGED, PERMISSIVE, World, key, make

from isthmus.loadbalancer import NO_EXCEPTIONS, ClaimRules
from isthmus.model.names import ServiceName, derived
from isthmus.model.services import Import, Node, Port, Service

A, B, OTHER = ServiceName("demo/a"), ServiceName("demo/b"), ServiceName("demo/z")
ADDRESSES = ["10.96.0.1", "10.96.0.2"]
PORTS = [(Port("http", 80),), (Port("http", 80, node_port=30080),), (Port("http", 30080),)]

services = st.builds(
    Service,
    name=st.sampled_from([derived(A), derived(A), derived(B), OTHER, A]),
    source=st.just("kubernetes"),
    type=st.sampled_from(["ClusterIP", "ClusterIP", "ClusterIP", "NodePort"]),
    ports=st.sampled_from(PORTS),
    cluster_ips=st.sampled_from([(each,) for each in ADDRESSES]),
    external_ips=st.sampled_from([(), (), ("10.96.0.2",)]),
    created=st.sampled_from(["", "2026-01-01T00:00:00Z"]),
    import_of=st.sampled_from([A, A, B, ServiceName("")]),
)
imports = st.builds(
    Import,
    name=st.sampled_from([A, A, B]),
    ports=st.sampled_from(PORTS),
    ips=st.sampled_from([(each,) for each in ADDRESSES]),
    annotations=st.just(MANAGED),
)
nodes = st.builds(Node, name=st.just("n1"), addresses=st.sampled_from([(), ("10.96.0.1",)]))
rows = st.one_of(services, imports, services, imports, nodes)
Change = tuple[bool, Any]
changes = st.lists(st.lists(st.tuples(st.booleans(), rows), min_size=1, max_size=6), min_size=1, max_size=4)


def service(of: ServiceName, address: str, **fields: Any) -> Service:
    return make.service(derived(of), import_of=of, cluster_ips=(address,), **fields)


def imported(name: ServiceName, address: str) -> Import:
    return make.imported(name, ips=(address,))


@settings(max_examples=300, deadline=None)
@given(changes, st.sampled_from([PERMISSIVE, NO_EXCEPTIONS]))
@example(  # the import alone shadows another's address, which its Service has not got
    [
        [(True, make.service(OTHER, cluster_ips=("10.96.0.1",))), (True, imported(A, "10.96.0.1"))],
        [(False, imported(A, "10.96.0.1")), (True, service(A, "10.96.0.2"))],
    ],
    PERMISSIVE,
)
@example(  # a Service of another name is labelled as the import's own
    [
        [(True, make.service(OTHER, import_of=A, cluster_ips=("10.96.0.2",)))],
        [(False, make.service(OTHER, import_of=A)), (True, imported(A, "10.96.0.2"))],
    ],
    PERMISSIVE,
)
@example(  # what the import alone had goes with it, as a Service of another name takes its address
    [
        [(True, imported(A, "10.96.0.2"))],
        [(False, imported(A, "10.96.0.2")), (True, make.service(OTHER, import_of=A, cluster_ips=("10.96.0.2",)))],
    ],
    PERMISSIVE,
)
@example(  # two Services are labelled so, and the import that both stand for goes with one of them
    [
        [
            (True, service(A, "10.96.0.1")),
            (True, make.service(OTHER, import_of=A, cluster_ips=("10.96.0.2",))),
            (True, make.imported(A, ips=("10.96.0.1",), affinity="ClientIP")),
        ],
        [(False, service(A, "10.96.0.1")), (False, imported(A, "10.96.0.1"))],
    ],
    PERMISSIVE,
)
@example(  # an import's address is the node's too, where another Service has its port as a node port
    [
        [
            (True, Node("n1", addresses=("10.96.0.1",))),
            (True, make.service(OTHER, type="NodePort", ports=PORTS[1], cluster_ips=("10.96.0.2",))),
            (True, make.imported(A, ips=("10.96.0.1",), ports=PORTS[2])),
        ],
        [
            (False, make.imported(A, ips=("10.96.0.1",), ports=PORTS[2])),
            (True, service(A, "10.96.0.1", ports=PORTS[0])),
        ],
    ],
    PERMISSIVE,
)
@example(  # a Service and an import of one name have refused claims, and only the Service's end
    [
        [
            (True, make.service(A, external_ips=("10.96.0.2",), cluster_ips=("10.96.0.1",))),
            (True, imported(A, "9.9.9.9")),
        ],
        [(True, make.service(A, cluster_ips=("10.96.0.1",)))],
    ],
    NO_EXCEPTIONS,
)
@example(  # a Service's addresses change, beside another import
    [
        [(True, service(A, "10.96.0.1")), (True, imported(A, "10.96.0.1"))],
        [(True, service(A, "10.96.0.2")), (True, imported(B, "10.96.0.1"))],
    ],
    NO_EXCEPTIONS,
)
@pytest.mark.slow
def test_what_follows_from_services_and_imports_that_change_together_is_what_the_final_rows_give(
    steps: list[list[Change]], rules: ClaimRules
) -> None:
    world, present = World("all", rules=rules), dict[Any, Any]()
    for step in steps:
        with world.db.write() as txn:
            for put, row in step:
                table = world.db.tables[key(row)[0]]
                if put:
                    txn.put(table, row)
                    present[key(row)] = row
                else:
                    txn.delete(table, table.key(row))
                    present.pop(key(row), None)
        world.settle()
        anew = World("all", rules=rules).put(*present.values())
        assert world.frontends == anew.frontends
        assert world.plans == anew.plans
        assert world.refused == anew.refused
