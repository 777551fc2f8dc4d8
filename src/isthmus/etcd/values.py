"""Arguments and results of this package: keys and values, conditions, operations. Keys are text, values bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct

from isthmus.etcd import wire


class KeyValue(Struct, frozen=True, gc=False):
    """A key at a revision. ``version`` counts its writes since its creation; lease 0 means none."""

    key: str
    value: bytes
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    lease: int = 0


class Listing(NamedTuple):
    """All keys with a prefix, in order, their revision, and the id of the store that the revision belongs to.

    ``left_out``: how many keys of each group there are beyond its share of the limits.
    """

    kvs: list[KeyValue]
    revision: int
    store: int = 0
    left_out: Mapping[str, int] = {}


class Limits(NamedTuple):
    """Bounds of a list: number of keys, and bytes of their values; a foreign store cannot fill our memory.

    A list beyond them is not read, or, with ``group``, in part: each group of keys has its fair share of the bounds,
    its first keys. ``listed`` bounds the keys that are looked at for that.
    """

    keys: int = sys.maxsize
    size: int = sys.maxsize
    group: Callable[[str], str] | None = None
    """The group of a key below the prefix that is listed."""
    listed: int = 1_000_000


class RangeResult(Struct, frozen=True, gc=False):
    """Keys of a range, in order. ``count`` is the size of the whole range, ``more`` whether the limit cut some off."""

    kvs: list[KeyValue]
    more: bool
    revision: int
    count: int
    store: int = 0


class WatchEvent(NamedTuple):
    """A key was written, or deleted when ``kv`` is None. ``prev_kv`` is its value before, if requested."""

    key: str
    kv: KeyValue | None
    prev_kv: KeyValue | None
    revision: int


class WatchBatch(NamedTuple):
    """Events in order, and the revision up to which they are complete; without events it is a bookmark."""

    events: list[WatchEvent]
    revision: int


class Compare(NamedTuple):
    """A condition of a transaction: a field of a key compared with an operand. A missing key has version 0."""

    key: str
    target: Literal["version", "create_revision", "mod_revision", "value", "lease"]
    operator: Literal["==", ">", "<", "!="]
    operand: int | bytes

    def message(self) -> Any:
        """The protobuf message."""
        target = _TARGETS.index(self.target)
        result = _OPERATORS.index(self.operator)
        return wire.Compare(key=encode(self.key), target=target, result=result, **{self.target: self.operand})


_TARGETS: Final = ("version", "create_revision", "mod_revision", "value", "lease")
_OPERATORS: Final = ("==", ">", "<", "!=")


class Put(NamedTuple):
    """Write a key in a transaction."""

    key: str
    value: bytes
    lease: int = 0

    def message(self) -> Any:
        """The protobuf message."""
        return wire.RequestOp(put=wire.PutRequest(key=encode(self.key), value=self.value, lease=self.lease))


class Delete(NamedTuple):
    """Delete a key in a transaction; the response has its value before."""

    key: str

    def message(self) -> Any:
        """The protobuf message."""
        return wire.RequestOp(delete_range=wire.DeleteRangeRequest(key=encode(self.key), prev_kv=True))


class Get(NamedTuple):
    """Read a key in a transaction."""

    key: str

    def message(self) -> Any:
        """The protobuf message."""
        return wire.RequestOp(range=wire.RangeRequest(key=encode(self.key)))


Op = Put | Delete | Get


class TxnResult(NamedTuple):
    """Branch of a transaction that was executed, its revision, and the keys that each operation read or deleted."""

    succeeded: bool
    revision: int
    responses: list[list[KeyValue]]


class Status(NamedTuple):
    """Version, file size, revision, cluster id, alarms (``NOSPACE``, ``CORRUPT``) and id of the answering member.

    ``db_quota``: size in bytes at which it refuses writes; 0 before etcd 3.6, which does not report it.
    ``in_use``: bytes of the file that hold data; defragmentation gives back the others. 0 before etcd 3.4.
    """

    version: str
    db_size: int
    revision: int
    cluster_id: int
    alarms: tuple[str, ...] = ()
    db_quota: int = 0
    in_use: int = 0
    member: int = 0


def encode(key: str) -> bytes:
    """A key as bytes. Foreign keys need not be UTF-8: bytes that do not decode survive the round trip."""
    return key.encode("utf-8", "surrogateescape")


def decode(key: bytes) -> str:
    """A key as text."""
    return key.decode("utf-8", "surrogateescape")


def start_of(prefix: str) -> bytes:
    """The lowest key with a prefix; etcd has no empty key."""
    return encode(prefix) or b"\0"


def end_of(prefix: str) -> bytes:
    """The lowest key after all keys with a prefix.

    >>> end_of("a/")
    b'a0'
    """
    raw = encode(prefix).rstrip(b"\xff")
    return raw[:-1] + bytes([raw[-1] + 1]) if raw else b"\0"


def key_value(kv: Any) -> KeyValue:
    """Convert a protobuf message."""
    return KeyValue(decode(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def txn_result(response: Any) -> TxnResult:
    """Convert a protobuf message."""
    responses = []
    for each in response.responses:
        found = each.range.kvs if each.HasField("range") else each.delete_range.prev_kvs
        responses.append([key_value(kv) for kv in found])
    return TxnResult(response.succeeded, response.header.revision, responses)
