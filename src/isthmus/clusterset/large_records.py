"""Records of many endpoints, of which a change decodes what is new: it costs a look at the text, not at each endpoint.

A record is one value, written again whole. Its maps by address are kept as text, which is split where encoders of JSON
write what separates two entries. So the entries that only one of two texts has are those that were removed or added.
Where more than endpoints has changed, or a record is spelled in another way, all of it is read
(:mod:`.endpoints`), which is what this gives in every case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from isthmus.clusterset import decoding, endpoints
from isthmus.clusterset.endpoints import Backends, Texts, Zones
from isthmus.clusterset.errors import RecordError
from isthmus.model import chunked
from isthmus.model.chunked import Chunked
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet
from isthmus.model.sources import CLUSTERSET

LARGE: Final = chunked.SMALL
"""Endpoints above which a record is large: to read all of fewer costs little more, and they are no ``Chunked``."""
LEAST: Final = 32
"""Bytes that an endpoint takes in a record at least."""
MAX_STEPS: Final = 16
"""Changes of a map that are looked for one by one; the rest of its entries is compared as a whole."""
BLOCK: Final = 4_096
"""Bytes that are compared at once, a power of two."""
NONE: Final = Raw(b"{}")


class _Written(Struct, gc=False):
    """A record with its maps as they are written."""

    cluster: str
    namespace: str
    name: str
    backends: Raw = NONE
    hostnames: Raw = NONE
    zones: Raw = NONE
    nodes: Raw = NONE
    shared: bool = False
    claimed: bool = False
    cluster_id: int = msgspec.field(name="clusterID", default=0)


class _Map(NamedTuple):
    """One of a record's maps by address."""

    field: str
    """The field of an endpoint that its entries hold: an endpoint has one where the field is not empty."""
    separator: bytes
    """What ends an entry, the comma, and the quote that begins the next: nothing else in the map is written so."""
    decoder: msgspec.json.Decoder[Any]


_record = msgspec.json.Decoder(_Written)
_MAPS: Final = (
    _Map("address", b'}},"', msgspec.json.Decoder(Backends)),
    _Map("hostname", b'","', msgspec.json.Decoder(Texts)),
    _Map("zone", b'},"', msgspec.json.Decoder(Zones)),
    _Map("node", b'","', msgspec.json.Decoder(Texts)),
)


Text = tuple[bytes, ...]
"""The entries of each map as they are written, from behind the quote that begins the first, each with its
separator."""


class Kept(NamedTuple):
    """A large record as it was read: its maps as text, which separators split into entries of one endpoint each, none
    of them without effect; and the endpoints, each of an address of its own."""

    maps: Text
    endpoints: Chunked[Endpoint]


class Found(NamedTuple):
    """What is in a record."""

    row: EndpointSet | None
    added: Sequence[Endpoint] = ()
    """Those of its endpoints that have been read: what was there in the version before need not be."""
    kept: Kept | None = None
    """What the next version can be read with; None where all of that has to be read."""


def may_be_one(value: bytes) -> bool:
    """Whether a record may be large, by its text."""
    return len(value) >= LARGE * LEAST and value.count(_MAPS[0].separator) >= LARGE


def decode(
    value: bytes, *, cluster: ClusterName, cluster_id: int, name: ServiceName, before: Kept | None = None
) -> Found:
    """The row of a large record, as :func:`.endpoints.decode` has it. ``before``: what the version before it left."""
    written = decoding.decode(value, _record, limit=endpoints.LIMIT)
    if not endpoints.is_given(written, cluster=cluster, cluster_id=cluster_id, name=name):
        return Found(None)
    maps = _text(written)
    there, added = (_changed(before, maps) if before is not None and maps is not None else None) or _whole(value, maps)
    row = EndpointSet(name, cluster, CLUSTERSET, endpoints.PART, there, written.shared)
    return Found(row, added, Kept(maps, there) if maps is not None and isinstance(there, Chunked) else None)


Read = tuple[Sequence[Endpoint], Sequence[Endpoint]]
"""(all endpoints, in chunks where maps and endpoints can be kept; those that have been read)"""


def _text(record: _Written) -> Text | None:
    """The maps of a record; None where one is written in another way than encoders of JSON without spaces have."""
    found: list[bytes] = []
    for kind, each in zip(_MAPS, (record.backends, record.hostnames, record.zones, record.nodes), strict=True):
        written, begin, end = bytes(each), b'{"', kind.separator[:-2] + b"}"
        if written == b"{}":
            found.append(b"")
        elif written.startswith(begin) and written.endswith(end):
            found.append(written[len(begin) : -1] + kind.separator[-2:])
        else:
            return None
    return tuple(found)


