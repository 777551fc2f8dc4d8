"""Fields of objects that nothing in a lab acts on: stored as they are, and listed on request. Pure.

What the node acts on is what it reads of a Pod: its own structs are the list. What controllers and scheduler act on is
the table here. A field with a value that holds anyway is left out; an object that another one owns repeats its owner's
fields, so only the owner is listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from isthmus.kube.kind import Kind, key_of
from isthmus.kube.objects.core import ServiceSpec
from isthmus.kube.objects.meta import Meta, Wire
from isthmus_lab.apiserver.stored_kinds import STORED_KINDS
from isthmus_lab.node.objects import Spec

Known = Mapping[str, "Known | None"]
"""Handled fields: field → fields below it, ``None`` if all are. A list's fields are those of its elements."""
Fields = dict[str, Any]


class Whole(Wire, frozen=True):
    """An object with all that may be wanted of it; what is mere content (``data``) is left out."""

    metadata: Meta
    spec: Fields = msgspec.field(default_factory=dict)
    immutable: bool = False
    automount_service_account_token: bool | None = None
    image_pull_secrets: list[Fields] | None = None
    secrets: list[Fields] | None = None


class Ignored(Struct, frozen=True):
    """A field that nothing acts on."""

    kind: str
    object: str
    """namespace/name."""
    field: str


def of_struct(struct: type[Struct]) -> dict[str, Known | None]:
    """Fields that a struct reads."""
    return {each.encode_name: _nested_fields(each.type) for each in msgspec.structs.fields(struct)}


def _nested_fields(kind: Any) -> Known | None:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return of_struct(kind)
    alternatives = [nested for each in get_args(kind) if (nested := _nested_fields(each)) is not None]
    return alternatives[0] if alternatives else None


def _pod() -> Known:
    pod = of_struct(Spec)
    containers = {**(pod["containers"] or {}), "imagePullPolicy": None}  # nothing is pulled, so any policy is kept
    containers["ports"] = {**(containers["ports"] or {}), "hostPort": None, "hostIP": None}  # the agent's
    lists = {"containers": containers, "initContainers": containers}
    return {**pod, **lists, "nodeSelector": None, "tolerations": None, "serviceAccount": None}


def _flat(*names: str, **deeper: Known | None) -> Known:
    return {**dict.fromkeys(names), **deeper}


POD: Final = _pod()
_TEMPLATE: Final = {"metadata": None, "spec": POD}
_WORKLOAD: Final = ("replicas", "selector", "minReadySeconds", "revisionHistoryLimit")
_DAEMONS_UPDATE: Final = _flat("type", rollingUpdate=_flat("maxUnavailable"))

ACTED_ON: Final[Mapping[str, Known]] = {
    "pods": {"spec": POD},
    "services": {"spec": {**of_struct(ServiceSpec), "ipFamilyPolicy": None}},
    "deployments": {
        "spec": _flat(*_WORKLOAD, "strategy", "paused", "progressDeadlineSeconds", template=_TEMPLATE),
    },
    "replicasets": {"spec": _flat("replicas", "selector", "minReadySeconds", template=_TEMPLATE)},
    "statefulsets": {
        "spec": _flat(
            "replicas", "selector", "serviceName", "podManagementPolicy", "ordinals", "minReadySeconds",
            "volumeClaimTemplates", updateStrategy=_flat("type", rollingUpdate={}), template=_TEMPLATE,
        ),
    },
    "daemonsets": {
        "spec": _flat("selector", "minReadySeconds", updateStrategy=_DAEMONS_UPDATE, template=_TEMPLATE),
    },
    "jobs": {
        "spec": _flat(
            "selector", "parallelism", "completions", "backoffLimit", "suspend", "ttlSecondsAfterFinished",
            "activeDeadlineSeconds",
            template=_TEMPLATE,
        ),
    },
    "configmaps": {},
    "secrets": {},
    "serviceaccounts": {},
}  # fmt: skip
"""Fields that the lab's node, scheduler and own controllers act on, by resource."""

WORKLOADS: Final = ("deployments", "replicasets", "statefulsets", "daemonsets", "jobs")

