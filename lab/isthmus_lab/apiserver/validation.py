"""Validation: functions of the new and the old object, each of which yields all problems at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from isthmus import bounds
from isthmus_lab.apiserver import ipfamilies, openapi
from isthmus_lab.apiserver.errors import Problem
from isthmus_lab.apiserver.ipfamilies import family_of
from isthmus_lab.apiserver.objects import Object, items, nested
from isthmus_lab.apiserver.selectors import label_selector

Validator = Callable[[Object, Object | None], Iterator[Problem]]

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"

SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
LABEL_1035_RULE: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    f"'{_LABEL_1035}')"
)
VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
QUALIFIED_RULE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


class NameRule:
    """The pattern of some kind of name, and the sentence that describes it in errors."""

    def __init__(self, pattern: str, *, most: int, rule: str) -> None:
        self._pattern = re.compile(pattern)
        self._most = most
        self._rule = rule

    def problems(self, name: str, field: str) -> Iterator[Problem]:
        """Problems of a name."""
        if len(name) > self._most:
            yield Problem(field, "Invalid value", f"must be no more than {self._most} characters", name)
        elif not self._pattern.fullmatch(name):
            yield Problem(field, "Invalid value", self._rule, name)


SUBDOMAIN: Final = NameRule(_SUBDOMAIN, most=253, rule=SUBDOMAIN_RULE)
LABEL: Final = NameRule(_LABEL, most=63, rule=LABEL_RULE)
LABEL_1035: Final = NameRule(_LABEL_1035, most=63, rule=LABEL_1035_RULE)


def metadata(obj: Object, names: NameRule) -> Iterator[Problem]:
    """Name, labels and annotations of any kind."""
    meta = obj["metadata"]
    if meta.get("name"):
        yield from names.problems(meta["name"], "metadata.name")
    else:
        yield Problem("metadata.name", "Required value", "name or generateName is required")
    yield from label_map(meta.get("labels") or {}, "metadata.labels")
    for key in meta.get("annotations") or {}:
        yield from _qualified(key.lower(), "metadata.annotations")
    for index, finalizer in enumerate(meta.get("finalizers") or ()):
        yield from _qualified(str(finalizer), f"metadata.finalizers[{index}]")


def label_map(labels: dict[str, Any], field: str) -> Iterator[Problem]:
    """Keys and values of labels."""
    for key, value in labels.items():
        yield from _qualified(key, field)
        if not isinstance(value, str) or len(value) > 63 or not re.fullmatch(f"({_QUALIFIED})?", value):
            yield Problem(field, "Invalid value", VALUE_RULE, value)


def nothing(obj: Object, old: Object | None) -> Iterator[Problem]:
    """Nothing can be wrong."""
    yield from ()


def pod(obj: Object, old: Object | None) -> Iterator[Problem]:
    """A pod's containers; of its spec, little may change later."""
    yield from pod_spec(nested(obj, "spec", default={}), "spec")
    bound = {"nodeName": obj["spec"]["nodeName"]} if "nodeName" in obj["spec"] else {}
    if old is not None and _fixed(obj["spec"]) != _fixed(bound | old["spec"]):
        yield Problem(
            "spec",
            "Forbidden",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
            "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        )


def pod_spec(spec: Object, field: str) -> Iterator[Problem]:
    """Containers have names of their own and an image; ports are ports."""
    if not nested(spec, "containers", default=()):
        yield Problem(f"{field}.containers", "Required value")
    seen: set[str] = set()
    for group in ("containers", "initContainers"):
        for index, container in enumerate(items(spec, group)):
            where = f"{field}.{group}[{index}]"
            yield from _named(container, where, seen)
            if not container.get("image"):
                yield Problem(f"{where}.image", "Required value")
            for number, port in enumerate(items(container, "ports")):
                yield from _port(port.get("containerPort"), f"{where}.ports[{number}].containerPort")
    volumes: set[str] = set()
    for index, volume in enumerate(items(spec, "volumes")):
        yield from _named(volume, f"{field}.volumes[{index}]", volumes)
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        yield _unsupported(f"{field}.restartPolicy", spec.get("restartPolicy"), "Always", "OnFailure", "Never")


def workload(obj: Object, old: Object | None) -> Iterator[Problem]:
    """Deployment, ReplicaSet, StatefulSet, DaemonSet: a selector for good, and a template it selects."""
    spec = nested(obj, "spec", default={})
    yield from _count(spec.get("replicas", 0), "spec.replicas")
    selector = nested(spec, "selector")
    labels = nested(spec, "template", "metadata", "labels", default={})
    if not selector:
        yield Problem("spec.selector", "Required value")
    if not selector or not label_selector(selector)(labels):
        reason = "`selector` does not match template `labels`"
        yield Problem("spec.template.metadata.labels", "Invalid value", reason, labels)
    if old is not None and selector != nested(old, "spec", "selector"):
        yield Problem("spec.selector", "Invalid value", "field is immutable", selector)
    yield from label_map(labels, "spec.template.metadata.labels")
    yield from pod_spec(nested(spec, "template", "spec", default={}), "spec.template.spec")


def job(obj: Object, old: Object | None) -> Iterator[Problem]:
    """A job's pods end."""
    spec = nested(obj, "spec", default={})
    for name in ("parallelism", "completions", "backoffLimit"):
        yield from _count(spec.get(name, 0), f"spec.{name}")
    template = nested(spec, "template", "spec", default={})
    if template.get("restartPolicy") == "Always":
        yield _unsupported("spec.template.spec.restartPolicy", "Always", "OnFailure", "Never")
    yield from pod_spec(template, "spec.template.spec")


def service(obj: Object, old: Object | None) -> Iterator[Problem]:
    """Ports, addresses, policies."""
    spec = nested(obj, "spec", default={})
    kind = spec.get("type")
    if kind not in ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"):
        yield _unsupported("spec.type", kind, "ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    if kind == "ExternalName":
        yield from SUBDOMAIN.problems(str(spec.get("externalName", "")).rstrip("."), "spec.externalName")
    elif not spec.get("ports") and spec.get("clusterIP") != "None":
        yield Problem("spec.ports", "Required value")
    if spec.get("sessionAffinity") not in ("None", "ClientIP"):
        yield _unsupported("spec.sessionAffinity", spec.get("sessionAffinity"), "ClientIP", "None")
    yield from label_map(spec.get("selector") or {}, "spec.selector")
    yield from _service_ports(list(items(spec, "ports")))
    yield from ipfamilies.problems(spec, nested(old, "spec", default={}))


def _service_ports(ports: list[Object]) -> Iterator[Problem]:
    names: set[str] = set()
    numbers: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        where = f"spec.ports[{index}]"
        name = port.get("name") or ""
        if not name and len(ports) > 1:
            yield Problem(f"{where}.name", "Required value")
        elif name in names:
            yield Problem(f"{where}.name", "Duplicate value", value=name)
        elif name:
            yield from LABEL.problems(name, f"{where}.name")
        names.add(name)
        yield from _port(port.get("port"), f"{where}.port")
        if port.get("protocol") not in ("TCP", "UDP", "SCTP"):
            yield _unsupported(f"{where}.protocol", port.get("protocol"), "SCTP", "TCP", "UDP")
        target = port.get("targetPort")
        if isinstance(target, int):
            yield from _port(target, f"{where}.targetPort")
        number = (port.get("port"), port.get("protocol"))
        if number in numbers:
            yield Problem(where, "Duplicate value", value={"port": number[0], "protocol": number[1]})
        numbers.add(number)


def endpoint_slice(obj: Object, old: Object | None) -> Iterator[Problem]:
    """One family of addresses, for good."""
    kind = obj.get("addressType")
    if not kind:
        yield Problem("addressType", "Required value")
    elif kind not in ("IPv4", "IPv6", "FQDN"):
        yield _unsupported("addressType", kind, "FQDN", "IPv4", "IPv6")
    elif old is not None and kind != old.get("addressType"):
        yield Problem("addressType", "Invalid value", "field is immutable", kind)
    for index, endpoint in enumerate(items(obj, "endpoints")):
        addresses = endpoint.get("addresses") or ()
        if not addresses:
            yield Problem(f"endpoints[{index}].addresses", "Required value", "must contain at least 1 address")
        for address in addresses:
            if kind in ("IPv4", "IPv6") and family_of(address) != kind:
                yield Problem(f"endpoints[{index}].addresses", "Invalid value", f"must be an {kind} address", address)


def service_import(obj: Object, old: Object | None) -> Iterator[Problem]:
    """The CRD's schema."""
    spec = nested(obj, "spec", default={})
    if spec and spec.get("type") not in ("ClusterSetIP", "Headless"):
        yield _unsupported("spec.type", spec.get("type"), "ClusterSetIP", "Headless")
    for index, port in enumerate(items(spec, "ports")):
        yield from _port(port.get("port"), f"spec.ports[{index}].port")
    if len(spec.get("ips") or ()) > 2:
        yield Problem("spec.ips", "Invalid value", "must have at most 2 items", spec["ips"])


def definition(obj: Object, old: Object | None) -> Iterator[Problem]:
    """Group, scope and names of a definition are immutable."""
    spec = nested(obj, "spec", default={})
    expected = f"{nested(spec, 'names', 'plural', default='')}.{spec.get('group', '')}"
    if nested(obj, "metadata", "name") != expected:
        yield Problem(
            "metadata.name", "Invalid value", f'must be spec.names.plural+"."+spec.group ({expected})', expected
        )
    for path in (("group",), ("names", "plural"), ("names", "kind"), ("scope",)):
        if not nested(spec, *path):
            yield Problem(f"spec.{'.'.join(path)}", "Required value")
        elif old is not None and nested(old, "spec", *path) != nested(spec, *path):
            yield Problem(f"spec.{'.'.join(path)}", "Invalid value", "field is immutable", nested(spec, *path))
    for index, version in enumerate(items(spec, "versions")):
        yield from LABEL_1035.problems(str(version.get("name", "")), f"spec.versions[{index}].name")
        where = f"spec.versions[{index}].schema.openAPIV3Schema"
        yield from openapi.unsupported_rules(nested(version, "schema", "openAPIV3Schema"), where)
    stored = [version for version in items(spec, "versions") if version.get("storage")]
    if len(stored) != 1:
        names = [version.get("name") for version in stored]
        yield Problem(
            "spec.versions", "Invalid value", "must have exactly one version marked as storage version", names
        )


def secret(obj: Object, old: Object | None) -> Iterator[Problem]:
    """The type stays."""
    if old is not None and obj.get("type") != old.get("type"):
        yield Problem("type", "Invalid value", "field is immutable", obj.get("type"))


def _fixed(spec: Object) -> Object:
    """The part of a pod's spec that stays."""
    free = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "ephemeralContainers")
    rest = {name: value for name, value in spec.items() if name not in free}
    for group in ("containers", "initContainers"):
        if group in rest:
            rest[group] = [{k: v for k, v in container.items() if k != "image"} for container in items(spec, group)]
    return rest


def _named(thing: Object, where: str, seen: set[str]) -> Iterator[Problem]:
    name = thing.get("name")
    if not name:
        yield Problem(f"{where}.name", "Required value")
        return
    if name in seen:
        yield Problem(f"{where}.name", "Duplicate value", value=name)
    seen.add(name)
    yield from LABEL.problems(str(name), f"{where}.name")


def _port(port: Any, field: str) -> Iterator[Problem]:
    if port is None:
        yield Problem(field, "Required value")
    elif not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        yield Problem(field, "Invalid value", "must be between 1 and 65535, inclusive", port)


def _count(number: Any, field: str) -> Iterator[Problem]:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        yield Problem(field, "Invalid value", "must be greater than or equal to 0", number)
    elif number > bounds.MAX_INT32:
        yield Problem(field, "Invalid value", f"must be less than or equal to {bounds.MAX_INT32}", number)


def _unsupported(field: str, value: Any, *supported: str) -> Problem:
    values = ", ".join(f'"{each}"' for each in supported)
    return Problem(field, "Unsupported value", f"supported values: {values}", value)


def _qualified(key: str, field: str) -> Iterator[Problem]:
    prefix, slash, name = key.rpartition("/")
    if slash:
        yield from SUBDOMAIN.problems(prefix, field)
    if not name or len(name) > 63 or not re.fullmatch(_QUALIFIED, name):
        yield Problem(field, "Invalid value", QUALIFIED_RULE, key)
