"""Rules in CEL: those of Isthmus and the Gateway API are checked, definitions with others are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.refused_policies import REFUSED, clusters
from machine import programs

from isthmus_lab.apiserver import cel, openapi, validation

CRDS = Path(__file__).resolve().parents[3] / "deploy/crds"
GATEWAY_API = programs.BUILT / "gateway-crds"
BY_ISTHMUS_ALONE = "is not a label, key=value"


@pytest.mark.parametrize(
    ("rule", "value", "holds"),
    [
        ("self > 1 && self <= 3 || self == 9", 2, True),
        ("!(self > 1)", 2, False),
        ("type(self) == int ? self >= 1 : self.matches('^[0-9]+%$')", "12%", True),
        ("type(self) == int ? self >= 1 : self.matches('^[0-9]+%$')", 0, False),
        ("has(self.a) != has(self.b)", {"a": None}, True),
        ("has(self.a) && self.a.b == 'x'", {}, False),
        ("self.a.b == 'x' || has(self.c)", {"c": 1}, True),
        ("has(self.c) && self.a.b == 'x' || true", {}, True),
        ("self.all(x, x > 0) && self.exists(x, x == 2) && self.exists_one(x, x == 3)", [1, 2, 3], True),
        ("self.exists_one(x, x == 1)", [1, 1], False),
        ("self.filter(x, x > 1).size() + size(self.map(x, x - 1)) == 5", [1, 2, 3], True),
        ("self[0] == 1 && 2 in self && !('a' in self)", [1, 2], True),
        ("self['a-b'] == 1 && self.__namespace__ == 'x'", {"a-b": 1, "namespace": "x"}, True),
        ("self.startsWith('a') && self.endsWith('c') && self.contains('b') && self.split('b')[1] == 'c'", "abc", True),
        ("self.substring(2) == 'c' && self.substring(0, 1) == 'a' && size(self) == 3", "abc", True),
        ("duration(self) > duration('1s')", "1500ms", True),
        (r'''self.matches(r"""^(?i)\.?[a-z"]+$""")''', '.AB"', True),
        ("self.all(h, !isIP(h))", ["10.0.0.1"], False),
        ("duration(self) < duration('1s') || int(self) == 1 || true", "x", True),
        ("self.exists(x, x > 0) && !self.all(x, x < 0)", ["a", 1], True),
    ],
)
def test_a_rule_holds_or_not_as_the_language_has_it(rule: str, value: Any, holds: bool) -> None:
    assert cel.holds(rule, self=value) is holds


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("self.a == 1", {}),
        ("has(self.a.b)", {}),
        ("self", 1),
        ("self[3]", [1]),
        ("self.all(x, x > 0)", ["a", 1]),
        ("self.matches('[')", "x"),
    ],
)
def test_a_rule_that_cannot_be_evaluated_for_a_value_fails(rule: str, value: Any) -> None:
    with pytest.raises(cel.Failed):
        cel.holds(rule, self=value)


@pytest.mark.parametrize(
    "rule",
    [
        "(" * 3_000 + "true" + ")" * 3_000,
        "",
        "self +",
        "self.quantity()",
        "format.dns1123Label()",
        "self ? 1",
        "(self",
        "has(self)",
        "self @ 1",
    ],
)
def test_a_rule_outside_of_the_part_is_not_understood(rule: str) -> None:
    with pytest.raises(cel.Unsupported):
        cel.compiled(rule)


def rules(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (each["rule"] for each in value.get("x-kubernetes-validations", ()))
        for each in value.values():
            yield from rules(each)
    elif isinstance(value, list):
        for each in value:
            yield from rules(each)


def test_every_rule_of_our_definitions_is_understood() -> None:
    found = [rule for file in CRDS.glob("*.yaml") for rule in rules(yaml.safe_load(file.read_text()))]
    assert len(found) > 5
    assert all(cel.compiled(rule) for rule in found)


@pytest.mark.kube
@pytest.mark.needs("gateway-client")
def test_every_rule_of_the_gateway_api_is_understood() -> None:
    files = [yaml.safe_load_all(file.read_text()) for file in GATEWAY_API.glob("gateway.networking.k8s.io_*.yaml")]
    kinds = [each for documents in files for each in documents if each["kind"] == "CustomResourceDefinition"]
    found = [rule for each in kinds for rule in rules(each)]
    assert len(found) > 50
    assert all(cel.compiled(rule) for rule in found)


def schema(name: str) -> dict[str, Any]:
    [version] = yaml.safe_load((CRDS / f"{name}.yaml").read_text())["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


@pytest.mark.parametrize(("spec", "why"), [each for each in REFUSED if not each[1].endswith(BY_ISTHMUS_ALONE)])
def test_what_isthmus_refuses_of_a_policy_the_small_server_refuses_as_kube_apiserver_does(
    spec: dict[str, Any], why: str
) -> None:
    found = {"spec": {"targetRef": {"name": "echo"}} | spec}
    definition = schema("trafficpolicies")
    assert [*openapi.problems(definition, found)] or [*openapi.broken_rules(definition, found)]


def test_a_policy_that_breaks_a_rule_is_refused_with_its_message() -> None:
    found = {"spec": {"tiers": [clusters({"name": "."})], "locality": "Node"}}
    [problem] = openapi.broken_rules(schema("trafficpolicies"), found)
    assert (problem.field, problem.message()) == (
        "spec", 'Invalid value: "object": tiers and locality exclude each other'
    )  # fmt: skip


def test_a_definition_with_a_rule_that_cannot_be_checked_is_refused() -> None:
    [file] = CRDS.glob("trafficpolicies.yaml")
    definition = yaml.safe_load(file.read_text())
    assert not [*validation.definition(definition, None)]
    [version] = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["x-kubernetes-validations"] = [{"rule": "quantity(self.size).isGreaterThan(quantity('1Gi'))"}]
    [problem] = validation.definition(definition, None)
    assert problem.field == "spec.versions[0].schema.openAPIV3Schema.properties.spec.x-kubernetes-validations[0].rule"
    assert "--apiserver real" in problem.detail


def test_a_rule_about_the_earlier_value_holds_for_changes_alone() -> None:
    fixed = {"properties": {"name": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}
    assert not [*openapi.broken_rules(fixed, {"name": "a"})]
    assert not [*openapi.broken_rules(fixed, {"name": "a"}, {"name": "a"})]
    [problem] = openapi.broken_rules(fixed, {"name": "a"}, {"name": "b"})
    assert problem.detail == "failed rule: self == oldSelf"
