"""Which addresses a Service is called at, and who has one that several claim."""

from __future__ import annotations

from typing import Any

import pytest
from rows.balancing_world import PERMISSIVE, World, make

from isthmus.model.balancing import Scope
from isthmus.model.services import Node, Port

NODE = Node("n1", ("172.30.1.11",))


def test_external_addresses_are_called_like_cluster_ones() -> None:
    every = World("all", rules=PERMISSIVE)
    every.put(make.service(external_ips=("192.0.2.1",)))
    assert every.called() == {"10.96.0.7:80/TCP": "demo/echo", "192.0.2.1:80/TCP": "demo/echo"}


def test_a_load_balancers_addresses_are_called_only_while_it_is_one() -> None:
    every = World("all")
    every.put(make.service(type="LoadBalancer", load_balancer_ips=("192.0.2.1",)))
    assert "192.0.2.1:80/TCP" in every.called()
    every.put(make.service(load_balancer_ips=("192.0.2.1",)))
    assert "192.0.2.1:80/TCP" not in every.called()


def test_a_node_port_is_called_at_every_address_of_this_node_as_they_come_and_go() -> None:
    every = World("all")
    every.put(make.service(type="NodePort", ports=(Port("http", 80, node_port=30080),)))
    assert every.called() == {"10.96.0.7:80/TCP": "demo/echo"}
    every.put(NODE, Node("n2", ("172.30.1.12",)))
    assert every.called() == {"10.96.0.7:80/TCP": "demo/echo", "172.30.1.11:30080/TCP": "demo/echo"}
    every.put(Node("n1", ("fd30::11",)))
    assert set(every.called()) == {"10.96.0.7:80/TCP", "[fd30::11]:30080/TCP"}


def test_a_node_port_has_the_plan_of_its_services_port() -> None:
    every = World("all")
    every.put(NODE, make.service(type="NodePort", ports=(Port("http", 80, node_port=30080),)))
    [plan] = every.plans
    assert [str(key) for key in plan.frontends] == ["10.96.0.7:80/TCP", "172.30.1.11:30080/TCP"]


def test_a_service_of_type_cluster_ip_has_no_node_port_whatever_its_ports_say() -> None:
    every = World("all")
    every.put(NODE, make.service(ports=(Port("http", 80, node_port=30080),)))
    assert every.called() == {"10.96.0.7:80/TCP": "demo/echo"}


def test_a_headless_service_has_no_frontend() -> None:
    every = World("all")
    every.put(make.service(headless=True))
    assert every.frontends == []


def test_calls_from_inside_and_outside_have_plans_of_their_own_where_the_policies_differ() -> None:
    every = World("all")
    ports = (Port("http", 80, node_port=30080),)
    every.put(NODE, make.service(type="NodePort", ports=ports, external_policy="Local"))
    assert {str(row.key): row.plan.scope for row in every.frontends} == {
        "10.96.0.7:80/TCP": Scope.INTERNAL,
        "172.30.1.11:30080/TCP": Scope.EXTERNAL,
        "172.30.1.11:30080/TCP/i": Scope.INTERNAL,
    }


def test_equal_policies_need_one_plan() -> None:
    every = World("all")
    ports = (Port("http", 80, node_port=30080),)
    every.put(NODE, make.service(type="NodePort", ports=ports, external_policy="Local", internal_policy="Local"))
    assert {row.plan.scope for row in every.frontends} == {Scope.EXTERNAL}
    assert len(every.plans) == 1


def test_an_external_address_never_takes_a_cluster_address_from_its_service() -> None:
    every = World("all", rules=PERMISSIVE)
    every.put(make.service("demo/thief", cluster_ips=(), external_ips=("10.96.0.7",), created="2020-01-01T00:00:00Z"))
    every.put(make.service(created="2026-01-01T00:00:00Z"))
    [row] = every.frontends
    assert (row.service, row.shadowed) == ("demo/echo", ("demo/thief",))


def test_an_address_that_a_plain_service_has_is_left_alone_whoever_else_claims_it() -> None:
    world = World(rules=PERMISSIVE)
    world.put(make.service("demo/plain"), make.globally("demo/thief", cluster_ips=(), external_ips=("10.96.0.7",)))
    assert world.frontends == []
    world.delete(make.service("demo/plain"))
    assert world.called() == {"10.96.0.7:80/TCP": "demo/thief"}


@pytest.mark.parametrize("first", ["demo/old", "demo/new"])
def test_the_older_service_has_an_address_and_the_other_surfaces_when_it_goes(first: str) -> None:
    every = World("all")
    rows = {
        "demo/old": make.service("demo/old", created="2026-01-01T00:00:00Z"),
        "demo/new": make.service("demo/new", created="2026-01-02T00:00:00Z"),
    }
    every.put(rows.pop(first)).settle()
    every.put(*rows.values())
    assert [(row.service, row.shadowed) for row in every.frontends] == [("demo/old", ("demo/new",))]
    every.delete(make.service("demo/old"))
    assert [(row.service, row.shadowed) for row in every.frontends] == [("demo/new", ())]


def test_of_equally_old_services_the_first_name_has_the_address() -> None:
    every = World("all")
    every.put(make.service("demo/b"), make.service("demo/a"))
    assert every.called() == {"10.96.0.7:80/TCP": "demo/a"}