def _whole(value: bytes, maps: Text | None) -> Read:
    fields = decoding.decode(value, endpoints.DECODER, limit=endpoints.LIMIT)
    entries: list[dict[str, Any]]
    entries = [fields.backends or {}, fields.hostnames or {}, fields.zones or {}, fields.nodes or {}]
    found = tuple(endpoints.read(*entries))
    splits = maps is not None and all(
        text.count(each.separator) == len(of) for each, text, of in zip(_MAPS, maps, entries, strict=True)
    )
    return (chunked.sequence(found) if splits and _match(entries, found) else found), found


def _changed(before: Kept, maps: Text) -> Read | None:
    """The endpoints, by the entries that the version before had not got; None where these do not decide."""
    old_entries: list[dict[str, Any]] = []
    new_entries: list[dict[str, Any]] = []
    for each, old, new in zip(_MAPS, before.maps, maps, strict=True):
        edit = edited(each, old, new)
        if edit is None:
            return None
        old_entries.append(edit[0])
        new_entries.append(edit[1])
    removed = [row for address in old_entries[0] if (row := _at(address, before.endpoints)) is not None]
    added = endpoints.read(*new_entries)
    if not _match(old_entries, removed) or not _match(new_entries, added):
        return None
    if any(row.address not in old_entries[0] and _at(row.address, before.endpoints) is not None for row in added):
        return None  # it is there twice
    return chunked.changed(before.endpoints, removed=removed, added=added), added


def _match(entries: Iterable[dict[str, Any]], of: Sequence[Endpoint]) -> bool:
    """Whether the maps have an entry for each field of these endpoints that is not empty, and no other."""
    addresses = [each.address for each in of]
    return all(
        found.keys() == set(compress(addresses, map(attrgetter(kind.field), of)))
        for kind, found in zip(_MAPS, entries, strict=True)
    )


def _at(address: str, there: Chunked[Endpoint]) -> Endpoint | None:
    found = there.first(Endpoint(address, ()))
    return found if found is not None and found.address == address else None


Edit = tuple[dict[str, Any], dict[str, Any]]
"""Entries of a map that were removed, and that were added. One that has changed is in both."""


def edited(of: _Map, old: bytes, new: bytes) -> Edit | None:
    """What became of a map; None where separators do not split it into its entries."""
    if old == new:
        return {}, {}
    removed, added = (_read(of, each) for each in differing(old, new, of.separator))
    return (removed, added) if removed is not None and added is not None else None


def differing(old: bytes, new: bytes, separator: bytes) -> tuple[set[bytes], set[bytes]]:
    """Entries that only one of them has. What is between two changes is passed over where both are sorted."""
    removed: list[bytes] = []
    added: list[bytes] = []
    at = to = 0
    while at < len(old) or to < len(new):
        alike = _alike(old, at, new, to)
        last = old.rfind(separator, at, at + alike)
        if last >= 0:  # what both have up to here
            at, to = last + len(separator), to + last - at + len(separator)
        elif len(removed) + len(added) > MAX_STEPS or at == len(old) or to == len(new):
            removed += old[at:].split(separator)[:-1]
            added += new[to:].split(separator)[:-1]
            break
        elif old[at + alike : at + alike + 1] < new[to + alike : to + alike + 1]:
            end = old.find(separator, at)
            removed.append(old[at:end])
            at = end + len(separator)
        else:
            end = new.find(separator, to)
            added.append(new[to:end])
            to = end + len(separator)
    return set(removed).difference(added), set(added).difference(removed)


def _alike(one: bytes, at: int, other: bytes, to: int) -> int:
    """How many bytes are the same from these places on."""
    same, most = 0, min(len(one) - at, len(other) - to)
    step = BLOCK
    while step:
        if same + step <= most and one[at + same : at + same + step] == other[to + same : to + same + step]:
            same += step
        else:
            step //= 2
    return same


def _read(of: _Map, entries: set[bytes]) -> dict[str, Any] | None:
    """Entries as a map has them; None where that is not what they are."""
    if not entries:
        return {}
    try:
        text = b'{"' + of.separator.join(entries) + of.separator[:-2] + b"}"
        found: dict[str, Any] = decoding.decode(text, of.decoder, limit=endpoints.LIMIT)
    except RecordError:
        return None
    return found if len(found) == len(entries) else None
