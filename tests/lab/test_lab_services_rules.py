"""Plain Services in nftables: what is programmed for which Service."""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus.kube.objects.core import Service
from isthmus.kube.objects.discovery import EndpointSlice
from isthmus.lab.families import SCHEMES, Scheme
from isthmus.lab.node import services
from isthmus.lab.node.services import Vip

FOUR, SIX = SCHEMES["IPv4"], SCHEMES["IPv6"]


def vips(known: list[Service], slices: list[EndpointSlice], scheme: Scheme = FOUR) -> list[Vip]:
    return services.vips(known, slices, scheme)


def ruleset(found: list[Vip], scheme: Scheme = FOUR) -> str:
    return services.ruleset(found, scheme)


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


def endpoint(address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions}


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
    assert "chain s0 { meta l4proto tcp meta mark set 16384 dnat" in ruleset(found)


def test_unready_endpoints_are_used_where_the_service_asks_for_them() -> None:
    published = service(publishNotReadyAddresses=True)
    assert len(vips([published], [READY])[0].targets) == 3


def test_the_rules_do_not_depend_on_the_order_of_objects() -> None:
    other = service("other", clusterIP="10.96.0.8")
    slices = [READY, slice_of(endpoint("10.1.1.5", ready=True), name="other")]
    assert ruleset(vips([service(), other], slices)) == ruleset(vips([other, service()], slices[::-1]))
