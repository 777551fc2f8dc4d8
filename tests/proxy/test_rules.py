"""What Envoy would refuse is found before it is sent, named by its field."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.proxy.messages import duration, message, packed
from isthmus.proxy.rules import problem

CLUSTER = "envoy.config.cluster.v3.Cluster"
ENDPOINTS = "envoy.config.endpoint.v3.ClusterLoadAssignment"
ROUTES = "envoy.config.route.v3.RouteConfiguration"
LISTENER = "envoy.config.listener.v3.Listener"
TCP_PROXY = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"


def a_route(**fields: Any) -> dict[str, Any]:
    route: dict[str, Any] = {"match": {"prefix": "/"}, "route": {"cluster": "a"}}
    return {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route | fields]}]}


@pytest.mark.parametrize(
    ("name", "fields", "wrong"),
    [
        (CLUSTER, {"name": ""}, "name: is shorter than 1 characters"),
        (CLUSTER, {"name": "a", "connect_timeout": duration(0)}, "connect_timeout: has to be greater than 0.0"),
        (CLUSTER, {"name": "a", "type": 99}, "type: is no value of its enum"),
        (
            ENDPOINTS,
            {"cluster_name": "a", "endpoints": [{"priority": 129}]},
            "endpoints[0].priority: has to be at most 128",
        ),
        (
            ENDPOINTS,
            {"cluster_name": "a", "endpoints": [{"load_balancing_weight": {"value": 0}}]},
            "endpoints[0].load_balancing_weight: has to be at least 1",
        ),
        (ROUTES, a_route(match={}), "virtual_hosts[0].routes[0].match: one of path_specifier is required"),
        (
            ROUTES,
            a_route(request_headers_to_add=[{"header": {"key": "x", "value": "a\nb"}}]),
            "virtual_hosts[0].routes[0].request_headers_to_add[0].header.value: is no valid header",
        ),
        (ROUTES, {"virtual_hosts": [{"name": "a"}]}, "virtual_hosts[0].domains: has fewer than 1 items"),
        (
            LISTENER,
            {"filter_chains": [{"filters": [{"name": "a", "typed_config": packed(TCP_PROXY, cluster="a")}]}]},
            "filter_chains[0].filters[0].typed_config(TcpProxy).stat_prefix: is shorter than 1 characters",
        ),
    ],
)
def test_what_breaks_a_rule_is_named(name: str, fields: dict[str, Any], wrong: str) -> None:
    assert problem(name, message(name)(**fields).SerializeToString()) == wrong


def test_what_keeps_the_rules_has_no_problem() -> None:
    assert problem(ROUTES, message(ROUTES)(name="a", **a_route()).SerializeToString()) == ""


def test_bytes_that_are_no_such_message_are_a_problem() -> None:
    assert problem(CLUSTER, b"\xff\xff") != ""
    assert problem("envoy.Nothing", b"") == "envoy.Nothing: not a message of Envoy's that is known here"
