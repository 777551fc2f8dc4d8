"""TrafficPolicy and GlobalTrafficPolicy objects as rows, and what is wrong with some."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from clusters.refused_policies import REFUSED, clusters

from isthmus.kube.objects import policies as wire
from isthmus.model.balancing import Ejection
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import HealthCheck, Policy, Share, Tier
from isthmus.sources.policies import MAX_CLUSTERS, MAX_TIERS, MAX_WEIGHT, global_traffic_policy, traffic_policy

ROOT = Path(__file__).parents[2]
METADATA = {
    "name": "echo",
    "namespace": "demo",
    "uid": "u",
    "generation": 3,
    "creationTimestamp": "2026-01-01T00:00:00Z",
}


def policy(**spec: Any) -> Policy:
    body = {"metadata": METADATA, "spec": {"targetRef": {"name": "echo"}, **spec}}
    return traffic_policy(msgspec.json.decode(msgspec.json.encode(body), type=wire.TrafficPolicy))


def test_a_policy_is_a_row_with_its_tiers_in_order() -> None:
    found = policy(
        tiers=[
            clusters({"name": "c1", "weight": 90}, {"name": "."}, minHealthy=3),
            clusters({"region": "eu", "zone": "a", "matchLabels": {"z": "1", "class": "gold"}}, minHealthy="50%"),
            clusters({"name": "*"}),
        ],
        sessionAffinity="ClientIP",
        sessionAffinityTimeoutSeconds=60,
        loadBalancing="ConsistentHash",
        whenNothingUsable="Refuse",
        ejection={"consecutiveFailures": 5, "baseSeconds": 60},
        healthCheck={"type": "HTTP", "path": "/ready", "intervalSeconds": 2, "unhealthyThreshold": 5},
    )
    assert found == Policy(
        name=ServiceName("demo/echo"),
        target=ServiceName("demo/echo"),
        tiers=(
            Tier((Share(ClusterName("c1"), 90), Share(ClusterName("."))), 3),
            Tier((Share(region="eu", zone="a", labels=(("class", "gold"), ("z", "1"))),), min_percent=50),
            Tier((Share(ClusterName("*")),)),
        ),
        affinity="ClientIP",
        affinity_timeout=60,
        consistent=True,
        refuse=True,
        ejection=Ejection(after=5, first=60.0, longest=60.0),
        health=HealthCheck(type="HTTP", path="/ready", interval=2.0, unhealthy_after=5),
        created="2026-01-01T00:00:00Z",
        uid="u",
        generation=3,
    )


def test_a_policy_that_says_nothing_changes_nothing() -> None:
    found = policy()
    fields = (found.tiers, found.affinity, found.consistent, found.locality, found.refuse, found.invalid)
    assert fields == ((), None, None, "", False, "")


@pytest.mark.parametrize(("spec", "why"), REFUSED)
def test_what_is_wrong_is_a_field_of_the_row_which_has_no_other_effect(spec: dict[str, Any], why: str) -> None:
    found = policy(**spec)
    assert (found.invalid, found.tiers, found.locality) == (why, (), "")


def test_a_hostile_policy_costs_little_time_and_leaves_no_large_row() -> None:
    tier = clusters(*({"name": "c1", "weight": 2**31} for _ in range(100)))
    began = time.process_time()
    found = policy(tiers=[tier] * 10_000)
    assert found.invalid == "spec.tiers: 10000 tiers, more than 16"
    assert len(msgspec.json.encode(found)) < 1_000
    assert time.process_time() - began < 20, "a million entries"


def test_the_definition_has_the_bounds_that_the_source_has() -> None:
    definition = yaml.safe_load((ROOT / "deploy" / "crds" / "trafficpolicies.yaml").read_text())
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    tiers = spec["tiers"]
    of_tier = tiers["items"]["properties"]["clusters"]
    weight = of_tier["items"]["properties"]["weight"]
    assert (tiers["maxItems"], of_tier["maxItems"], weight["maximum"]) == (MAX_TIERS, MAX_CLUSTERS, MAX_WEIGHT)


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "policies").glob("*.yaml")), ids=lambda each: each.stem)
def test_each_policy_of_the_examples_is_valid_and_of_the_import_of_the_story(file: Path) -> None:
    found = traffic_policy(
        msgspec.convert(yaml.safe_load(file.read_text()) | {"metadata": METADATA}, wire.TrafficPolicy)
    )
    assert (found.invalid, found.target, found.kind) == ("", "demo/echo", "ServiceImport")
    assert found.tiers or found.locality


# GlobalTrafficPolicy: the table of docs/policies.md


def table() -> list[tuple[str, str, str]]:
    text = (ROOT / "docs" / "policies.md").read_text().partition("| lbType |")[2].partition("\n\n")[0]
    lines = [line.strip("|").replace("\\|", "\0").split("|") for line in text.splitlines()[2:]]
    return [(a.strip(), b.strip(), c.strip().strip("`").replace("\0", "|")) for a, b, c in lines]


def spelled(found: Policy) -> str:
    if found.invalid:
        return "Invalid"
    shares = [
        " ".join(s.cluster + ("" if s.weight is None else f"={s.weight}") for s in tier.shares) for tier in found.tiers
    ]
    return " | ".join(shares) or "all together"


@pytest.mark.parametrize(("lb_type", "targets", "tiers"), table())
@pytest.mark.parametrize("kind", ["flomesh.io/GlobalTrafficPolicy", "multicluster.flomesh.io/GlobalTrafficPolicy"])
def test_each_row_of_the_table_of_global_traffic_policies(lb_type: str, targets: str, tiers: str, kind: Any) -> None:
    listed = []
    for each in filter(None, targets.split(", ")):
        name, equals, weight = each.partition("=")
        listed.append({"clusterKey": f"default/default/default/{name}", **({"weight": int(weight)} if equals else {})})
    body = {"metadata": METADATA, "spec": {"lbType": lb_type, "targets": listed}}
    found = global_traffic_policy(kind)(msgspec.convert(body, wire.GlobalTrafficPolicy))
    assert spelled(found) == tiers
    assert (found.target, found.kind, found.policy_kind) == ("demo/echo", "ServiceImport", kind)


def test_a_global_traffic_policy_without_a_type_is_of_locality() -> None:
    found = global_traffic_policy("flomesh.io/GlobalTrafficPolicy")(
        msgspec.convert({"metadata": METADATA}, wire.GlobalTrafficPolicy)
    )
    assert spelled(found) == "."
