"""Plain Services in nftables: what is programmed for which Service."""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus.kube.objects.core import Service, ServiceStatus
from isthmus.kube.objects.discovery import EndpointSlice
from isthmus_lab.families import SCHEMES, Scheme
from isthmus_lab.node import balancers, services, tracking
from isthmus_lab.node.ruleset import ruleset as rules
from isthmus_lab.node.services import Vip
from isthmus_lab.node.tracking import Flow

FOUR, SIX = SCHEMES["IPv4"], SCHEMES["IPv6"]


def vips(known: list[Service], slices: list[EndpointSlice], scheme: Scheme = FOUR) -> list[Vip]:
    return services.vips(known, slices, scheme, node="n1")


def ruleset(found: list[Vip], scheme: Scheme = FOUR) -> str:
    return rules(found, scheme)


def service(name: str = "echo", **spec: Any) -> Service:
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    body = {"metadata": {"name": name, "namespace": "demo"}, "spec": {"clusterIP": "10.96.0.7", "ports": ports, **spec}}
    return msgspec.convert(body, Service)


def slice_of(*endpoints: dict[str, Any], name: str = "echo", port: str = "http", **more: Any) -> EndpointSlice:
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "demo", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": list(endpoints),
            "ports": [{"name": port, "port": 8080, "protocol": "TCP"}],
            **more,
        },
        EndpointSlice,
    )


def endpoint(address: str, *, node: str = "n1", **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions, "nodeName": node}


READY = slice_of(endpoint("10.1.1.3", ready=True), endpoint("10.1.1.2", ready=True), endpoint("10.1.1.9", ready=False))


def test_a_vip_goes_to_its_ready_endpoints_on_their_port() -> None:
    assert vips([service()], [READY]) == [Vip("10.96.0.7", "tcp", 80, (("10.1.1.2", 8080), ("10.1.1.3", 8080)))]


def test_a_service_without_endpoints_is_not_programmed_and_so_refused() -> None:
    assert vips([service()], [slice_of(endpoint("10.1.1.2", ready=False))]) == []
    assert "reject with tcp reset" in ruleset([])


def test_endpoints_that_end_but_serve_are_used_only_where_nothing_is_ready() -> None:
    draining = endpoint("10.1.1.4", ready=False, serving=True, terminating=True)
    assert vips([service()], [slice_of(draining)])[0].targets == (("10.1.1.4", 8080),)
    assert vips([service()], [slice_of(draining, endpoint("10.1.1.2", ready=True))])[0].targets == (("10.1.1.2", 8080),)


def test_each_family_has_a_table_of_its_own_addresses_and_a_node_port_where_the_service_has_an_address() -> None:
    ports = [{"name": "http", "port": 80, "nodePort": 30080}]
    both = service(type="NodePort", ports=ports, clusterIPs=["10.96.0.7", "fd00:10:96::7"])
    slices = [READY, slice_of(endpoint("fd00:10:1:1::2", ready=True), name="echo", addressType="IPv6")]
    six = vips([both], slices, SIX)
    assert [(vip.address, vip.targets) for vip in six] == [
        ("", (("fd00:10:1:1::2", 8080),)),
        ("fd00:10:96::7", (("fd00:10:1:1::2", 8080),)),
    ]
    assert [vip.address for vip in vips([both], slices)] == ["", "10.96.0.7"]
    assert vips([service(ports=ports)], slices, SIX) == [], "it has no address of that family"
    text = ruleset(six, SIX)
    assert "table ip6 services" in text
    assert "fd00:10:96::7 . tcp . 80 : goto" in text
    assert "ip daddr" not in text


def test_ports_are_joined_by_name_and_protocol() -> None:
    assert vips([service()], [slice_of(endpoint("10.1.1.2", ready=True), port="metrics")]) == []
    udp = [{"name": "http", "port": 80, "protocol": "UDP"}]
    assert vips([service(ports=udp)], [READY]) == []


def test_headless_and_external_services_have_no_vip() -> None:
    assert vips([service(clusterIP="None"), service(type="ExternalName", externalName="x")], [READY]) == []


def test_a_node_port_is_one_of_every_node_and_external_addresses_are_vips() -> None:
    ports = [{"name": "http", "port": 80, "nodePort": 30080}]
    found = vips([service(type="NodePort", ports=ports, externalIPs=["198.51.100.7"])], [READY])
    assert [(vip.address, vip.port) for vip in found] == [("", 30080), ("10.96.0.7", 80), ("198.51.100.7", 80)]
    assert "tcp . 30080 : goto s0" in ruleset(found)
    assert "chain s0 { meta mark set 16384; meta l4proto tcp dnat" in ruleset(found)
    assert "chain s2 { iifname eth0 meta mark set 16384; meta l4proto tcp dnat" in ruleset(found)


