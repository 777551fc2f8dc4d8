"""Objects that kubectl sends as protobuf and nothing else: what `kubectl create namespace`, `configmap` and so on make.

Only these kinds, and of them only the fields that such commands set. Anything more is refused, not dropped: kubectl
sends what is in a manifest as JSON. Everything is answered in JSON, which kubectl always takes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.objects import Object

MAGIC: Final = b"k8s\x00"

_DECLARED: Final = {
    "Unknown": "1 typeMeta TypeMeta, 2 raw raw, 3 contentEncoding -, 4 contentType -",
    "TypeMeta": "1 apiVersion, 2 kind",
    "ObjectMeta": "1 name, 2 generateName, 3 namespace, 4 selfLink -, 5 uid, 6 resourceVersion, 7 generation -, "
    "8 creationTimestamp -, 11 labels {s}, 12 annotations {s}, 13 ownerReferences [OwnerReference], 14 finalizers [s]",
    "OwnerReference": "5 apiVersion, 1 kind, 3 name, 4 uid, 6 controller b, 7 blockOwnerDeletion b",
    "LabelSelector": "1 matchLabels {s}, 2 matchExpressions [LabelSelectorRequirement]",
    "LabelSelectorRequirement": "1 key, 2 operator, 3 values [s]",
    "Namespace": "1 metadata ObjectMeta, 2 spec NamespaceSpec, 3 status -",
    "NamespaceSpec": "1 finalizers [s]",
    "ConfigMap": "1 metadata ObjectMeta, 2 data {s}, 3 binaryData {B}, 4 immutable b!",
    "Secret": "1 metadata ObjectMeta, 2 data {B}, 3 type, 4 stringData {s}, 5 immutable b!",
    "ServiceAccount": "1 metadata ObjectMeta, 4 automountServiceAccountToken b!",
    "Service": "1 metadata ObjectMeta, 2 spec ServiceSpec, 3 status -",
    "ServiceSpec": "1 ports [ServicePort], 2 selector {s}, 3 clusterIP, 4 type, 5 externalIPs [s], 7 sessionAffinity, "
    "8 loadBalancerIP, 10 externalName, 11 externalTrafficPolicy, 12 healthCheckNodePort i, "
    "13 publishNotReadyAddresses b, 17 ipFamilyPolicy, 18 clusterIPs [s], 19 ipFamilies [s], 22 internalTrafficPolicy",
    "ServicePort": "1 name, 2 protocol, 3 port i, 4 targetPort IntOrString, 5 nodePort i, 6 appProtocol",
    "IntOrString": "1 type i!, 2 intVal i!, 3 strVal s!",
    "Deployment": "1 metadata ObjectMeta, 2 spec DeploymentSpec, 3 status -",
    "DeploymentSpec": "1 replicas i!, 2 selector LabelSelector, 3 template PodTemplateSpec, 4 strategy -, "
    "5 minReadySeconds i, 6 revisionHistoryLimit i!, 7 paused b, 9 progressDeadlineSeconds i!",
    "Job": "1 metadata ObjectMeta, 2 spec JobSpec, 3 status -",
    "JobSpec": "1 parallelism i!, 2 completions i!, 3 activeDeadlineSeconds i!, 4 selector LabelSelector, "
    "6 template PodTemplateSpec, 7 backoffLimit i!, 8 ttlSecondsAfterFinished i!",
    "PodTemplateSpec": "1 metadata ObjectMeta, 2 spec PodSpec",
    "PodSpec": "2 containers [Container], 3 restartPolicy, 4 terminationGracePeriodSeconds i!, 6 dnsPolicy, "
    "7 nodeSelector {s}, 8 serviceAccountName, 9 serviceAccount, 10 nodeName, 11 hostNetwork b, 12 hostPID b, "
    "13 hostIPC b, 16 hostname, 17 subdomain, 19 schedulerName, 24 priorityClassName",
    "Container": "1 name, 2 image, 3 command [s], 4 args [s], 5 workingDir, 6 ports [ContainerPort], 7 env [EnvVar], "
    "13 terminationMessagePath, 14 imagePullPolicy, 16 stdin b, 17 stdinOnce b, 18 tty b, 20 terminationMessagePolicy",
    "ContainerPort": "1 name, 2 hostPort i, 3 containerPort i, 4 protocol, 5 hostIP",
    "EnvVar": "1 name, 2 value s!",
    "DeleteOptions": "1 gracePeriodSeconds i!, 2 preconditions Preconditions, 3 orphanDependents b!, "
    "4 propagationPolicy, 5 dryRun [s]",
    "Preconditions": "1 uid, 2 resourceVersion",
    "Eviction": "1 metadata ObjectMeta, 2 deleteOptions DeleteOptions",
    "TokenRequest": "1 metadata ObjectMeta, 2 spec TokenRequestSpec, 3 status -",
    "TokenRequestSpec": "1 audiences [s], 4 expirationSeconds i!",
}


class _Field(NamedTuple):
    """A field: its name in JSON, its type, and whether it is one value, a list or a map; '!' keeps what is zero."""

    name: str
    type: str
    many: str = ""
    keep: bool = False


def _fields(declared: str) -> dict[int, _Field]:
    found = {}
    for each in declared.split(", "):
        number, name, *rest = each.split()
        kind = rest[0] if rest else "s"
        many = kind[0] if kind[0] in "[{" else ""
        found[int(number)] = _Field(name, kind.strip("[]{}!"), many, kind.endswith("!"))
    return found


MESSAGES: Final = {name: _fields(declared) for name, declared in _DECLARED.items()}


def decode(raw: bytes) -> Object:
    """An object as JSON would have it; an ApiError where it is of a kind, or has a field, that is not known here."""
    try:
        envelope = _message("Unknown", raw.removeprefix(MAGIC))
        meta = envelope.get("typeMeta", {})
        return {**meta, **_message(meta.get("kind", ""), envelope.get("raw", b""))}
    except (IndexError, UnicodeDecodeError):
        raise _refused("it is cut short") from None


def _message(name: str, raw: bytes) -> Object:
    fields = MESSAGES.get(name)
    if fields is None:
        raise _refused(f"kind {name or 'nothing'}")
    found: Object = {}
    for number, value in _values(raw):
        field = fields.get(number)
        if field is None:
            if value:
                raise _refused(f"field {number} of {name}")
        elif field.type != "-":
            _set(found, field, value)
    return _port(found) if name == "IntOrString" else found


def _set(found: Object, field: _Field, value: int | bytes) -> None:
    if field.many == "{":
        entry = dict(_values(value)) if isinstance(value, bytes) else {}
        key = entry.get(1, b"")
        found.setdefault(field.name, {})[_scalar("s", key)] = _scalar(field.type, entry.get(2, b""))
        return
    decoded = _scalar(field.type, value)
    if field.many:
        found.setdefault(field.name, []).append(decoded)
    elif decoded or field.keep:
        found[field.name] = decoded


def _scalar(kind: str, value: int | bytes) -> Any:
    if isinstance(value, int):
        signed = value - (1 << 64) if value >> 63 else value
        return bool(signed) if kind == "b" else signed
    match kind:
        case "s":
            return value.decode()
        case "B":
            return base64.b64encode(value).decode()
        case "raw":
            return value
    return _message(kind, value)


def _port(found: Object) -> Any:
    """A number or a name is one value in JSON."""
    return found.get("strVal", "") if found.get("type") else found.get("intVal", 0)


def _values(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        match tag & 7:
            case 0:
                value, at = _varint(raw, at)
                yield tag >> 3, value
            case 2:
                size, at = _varint(raw, at)
                if at + size > len(raw):
                    raise IndexError(at)
                yield tag >> 3, raw[at : at + size]
                at += size
            case other:
                raise _refused(f"wire type {other}")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at


def _refused(what: str) -> ApiError:
    message = f"this server does not read {what} from protobuf; write a manifest and use kubectl apply -f"
    return ApiError(415, "UnsupportedMediaType", message)
