"""The messages of Envoy's API, from a file of descriptors that ``make xds-protos`` writes.

They are in a pool of their own: no generated code, and nothing in common with what else registers Envoy's protos in
this process. Fields are given as keywords, nested messages as dicts.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DESCRIPTORS: Final = "envoy.binpb"
ANY_PREFIX: Final = "type.googleapis.com/"


def message(name: str) -> Any:
    """The class of a message, by its full name. KeyError where the descriptors lack it."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


def packed(name: str, **fields: Any) -> Any:
    """A message as ``google.protobuf.Any``, which is how xDS embeds extensions."""
    value = message(name)(**fields).SerializeToString(deterministic=True)
    return message("google.protobuf.Any")(type_url=ANY_PREFIX + name, value=value)


def unpacked(packed_message: Any) -> Any | None:
    """What an Any holds; None where the descriptors lack its type. DecodeError where its bytes are not that type's."""
    try:
        found = message(packed_message.type_url.rpartition("/")[2])
    except KeyError:
        return None
    return found.FromString(packed_message.value)


def duration(seconds: float) -> dict[str, int]:
    """A ``google.protobuf.Duration``, to the microsecond."""
    whole, micros = divmod(round(seconds * 1_000_000), 1_000_000)
    return {"seconds": whole, "nanos": micros * 1_000}


@cache
def pool() -> Any:
    """The pool with all messages; loading it takes some 10 ms, once."""
    made = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(_data()).file:
        made.Add(file)
    return made


@cache
def rules_by_field() -> dict[str, Any]:
    """Envoy's rules of validation (``validate.FieldRules``), by the full name of the field they are on."""
    extensions, found = _option_reader(), dict[str, Any]()
    files = message("google.protobuf.FileDescriptorSet").FromString(_data()).file
    for file in files:
        for each in file.message_type:
            _collect(f"{file.package}.{each.name}", each, extensions["validate.rules"], found)
    return found


@cache
def required_oneofs() -> frozenset[str]:
    """Full names of the oneofs of which one field has to be set."""
    extensions, found = _option_reader(), set[str]()

    def collect(name: str, described: Any) -> None:
        for oneof in described.oneof_decl:
            if oneof.options.Extensions[extensions["validate.required"]]:
                found.add(f"{name}.{oneof.name}")
        for nested in described.nested_type:
            collect(f"{name}.{nested.name}", nested)

    for file in message("google.protobuf.FileDescriptorSet").FromString(_data()).file:
        for each in file.message_type:
            collect(f"{file.package}.{each.name}", each)
    return frozenset(found)


def _collect(name: str, described: Any, extension: Any, found: dict[str, Any]) -> None:
    for field in described.field:
        if field.options.HasExtension(extension):
            found[f"{name}.{field.name}"] = field.options.Extensions[extension]
    for nested in described.nested_type:
        _collect(f"{name}.{nested.name}", nested, extension, found)


@cache
def _option_reader() -> dict[str, Any]:
    """The extensions of options that hold the rules; options read with this pool's classes then have them."""
    for file in ("validate/validate.proto", "google/protobuf/descriptor.proto"):
        for name in pool().FindFileByName(file).message_types_by_name:
            message(f"{pool().FindFileByName(file).package}.{name}")
    return {name: pool().FindExtensionByName(name) for name in ("validate.rules", "validate.required")}


@cache
def _data() -> bytes:
    return resources.files("isthmus.proxy").joinpath(DESCRIPTORS).read_bytes()
