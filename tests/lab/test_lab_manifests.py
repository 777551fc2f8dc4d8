"""Manifests: the problems the lab reports of those it applies."""

from __future__ import annotations

import pytest
import yaml

from isthmus_lab import manifests
from isthmus_lab.images import Image

POD = "{containers: [{image: nginx}, {image: 'acme/db:8'}], initContainers: [{image: busybox}]}"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (f"{{kind: Pod, spec: {POD}}}", "spec.containers[1].image"),
        (f"{{kind: Deployment, spec: {{template: {{spec: {POD}}}}}}}", "spec.template.spec.containers[1].image"),
        (
            f"{{kind: CronJob, spec: {{jobTemplate: {{spec: {{template: {{spec: {POD}}}}}}}}}}}",
            "spec.jobTemplate.spec.template.spec.containers[1].image",
        ),
    ],
)
def test_an_image_without_a_stand_in_is_named_with_its_field(text: str, field: str) -> None:
    body = yaml.safe_load(text)
    (problem,) = manifests.unknown_images(body, own={})
    assert problem.startswith(f"{field}: image 'acme/db:8' has no stand-in; known: ")
    assert list(manifests.unknown_images(body, own={"acme/db": Image(command=("db",))})) == []


@pytest.mark.parametrize(
    "text", ["{}", "{spec: 3}", "{spec: {template: [], containers: {a: b}}}", "{spec: {containers: [1]}}"]
)
def test_what_has_no_pods_has_no_unknown_images(text: str) -> None:
    assert list(manifests.unknown_images(yaml.safe_load(text), own={})) == []
