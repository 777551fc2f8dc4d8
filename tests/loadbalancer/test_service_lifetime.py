"""Who owns a service and when it ends: each row of docs/decisions/service-lifetime.md is a test of its name here."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from datapath_worlds.bpf_world import done
from rows.balancing_world import PERMISSIVE, World, make

from isthmus.datapath import PlanTarget
from isthmus.datapath.core.maps import DictMaps
from isthmus.datapath.services.installed import State
from isthmus.model.services import Node, Port
from isthmus.model.tables import PLANS, SERVICES
from isthmus.statedb import Reconciler

PLAN = "demo/echo:80/TCP/IPv4"
FIRST, SECOND = ["c1/10.1.1.1:8080"], ["c1/10.1.1.2:8080"]


def slice_(address: str, **fields: Any) -> Any:
    return make.endpoints("c1", address, service="demo/echo", **fields)


def every(*rows: Any) -> World:
    return World("all").put(*rows)


class Numbered(World):
    """With maps behind it: which number the kernel knows a service and its backends by."""

    def __init__(self, *rows: Any) -> None:
        super().__init__("all")
        self.target = PlanTarget(DictMaps(), State(), grace=0.0)
        self.reconciler = Reconciler(self.db, PLANS, self.target)
        self.put(*rows)

    def numbers(self) -> dict[str, int]:
        self.settle()
        done(self.reconciler.step())
        units = {str(key): unit.service for key, unit in self.target.state.units.items()}
        return units | {str(target.address): each.id for target, each in self.target.state.by_target.items()}


# begin and end


def test_endpoints_alone_make_no_service() -> None:
    world = every(slice_("10.1.1.1"))
    assert (world.frontends, world.backends, world.plans) == ([], [], [])


def test_a_service_begins_with_the_first_row_that_says_so_and_has_its_endpoints_at_once() -> None:
    assert every(slice_("10.1.1.1")).put(make.service()).reached() == {PLAN: FIRST}


def test_a_service_ends_with_the_last_row_that_says_so_whatever_else_speaks_of_it() -> None:
    world = every(make.service(), make.service(source="files"), slice_("10.1.1.1"), make.local(), make.pod())
    assert world.delete(make.service()).reached() == {PLAN: ["c1/10.1.1.9:8080"]}
    world.delete(make.service(source="files"))
    assert (world.frontends, world.backends, world.plans) == ([], [], [])


def test_one_that_comes_again_is_as_if_it_had_never_gone() -> None:
    world = every(make.service(uid="1"), slice_("10.1.1.1")).settle()
    world.delete(make.service()).settle()
    assert world.put(make.service(uid="2")).reached() == {PLAN: FIRST}


def test_gone_and_back_in_one_change_is_no_change_in_the_kernel() -> None:
    world = Numbered(make.service(uid="1"), slice_("10.1.1.1"))
    before = world.numbers()
    with world.db.write() as txn:
        txn.delete(SERVICES, SERVICES.key(make.service()))
        txn.put(SERVICES, make.service(uid="2"))
    assert world.numbers() == before


# who is right


def test_a_better_source_is_right_about_all_of_a_service_and_the_other_surfaces_when_it_goes() -> None:
    fields = make.service(cluster_ips=("10.96.0.8",), affinity="ClientIP", source="files")
    world = every(fields, slice_("10.1.1.1"))
    assert world.plans[0].affinity == "ClientIP"
    world.put(make.service())
    assert (list(world.called()), world.plans[0].affinity) == (["10.96.0.7:80/TCP"], "None")
    world.delete(make.service())
    assert (list(world.called()), world.plans[0].affinity) == (["10.96.0.8:80/TCP"], "ClientIP")


COMES_FIRST = [
    order for order in itertools.permutations("abAB") if all(order.index(x) < order.index(x.upper()) for x in "ab")
]


@pytest.mark.parametrize("order", COMES_FIRST)
def test_a_hand_over_between_sources_never_leaves_a_call_without_backend(order: tuple[str, ...]) -> None:
    """The new source puts its two rows, the old one takes each of its own away after that, in any such order."""
    world = every(make.service(source="files"), slice_("10.1.1.1", source="files")).settle()
    steps = {
        "a": lambda: world.put(make.service()),
        "b": lambda: world.put(slice_("10.1.1.1")),
        "A": lambda: world.delete(make.service(source="files")),
        "B": lambda: world.delete(slice_("10.1.1.1", source="files")),
    }
    for step in order:
        steps[step]()
        assert world.reached() == {PLAN: FIRST}


def test_precedence_is_for_all_endpoints_of_a_cluster_so_a_lagging_copy_brings_nothing_back() -> None:
    copy = make.endpoints("c2", "10.2.1.1", "10.2.1.2", service="demo/echo", source="kubernetes", part="copy")
    world = World().put(make.globally(), copy, make.endpoints("c2", "10.2.1.1", service="demo/echo"))
    assert world.reached() == {PLAN: ["c2/10.2.1.1:8080"]}
    world.delete(make.endpoints("c2", service="demo/echo"))
    assert world.reached() == {PLAN: ["c2/10.2.1.1:8080", "c2/10.2.1.2:8080"]}


def test_a_cluster_or_a_source_that_goes_takes_its_own_endpoints_and_nobody_elses() -> None:
    two, three = (make.endpoints(c, f"10.{c[1]}.1.1", service="demo/echo") for c in ("c2", "c3"))
    world = World().put(make.globally(), slice_("10.1.1.1"), two, three)
    assert world.delete(two).reached() == {PLAN: ["c1/10.1.1.1:8080", "c3/10.3.1.1:8080"]}


# what changes under its name


@pytest.mark.parametrize(
    ("fields", "called"),
    [
        ({"type": "NodePort"}, {"10.96.0.7:80/TCP", "172.30.1.11:30080/TCP"}),
        ({"type": "LoadBalancer"}, {"10.96.0.7:80/TCP", "172.30.1.11:30080/TCP", "192.0.2.1:80/TCP"}),
        ({"type": "ExternalName", "cluster_ips": ()}, set()),
        ({"headless": True, "cluster_ips": ()}, set()),
    ],
)
def test_a_type_flip_moves_addresses_and_nothing_else(fields: dict[str, Any], called: set[str]) -> None:
    ports = (Port("http", 80, node_port=30080),)
    plain = make.service(ports=ports, load_balancer_ips=("192.0.2.1",))
    flipped = make.service(**({"ports": ports, "load_balancer_ips": ("192.0.2.1",)} | fields))
    world = every(Node("n1", ("172.30.1.11",)), plain, slice_("10.1.1.1"))
    before = (world.called(), world.plans, world.backends)
    assert set(world.put(flipped).called()) == called
    world.put(plain)
    assert (world.called(), world.plans, world.backends) == before


def test_a_service_that_moves_to_another_address_is_still_the_same_one() -> None:
    world = Numbered(make.service(), slice_("10.1.1.1"))
    before = world.numbers()
    world.put(make.service(cluster_ips=("10.96.0.8",)))
    assert world.numbers() == before
    assert list(world.called()) == ["10.96.0.8:80/TCP"]


def test_an_address_that_passes_to_another_service_is_never_without_one() -> None:
    world = every(make.service("demo/a"), make.service("demo/b", created="2026-01-01T00:00:00Z"))
    seen = [world.called()]
    seen.append(world.delete(make.service("demo/b")).called())
    assert seen == [{"10.96.0.7:80/TCP": "demo/b"}, {"10.96.0.7:80/TCP": "demo/a"}]


def test_a_port_that_is_renamed_is_the_same_plan_with_the_backends_of_its_new_name() -> None:
    both = make.endpoint("10.1.1.1", ports=(Port("http", 8080), Port("web", 8081)))
    world = Numbered(make.service(), make.endpoints("c1", both, service="demo/echo"))
    before = world.numbers()[PLAN]
    world.put(make.service(ports=(Port("web", 80),)))
    assert world.reached() == {PLAN: ["c1/10.1.1.1:8081"]}
    assert world.numbers()[PLAN] == before


def test_a_service_that_is_no_longer_shared_is_nobodys_of_ours() -> None:
    world = World().put(make.globally(), slice_("10.1.1.1"))
    assert world.reached() == {PLAN: FIRST}
    world.put(make.service())
    assert (world.frontends, world.backends, world.plans) == ([], [], [])


# imports


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_an_import_and_its_derived_service_are_one_service_in_any_order(order: tuple[int, ...]) -> None:
    rows = [make.imported(), make.derived(), make.endpoints("c2", "10.2.1.1")]
    world, plan = World(rules=PERMISSIVE), {f"{make.DERIVED}:80/TCP/IPv4": ["c2/10.2.1.1:8080"]}
    for number in order:
        world.put(rows[number]).settle()
    assert (world.reached(), len(world.frontends)) == (plan, 1)
    world.delete(rows[1])
    assert world.reached() == plan, "called at the import's own addresses now"
    world.put(rows[1]).delete(rows[0])
    assert world.reached() == plan, "the derived Service says whom it stands for"
    world.delete(rows[1])
    assert (world.frontends, world.backends, world.plans) == ([], [], [])


def test_a_service_of_the_imports_name_is_another_service() -> None:
    world = every(make.imported(), make.derived(), make.service(cluster_ips=("10.96.0.8",)), slice_("10.1.1.1"))
    assert world.called() == {"10.96.0.7:80/TCP": make.DERIVED, "10.96.0.8:80/TCP": "demo/echo"}


# overrides, numbers


def test_an_override_keeps_no_service_alive_and_outlives_it() -> None:
    world = every(make.local(), make.pod(), make.service()).settle()
    world.delete(make.service())
    assert (world.frontends, world.plans, len(world.redirects)) == ([], [], 1)
    assert world.put(make.service()).reached() == {PLAN: ["c1/10.1.1.9:8080"]}


def test_when_all_is_gone_no_number_is_in_use() -> None:
    rows = [make.service(), slice_("10.1.1.1"), make.local(), make.pod()]
    world = Numbered(*rows)
    assert world.numbers()
    world.delete(*rows)
    world.numbers()
    done(world.target.prune(()))
    world.target.sweep_due()
    world.target.sweep_due()
    assert set(world.target.state.sizes().values()) == {0}
