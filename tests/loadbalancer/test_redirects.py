"""Redirects: what goes elsewhere, which redirect counts, and that the original is back when the row goes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace
from rows.balancing_world import PERMISSIVE, World, make

from isthmus.loadbalancer import Place
from isthmus.loadbalancer.explain import explain
from isthmus.loadbalancer.tiers import MAX_GROUPS
from isthmus.model.balancing import Plan
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Policy, Share, Tier
from isthmus.model.redirects import LocalRedirect, Requirement
from isthmus.model.services import Node, Port
from isthmus.model.tables import BACKENDS, FRONTENDS, PLANS, REDIRECTS

ECHO = "demo/echo:80/TCP/IPv4"
FAR = {ECHO: ["c1/10.1.1.2:8080"]}
NEAR = {ECHO: ["c1/10.1.1.9:8080"]}
IMPORT = f"{make.DERIVED}:80/TCP/IPv4"


def served(**fields: Any) -> World:
    """A plain Service with one endpoint, on a node that takes every Service."""
    return World("all", rules=PERMISSIVE).put(
        make.service(**fields), make.endpoints("c1", "10.1.1.2", service="demo/echo")
    )


def test_calls_of_a_service_go_to_the_ready_pods_of_this_node_while_the_policy_is_there() -> None:
    world = served().put(make.pod())
    assert world.reached() == FAR
    world.put(make.local())
    assert world.reached() == NEAR
    assert [row.redirected_by for row in world.plans] == ["CiliumLocalRedirectPolicy demo/near"]
    world.delete(make.local())
    assert world.reached() == FAR


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_service_endpoints_policy_and_pod_come_and_go_in_any_order(order: tuple[int, ...]) -> None:
    rows = [make.service(), make.endpoints("c1", "10.1.1.2", service="demo/echo"), make.local(), make.pod()]
    world = World("all")
    for number in order:
        world.put(rows[number]).settle()
    assert world.reached() == NEAR
    for number in order:
        world.delete(rows[number]).settle()
    assert (world.frontends, world.plans, world.redirects) == ([], [], [])


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_a_policy_names_an_import_by_its_own_name_where_no_service_has_it(order: tuple[int, ...]) -> None:
    rows = [make.imported(clusters=("c2",)), make.derived(), make.local(), make.pod()]
    world = World().put(make.endpoints("c2", "10.2.0.1"), make.cluster("c2"))
    for number in order:
        world.put(rows[number]).settle()
    assert world.reached() == {IMPORT: NEAR[ECHO]}
    notes = explain(world.db.snapshot(), make.DERIVED, place=Place(ClusterName("c1"), "n1")).notes
    assert "redirected by CiliumLocalRedirectPolicy demo/near, for the ports it means" in notes
    plain = make.service(cluster_ips=("10.96.0.99",))
    world.put(plain).settle()
    assert world.reached() == NEAR | {IMPORT: ["c2/10.2.0.1:8080"]}, "it is the Service's now"
    world.delete(plain).settle()
    assert world.reached() == {IMPORT: NEAR[ECHO]}
    for number in order:
        world.delete(rows[number]).settle()
    assert (world.plans, world.redirects) == ([], [])


@pytest.mark.parametrize(
    "pod",
    [
        make.pod(ready=False),
        make.pod(phase="Failed"),
        make.pod("other/near"),
        make.pod(labels=(("app", "far"),)),
        make.pod(ports=()),
        make.pod(ports=(Port("http", 8080, "UDP"),)),
        make.pod(address="fd01::9"),
    ],
    ids=["not ready", "ended", "another namespace", "not selected", "no port", "another protocol", "another family"],
)
def test_without_a_pod_that_answers_there_is_no_redirect(pod: Any) -> None:
    assert served().put(make.local(), pod).reached() == FAR


def test_the_original_is_back_when_the_last_pod_is_not_ready_and_gone_again_when_it_is() -> None:
    world = served().put(make.local(), make.pod())
    assert world.reached() == NEAR
    assert world.put(make.pod(ready=False)).reached() == FAR
    assert world.put(make.pod()).reached() == NEAR


def test_a_policy_that_names_another_service_gives_the_first_one_back() -> None:
    world = served().put(make.local(), make.pod()).settle()
    world.put(make.service("demo/other", cluster_ips=("10.96.0.9",)), make.local(service="demo/other"))
    assert world.reached() == {**FAR, "demo/other:80/TCP/IPv4": ["c1/10.1.1.9:8080"]}


def test_only_the_ports_named_are_redirected() -> None:
    world = served(ports=(Port("http", 80), Port("admin", 81)))
    far = make.endpoint("10.1.1.2", ports=(Port("http", 8080), Port("admin", 8081)))
    world.put(make.endpoints("c1", far, service="demo/echo"), make.pod(), make.local(ports=(Port("", 80),)))
    assert world.reached() == {**NEAR, "demo/echo:81/TCP/IPv4": ["c1/10.1.1.2:8081"]}


def test_of_several_backend_ports_a_call_takes_the_one_named_as_the_services_port_in_any_letter_case() -> None:
    ports = (Port("http", 80), Port("admin", 81), Port("other", 82))
    here = (Port("HTTP", 8080), Port("admin", 9090))
    world = served(ports=ports).put(make.pod(ports=here), make.local(backend_ports=here))
    assert world.reached() == {
        **NEAR,
        "demo/echo:81/TCP/IPv4": ["c1/10.1.1.9:9090"],
        "demo/echo:82/TCP/IPv4": [],
    }
    world.put(make.service(ports=(Port("web", 80),)))
    assert world.redirects
    assert world.reached() == {ECHO: []}, "a port that changed its name is not the one that was meant"


def test_a_tcp_port_is_never_sent_to_a_udp_one() -> None:
    udp = (Port("dns", 5353, "UDP"),)
    world = served(ports=(Port("dns", 53), Port("dns", 53, "UDP")))
    world.put(make.pod(ports=udp), make.local(backend_ports=udp))
    assert world.reached() == {"demo/echo:53/TCP/IPv4": [], "demo/echo:53/UDP/IPv4": ["c1/10.1.1.9:5353"]}


def test_a_redirect_has_neither_the_affinity_nor_the_policies_of_the_service() -> None:
    world = served(affinity="ClientIP", internal_policy="Local").put(make.local(), make.pod())
    [plan] = world.plans
    assert (plan.affinity, plan.affinity_timeout, plan.consistent) == ("None", 0, False)
    assert world.reached() == NEAR


def test_an_address_that_is_no_services_is_redirected_and_let_go_with_the_last_pod() -> None:
    world = World(rules=PERMISSIVE).put(address(), make.pod())
    assert world.called() == {"169.254.169.254:80/TCP": "demo/near:local-redirect"}
    assert [row.type for row in world.frontends] == ["LocalRedirect"]
    assert list(world.reached().values()) == [["c1/10.1.1.9:8080"]]
    world.put(make.pod(ready=False))
    assert (world.called(), world.reached()) == ({}, {})


def address(name: str = "demo/near", at: str = "169.254.169.254", **fields: Any) -> LocalRedirect:
    return make.local(name, "", address=at, **({"ports": (Port("", 80),)} | fields))


def test_the_ports_of_an_address_go_to_the_backend_ports_of_their_names() -> None:
    called = (Port("web", 80), Port("admin", 81), Port("lost", 82))
    here = (Port("web", 8080), Port("admin", 9090))
    world = World(rules=PERMISSIVE).put(address(ports=called, backend_ports=here), make.pod(ports=here))
    assert list(world.reached().values()) == [["c1/10.1.1.9:8080"], ["c1/10.1.1.9:9090"]]


@pytest.mark.parametrize("which", ["all", "multicluster"])
def test_an_address_that_a_service_has_is_never_taken_from_it(which: str) -> None:
    world = World(which, rules=PERMISSIVE).put(address(at="10.96.0.7"), make.pod()).settle()
    assert list(world.called().values()) == ["demo/near:local-redirect"]
    world.put(make.service())
    assert list(world.called().values()) == (["demo/echo"] if which == "all" else [])
    if which == "all":
        assert world.frontends[0].shadowed == ("demo/near:local-redirect",)
    world.delete(make.service())
    assert list(world.called().values()) == ["demo/near:local-redirect"]


def test_the_older_policy_has_an_address_that_two_want() -> None:
    world = World(rules=PERMISSIVE).put(make.pod(), make.pod("demo/b", "10.1.1.8", labels=(("app", "b"),)))
    older = address("demo/z", created="2025-01-01T00:00:00Z", selector=(Requirement("app", "In", ("b",)),))
    world.put(address(created="2026-01-01T00:00:00Z"), older)
    assert list(world.reached().values()) == [["c1/10.1.1.8:8080"]]
    world.delete(older)
    assert list(world.reached().values()) == [["c1/10.1.1.9:8080"]]


def test_calls_of_the_pods_themselves_are_marked_where_the_policy_says_so() -> None:
    world = served().put(make.local(skip_from_backend=True), make.pod(), make.pod("demo/b", "10.1.1.8"))
    assert [row.skip for row in world.plans] == [("10.1.1.8", "10.1.1.9"), ()]
    world.put(make.pod("demo/b", "10.1.1.8", labels=()))
    assert [row.skip for row in world.plans] == [("10.1.1.9",), ()]
    world.put(make.local())
    assert [row.skip for row in world.plans] == [()]


def test_the_calls_that_a_redirect_does_not_mean_have_the_plan_of_the_original_beside_it() -> None:
    world = served().put(make.pod(), make.local(skip_from_backend=True))
    [(key, far)] = FAR.items()
    assert world.reached() == NEAR | {f"{key}/o": far}
    assert [str(key) for key in world.plans[1].frontends] == ["10.96.0.7:80/TCP/o"]
    world.delete(make.local())
    assert world.reached() == FAR


def test_the_original_of_a_plain_service_is_not_ours_so_those_calls_go_where_they_were_going() -> None:
    world = World().put(make.service(), make.endpoints("c1", "10.1.1.1", service="demo/echo"), make.pod())
    assert list(world.put(make.local(skip_from_backend=True)).reached()) == ["demo/echo:80/TCP/IPv4"]


def test_an_original_follows_the_traffic_policy_that_its_calls_had() -> None:
    world = served(internal_policy="Local", type="NodePort", ports=(Port("http", 80, node_port=30080),))
    world.put(Node("n1", ("172.30.1.11",)), make.pod(), make.local(skip_from_backend=True))
    originals = {str(plan.key): plan for plan in world.plans if plan.key.scope & 2}
    assert list(originals) == ["demo/echo:80/TCP/IPv4/o", "demo/echo:80/TCP/IPv4/oi"]
    assert originals["demo/echo:80/TCP/IPv4/oi"].groups == ()
    assert originals["demo/echo:80/TCP/IPv4/o"].groups != ()


def test_a_plain_service_is_ours_as_far_as_it_is_redirected_and_no_longer() -> None:
    world = World().put(make.service(ports=(Port("http", 80), Port("admin", 81))), make.pod())
    assert world.called() == {}
    world.put(make.local(ports=(Port("", 80),)))
    assert (world.called(), world.reached()) == ({"10.96.0.7:80/TCP": "demo/echo"}, NEAR)
    world.delete(make.local())
    assert (world.called(), world.reached()) == ({}, {})


def test_a_local_redirect_counts_at_cluster_ips_and_the_other_addresses_of_the_service_keep_the_original() -> None:
    ports = (Port("http", 80, node_port=30080), Port("admin", 81, node_port=30081))
    world = served(type="NodePort", ports=ports, external_ips=("192.0.2.7",))
    before = world.put(Node("n1", ("172.30.1.11",)), make.pod()).reached()
    redirect = make.local(ports=(Port("", 80),))
    plans = {str(plan.key): [str(key) for key in plan.frontends] for plan in world.put(redirect).plans}
    assert plans == {
        "demo/echo:80/TCP/IPv4": ["10.96.0.7:80/TCP"],
        "demo/echo:80/TCP/IPv4/o": ["172.30.1.11:30080/TCP", "192.0.2.7:80/TCP"],
        "demo/echo:81/TCP/IPv4": ["10.96.0.7:81/TCP", "172.30.1.11:30081/TCP", "192.0.2.7:81/TCP"],
    }
    [(_, far)] = FAR.items()
    assert world.reached()["demo/echo:80/TCP/IPv4/o"] == far
    world.put(make.local(ports=(Port("", 80),), skip_from_backend=True))
    plans = {str(plan.key): [str(key) for key in plan.frontends] for plan in world.plans}
    assert plans["demo/echo:80/TCP/IPv4/o"] == ["10.96.0.7:80/TCP/o", "172.30.1.11:30080/TCP", "192.0.2.7:80/TCP"]
    assert world.delete(redirect).reached() == before


def test_the_node_port_of_a_plain_service_is_not_ours_because_its_cluster_ip_is_redirected() -> None:
    world = World().put(make.service(type="NodePort", ports=(Port("http", 80, node_port=30080),)), make.pod())
    world.put(Node("n1", ("172.30.1.11",)), make.local())
    assert world.called() == {"10.96.0.7:80/TCP": "demo/echo"}


def test_a_proxy_counts_where_a_local_redirect_does_not() -> None:
    """At the addresses and for the callers that the local one does not mean, and at every address without it."""
    world = served(type="NodePort", ports=(Port("http", 80, node_port=30080),))
    world.put(Node("n1", ("172.30.1.11",)), make.pod(), make.proxied(service="demo/echo"))
    [plan] = world.plans
    assert [str(key) for key in plan.frontends] == ["10.96.0.7:80/TCP", "172.30.1.11:30080/TCP"]
    world.put(make.local(skip_from_backend=True))
    assert {str(plan.key): plan.redirected_by for plan in world.plans} == {
        "demo/echo:80/TCP/IPv4": "CiliumLocalRedirectPolicy demo/near",
        "demo/echo:80/TCP/IPv4/o": "HTTPRoute demo/r",
    }


def imported() -> World:
    ports = (Port("http", 80), Port("admin", 81))
    here = make.endpoint("10.2.1.2", ports=(Port("http", 8080), Port("admin", 8081)))
    return World().put(make.derived(ports=ports), make.endpoints("c2", here))


ADMIN = f"{make.DERIVED}:81/TCP/IPv4"
ORIGINAL = {IMPORT: ["c2/10.2.1.2:8080"], ADMIN: ["c2/10.2.1.2:8081"]}
PROXY = ["c1/169.254.7.2:15001"]


def test_a_proxy_takes_a_whole_service() -> None:
    world = imported().put(make.proxied())
    assert world.reached() == {IMPORT: PROXY, ADMIN: PROXY}
    proxies = {(group.tier, target.proxy) for row in world.plans for group in row.groups for target in group.targets}
    assert proxies == {(0, True), (1, False)}
    assert world.delete(make.proxied()).reached() == ORIGINAL


def groups(plan: Plan) -> list[str]:
    return [f"{group.tier} {group.weight} {target.address}" for group in plan.groups for target in group.targets]


def ordered(*clusters: str) -> Policy:
    """A policy of tiers of one cluster each."""
    return Policy(
        name=ServiceName("demo/p"), target=make.ECHO, tiers=tuple(Tier((Share(ClusterName(c)),)) for c in clusters)
    )


def test_behind_a_proxy_stand_the_backends_of_the_service_in_their_order() -> None:
    """So a connect that the proxy refuses is moved to them. No affinity: who was moved comes back to the proxy."""
    world = World().put(make.derived(affinity="ClientIP"), make.endpoints("c1", "10.1.1.2"), make.proxied())
    world.put(make.endpoints("c2", "10.2.1.2"), ordered("c2", "c1"))
    [plan] = world.plans
    assert groups(plan) == ["0 1 169.254.7.2", "1 1 10.2.1.2", "2 1 10.1.1.2"]
    assert (plan.affinity, plan.redirected_by) == ("None", "HTTPRoute demo/r")
    world.put(make.endpoints("c2"))
    assert groups(world.plans[0]) == ["0 1 169.254.7.2", "1 1 10.1.1.2"]


def test_a_proxy_of_a_service_with_as_many_groups_as_the_kernel_has_room_for_is_programmed() -> None:
    names = [f"c{number}" for number in range(1, MAX_GROUPS + 1)]
    world = World().put(make.derived(), make.proxied(), ordered(*names))
    world.put(*(make.endpoints(name, f"10.{number}.1.2") for number, name in enumerate(names, 1)))
    [plan] = world.plans
    assert [group.tier for group in plan.groups] == list(range(MAX_GROUPS))


CONSUMER = make.proxied(owner="HTTPRoute app/r", at=15007, callers="app")


def consumers(plan: Plan) -> list[str]:
    return [f"{each.namespace} {each.target.address}:{each.target.port}" for each in plan.consumers]


def test_a_proxy_for_callers_of_one_namespace_stands_beside_the_services_own_backends() -> None:
    world = World().put(make.derived(affinity="ClientIP"), make.endpoints("c1", "10.1.1.2"))
    [without] = world.plans
    [plan] = world.put(CONSUMER).plans
    assert consumers(plan) == ["app 169.254.7.2:15007"]
    assert replace(plan, consumers=()) == without
    assert world.delete(CONSUMER).plans == [without]


def plain() -> World:
    """A Service with one endpoint, on a node that takes those of the clusterset."""
    return World().put(make.service(), make.endpoints("c1", "10.1.1.2", service="demo/echo"))


def test_of_a_service_that_is_not_ours_calls_of_other_namespaces_are_not_answered() -> None:
    world = plain().put(replace(CONSUMER, service=ServiceName("demo/echo")))
    [plan] = world.plans
    assert (plan.consumers_only, consumers(plan), groups(plan)) == (True, ["app 169.254.7.2:15007"], ["0 1 10.1.1.2"])


def test_a_proxy_for_callers_of_one_namespace_stands_beside_that_of_all_others() -> None:
    world = imported().put(make.proxied(80), CONSUMER)
    assert world.reached() == {**ORIGINAL, IMPORT: PROXY}
    assert [consumers(plan) for plan in world.plans] == [["app 169.254.7.2:15007"]] * 2


def test_each_namespace_has_the_proxy_of_its_oldest_redirect() -> None:
    older = make.proxied(owner="HTTPRoute app/z", at=15008, callers="app", created="2020-01-01T00:00:00Z")
    world = imported().put(replace(CONSUMER, created="2021-01-01T00:00:00Z"), older, replace(CONSUMER, callers="bbb"))
    assert consumers(world.plans[0]) == ["app 169.254.7.2:15008", "bbb 169.254.7.2:15007"]


def test_a_local_redirect_comes_before_a_proxy_for_callers_of_one_namespace() -> None:
    """But for calls that the local one leaves alone."""
    world = served().put(make.pod(), make.local(), replace(CONSUMER, service=ServiceName("demo/echo")))
    assert [consumers(plan) for plan in world.plans] == [[]]
    world.put(make.local(skip_from_backend=True))
    assert {str(plan.key): consumers(plan) for plan in world.plans} == {
        "demo/echo:80/TCP/IPv4": [],
        "demo/echo:80/TCP/IPv4/o": ["app 169.254.7.2:15007"],
    }


def test_a_proxy_of_a_plain_service_has_that_services_backends_behind_it() -> None:
    world = plain().put(make.proxied(service="demo/echo"))
    assert groups(world.plans[0]) == ["0 1 169.254.7.2", "1 1 10.1.1.2"]


def test_a_proxy_takes_one_port() -> None:
    assert imported().put(make.proxied(80)).reached() == {**ORIGINAL, IMPORT: PROXY}


def test_what_an_owner_says_of_one_port_comes_before_what_it_says_of_all() -> None:
    every, one = make.proxied(at=15002).listeners[0], make.proxied(80).listeners[0]
    both = make.proxied()
    for listeners in ((every, one), (one, every)):
        world = imported().put(type(both)(service=both.service, owner=both.owner, listeners=listeners))
        assert world.reached() == {IMPORT: PROXY, ADMIN: ["c1/169.254.7.2:15002"]}


def test_a_redirect_may_come_before_its_service_and_stays_when_the_service_changes() -> None:
    world = World().put(make.proxied()).settle()
    world.put(make.derived(), make.endpoints("c2", "10.2.1.2"))
    assert world.reached() == {IMPORT: PROXY}
    world.put(make.derived(affinity="ClientIP"), make.endpoints("c2", "10.2.1.3"))
    assert world.reached() == {IMPORT: PROXY}


@pytest.mark.parametrize("turn", [False, True])
def test_of_two_on_one_service_the_local_one_wins_then_the_older_then_the_name(turn: bool) -> None:
    """Each surfaces when the one before it goes."""
    local = make.local(service=make.DERIVED, ports=(Port("", 80),), created="2026-01-01T00:00:00Z")
    first = make.proxied(owner="HTTPRoute demo/z", at=15001, created="2024-01-01T00:00:00Z")
    second = make.proxied(owner="HTTPRoute demo/b", at=15002, created="2025-01-01T00:00:00Z")
    rows = [local, first, second]
    world = imported().put(make.pod())
    for row in reversed(rows) if turn else rows:
        world.put(row).settle()
    seen = []
    for row in rows:
        seen.append([world.reached()[IMPORT], world.reached()[ADMIN]])
        world.delete(row)
    other = ["c1/169.254.7.2:15002"]
    assert seen == [[["c1/10.1.1.9:8080"], PROXY], [PROXY, PROXY], [other, other]]
    assert world.reached() == ORIGINAL


@pytest.mark.parametrize(
    ("operator", "values", "met"),
    [
        ("In", ("near", "x"), True),
        ("In", ("x",), False),
        ("NotIn", ("x",), True),
        ("NotIn", ("near",), False),
        ("Exists", (), True),
        ("DoesNotExist", (), False),
    ],
)
def test_every_operator_of_a_selector_means_what_it_says(operator: Any, values: tuple[str, ...], met: bool) -> None:
    selector = (Requirement("app", operator, values),)
    assert served().put(make.local(selector=selector), make.pod()).reached() == (NEAR if met else FAR)


def test_an_empty_selector_takes_every_pod_of_the_namespace() -> None:
    world = served().put(make.local(selector=()), make.pod(labels=()), make.pod("other/near", "10.1.1.8"))
    assert world.reached() == NEAR


def test_inputs_that_say_the_same_again_change_no_row() -> None:
    rows = [make.service(), make.endpoints("c1", "10.1.1.2", service="demo/echo"), make.local(), make.pod()]
    world = World("all").put(*rows).settle()
    before = world.db.snapshot()
    world.put(*rows, make.pod(labels=(("app", "near"), ("more", "x")))).settle()
    for table in (REDIRECTS, FRONTENDS, BACKENDS, PLANS):
        assert world.db.snapshot().revision(table) == before.revision(table), table


def test_of_several_backend_ports_the_first_counts_where_one_port_is_called() -> None:
    here = (Port("udp", 5353, "UDP"), Port("main", 8080), Port("other", 9090))
    policy = make.local(ports=(Port("", 80),), backend_ports=here)
    world = served().put(make.pod(ports=(Port("whatever", 8080), Port("other", 9090))), policy)
    assert world.reached() == NEAR, "its name means nothing then"
    at = address(ports=(Port("", 80),), backend_ports=here)
    world.delete(policy).put(at)
    assert world.reached()["demo/near:local-redirect:80/TCP/IPv4"] == ["c1/10.1.1.9:8080"]


def test_with_one_port_of_a_service_a_pod_that_declares_no_port_is_a_target() -> None:
    """Cilium's script service-matcher-single-port-fallback."""
    two = (Port("https", 8080), Port("dtls", 8080, "UDP"))
    world = served().put(make.pod(ports=()), make.local(ports=(Port("https", 80),), backend_ports=two))
    assert world.reached() == NEAR
    world.put(make.pod(ports=(Port("other", 9090),)))
    assert world.reached() == FAR, "a pod that declares other ports declares that it does not have this one"
    world.put(make.pod(ports=()), make.local(backend_ports=two))
    assert world.reached() == {ECHO: ["c1/10.1.1.2:8080"]}, "with all ports of the service it is none"


