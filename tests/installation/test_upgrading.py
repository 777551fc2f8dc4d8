"""From one release to another: versions by images, what speaks against it, and the order of the rollouts."""

from __future__ import annotations

import pytest

from isthmus.installation import rendering, shipped, upgrading
from isthmus.installation.upgrading import Upgrade


def planned(installed: str, chosen: str = "", *, own: str = "0.2.0", before: str = "") -> Upgrade:
    images = {"isthmus": chosen} if chosen else {}
    return upgrading.plan({"isthmus": installed}, images, own=own, before=before)


@pytest.mark.parametrize(
    ("installed", "image"),
    [
        ("isthmus:0.1.0", "isthmus:0.2.0"),
        ("registry.example:5000/a/isthmus:v0.1.3", "registry.example:5000/a/isthmus:0.2.0"),
        ("registry.example:5000/isthmus", "registry.example:5000/isthmus:0.2.0"),
    ],
)
def test_the_image_stays_in_its_registry_with_the_version_of_this_command(installed: str, image: str) -> None:
    assert planned(installed, before="0.1.0").images == {"isthmus": image}


def test_one_minor_version_there_and_back_is_supported() -> None:
    assert planned("isthmus:0.1.0").blockers == ()
    assert planned("isthmus:0.2.0", "isthmus:0.1.9").blockers == ()
    assert (planned("isthmus:0.1.0").before, planned("isthmus:0.1.0").after) == ("0.1.0", "0.2.0")
    assert (planned("isthmus:0.1.0rc1").before) == "0.1.0"


@pytest.mark.parametrize(
    ("change", "blocker"),
    [
        (planned("isthmus:0.1.0", own="0.3.0"), "go to 0.2 first; CHANGELOG.md names what each needs"),
        (planned("isthmus:0.4.0"), "go to 0.3 first"),
        (planned("isthmus:0.9.0", own="1.0.0"), "go to the last 0.x first"),
        (planned("isthmus:0.2.0", "isthmus:0.3.0"), "use the isthmus of 0.3.0"),
        (planned("isthmus:edge"), "add --from, the installed version"),
        (planned("isthmus@sha256:abc", before="0.1.0"), "add --image, the image to go to"),
    ],
)
def test_what_is_not_supported_is_refused_with_what_to_do(change: Upgrade, blocker: str) -> None:
    assert blocker in " ".join(change.blockers)


def test_manifests_of_another_release_than_the_image_are_a_warning() -> None:
    assert planned("isthmus:0.2.0", "isthmus:0.1.0").warnings == (
        "the manifests are those of 0.2.0, the image is 0.1.0: the isthmus of 0.1.0 applies its own",
    )
    assert planned("isthmus:0.1.0").warnings == ()


def test_each_object_is_in_one_stage_and_nodes_come_last() -> None:
    folder = shipped.directory("deploy")
    objects = rendering.render(folder, rendering.Options(components=tuple(rendering.components(folder))))
    stages = upgrading.stages(objects)
    names = [each["metadata"]["name"] for stage in stages for each in stage.objects]
    assert sorted(names) == sorted(each["metadata"]["name"] for each in objects)
    assert {each["kind"] for each in stages[0].objects} == {"CustomResourceDefinition"}
    assert stages[1].workloads == frozenset()
    assert [sorted(stage.workloads) for stage in stages[2:]] == [
        ["isthmus-etcd"],
        ["isthmus-keys"],
        ["isthmus-mirror", "isthmus-operator"],
        ["isthmus-agent", "isthmus-dns", "isthmus-envoy", "isthmus-gateway"],
    ]