_HOLDS_ANYWAY: Final[Mapping[str, tuple[Any, ...]]] = {
    "allocateLoadBalancerNodePorts": (True,),
    "apiVersion": ("v1",),
    "completionMode": ("NonIndexed",),
    "defaultMode": (420,),
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet"),
    "enableServiceLinks": (True, False),
    "manualSelector": (False,),
    "maxSurge": (0,),
    "mountPropagation": ("None",),
    "partition": (0,),
    "persistentVolumeClaimRetentionPolicy": ({"whenDeleted": "Retain", "whenScaled": "Retain"},),
    "podReplacementPolicy": ("TerminatingOrFailed",),
    "preemptionPolicy": ("PreemptLowerPriority",),
    "priority": (0,),
    "recursiveReadOnly": ("Disabled",),
    "revisionHistoryLimit": (10,),
    "schedulerName": ("default-scheduler",),
    "terminationMessagePath": ("/dev/termination-log",),
    "terminationMessagePolicy": ("File",),
}
"""Values that a server fills in, or that ask for what every lab does."""

KINDS: Final = tuple(Kind(group, "v1", name, kind, Whole) for group, name, kind in (
    ("", "configmaps", "ConfigMap"), ("", "pods", "Pod"), ("", "secrets", "Secret"), ("", "services", "Service"),
    ("", "serviceaccounts", "ServiceAccount"), ("apps", "daemonsets", "DaemonSet"),
    ("apps", "deployments", "Deployment"), ("apps", "replicasets", "ReplicaSet"),
    ("apps", "statefulsets", "StatefulSet"), ("batch", "jobs", "Job"),
))  # fmt: skip
"""The queried kinds of the API server."""


_STORED_KINDS: Final = tuple(
    Kind(each.group, each.versions[0], each.resource, each.kind, Whole) for each in STORED_KINDS
)
_ONLY_KEPT: Final = frozenset(each.kind for each in STORED_KINDS)
ALL: Final = "(all of it)"
"""Listed in place of fields for an object that nothing acts on at all."""


_NOBODYS: Final = ("ingresses", "networkpolicies")
"""Resources that a real cluster's built-in controllers ignore as well."""


def kinds(*, real: bool) -> tuple[Kind[Whole], ...]:
    """The kinds to ask of; most that the small server only keeps are acted on by a real one."""
    return (*KINDS, *(each for each in _STORED_KINDS if not real or each.resource in _NOBODYS))


def acted_on(resource: str, *, real: bool = False) -> Known:
    """The table's entry, empty for what is only kept; a real controller manager acts on all of a workload but pods."""
    if resource not in ACTED_ON:
        return {}
    fields = ACTED_ON[resource]
    if not real or resource not in WORKLOADS:
        return fields
    return {"spec": {"*": None, "template": _TEMPLATE}}


def of_object(kind: str, obj: Whole, handled: Known) -> list[Ignored]:
    """Ignored fields of one object; none if another object owns it."""
    if any(each.controller for each in obj.metadata.owner_references or ()):
        return []
    if kind in _ONLY_KEPT:
        return [Ignored(kind, key_of(obj.metadata), ALL)]
    return [Ignored(kind, key_of(obj.metadata), field) for field in fields(msgspec.to_builtins(obj), handled)]


def fields(body: Fields, handled: Known) -> Iterator[str]:
    """The shortest paths of what is set and not known. Elements of a list are named by their names."""
    for name, value in body.items():
        if name != "metadata":
            yield from _field(name, name, value, handled)


def _field(path: str, name: str, value: Any, handled: Known) -> Iterator[str]:
    if value in (None, "", False, [], {}) or value in _HOLDS_ANYWAY.get(name, ()):
        return
    if name not in handled:
        if "*" not in handled:
            yield path
        return
    nested = handled[name]
    if nested is None:
        return
    for key, element in _elements(value):
        for inner, content in element.items():
            yield from _field(f"{path}{key}.{inner}", inner, content, nested)


def _elements(value: Any) -> Iterator[tuple[str, Fields]]:
    if isinstance(value, dict):
        yield "", value
    elif isinstance(value, list):
        for index, element in enumerate(value):
            if isinstance(element, dict):
                yield f"[{element.get('name') or element.get('mountPath') or index}]", element
