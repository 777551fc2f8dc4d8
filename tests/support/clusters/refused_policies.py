"""Specs of TrafficPolicies that cannot be followed, and what our source says is wrong with each."""

from __future__ import annotations

from typing import Any, Final


def clusters(*entries: dict[str, Any], **tier: Any) -> dict[str, Any]:
    """A tier of these clusters."""
    return {"clusters": list(entries), **tier}


REFUSED: Final[list[tuple[dict[str, Any], str]]] = [
    ({"targetRef": {}}, "spec.targetRef.name: empty"),
    (
        {"targetRef": {"kind": "Pod", "name": "x"}},
        "spec.targetRef.kind: 'Pod' is not one of ServiceImport, Service",
    ),
    ({"tiers": [clusters()]}, "spec.tiers[0].clusters: 0 entries, not 1 to 32"),
    ({"tiers": [clusters({})]}, "spec.tiers[0].clusters[0]: want either name, or region, zone or matchLabels"),
    (
        {"tiers": [clusters({"name": "c1", "zone": "a"})]},
        "spec.tiers[0].clusters[0]: want either name, or region, zone or matchLabels",
    ),
    (
        {"tiers": [clusters({"name": "c1", "matchLabels": {"a": "b"}})]},
        "spec.tiers[0].clusters[0]: want either name, or region, zone or matchLabels",
    ),
    (
        {"tiers": [clusters({"region": "r" * 64})]},
        f"spec.tiers[0].clusters[0].region: '{'r' * 64}' is not text of 0 to 63 printable characters",
    ),
    (
        {"tiers": [clusters({"matchLabels": {f"k{n}": "" for n in range(9)}})]},
        "spec.tiers[0].clusters[0].matchLabels: 9 labels, more than 8",
    ),
    (
        {"tiers": [clusters({"matchLabels": {"a b": "c"}})]},
        "spec.tiers[0].clusters[0].matchLabels: 'a b=c' is not a label, key=value",
    ),
    ({"tiers": [clusters({"name": "C 1"})]}, "spec.tiers[0].clusters[0].name: 'C 1' is not a cluster's name"),
    (
        {"tiers": [clusters({"name": "c1", "weight": 2**31})]},
        "spec.tiers[0].clusters[0].weight: 2147483648 is not a whole number from 0 to 1000000",
    ),
    (
        {"tiers": [clusters({"name": "c1", "weight": -1})]},
        "spec.tiers[0].clusters[0].weight: -1 is not a whole number from 0 to 1000000",
    ),
    (
        {"tiers": [clusters({"name": "c1"}, minHealthy="0%")]},
        "spec.tiers[0].minHealthy: '0%' is not a percentage from 1% to 100%",
    ),
    (
        {"tiers": [clusters({"name": "c1"}, minHealthy=0)]},
        "spec.tiers[0].minHealthy: 0 is not a whole number from 1 to 1000000",
    ),
    ({"tiers": [clusters({"name": "c1"})] * 17}, "spec.tiers: 17 tiers, more than 16"),
    ({"locality": "Planet"}, "spec.locality: 'Planet' is not one of Node, Zone, Region, Cluster"),
    (
        {"locality": "Node", "tiers": [clusters({"name": "c1"})]},
        "spec.locality: tiers and locality exclude each other",
    ),
    (
        {"sessionAffinityTimeoutSeconds": 0},
        "spec.sessionAffinityTimeoutSeconds: 0 is not a whole number from 1 to 86400",
    ),
    ({"ejection": {"maxSeconds": 0}}, "spec.ejection.maxSeconds: 0 is not a whole number from 1 to 3600"),
    ({"healthCheck": {"type": "ICMP"}}, "spec.healthCheck.type: 'ICMP' is not one of TCP, HTTP, GRPC"),
    ({"healthCheck": {"port": 65536}}, "spec.healthCheck.port: 65536 is not a whole number from 1 to 65535"),
    ({"healthCheck": {"path": "/a b"}}, "spec.healthCheck.path: '/a b' is not a path"),
    (
        {"healthCheck": {"path": "/" + "x" * 1024}},
        f"spec.healthCheck.path: '/{'x' * 46}… (1025 characters) is not a path",
    ),
    (
        {"healthCheck": {"host": "x\r\nEvil: 1"}},
        r"spec.healthCheck.host: 'x\r\nEvil: 1' is not a host, with or without a port",
    ),
    (
        {"healthCheck": {"service": "s" * 101}},
        f"spec.healthCheck.service: '{'s' * 47}… (101 characters) is not the name of a gRPC service",
    ),
    (
        {"healthCheck": {"unhealthyThreshold": 11}},
        "spec.healthCheck.unhealthyThreshold: 11 is not a whole number from 1 to 10",
    ),
    (
        {"healthCheck": {"intervalSeconds": 0}},
        "spec.healthCheck.intervalSeconds: 0 is not a whole number from 1 to 3600",
    ),
    (
        {"healthCheck": {"intervalSeconds": 2, "timeoutSeconds": 3}},
        "spec.healthCheck.timeoutSeconds: 3 is more than intervalSeconds, 2",
    ),
    ({"loadBalancing": "Best"}, "spec.loadBalancing: 'Best' is not one of Random, ConsistentHash"),
]
"""What a spec has beside a good ``targetRef``, and the row's field ``invalid``."""
