"""From an installed release to another: versions by images, blockers, and the order of the rollouts. Pure.

One minor version of skew is supported between the parts of a cluster and between clusters (RELEASE.md), so an upgrade
goes from one minor version to the next one, or back to the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from isthmus.installation.rendering import Object

WORKLOADS: Final = frozenset({"Deployment", "DaemonSet", "StatefulSet"})
DEFINITION: Final = "CustomResourceDefinition"
STAGES: Final = (("isthmus-etcd",), ("isthmus-keys",), ("isthmus-operator", "isthmus-mirror"))
"""Workloads in the order of their rollouts; all others, those of nodes, come last.

The keeper of keys gives the etcd's users the rights that a release needs, the operator writes what nodes read, and a
release that does not start has not reached a node yet.
"""


class Version(NamedTuple):
    """A release; a candidate counts as the version that it is one of."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return ".".join(map(str, self))


class Upgrade(Struct, frozen=True, kw_only=True):
    """A change from one release to another."""

    before: str
    """Version that is installed; empty if its image has none."""
    after: str
    images: Mapping[str, str]
    """New images by the names that the manifests have."""
    warnings: tuple[str, ...]
    blockers: tuple[str, ...]


class Stage(Struct, frozen=True):
    """Objects that are applied together; the next stage begins once their workloads are ready."""

    objects: tuple[Object, ...]

    @property
    def workloads(self) -> frozenset[str]:
        """Names of the stage's workloads."""
        return frozenset(each["metadata"]["name"] for each in self.objects if each["kind"] in WORKLOADS)


def parse(text: str) -> Version | None:
    """Return the version that a text begins with, ``v0.1.0`` for one; ``None`` if it begins with none."""
    match = re.match(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})", text)
    return Version(*map(int, match.groups())) if match else None


def tag(image: str) -> str:
    """Return an image's tag; empty if it has none."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def retagged(image: str, version: str) -> str:
    """Return an image of the same repository with another tag; empty if it is named by a digest."""
    folder, slash, name = image.rpartition("/")
    return "" if "@" in image else f"{folder}{slash}{name.partition(':')[0]}:{version}"


def plan(installed: Mapping[str, str], chosen: Mapping[str, str], *, own: str, before: str = "") -> Upgrade:
    """Return the change from the installed images to the chosen ones, or to this command's own version.

    ``own``: version of this command, whose manifests are applied; ``before``: version that is installed, where its
    image does not show it.
    """
    images = {name: chosen.get(name) or retagged(image, own) for name, image in installed.items()}
    image = images.get("isthmus", "")
    source, target = parse(before or tag(installed.get("isthmus", ""))), parse(tag(image)) or parse(own)
    return Upgrade(
        before=str(source or ""),
        after=str(target or own),
        images={name: each for name, each in images.items() if each},
        warnings=tuple(_warnings(target, parse(own))),
        blockers=tuple(_blockers(installed, images, source, target, parse(own))),
    )


def _warnings(target: Version | None, own: Version | None) -> Iterator[str]:
    if target and own and target != own:
        yield f"the manifests are those of {own}, the image is {target}: the isthmus of {target} applies its own"


def _blockers(
    installed: Mapping[str, str],
    images: Mapping[str, str],
    source: Version | None,
    target: Version | None,
    own: Version | None,
) -> Iterator[str]:
    for name in sorted(images):
        if not images[name]:
            option = "--image" if name == "isthmus" else "--envoy-image"
            yield f"{installed[name]} is named by a digest: add {option}, the image to go to"
    if source is None:
        yield f"the image {installed.get('isthmus', '')} has no version in its tag: add --from, the installed version"
    elif target and _skew(source, target) > 1:
        between = _between(source, target)
        yield (
            f"{source} → {target}: one minor version at a time is supported, go to {between} first;"
            " CHANGELOG.md names what each needs"
        )
    if target and own and (target[:2] > own[:2] or _skew(target, own) > 1):
        yield f"the image is {target}, and this command has the manifests of {own}: use the isthmus of {target}"


def _skew(one: Version, other: Version) -> int:
    """Minor versions between two; those of different major versions count as far apart."""
    return abs(one.minor - other.minor) if one.major == other.major else 100


def _between(source: Version, target: Version) -> str:
    """Return the next version on the way from one to another."""
    if source.major != target.major:
        return f"the last {min(source.major, target.major)}.x"
    return f"{source.major}.{source.minor + (1 if target > source else -1)}"


def stages(objects: Iterable[Object]) -> list[Stage]:
    """Return objects in the stages of an upgrade: definitions, what workloads refer to, then workloads in turn."""
    objects = list(objects)
    others = [each for each in objects if each["kind"] not in WORKLOADS]
    named = {name for names in STAGES for name in names}
    parts = [
        [each for each in others if each["kind"] == DEFINITION],
        [each for each in others if each["kind"] != DEFINITION],
        *([each for each in objects if _is_workload(each, names)] for names in STAGES),
        [each for each in objects if each["kind"] in WORKLOADS and each["metadata"]["name"] not in named],
    ]
    return [Stage(tuple(part)) for part in parts if part]


def _is_workload(item: Object, names: tuple[str, ...]) -> bool:
    return item["kind"] in WORKLOADS and item["metadata"]["name"] in names