def test_a_service_of_a_better_source_has_the_address_though_it_is_younger() -> None:
    every = World("all")
    every.put(make.service("demo/file", source="files", created="2020-01-01T00:00:00Z"))
    every.put(make.service("demo/kube", created="2026-01-01T00:00:00Z"))
    assert every.called() == {"10.96.0.7:80/TCP": "demo/kube"}


def test_one_service_of_two_sources_is_as_the_better_one_says_and_falls_back() -> None:
    every = World("all")
    file = make.service(source="files", cluster_ips=("10.96.0.9",))
    every.put(file, make.service())
    assert every.called() == {"10.96.0.7:80/TCP": "demo/echo"}
    every.delete(make.service())
    assert every.called() == {"10.96.0.9:80/TCP": "demo/echo"}


def test_ports_of_one_address_may_belong_to_two_services() -> None:
    every = World("all", rules=PERMISSIVE)
    shared: dict[str, Any] = {"cluster_ips": (), "external_ips": ("192.0.2.1",)}
    every.put(make.service("demo/a", **shared), make.service("demo/b", ports=(Port("tls", 443),), **shared))
    assert every.called() == {"192.0.2.1:80/TCP": "demo/a", "192.0.2.1:443/TCP": "demo/b"}


def test_an_address_passes_from_one_service_to_another_in_one_pass() -> None:
    every = World("all")
    every.put(make.service("demo/a"), make.endpoints("c1", "10.1.1.2", service="demo/b")).settle()
    every.delete(make.service("demo/a")).put(make.service("demo/b"))  # one pass sees both
    assert every.reached() == {"demo/b:80/TCP/IPv4": ["c1/10.1.1.2:8080"]}


def test_a_load_balancer_on_a_nodes_address_may_not_take_node_ports() -> None:
    every = World("all")
    every.put(NODE, Node("n2", ("172.30.1.12",)))
    ports = (Port("web", 80), Port("high", 30080))
    every.put(make.service("demo/lb", type="LoadBalancer", load_balancer_ips=("172.30.1.12",), ports=ports))
    assert set(every.called()) == {"10.96.0.7:80/TCP", "10.96.0.7:30080/TCP", "172.30.1.12:80/TCP"}
    every.delete(Node("n2"))
    assert "172.30.1.12:30080/TCP" in every.called()


def test_a_node_port_never_takes_an_address_that_a_service_names() -> None:
    every = World("all")
    node_port = make.service("demo/np", type="NodePort", cluster_ips=(), ports=(Port("a", 80, node_port=25000),))
    at: Any = {"type": "LoadBalancer", "load_balancer_ips": ("172.30.1.11",)}
    named = make.service("demo/lb", cluster_ips=(), ports=(Port("b", 25000),), **at)
    every.put(NODE, node_port, named)
    assert [(row.service, row.shadowed) for row in every.frontends] == [("demo/lb", ("demo/np",))]
    every.delete(named)
    assert every.called() == {"172.30.1.11:25000/TCP": "demo/np"}


def host_port(pod: str = "demo/pod", number: int = 8080, **fields: Any) -> Any:
    ports = (Port("", number, node_port=number),)
    return make.service(f"{pod}:host-port:{number}", type="HostPort", cluster_ips=(), ports=ports, **fields)


def test_a_host_port_is_called_at_every_address_of_this_node_and_reaches_its_pod() -> None:
    every = World("all").put(NODE, host_port())
    endpoint = make.endpoint("10.1.0.9", ports=(Port("", 80),))
    every.put(make.endpoints("c1", endpoint, service="demo/pod:host-port:8080"))
    assert [(str(row.key), row.type) for row in every.frontends] == [("172.30.1.11:8080/TCP", "HostPort")]
    assert list(every.reached().values()) == [["c1/10.1.0.9:80"]]
    every.delete(host_port())
    assert every.frontends == []


def test_a_host_port_that_names_its_address_is_called_there_only() -> None:
    every = World("all").put(Node("n1", ("172.30.1.11", "172.30.9.9")), host_port(external_ips=("172.30.9.9",)))
    assert set(every.called()) == {"172.30.9.9:8080/TCP"}


def test_a_host_port_among_the_node_ports_is_ignored() -> None:
    assert World("all").put(NODE, host_port(number=30080)).frontends == []


def test_a_host_port_never_takes_an_address_that_a_service_names_and_has_it_when_that_goes() -> None:
    at: Any = {"type": "LoadBalancer", "load_balancer_ips": ("172.30.1.11",)}
    named = make.service("demo/lb", cluster_ips=(), ports=(Port("b", 8080),), **at)
    every = World("all").put(NODE, host_port(), named)
    assert [(row.service, row.shadowed) for row in every.frontends] == [("demo/lb", ("demo/pod:host-port:8080",))]
    every.delete(named)
    assert [row.type for row in every.frontends] == ["HostPort"]


def test_a_pod_that_comes_again_under_its_name_takes_its_host_port_over() -> None:
    every = World("all").put(NODE, host_port(uid="1")).settle()
    every.put(host_port(uid="2"))
    assert set(every.called()) == {"172.30.1.11:8080/TCP"}
