"""Services: defaults, addresses, and what a Service may not be."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from clusters.apiserver_world import Client, Object

RANGE = ipaddress.ip_network("10.96.0.0/16")


def service(name: str = "a", **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


async def test_a_service_has_an_address_of_the_range_and_keeps_it(client: Client) -> None:
    made = await client.made("services", service(selector={"app": "a"}))
    spec = made["spec"]
    assert ipaddress.ip_address(spec["clusterIP"]) in RANGE
    assert spec["clusterIPs"] == [spec["clusterIP"]]
    assert (spec["type"], spec["sessionAffinity"], spec["internalTrafficPolicy"]) == ("ClusterIP", "None", "Cluster")
    assert (spec["ipFamilies"], spec["ipFamilyPolicy"]) == (["IPv4"], "SingleStack")
    assert spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    replaced = await client.call("PUT", "services/a", service(ports=[{"port": 81}]))
    assert replaced.body["spec"]["clusterIP"] == spec["clusterIP"]


async def test_a_headless_service_has_none(client: Client) -> None:
    made = await client.made("services", {"metadata": {"name": "a"}, "spec": {"clusterIP": "None"}})
    assert (made["spec"]["clusterIP"], made["spec"]["clusterIPs"]) == ("None", ["None"])
    assert made["spec"]["ipFamilies"] == ["IPv4", "IPv6"], "whoever makes its endpoints may have both"
    chosen = await client.made("services", service("b", clusterIP="None", selector={"a": "b"}))
    assert chosen["spec"]["ipFamilies"] == ["IPv4"]


async def test_an_address_can_be_asked_for_once(client: Client) -> None:
    await client.made("services", service("a", clusterIP="10.96.200.200"))
    taken = await client.create("services", service("b", clusterIP="10.96.200.200"))
    assert taken.status == 422
    assert "provided IP is already allocated" in taken.body["message"]
    await client.delete("services/a")
    await client.made("services", service("b", clusterIP="10.96.200.200"))
    outside = await client.create("services", service("c", clusterIP="10.97.0.1"))
    assert (outside.status, "does not match the current range" in outside.body["message"]) == (422, True)


async def test_an_address_does_not_change(client: Client) -> None:
    await client.made("services", service())
    changed = await client.patch("services/a", {"spec": {"clusterIP": "10.96.1.1", "clusterIPs": ["10.96.1.1"]}})
    assert (changed.status, changed.reason) == (422, "Invalid")
    assert "may not change once set" in changed.body["message"]


async def test_a_service_becomes_an_alias_and_back(client: Client) -> None:
    await client.made("services", service())
    alias = await client.patch("services/a", {"spec": {"type": "ExternalName", "externalName": "example.com"}})
    assert "clusterIP" not in alias.body["spec"]
    back = await client.patch("services/a", {"spec": {"type": "ClusterIP", "externalName": None}})
    assert ipaddress.ip_address(back.body["spec"]["clusterIP"]) in RANGE


async def test_node_ports_are_given_and_taken(client: Client) -> None:
    made = await client.made("services", service(type="NodePort"))
    port = made["spec"]["ports"][0]["nodePort"]
    assert 30000 <= port < 32768
    taken = await client.create("services", service("b", type="NodePort", ports=[{"port": 80, "nodePort": port}]))
    assert (taken.status, "already allocated" in taken.body["message"]) == (422, True)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"ports": []}, "spec.ports: Required value"),
        ({"ports": [{"port": 0}]}, "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"),
        ({"ports": [{"port": 1}, {"port": 2}]}, "spec.ports[0].name: Required value"),
        ({"ports": [{"port": 1, "protocol": "X"}]}, 'spec.ports[0].protocol: Unsupported value: "X"'),
        ({"type": "Other"}, 'spec.type: Unsupported value: "Other": supported values: "ClusterIP", "ExternalName"'),
        ({"sessionAffinity": "Yes"}, 'spec.sessionAffinity: Unsupported value: "Yes"'),
        ({"type": "ExternalName"}, "spec.externalName: Invalid value"),
        ({"clusterIP": "x", "clusterIPs": ["x"]}, 'spec.clusterIPs[0]: Invalid value: "x": must be a valid IP address'),
        ({"ports": "x"}, "Expected `array`, got `str` - at `$.spec.ports`"),
    ],
)
async def test_what_is_wrong_with_a_service_is_reported_by_field(client: Client, spec: Object, message: str) -> None:
    refused = await client.create("services", service(**spec))
    assert refused.status in (400, 422)
    assert message in refused.body["message"]


async def test_a_service_name_begins_with_a_letter(client: Client) -> None:
    refused = await client.create("services", service("1a"))
    assert refused.body["message"].startswith('Service "1a" is invalid: metadata.name: Invalid value: "1a": a DNS-1035')


async def test_the_api_itself_is_a_service(client: Client) -> None:
    found = (await client.get("/api/v1/namespaces/default/services/kubernetes")).body
    assert found["spec"]["clusterIP"] == "10.96.0.1"
    where = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
    endpoints = (await client.get(where)).body
    assert endpoints["ports"][0]["port"] == client.server.port
