"""Objects are judged by the schema of their kind, as a real server judges them: our definitions, and built-in kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.apiserver_world import Client, Kubectl

from isthmus_lab.apiserver import openapi, protobuf

CRDS = Path(__file__).resolve().parents[3] / "deploy/crds"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^[a-z]*$"},
                "kind": {"type": "string", "enum": ["A", "B"], "default": "A"},
                "count": {"type": "integer", "minimum": 0, "maximum": 9},
                "port": {"x-kubernetes-int-or-string": True},
                "time": {"type": "string", "format": "date-time"},
                "parts": {"type": "array", "maxItems": 1, "items": {"type": "object", "properties": {"n": {}}}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        }
    },
}


def wrong(field: str, value: str, why: str) -> str:
    return f"{field}: Invalid value: {value}: {field} in body {why}"


def mistyped(field: str, wanted: str, found: str) -> str:
    return wrong(field, f'"{found}"', f'must be of type {wanted}: "{found}"')


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"name": "a"}, ""),
        ({}, "spec.name: Required value"),
        ({"name": ""}, 'spec.name: Invalid value: "": spec.name in body should be at least 1 chars long'),
        ({"name": "abcdef"}, 'spec.name: Invalid value: "abcdef": spec.name in body should be at most 5 chars long'),
        ({"name": "A"}, "spec.name: Invalid value: \"A\": spec.name in body should match '^[a-z]*$'"),
        ({"name": 3}, mistyped("spec.name", "string", "integer")),
        ({"name": "a", "kind": "C"}, 'spec.kind: Unsupported value: "C": supported values: "A", "B"'),
        ({"name": "a", "count": 10}, wrong("spec.count", "10", "should be less than or equal to 9")),
        ({"name": "a", "count": True}, mistyped("spec.count", "integer", "boolean")),
        ({"name": "a", "count": 2.0}, ""),
        ({"name": "a", "port": "http"}, ""),
        ({"name": "a", "port": []}, mistyped("spec.port", "integer,string", "array")),
        ({"name": "a", "time": "noon"}, wrong("spec.time", '"noon"', 'must be of type date-time: "noon"')),
        ({"name": "a", "time": "9999-12-31T23:59:59Z"}, ""),
        ({"name": "a", "parts": [{}, {}]}, "spec.parts: Invalid value: 2: must have at most 1 items"),
        ({"name": "a", "parts": "x"}, mistyped("spec.parts", "array", "string")),
        ({"name": "a", "labels": {"x": 1}}, mistyped("spec.labels.x", "string", "integer")),
    ],
)  # fmt: skip
def test_a_value_is_judged_by_its_schema(spec: Any, expected: str) -> None:
    found = [f"{each.field}: {each.message()}" for each in openapi.problems(SCHEMA, {"spec": spec})]
    assert found == ([expected] if expected else [])


def test_unknown_fields_are_named_and_pruned_and_defaults_are_filled_in() -> None:
    obj = {"kind": "X", "spec": {"name": "a", "nmae": 1, "parts": [{"n": 1, "m": 2}], "free": {"x": {"y": 1}}}}
    assert list(openapi.unknown(SCHEMA, obj)) == ["spec.nmae", "spec.parts[0].m"]
    kept = {"name": "a", "parts": [{"n": 1}], "free": {"x": {"y": 1}}}
    assert openapi.pruned(SCHEMA, obj) == {"kind": "X", "spec": kept}
    assert openapi.defaulted(SCHEMA, {"spec": {"name": "a"}}) == {"spec": {"name": "a", "kind": "A"}}


def test_fields_of_built_in_kinds_are_those_of_kubernetes_own_descriptors() -> None:
    container = {
        "name": "a",
        "image": "b",
        "ports": [{"containerPort": 1, "hostPrt": 2}],
        "livenessProbe": {"httpGet": {}},
    }
    obj = {
        "metadata": {"labels": {"any": "x"}},
        "spec": {"replicaz": 2, "template": {"spec": {"containers": [container]}}},
    }
    found = list(protobuf.unknown("apps/v1", "Deployment", obj))
    assert found == ["spec.replicaz", "spec.template.spec.containers[0].ports[0].hostPrt"]


POLICY = """
apiVersion: isthmus.io/v1alpha1
kind: TrafficPolicy
metadata: {{name: echo}}
spec: {{targetRef: {{name: echo}}, {field}}}
"""


async def _define(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", str(CRDS / "trafficpolicies.yaml"))
    await kubectl("wait", "--for=condition=Established", "crd/trafficpolicies.isthmus.io", "--timeout=180s")


async def test_a_misspelt_field_of_a_policy_is_refused_by_kubectl_and_dropped_without_validation(
    kubectl: Kubectl, client: Client
) -> None:
    await _define(kubectl)
    refused = await kubectl("apply", "-f", "-", stdin=POLICY.format(field="tierz: []"), fails=True)
    assert 'strict decoding error: unknown field "spec.tierz"' in refused
    await kubectl("apply", "--validate=false", "-f", "-", stdin=POLICY.format(field="tierz: []"))
    path = f"/apis/isthmus.io/v1alpha1/namespaces/{client.namespace}/trafficpolicies/echo"
    assert (await client.get(path)).body["spec"] == {"targetRef": {"kind": "ServiceImport", "name": "echo"}}


async def test_a_value_of_a_wrong_type_never_becomes_an_object(kubectl: Kubectl) -> None:
    await _define(kubectl)
    refused = await kubectl("apply", "-f", "-", stdin=POLICY.format(field="tiers: nonsense"), fails=True)
    assert 'spec.tiers in body must be of type array: "string"' in refused
    assert "(NotFound)" in await kubectl("get", "trafficpolicy", "echo", fails=True)


async def test_a_misspelt_field_of_a_built_in_kind_is_refused_by_kubectl(kubectl: Kubectl) -> None:
    service = yaml.safe_dump(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"portz": [], "clusterIP": "None"}}
    )
    assert 'unknown field "spec.portz"' in await kubectl("apply", "-f", "-", stdin=service, fails=True)
