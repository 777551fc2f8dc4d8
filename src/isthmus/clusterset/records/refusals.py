"""Refused records: those of a peer that are not taken here, and what a peer publishes about ours.

A cluster writes one key for each peer whose records it does not take, with some of them by name and reason. The peer
follows that key: its exports have the condition ``Refused`` by it. Whoever writes it can say false things about its own
refusals, and about nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.clusterset.errors import Refusal
from isthmus.clusterset.records import decoding, keys
from isthmus.fair import Shares
from isthmus.model.mcs import PeerRefusal, RecordKind, RefusalOfRecord, RefusedRecord
from isthmus.model.names import ClusterName, ServiceName

MAX_NAMED: Final = 100
"""Refused records of one kind and peer that are named, in fair shares by namespace; all are counted."""
MAX_COUNTED: Final = 20_000
"""Refused records of one kind and peer that are counted one by one."""
MAX_MESSAGE: Final = 300
LIMIT: Final = 256 * 1024
"""Bytes of a peer's refusals: twice what MAX_NAMED of each kind take."""
KINDS: Final[tuple[RecordKind, ...]] = ("serviceexports", "services")
REASONS: Final[tuple[RefusalOfRecord, ...]] = get_args(RefusalOfRecord)

C = TypeVar("C")


class RefusedRecords:
    """The refused records of one kind of a peer: all are counted, some are named."""

    def __init__(self) -> None:
        self._all: dict[str, Refusal] = {}
        self._named: dict[str, Refusal] = {}
        self._shares = Shares(MAX_NAMED)
        self._changed = False
        self.unread: Mapping[str, int] = {}
        """Number of further records that were not read, by namespace."""

    def __repr__(self) -> str:
        return f"<RefusedRecords: {len(self)}, {len(self._named)} named>"

    def __len__(self) -> int:
        return len(self._all) + sum(self.unread.values())

    def __contains__(self, key: str) -> bool:
        return key in self._all

    @property
    def named(self) -> Mapping[str, Refusal]:
        """Some of them by key."""
        return self._named

    @property
    def example(self) -> str:
        """One of them with the reason; empty where there is none."""
        if self._named:
            key = min(self._named)
            return f"{ascii(key)[1:-1]}: {self._named[key].message}"
        namespace = min(self.unread, default="")
        return f"{ascii(namespace)[1:-1]}: more records of this namespace than are read" if self.unread else ""

    def add(self, key: str, refusal: Refusal) -> None:
        """A record is refused."""
        before = self._all.get(key)
        if before == refusal:
            return
        named = key in self._named or self._shares.headroom(_namespace(key)) > 0
        if named or before is not None or len(self._all) < MAX_COUNTED:
            self._all[key] = refusal
        if named:
            if key not in self._named:
                self._shares.hold(_namespace(key))
            self._named[key] = refusal
            self._changed = True

    def discard(self, key: str) -> None:
        """A record is not refused any more, or is gone."""
        if self._all.pop(key, None) is not None and self._named.pop(key, None) is not None:
            self._shares.hold(_namespace(key), -1)
            self._changed = True

    def clear(self) -> None:
        """No record is refused."""
        self._all.clear()
        self._named.clear()
        self._shares = Shares(MAX_NAMED)
        self._changed = True

    def take_changes(self) -> bool:
        """True if ``named`` has changed since the last call."""
        changed, self._changed = self._changed, False
        return changed


def rows(kind: RecordKind, cluster: ClusterName, named: Mapping[str, Refusal]) -> list[RefusedRecord]:
    """The rows of a peer's refused records, without those whose key is no name."""
    return [
        RefusedRecord(
            cluster=cluster,
            kind=kind,
            name=ServiceName(key),
            reason=refusal.reason,
            message=_bounded(refusal.message),
        )
        for key, refusal in named.items()
        if keys.is_name(key)
    ]


class _Entry(Struct, gc=False):
    kind: str
    name: str
    reason: str = ""
    message: str = ""


class _Refusals(Struct, gc=False):
    refused: Annotated[list[_Entry], Meta(max_length=10 * MAX_NAMED)]


_decoder = msgspec.json.Decoder(_Refusals)


def encode(refused: Iterable[RefusedRecord]) -> bytes:
    """The value of the key for one peer."""
    entries = [_Entry(row.kind, row.name, row.reason, row.message) for row in refused]
    return msgspec.json.encode(_Refusals(sorted(entries, key=lambda entry: (entry.kind, entry.name))))


def decode(value: bytes, *, cluster: ClusterName) -> list[PeerRefusal]:
    """The first refusals of each kind that a peer publishes; RecordError where the value cannot be read.

    Entries of unknown kinds and impossible names are skipped; an unknown reason is Invalid.
    """
    by_kind: dict[RecordKind, dict[ServiceName, PeerRefusal]] = {kind: {} for kind in KINDS}
    for entry in decoding.decode(value, _decoder, limit=LIMIT).refused:
        kind = _choice(entry.kind, KINDS)
        if kind is not None and keys.is_name(entry.name) and len(by_kind[kind]) < MAX_NAMED:
            reason, name = _choice(entry.reason, REASONS) or "Invalid", ServiceName(entry.name)
            message = _bounded(entry.message)
            by_kind[kind][name] = PeerRefusal(cluster=cluster, kind=kind, name=name, reason=reason, message=message)
    return [row for of_kind in by_kind.values() for row in of_kind.values()]


def _choice(text: str, options: Sequence[C]) -> C | None:
    try:
        return bounds.choice(text, options)
    except OutOfBounds:
        return None


def _bounded(text: str) -> str:
    """Printable text of one line."""
    short = text[:MAX_MESSAGE]
    return short if short.isprintable() else ascii(short)[1:-1][:MAX_MESSAGE]


def _namespace(key: str) -> tuple[str, ...]:
    return (key.partition("/")[0],)
