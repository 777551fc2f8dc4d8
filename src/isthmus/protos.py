"""Protobuf messages of others, built at import from a table of field numbers.

There are no .proto files and no generated code, so nothing depends on the version of protobuf that is installed. A
table has only the fields that are used; the decoder skips unknown ones. The descriptors are in a pool of their own, so
another package may register the same messages in the default pool.

A line of a table is a message: its name, then ``number name type`` for each field. Before a type, ``*`` repeats it and
``?`` lets a reader tell whether it is set. Text that is not UTF-8 is refused by the decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto
SCALARS: Final = {
    "bytes": Field.TYPE_BYTES,
    "string": Field.TYPE_STRING,
    "bool": Field.TYPE_BOOL,
    "int32": Field.TYPE_INT32,
    "int64": Field.TYPE_INT64,
    "uint32": Field.TYPE_UINT32,
    "uint64": Field.TYPE_UINT64,
}


def messages(package: str, table: str) -> Callable[[str], Any]:
    """Return the function that gives the class of a message of the table by its name."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file(package, table))
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


def _file(package: str, table: str) -> descriptor_pb2.FileDescriptorProto:
    """The table as a descriptor, as protoc would have made it."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for line in table.strip().splitlines():
        name, _, rest = line.partition(" ")
        message = file.message_type.add(name=name)
        for entry in rest.split(","):
            number, field, kind = entry.split()
            label = Field.LABEL_REPEATED if kind.startswith("*") else Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=int(number), label=label)
            if kind.startswith("?"):
                added.proto3_optional, added.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field}")
            kind = kind.lstrip("*?")
            if kind in SCALARS:
                added.type = SCALARS[kind]
            else:
                added.type, added.type_name = Field.TYPE_MESSAGE, f".{package}.{kind}"
    return file