@pytest.mark.parametrize(
    ("pods", "fields", "shortcoming"),
    [
        ((), {}, "selects no pod of this node"),
        ((make.pod(ready=False),), {}, "none of the 1 pods it selects is ready"),
        ((make.pod(ports=()),), {}, "none of its 1 ready pods declares port 8080/TCP"),
        ((make.pod(),), {"ports": (Port("", 81),)}, "lists port 81/TCP, which Service demo/echo does not have"),
        (
            (make.pod(),),
            {"ports": (Port("", 80),), "backend_ports": (Port("a", 8080), Port("b", 9090))},
            "lists one called port and 2 backend ports: the first counts, port 8080/TCP",
        ),
        (
            (make.pod(),),
            {"backend_ports": (Port("http", 8080), Port("b", 9090))},
            "none of its 1 ready pods declares port 9090/TCP named 'b'",
        ),
    ],
)
def test_a_policy_that_redirects_nothing_is_explained(
    pods: tuple[Any, ...], fields: dict[str, Any], shortcoming: str
) -> None:
    world = served().put(*pods, make.local(**fields))
    found = explain(world.settle().db.snapshot(), ServiceName("demo/echo"), place=Place(ClusterName("c1"), "n1"))
    assert f"CiliumLocalRedirectPolicy demo/near {shortcoming}" in found.notes