def test_unready_endpoints_are_used_where_the_service_asks_for_them() -> None:
    published = service(publishNotReadyAddresses=True)
    assert len(vips([published], [READY])[0].targets) == 3


def test_the_rules_do_not_depend_on_the_order_of_objects() -> None:
    other = service("other", clusterIP="10.96.0.8")
    slices = [READY, slice_of(endpoint("10.1.1.5", ready=True), name="other")]
    assert ruleset(vips([service(), other], slices)) == ruleset(vips([other, service()], slices[::-1]))


def test_traffic_policies_keep_calls_on_the_node() -> None:
    ports = [{"name": "http", "port": 80, "nodePort": 30080}]
    both = slice_of(endpoint("10.1.1.2", ready=True), endpoint("10.1.2.2", node="n2", ready=True))
    inside = vips([service(ports=ports, internalTrafficPolicy="Local")], [both])
    assert [len(vip.targets) for vip in inside] == [2, 1], "the node's port is called from outside"
    outside = vips([service(ports=ports, externalTrafficPolicy="Local")], [both])
    assert [(len(vip.targets), vip.outside) for vip in outside] == [(1, False), (2, False)]


STICKY: dict[str, Any] = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}}


def test_a_client_stays_where_it_is_for_as_long_as_asked() -> None:
    (vip,) = vips([service(**STICKY)], [READY])
    assert vip.sticky == 60
    assert vips([service(sessionAffinity="ClientIP")], [READY])[0].sticky == 10_800
    text = ruleset([vip])
    (one, two) = (line.split()[1] for line in text.splitlines() if line.startswith("  set c"))
    names = sorted((one, two))
    assert all(f"ip saddr @{name} goto {name}" in text for name in names)
    assert text.count("update @c") == text.count("timeout 60s") == 2


def test_who_stays_where_outlives_a_change_of_others() -> None:
    sticky = vips([service(**STICKY)], [READY])
    fewer = vips([service(**STICKY)], [slice_of(endpoint("10.1.1.2", ready=True))])
    other = vips([service("other", clusterIP="10.96.0.8")], [slice_of(endpoint("10.1.1.5", ready=True), name="other")])
    text = rules(fewer, FOUR, [*sticky, *other])
    assert text.startswith("flush table ip services\n")
    assert "delete chain ip services s1\n" in text, "there are two VIPs less one"
    assert text.count("delete set ip services c") == text.count("delete chain ip services c") == 1
    assert "delete" not in rules([*sticky, *other], FOUR, sticky)


def test_backends_that_datagrams_no_longer_go_to_are_listed() -> None:
    udp = [{"name": "http", "port": 53, "protocol": "UDP", "nodePort": 30053}]
    ports = [{"name": "http", "port": 8080, "protocol": "UDP"}]
    here, there = endpoint("10.1.1.2", ready=True), endpoint("10.1.1.3", ready=True)
    before = vips([service(ports=udp)], [slice_of(here, there, ports=ports)])
    now = vips([service(ports=udp)], [slice_of(here, ports=ports)])
    target = ("10.1.1.3", 8080)
    assert tracking.removed({FOUR: before}, {FOUR: now}) == {
        Flow("10.96.0.7", 53, target),
        Flow("", 30053, target),
    }
    assert tracking.removed({FOUR: vips([service()], [READY])}, {FOUR: []}) == set(), (
        "of TCP nothing is to be forgotten"
    )


def test_a_load_balancer_gets_the_first_free_address_of_each_of_its_families() -> None:
    balanced = {"type": "LoadBalancer", "clusterIPs": ["10.96.0.7", "fd00:10:96::7"]}
    has = msgspec.structs.replace(
        service("b", **balanced),
        status=msgspec.convert({"loadBalancer": {"ingress": [{"ip": "172.31.1.1"}]}}, ServiceStatus),
    )
    known = [service("c", **balanced), has, service("a", **balanced, loadBalancerClass="other"), service("d")]
    given = list(balancers.assign(known, ["172.31.1.0/24", "fd00:172:31:1::/120"]))
    assert [(each.metadata.name, ips) for each, ips in given] == [("c", ["172.31.1.2", "fd00:172:31:1::1"])]
