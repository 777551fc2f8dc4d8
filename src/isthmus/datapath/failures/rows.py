"""The kernel's state of failing backends → rows of the table ``failures``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from isthmus.datapath.core.shapes import ID
from isthmus.datapath.failures import codecs
from isthmus.datapath.services.installed import Backend as Entry
from isthmus.model.balancing import Backend, BackendKey, Failure, Target


def failures(
    state: Iterable[tuple[bytes, bytes]], known: Mapping[int, Entry], backends: Iterable[Backend], *, boot: float
) -> dict[BackendKey, Failure]:
    """A row for each row of ``backends`` whose target is ejected. ``boot``: Unix time when the kernel's clock was 0."""
    ejected: dict[Target, Mapping[str, int]] = {}
    for key, value in state:
        entry, raw = known.get(ID.unpack(key)[0]), codecs.FAILING.named(value)
        if entry is not None and entry.generation == raw["generation"] and raw["until"]:
            ejected[entry.target] = raw
    if not ejected:
        return {}
    rows = ((row.key, ejected.get(_target(row.key))) for row in backends)
    return {key: _row(key, raw, boot=boot) for key, raw in rows if raw is not None}


def idle(state: Iterable[tuple[bytes, bytes]], known: Mapping[int, Entry], *, now: int, keep: int) -> list[bytes]:
    """Keys of entries that say nothing more: their backend is gone, or it has answered and is forgiven. In ns."""
    found = []
    for key, value in state:
        entry, raw = known.get(ID.unpack(key)[0]), codecs.FAILING.named(value)
        if entry is None or entry.generation != raw["generation"] or max(raw["last"], raw["until"]) + keep < now:
            found.append(key)
    return found


def forgotten(entries: Iterable[tuple[bytes, bytes]], *, now: int, keep: int) -> list[bytes]:
    """Keys of moved connections whose socket is gone and that no packet was seen of for ``keep`` ns: no last segment
    came. The reverse entry goes with its forward one."""
    found = []
    for key, value in entries:
        raw = codecs.FLOW.named(value)
        closed = raw["socket_flags"] & codecs.FLOW_CLOSED
        if closed and not codecs.FLOW_KEY.named(key)["reverse"] and raw["used"] + keep < now:
            found += [key, _reverse(key, raw)]
    return found


def moved(entries: Iterable[tuple[bytes, bytes]]) -> int:
    """How many connections are moved."""
    return sum(not codecs.FLOW_KEY.named(key)["reverse"] for key, _ in entries)


def settled(counted: int, before: int, *, left: int) -> int:
    """The word of ``settled`` for a map with ``left`` entries, of which ``counted`` was read before they were.

    Where there are some, the programs are to look: the word is any other number than the count. Both can be equal only
    where the words are new and the map was carried over.
    """
    if not left:
        return counted
    return before if before != counted else (counted - 1) & 0xFFFFFFFF


def _reverse(forward: bytes, to: Mapping[str, Any]) -> bytes:
    raw = codecs.FLOW_KEY.named(forward)
    return codecs.FLOW_KEY.pack(raw["pod"], to["peer"], to["pod_port"], to["peer_port"], 1)


def _target(key: BackendKey) -> Target:
    return Target(key.address, key.port, key.protocol, key.cluster)


def _row(key: BackendKey, raw: Mapping[str, int], *, boot: float) -> Failure:
    since, until = (boot + raw[name] / 1e9 for name in ("since", "until"))
    reason = codecs.REASONS[raw["reason"]]
    error = f"ejected since {_clock(since)} until {_clock(until)}: {reason}, {raw['failures']} failed in a row"
    return Failure(key, error, reason, raw["failures"], round(since, 1), round(until, 1))


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%SZ")
