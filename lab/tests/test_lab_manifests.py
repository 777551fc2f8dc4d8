"""Manifests: the problems the lab reports of those it applies."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from isthmus_lab import manifests
from isthmus_lab.images import Image
from isthmus_lab.manifests import Manifest

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
    manifest = Manifest(Path("shop.yaml"), yaml.safe_load(text))
    (problem,) = manifests.unknown_images([manifest], own={})
    assert problem.startswith("image 'acme/db:8' has no stand-in: isthmus lab image add acme/db=COMMAND… (shop.yaml: ")
    assert problem.endswith(f": {field})")
    assert manifests.unknown_images([manifest], own={"acme/db": Image(command=("db",))}) == []


def test_an_image_of_many_pods_and_clusters_is_one_line() -> None:
    every = [Manifest(Path("a.yaml"), {"kind": "Pod", "spec": yaml.safe_load(POD)}) for _ in range(3)]
    (problem,) = manifests.unknown_images([*every, *every], own={})
    assert problem.endswith("(a.yaml: Pod: spec.containers[1].image and 2 more)")


@pytest.mark.parametrize(
    "text", ["{}", "{spec: 3}", "{spec: {template: [], containers: {a: b}}}", "{spec: {containers: [1]}}"]
)
def test_what_has_no_pods_has_no_unknown_images(text: str) -> None:
    assert manifests.unknown_images([Manifest(Path("x.yaml"), yaml.safe_load(text))], own={}) == []
