"""Objects in Kubernetes' protobuf encoding, as typed Go clients and `kubectl create` send them, read as JSON objects.

``kubernetes.binpb`` describes the messages: the descriptors of Kubernetes' own ``generated.proto`` files, with what its
Go types add for JSON (made by ``tools/kubernetes_protos.py``, which lists it). As in a real server, a field that the
descriptors do not have is skipped. Requests only: everything is answered in JSON, which those clients always accept.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from isthmus.times import micro_timestamp, timestamp
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.objects import Object

MAGIC: Final = b"k8s\x00"
"""What the encoding begins with, before a message ``Unknown`` that carries kind and bytes of the object."""
DESCRIPTORS: Final = Path(__file__).with_name("kubernetes.binpb")

_META: Final = "k8s.io.apimachinery.pkg.apis.meta.v1"
_RUNTIME: Final = "k8s.io.apimachinery.pkg.runtime"
_EXTENSIONS: Final = "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1"


def decode(raw: bytes) -> Object:
    """An object as JSON would have it; an ApiError where its kind is not known here or it is malformed."""
    envelope = _parsed(f"{_RUNTIME}.Unknown", raw.removeprefix(MAGIC))
    api_version, kind = envelope.typeMeta.apiVersion, envelope.typeMeta.kind
    name = next((name for name in _names(api_version, kind) if name in _messages()), None)
    if name is None:
        message = f"this server does not read {api_version}, Kind={kind} from protobuf: send it as JSON"
        raise ApiError(415, "UnsupportedMediaType", message)
    return {"apiVersion": api_version, "kind": kind, **_object(_parsed(name, envelope.raw))}


def _names(api_version: str, kind: str) -> tuple[str, str]:
    """What the message of a kind may be called: that of its group, or of those all groups share (DeleteOptions)."""
    group, _, version = api_version.rpartition("/")
    package = (
        _EXTENSIONS if group == "apiextensions.k8s.io" else f"k8s.io.api.{group.split('.')[0] or 'core'}.{version}"
    )
    return f"{package}.{kind}", f"{_META}.{kind}"


@cache
def _messages() -> dict[str, Descriptor]:
    """Every message that is described, by its full name."""
    pool = DescriptorPool()
    described = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())
    for file in described.file:
        pool.Add(file)
    return {
        f"{file.package}.{message.name}": pool.FindMessageTypeByName(f"{file.package}.{message.name}")
        for file in described.file
        for message in file.message_type
    }


def _parsed(name: str, raw: bytes) -> Any:
    message = message_factory.GetMessageClass(_messages()[name])()
    try:
        message.ParseFromString(raw)
    except DecodeError:
        raise ApiError(400, "BadRequest", f"the body is not a {name.rpartition('.')[2]} in protobuf") from None
    return message


def _object(message: Message) -> Object:
    found: Object = {}
    for field, value in message.ListFields():
        if not field.json_name:
            found |= _object(value)  # embedded in Go: JSON has its fields one level up
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            of = field.message_type.fields_by_name["value"]
            found[field.json_name] = {key: _value(of, value[key]) for key in value}
        elif field.is_repeated:
            found[field.json_name] = [_value(field, each) for each in value]
        else:
            found[field.json_name] = _value(field, value)
    return {name: value for name, value in found.items() if value is not None}


def _value(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and value.is_integer():
        return int(value)  # as Go's JSON shows it
    if field.message_type is None:
        return value
    special = _SPECIAL.get(field.message_type.full_name)
    return special(value) if special else _object(value)


def _time(message: Any) -> str | None:
    """RFC 3339, to the second; null for Go's zero time."""
    return timestamp(_at(message)) if message.ListFields() else None


def _micro_time(message: Any) -> str | None:
    """RFC 3339 with microseconds; null for Go's zero time."""
    return micro_timestamp(_at(message)) if message.ListFields() else None


def _at(message: Any) -> datetime:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    except OverflowError:
        raise ApiError(400, "BadRequest", f"{message.seconds} s after 1970 is no time") from None


def _raw(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "BadRequest", f"a part of the body is not JSON: {error}") from None


def _either(message: Any) -> Any:
    """The one field that is set, of a type that JSON has in several forms."""
    for field, value in message.ListFields():
        if field.is_repeated:
            return [_value(field, each) for each in value]
        return _value(field, value)
    return None


def _schema_or_bool(message: Any) -> Any:
    return _object(message.schema) if message.HasField("schema") else message.allows


_SPECIAL: Final[dict[str, Callable[[Any], Any]]] = {
    "k8s.io.apimachinery.pkg.api.resource.Quantity": lambda message: message.string,
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": lambda m: m.strVal if m.type else m.intVal,
    f"{_META}.Time": _time,
    f"{_META}.MicroTime": _micro_time,
    f"{_META}.FieldsV1": lambda message: _raw(message.Raw),
    f"{_RUNTIME}.RawExtension": lambda message: _raw(message.raw),
    f"{_EXTENSIONS}.JSON": lambda message: _raw(message.raw),
    f"{_EXTENSIONS}.JSONSchemaPropsOrBool": _schema_or_bool,
    f"{_EXTENSIONS}.JSONSchemaPropsOrArray": _either,
    f"{_EXTENSIONS}.JSONSchemaPropsOrStringArray": _either,
}
"""Messages that JSON has as something else than an object of their fields (their Go types have a MarshalJSON)."""
