"""Merge rules of lists and maps: lists that are maps by a key, lists that are sets, maps that are atomic.

Every other list is replaced as a whole, every other map merges.

Strategic merge patches and server-side apply ask for it by path; ``*`` stands for an element of a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

Path = tuple[str, ...]


class ListRule(NamedTuple):
    """A list whose elements are identified by ``keys`` (server-side apply) and ``merge`` (strategic merge).

    Without keys it is a set of values. ``merge`` '' is a list that strategic merge replaces.
    """

    keys: tuple[str, ...] = ()
    merge: str = ""
    defaults: Mapping[str, str] = {}


Lists = Mapping[Path, ListRule]

SET: Final = ListRule()
ATOMIC: Final = ListRule(merge="atomic")
"""A map that is one value: server-side apply replaces it."""
ELEMENT: Final = "*"


def keyed_by(key: str) -> ListRule:
    """A map by one key, for both."""
    return ListRule((key,), key)


def under(path: str, rules: Lists) -> Lists:
    """Prefix the paths of rules with a dotted path."""
    return {(*path.split("."), *key): rule for key, rule in rules.items()}


METADATA: Final[Lists] = {
    ("metadata", "ownerReferences"): keyed_by("uid"),
    ("metadata", "finalizers"): ListRule(merge="="),
}

CONDITIONS: Final[Lists] = {("status", "conditions"): keyed_by("type")}

CONTAINER: Final[Lists] = {
    ("env",): keyed_by("name"),
    ("ports",): ListRule(("containerPort", "protocol"), "containerPort", {"protocol": "TCP"}),
    ("volumeMounts",): keyed_by("mountPath"),
    ("volumeDevices",): keyed_by("devicePath"),
}

POD_SPEC: Final[Lists] = {
    **{(name,): keyed_by("name") for name in ("containers", "initContainers", "ephemeralContainers", "volumes")},
    ("nodeSelector",): ATOMIC,
    ("imagePullSecrets",): keyed_by("name"),
    ("hostAliases",): keyed_by("ip"),
    ("topologySpreadConstraints",): ListRule(("topologyKey", "whenUnsatisfiable"), "topologyKey"),
    **{
        (containers, ELEMENT, *path): rule
        for containers in ("containers", "initContainers", "ephemeralContainers")
        for path, rule in CONTAINER.items()
    },
}

POD: Final[Lists] = {**under("spec", POD_SPEC), **CONDITIONS, ("status", "podIPs"): keyed_by("ip")}

WORKLOAD: Final[Lists] = {**under("spec.template.spec", POD_SPEC), ("spec", "selector"): ATOMIC, **CONDITIONS}

SERVICE: Final[Lists] = {
    ("spec", "selector"): ATOMIC,
    ("spec", "ports"): ListRule(("port", "protocol"), "port", {"protocol": "TCP"}),
    **CONDITIONS,
}

NODE: Final[Lists] = {**CONDITIONS, ("status", "addresses"): keyed_by("type"), ("spec", "taints"): keyed_by("key")}

SERVICE_IMPORT: Final[Lists] = {**CONDITIONS, ("status", "clusters"): keyed_by("cluster")}
