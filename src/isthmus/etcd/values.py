"""What callers of this package give and get: keys and values, conditions, operations. Keys are text, values bytes."""

from __future__ import annotations

import sys
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct

from isthmus.etcd import wire


class KeyValue(Struct, frozen=True, gc=False):
    """A key as it was at a revision. ``version`` counts its writes since it was created; lease 0 is none."""

    key: str
    value: bytes
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    lease: int = 0


class Listing(NamedTuple):
    """All keys below a prefix, in order, the revision they are of, and the id of the store that has such revisions."""

    kvs: list[KeyValue]
    revision: int
    store: int = 0


class Limits(NamedTuple):
    """How much a list may bring: keys, and bytes of values. A store of others cannot make us hold without bound."""

    keys: int = sys.maxsize
    size: int = sys.maxsize


class RangeResult(Struct, frozen=True, gc=False):
    """Keys of a range, in order. ``count`` is how many the whole range has, ``more`` whether some were left out."""

    kvs: list[KeyValue]
    more: bool
    revision: int
    count: int
    store: int = 0


class WatchEvent(NamedTuple):
    """A key was put, or deleted where ``kv`` is None. ``prev_kv`` is what it was, where that was asked for."""

    key: str
    kv: KeyValue | None
    prev_kv: KeyValue | None
    revision: int


class WatchBatch(NamedTuple):
    """Events in order, and the revision up to which everything has been told; without events it is a bookmark."""

    events: list[WatchEvent]
    revision: int


class Compare(NamedTuple):
    """A condition of a transaction: what of a key, how, against which value. A missing key has version 0."""

    key: str
    target: Literal["version", "create_revision", "mod_revision", "value", "lease"]
    operator: Literal["==", ">", "<", "!="]
    operand: int | bytes

    def message(self) -> Any:
        """As it goes over the wire."""
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
        """As it goes over the wire."""
        return wire.RequestOp(put=wire.PutRequest(key=encode(self.key), value=self.value, lease=self.lease))


class Delete(NamedTuple):
    """Delete a key in a transaction, and say what it was."""

    key: str

    def message(self) -> Any:
        """As it goes over the wire."""
        return wire.RequestOp(delete_range=wire.DeleteRangeRequest(key=encode(self.key), prev_kv=True))


class Get(NamedTuple):
    """Read a key in a transaction."""

    key: str

    def message(self) -> Any:
        """As it goes over the wire."""
        return wire.RequestOp(range=wire.RangeRequest(key=encode(self.key)))


Op = Put | Delete | Get


class TxnResult(NamedTuple):
    """Which branch was taken, at which revision, and per operation the keys read, deleted or none."""

    succeeded: bool
    revision: int
    responses: list[list[KeyValue]]


class Status(NamedTuple):
    """What the member that answers says of itself."""

    version: str
    db_size: int
    revision: int
    cluster_id: int


def encode(key: str) -> bytes:
    """A key as bytes. Keys of others need not be UTF-8; what does not decode survives the round trip."""
    return key.encode("utf-8", "surrogateescape")


def decode(key: bytes) -> str:
    """A key as text."""
    return key.decode("utf-8", "surrogateescape")


def start_of(prefix: str) -> bytes:
    """The first key that begins with a prefix; etcd has no empty key."""
    return encode(prefix) or b"\0"


def end_of(prefix: str) -> bytes:
    """The first key after all that begin with a prefix.

    >>> end_of("a/")
    b'a0'
    """
    raw = encode(prefix).rstrip(b"\xff")
    return raw[:-1] + bytes([raw[-1] + 1]) if raw else b"\0"


def key_value(kv: Any) -> KeyValue:
    """From the wire."""
    return KeyValue(decode(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def txn_result(response: Any) -> TxnResult:
    """From the wire."""
    responses = []
    for each in response.responses:
        found = each.range.kvs if each.HasField("range") else each.delete_range.prev_kvs
        responses.append([key_value(kv) for kv in found])
    return TxnResult(response.succeeded, response.header.revision, responses)
