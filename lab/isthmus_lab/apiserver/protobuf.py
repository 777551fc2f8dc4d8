"""Objects in Kubernetes' protobuf encoding, as typed Go clients and `kubectl create` send them, read as JSON objects.

``kubernetes.binpb`` describes the messages: the descriptors of Kubernetes' own ``generated.proto`` files, with what its
Go types add for JSON (made by ``tools/kubernetes_protos.py``, which lists it). As in a real server, a field that the
descriptors do not have is skipped. Requests only: everything is answered in JSON, which those clients always accept.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache
from math import floor
from pathlib import Path
from typing import Any, Final

import msgspec
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from isthmus import bounds
from isthmus.times import micro_timestamp, timestamp
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.objects import Object

MAGIC: Final = b"k8s\x00"
"""Prefix of the encoding; a message ``Unknown`` with the object's kind and bytes follows."""
DESCRIPTORS: Final = Path(__file__).with_name("kubernetes.binpb")

_META: Final = "k8s.io.apimachinery.pkg.apis.meta.v1"
_RUNTIME: Final = "k8s.io.apimachinery.pkg.runtime"
_EXTENSIONS: Final = "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1"


def decode(raw: bytes) -> Object:
    """Decode an object to its JSON form. Raises ApiError if the kind is unknown or the bytes are malformed."""
    envelope = _parsed(f"{_RUNTIME}.Unknown", raw.removeprefix(MAGIC))
    api_version, kind = envelope.typeMeta.apiVersion, envelope.typeMeta.kind
    name = next((name for name in _names(api_version, kind) if name in _messages()), None)
    if name is None:
        message = f"this server does not read {api_version}, Kind={kind} from protobuf: send it as JSON"
        raise ApiError(415, "UnsupportedMediaType", message)
    return {"apiVersion": api_version, "kind": kind, **_object(_parsed(name, envelope.raw))}


def unknown(api_version: str, kind: str, obj: Object) -> Iterator[str]:
    """Yield the paths of an object's fields that its kind does not have; nothing of a kind that is not described."""
    name = next((name for name in _names(api_version, kind) if name in _messages()), None)
    if name is not None:
        yield from _unknown(_messages()[name], {k: v for k, v in obj.items() if k not in ("apiVersion", "kind")}, "")


def _unknown(message: Descriptor, value: Any, path: str) -> Iterator[str]:
    if message.full_name in _SPECIAL or not isinstance(value, dict):
        return
    fields = _fields(message)
    for name, child in value.items():
        where = f"{path}.{name}" if path else name
        if name.startswith("$"):
            continue  # a directive of a strategic merge patch
        if (field := fields.get(name)) is None:
            yield where
        elif field.message_type is None or child is None:
            continue
        elif field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"].message_type
            if inner is not None and isinstance(child, dict):
                for key, item in child.items():
                    yield from _unknown(inner, item, f"{where}.{key}")
        elif isinstance(child, list):
            for number, item in enumerate(child):
                yield from _unknown(field.message_type, item, f"{where}[{number}]")
        else:
            yield from _unknown(field.message_type, child, where)


@cache
def _fields(message: Descriptor) -> dict[str, FieldDescriptor]:
    """Fields of a message by their name in JSON, with those of messages that Go embeds."""
    fields: dict[str, FieldDescriptor] = {}
    for field in message.fields:
        if not field.json_name and field.message_type is not None:
            fields |= _fields(field.message_type)
        else:
            fields[field.json_name] = field
    return fields


def _names(api_version: str, kind: str) -> tuple[str, str]:
    """Candidate message names of a kind: in its group, then among those all groups share (DeleteOptions)."""
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
    obj: Object = {}
    for field, value in message.ListFields():
        if not field.json_name:
            obj |= _object(value)  # embedded in Go: JSON has its fields one level up
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            value_field = field.message_type.fields_by_name["value"]
            obj[field.json_name] = {key: _value(value_field, value[key]) for key in value}
        elif field.is_repeated:
            obj[field.json_name] = [_value(field, each) for each in value]
        else:
            obj[field.json_name] = _value(field, value)
    return {name: value for name, value in obj.items() if value is not None}


def _value(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and value.is_integer():
        return floor(value)  # as Go's JSON shows it
    if field.message_type is None:
        return value
    special = _SPECIAL.get(field.message_type.full_name)
    return special(value) if special else _object(value)


def _time(message: Any) -> str | None:
    """RFC 3339, to the second; null for Go's zero time."""
    return timestamp(_datetime(message)) if message.ListFields() else None


def _micro_time(message: Any) -> str | None:
    """RFC 3339 with microseconds; null for Go's zero time."""
    return micro_timestamp(_datetime(message)) if message.ListFields() else None


def _datetime(message: Any) -> datetime:
    seconds = message.seconds + message.nanos // 1000 / 1e6
    if not 0 <= seconds < bounds.LATEST.timestamp():
        raise ApiError(400, "BadRequest", f"{message.seconds} s after 1970 is no time")
    return bounds.since_epoch(seconds)


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
