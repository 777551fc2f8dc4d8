"""ExportPolicy objects as rows, and what is wrong with some."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from clusters.refused_export_policies import REFUSED

from isthmus.kube.objects import policies as wire
from isthmus.model.export_policies import NO_EXPORT, Allow, ExportPolicy
from isthmus.model.names import ClusterName, ServiceName
from isthmus.sources.export_policies import MAX_ALLOW, export_policy

ROOT = Path(__file__).parents[2]
METADATA = {
    "name": "callers",
    "namespace": "demo",
    "uid": "u",
    "generation": 3,
    "creationTimestamp": "2026-01-01T00:00:00Z",
}


def policy(**spec: Any) -> ExportPolicy:
    body = {"metadata": METADATA, "spec": spec}
    return export_policy(msgspec.json.decode(msgspec.json.encode(body), type=wire.ExportPolicy))


def test_a_policy_is_a_row_with_its_callers_in_order() -> None:
    found = policy(
        target={"name": "echo"},
        allow=[
            {"cluster": "c2", "namespace": "shop", "serviceAccount": "web"},
            {"clusterLabels": {"z": "1", "class": "gold"}},
            {},
        ],
        audit=True,
        enforce="all",
        unsigned="address",
        established="cut",
    )
    assert found == ExportPolicy(
        name=ServiceName("demo/callers"),
        target="echo",
        allow=(
            Allow(cluster=ClusterName("c2"), namespace="shop", service_account="web"),
            Allow(labels=(("class", "gold"), ("z", "1"))),
            Allow(),
        ),
        audit=True,
        enforce="all",
        require=False,
        cut=True,
        created="2026-01-01T00:00:00Z",
        uid="u",
        generation=3,
    )


def test_a_policy_without_a_target_is_of_its_namespace_and_refuses_by_default() -> None:
    found = policy(allow=[])
    assert (found.namespace, found.target, found.allow) == ("demo", "", ())
    assert (found.audit, found.enforce, found.require, found.invalid) == (False, "tcp", True, "")


@pytest.mark.parametrize(("spec", "why"), REFUSED)
def test_what_is_wrong_is_a_field_of_a_row_that_allows_nobody(spec: dict[str, Any], why: str) -> None:
    found = policy(**spec)
    assert (found.invalid, found.allow) == (why, ())


def test_an_invalid_policy_keeps_its_target_and_one_whose_target_is_invalid_has_none() -> None:
    assert policy(target={"name": "echo"}, allow=[{"cluster": "*"}]).target == "echo"
    assert policy(target={"name": "Echo"}, allow=[]).target == NO_EXPORT, "not that of all exports of the namespace"


def test_the_definition_has_the_bounds_that_the_source_has() -> None:
    definition = yaml.safe_load((ROOT / "deploy" / "crds" / "exportpolicies.yaml").read_text())
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert spec["allow"]["maxItems"] == MAX_ALLOW


def test_the_example_of_the_documentation_is_valid() -> None:
    text = (ROOT / "docs" / "policies.md").read_text()
    [example] = [each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: ExportPolicy" in each]
    found = policy(**yaml.safe_load(example)["spec"])
    assert (found.invalid, found.target) == ("", "echo")
    assert found.allow == (
        Allow(cluster=ClusterName("c2")),
        Allow(cluster=ClusterName("c3"), namespace="shop", service_account="web"),
    )


def test_the_documentation_lists_every_reason_of_the_condition_enforced() -> None:
    text = (ROOT / "docs" / "policies.md").read_text()
    code = (ROOT / "src" / "isthmus" / "identity" / "statuses.py").read_text()
    reasons = {*re.findall(r'WithoutEffect\(\s*"(\w+)"', code), "NotAccepted"}
    table = text[text.index("| reason of `Enforced`") :]
    assert set(re.findall(r"^\| `(\w+)` \|", table[: table.index("\n\n")], re.MULTILINE)) == reasons
