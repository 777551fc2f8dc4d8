"""Strategic merge patches (``kubectl``'s kind) for the workloads that the components of deploy/ patch.

Maps are merged by key, ``null`` removes a key, and a list is replaced, unless its elements have a merge key in
Kubernetes' API (``patchMergeKey``): then they are merged by that key, and new ones precede the old, as kustomize does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Object = dict[str, Any]

MERGE_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
}
"""Merge key by field, of the fields of a pod that have one (k8s.io/api, ``patchMergeKey``)."""


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """Return a copy of ``base`` with a strategic merge patch applied."""
    result = dict(base)
    for field, value in patch.items():
        if value is None:
            result.pop(field, None)
        elif isinstance(value, Mapping) and isinstance(result.get(field), Mapping):
            result[field] = merged(result[field], value)
        elif isinstance(value, list) and isinstance(result.get(field), list) and field in MERGE_KEYS:
            result[field] = _merged_list(result[field], value, MERGE_KEYS[field])
        else:
            result[field] = value
    return result


def _merged_list(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    patches = {each[key]: each for each in patch}
    current = {each.get(key) for each in base}
    added = [each for name, each in patches.items() if name not in current]
    return [*added, *(merged(each, patches[each[key]]) if each.get(key) in patches else each for each in base)]
