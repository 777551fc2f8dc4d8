"""The answers of the clusterset's zone, ready to be sent, negative ones included.

A question for an address is one look-up here. Names between the zone's apex and a name with records exist without
records (NODATA), but for the level of clusters: ``cluster.svc.ns.svc.zone`` is no name, as in CoreDNS' multicluster
plugin. Until the first list is whole, a name that is not known may exist: the answer is SERVFAIL, in our own zone.

A resolver tries its search domains first, so most questions for our names have one of the cluster's behind them:
``x.svc.zone.ns.svc.cluster.local``. No Kubernetes name has that form (a service port's protocol would have to be "svc"
without an underscore), so these are denied at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from isthmus.model.dns import Name
from isthmus.zone import codec
from isthmus.zone.codec import Answer, Query

NEGATIVE_TTL: Final = 5
APEX_TTL: Final = 5
NAME_SERVER: Final = b"\2ns\3dns"
"""The labels of the zone's name server, as CoreDNS names it; it is named only where it has an address."""

Key = tuple[bytes, int]


class Zone:
    """The zone that we answer for: :meth:`replace` rows as they change, :meth:`ours` and :meth:`answer` questions."""

    def __init__(self, zone: str, *, cluster_domain: str = "") -> None:
        self.name = zone.strip(".").lower()
        self.complete = False
        """``True`` after a complete first list of names. Only then does an unknown name not exist."""
        self._apex = codec.wire_name(self.name)
        self._depth = self.name.count(".") + 1
        self._cluster = codec.wire_name(cluster_domain) if cluster_domain else b""
        self._expanded = b"\3svc" + self._apex[:-1]
        self._records: dict[Key, tuple[int, bytes]] = {}
        """Encoded rows; without records where a row makes its name exist."""
        self._existing: Counter[bytes] = Counter()
        self._native: Counter[bytes] = Counter()
        """Names outside the zone that are ours for every type, and how many types they have: all but reverse names."""
        self._server = NAME_SERVER + self._apex
        self._turn = 0
        self.unwritable = 0

    def __repr__(self) -> str:
        return f"<Zone {self.name}: {len(self._records)} answers{'' if self.complete else ', not complete'}>"

    def __len__(self) -> int:
        return len(self._records)

    def replace(self, old: Name | None, new: Name | None) -> None:
        """Exchange a row of a name. A row without answers makes its name exist; one that is unwritable is counted."""
        encoded = self._encoded(new) if new is not None else None  # what raises here leaves the old one as it is
        if old is not None:
            self._remove(old)
        if new is not None and encoded is not None:
            self._add(new, *encoded)

    def ours(self, name: bytes, type_: int) -> bool:
        """True if a question is ours: below the apex, a native name, or the reverse name of one of our addresses."""
        if (name, type_) in self._records:  # hot: most questions that come here
            return True
        return name in self._native or self.below(name)

    def is_native(self, name: bytes) -> bool:
        """True if a name in the cluster's domain represents an import."""
        return name in self._native

    def answer(self, query: Query) -> Answer:
        """The answer to a question of ours."""
        encoded = self._records.get((query.name, query.type))  # hot: every ordinary question ends here
        if encoded is not None and encoded[0]:
            count, records = encoded
            self._turn += count > 1
            return Answer(codec.NOERROR, count, codec.rotate(count, records, self._turn))
        if query.name == self._apex:
            return self._of_apex(query.type)
        if query.name in self._native:  # nothing, rather than another's NXDOMAIN, which denies every type
            return Answer(codec.NOERROR, authoritative=False)
        if query.name in self._existing:
            return self._nothing(codec.NOERROR)
        if not self.complete:
            return Answer(codec.SERVFAIL, authoritative=False)
        return self._nothing(codec.NXDOMAIN)

    @property
    def apex(self) -> bytes:
        """The zone's own name in wire format."""
        return self._apex

    def exists(self, name: bytes) -> bool:
        """True if a name has records, or names below it."""
        return name == self._apex or name in self._existing or name in self._native or bool(self.types(name))

    def records(self, name: bytes, type_: int) -> tuple[int, bytes]:
        """Return the number of a name's records of a type, and their concatenated bytes."""
        return self._records.get((name, type_), (0, b""))

    def affected(self, row: Name) -> list[bytes]:
        """The names whose existence or records a row touches; none for one that cannot be written."""
        try:
            name = codec.wire_name(row.name)
        except codec.Unwritable:
            return []
        return [*self._chain(name)] if self.below(name) else [name]

    def below(self, name: bytes) -> bool:
        """True if a name is the apex or below it."""
        return name.endswith(self._apex) and len(name) - len(self._apex) in _label_starts(name)

    def authority(self) -> bytes:
        """The SOA record of a negative answer."""
        return codec.record(codec.SOA, NEGATIVE_TTL, self._soa(), owner=self._apex)

    def is_expansion(self, name: bytes) -> bool:
        """True if this is a name of ours with a search domain of the cluster appended."""
        if not self._cluster or self._expanded not in name or not name.endswith(self._cluster):  # hot: most end here
            return False
        return any(self._expands(name[start:]) for start in _label_starts(name)[1:])

    def types(self, name: bytes) -> list[int]:
        """The types a name has records of."""
        return [type_ for type_ in codec.TYPES.values() if self.records(name, type_)[0]]

    def _expands(self, suffix: bytes) -> bool:
        """``svc.zone``, then ``cluster``, ``svc.cluster`` or ``ns.svc.cluster``."""
        if not suffix.startswith(self._expanded):
            return False
        domain = suffix[len(self._expanded) :]
        within = b"\3svc" + self._cluster
        return domain in (self._cluster, within) or domain[1 + domain[0] :] == within

    def _encoded(self, row: Name) -> tuple[bytes, tuple[int, bytes]] | None:
        """The name and the records of a row in wire format; ``None``, and counted, if they cannot be written."""
        try:
            return codec.wire_name(row.name), codec.records(row)
        except ValueError:
            self.unwritable += 1
            return None

    def _add(self, row: Name, name: bytes, records: tuple[int, bytes]) -> None:
        self._records[name, codec.TYPES[row.type]] = records
        for existing in self._chain(name):
            self._existing[existing] += 1
        if row.type != "PTR" and not self.below(name):
            self._native[name] += 1

    def _remove(self, row: Name) -> None:
        try:
            name = codec.wire_name(row.name)
        except codec.Unwritable:
            return
        if self._records.pop((name, codec.TYPES.get(row.type, 0)), None) is None:
            return
        for existing in self._chain(name):
            self._existing[existing] -= 1
            if not self._existing[existing]:
                del self._existing[existing]
        if name in self._native:
            self._native[name] -= 1
            if not self._native[name]:
                del self._native[name]

    def _chain(self, name: bytes) -> Iterator[bytes]:
        """A name and those between it and the apex, but for the level of clusters."""
        if not name.endswith(self._apex):
            return
        starts = _label_starts(name)
        for position, start in enumerate(starts[: len(starts) - self._depth]):
            below = len(starts) - position - self._depth
            is_cluster = below == 4 and name[start + 1 : start + 2] != b"_"
            if not position or not is_cluster:
                yield name[start:]

    def _of_apex(self, type_: int) -> Answer:
        if type_ == codec.SOA:
            return Answer(codec.NOERROR, 1, codec.record(codec.SOA, APEX_TTL, self._soa()))
        if type_ == codec.NS and self._has_server():
            return Answer(codec.NOERROR, 1, codec.record(codec.NS, APEX_TTL, self._server))
        return self._nothing(codec.NOERROR)

    def _nothing(self, rcode: int) -> Answer:
        return Answer(rcode, authority=self.authority())

    def _soa(self) -> bytes:
        server = self._server if self._has_server() else self._apex
        return codec.soa(self._apex, server=server, ttl=NEGATIVE_TTL)

    def _has_server(self) -> bool:
        return any((self._server, type_) in self._records for type_ in (codec.A, codec.AAAA))


def _label_starts(name: bytes) -> list[int]:
    """Offsets of the labels of a name in wire format, without the root."""
    starts, at = [], 0
    while name[at]:
        starts.append(at)
        at += name[at] + 1
    return starts
