"""Message classes of Envoy's API, from a file of descriptors that ``make xds-protos`` writes.

They are in a descriptor pool of their own: no generated code, and no conflict with other copies of Envoy's protos in
this process. Pass fields as keywords and nested messages as dicts. The library is imported with the first message:
commands that use a pure function of this package start without it.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, Final

DESCRIPTORS: Final = "envoy.binpb"
ANY_PREFIX: Final = "type.googleapis.com/"


@cache
def message(name: str) -> Any:
    """Return the class of a message by its full name. Raises KeyError if the descriptors lack it."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


def packed(name: str, /, **fields: Any) -> Any:
    """Return a message as ``google.protobuf.Any``, in which xDS embeds extensions."""
    value = message(name)(**fields).SerializeToString(deterministic=True)
    return message("google.protobuf.Any")(type_url=ANY_PREFIX + name, value=value)


def unpacked(packed_message: Any) -> Any | None:
    """Return the message in an Any; ``None`` if the descriptors lack its type. Raises DecodeError for invalid bytes."""
    try:
        class_ = message(packed_message.type_url.rpartition("/")[2])
    except KeyError:
        return None
    return class_.FromString(packed_message.value)


def embedded(field: int, body: bytes) -> bytes:
    """Encode a message as a field of another one, to append to its bytes (protobuf.dev, "Encoding")."""
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def duration(seconds: float) -> dict[str, int]:
    """Return a ``google.protobuf.Duration``, rounded to the microsecond."""
    whole, micros = divmod(round(seconds * 1_000_000), 1_000_000)
    return {"seconds": whole, "nanos": micros * 1_000}


@cache
def pool() -> Any:
    """Return the pool with all messages. The first call takes some 10 ms."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    made = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(_data()).file:
        made.Add(file)
    return made


@cache
def rules_by_field() -> dict[str, Any]:
    """Envoy's validation rules (``validate.FieldRules``) by the full name of the field."""
    extensions, rules = _option_reader(), dict[str, Any]()
    files = message("google.protobuf.FileDescriptorSet").FromString(_data()).file
    for file in files:
        for described in file.message_type:
            _collect(f"{file.package}.{described.name}", described, extensions["validate.rules"], rules)
    return rules


@cache
def required_oneofs() -> frozenset[str]:
    """Full names of the oneofs that require a field."""
    extensions, names = _option_reader(), set[str]()

    def collect(name: str, described: Any) -> None:
        for oneof in described.oneof_decl:
            if oneof.options.Extensions[extensions["validate.required"]]:
                names.add(f"{name}.{oneof.name}")
        for nested in described.nested_type:
            collect(f"{name}.{nested.name}", nested)

    for file in message("google.protobuf.FileDescriptorSet").FromString(_data()).file:
        for message_type in file.message_type:
            collect(f"{file.package}.{message_type.name}", message_type)
    return frozenset(names)


def _collect(name: str, described: Any, extension: Any, rules: dict[str, Any]) -> None:
    for field in described.field:
        if field.options.HasExtension(extension):
            rules[f"{name}.{field.name}"] = field.options.Extensions[extension]
    for nested in described.nested_type:
        _collect(f"{name}.{nested.name}", nested, extension, rules)


@cache
def _option_reader() -> dict[str, Any]:
    """Return the option extensions that hold the rules, and register them with this pool's option classes."""
    for file in ("validate/validate.proto", "google/protobuf/descriptor.proto"):
        for name in pool().FindFileByName(file).message_types_by_name:
            message(f"{pool().FindFileByName(file).package}.{name}")
    return {name: pool().FindExtensionByName(name) for name in ("validate.rules", "validate.required")}


@cache
def _data() -> bytes:
    return resources.files("isthmus.proxy").joinpath(DESCRIPTORS).read_bytes()
