"""Specs of ExportPolicies that cannot be followed, and what our source says is wrong with each."""

from __future__ import annotations

from typing import Any, Final

REFUSED: Final[list[tuple[dict[str, Any], str]]] = [
    ({}, "spec.allow: missing; an empty list allows nobody"),
    ({"allow": [{}] * 65}, "spec.allow: 65 entries, more than 64"),
    ({"allow": [{"cluster": ""}]}, "spec.allow[0].cluster: '' is not a cluster's name"),
    ({"allow": [{}, {"cluster": "C2"}]}, "spec.allow[1].cluster: 'C2' is not a cluster's name"),
    ({"allow": [{"cluster": "*"}]}, "spec.allow[0].cluster: '*' is not a cluster's name"),
    ({"allow": [{"namespace": ""}]}, "spec.allow[0].namespace: '' is not a namespace"),
    ({"allow": [{"namespace": "a/b"}]}, "spec.allow[0].namespace: 'a/b' is not a namespace"),
    ({"allow": [{"serviceAccount": "A"}]}, "spec.allow[0].serviceAccount: 'A' is not a service account"),
    ({"allow": [{"clusterLabels": {}}]}, "spec.allow[0].clusterLabels: empty"),
    (
        {"allow": [{"clusterLabels": {f"k{n}": "" for n in range(9)}}]},
        "spec.allow[0].clusterLabels: 9 labels, more than 8",
    ),
    (
        {"allow": [{"clusterLabels": {"a b": "c"}}]},
        "spec.allow[0].clusterLabels: 'a b=c' is not a label, key=value",
    ),
    ({"allow": [], "enforce": "udp"}, "spec.enforce: 'udp' is not one of tcp, all"),
    ({"allow": [], "unsigned": "allow"}, "spec.unsigned: 'allow' is not one of refuse, address"),
    ({"target": {"name": ""}, "allow": []}, "spec.target.name: '' is not a ServiceExport"),
    ({"target": {}, "allow": []}, "spec.target.name: '' is not a ServiceExport"),
]
