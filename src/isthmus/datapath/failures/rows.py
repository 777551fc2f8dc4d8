"""The kernel's state of failing backends → rows of the tables ``failures`` and ``caller_failures``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from isthmus import bounds
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.failures import codecs
from isthmus.datapath.services.installed import Backend as Entry
from isthmus.model.balancing import Backend, BackendKey, CallerFailure, Denial, Failure, Target


class KernelState(Struct, frozen=True):
    """Entries of the maps of failing backends, read together."""

    failing: Sequence[tuple[bytes, bytes]]
    callers: Sequence[tuple[bytes, bytes]]
    probed: Sequence[tuple[bytes, bytes]]
    now: int
    """CLOCK_MONOTONIC, ns."""

    def verdicts(self) -> dict[int, dict[str, int]]:
        """The agent's unexpired verdicts by backend number."""
        probed = ((ID.unpack(key)[0], codecs.PROBED.named(value)) for key, value in self.probed)
        return {number: raw for number, raw in probed if raw["until"] > self.now}


def failures(
    state: KernelState, installed: Mapping[int, Entry], backends: Iterable[Backend], *, boot: float
) -> dict[BackendKey, Failure]:
    """A row for each row of ``backends`` whose target is ejected for all callers.

    ``boot`` is the Unix time at which the kernel's clock was 0. The rules are those of ``ejected_until`` in
    bpf/failures.h.
    """
    ejected: dict[Target, dict[str, int]] = {}
    verdicts = state.verdicts()
    for key, value in state.failing:
        number = ID.unpack(key)[0]
        entry, raw, verdict = installed.get(number), codecs.FAILING.named(value), verdicts.get(number)
        if entry is None or entry.generation != raw["generation"]:
            continue
        if verdict is not None and verdict["generation"] == raw["generation"]:
            if verdict["verdict"] == codecs.DEAD:
                ejected[entry.target] = {**raw, "since": verdict["since"], "until": verdict["until"], "confirmed": 1}
        elif raw["until"]:
            ejected[entry.target] = {**raw, "confirmed": 0}
    if not ejected:
        return {}
    rows = ((row.key, ejected.get(_target(row.key))) for row in backends)
    return {key: _row(key, raw, boot=boot) for key, raw in rows if raw is not None}


def caller_failures(
    state: KernelState, installed: Mapping[int, Entry], backends: Iterable[Backend], *, boot: float
) -> dict[tuple[int, BackendKey], CallerFailure]:
    """A row for each caller for which a backend is ejected, and each row of ``backends`` with that target."""
    ejected: dict[Target, list[dict[str, Any]]] = {}
    verdicts = state.verdicts()
    for key, value in state.callers:
        raw = codecs.CALLER_FAILING.named(value)
        entry, verdict = installed.get(raw["backend"]), verdicts.get(raw["backend"])
        if raw["until"] and entry is not None and entry.generation == raw["generation"]:
            judged = verdict is not None and verdict["generation"] == entry.generation
            name = codecs.VERDICTS[verdict["verdict"]] if verdict and judged else ""
            ejected.setdefault(entry.target, []).append({**codecs.CALLER_KEY.named(key), **raw, "verdict": name})
    if not ejected:
        return {}
    pairs = ((row.key, raw) for row in backends for raw in ejected.get(_target(row.key), ()))
    rows = (_caller_row(key, raw, boot=boot) for key, raw in pairs)
    return {(row.caller, row.key): row for row in rows}


def denials(
    entries: Sequence[tuple[bytes, bytes]], installed: Mapping[int, Entry], backends: Iterable[Backend], *, boot: float
) -> dict[tuple[int, BackendKey], Denial]:
    """A row for each caller that a policy denied a backend, and each row of ``backends`` with that target."""
    denied: dict[Target, list[dict[str, Any]]] = {}
    for key, value in entries:
        raw = {**codecs.DENIAL_KEY.named(key), **codecs.DENIAL.named(value)}
        entry = installed.get(raw["backend"])
        if raw["connects"] and entry is not None and entry.generation == raw["generation"]:
            denied.setdefault(entry.target, []).append(raw)
    if not denied:
        return {}
    pairs = ((row.key, raw) for row in backends for raw in denied.get(_target(row.key), ()))
    return {
        (raw["caller"], key): Denial(
            caller=raw["caller"], key=key, connects=raw["connects"], last=round(boot + raw["last"] / 1e9, 1)
        )
        for key, raw in pairs
    }


def past_denials(
    entries: Sequence[tuple[bytes, bytes]], installed: Mapping[int, Entry], *, now: int, keep: int
) -> list[bytes]:
    """Select denials to delete: their backend no longer exists, or none was denied for ``keep`` ns."""

    def is_past(key: bytes, raw: Mapping[str, int]) -> bool:
        entry = installed.get(codecs.DENIAL_KEY.named(key)["backend"])
        return entry is None or entry.generation != raw["generation"] or raw["last"] + keep < now

    return [key for key, value in entries if is_past(key, codecs.DENIAL.named(value))]


class Idle(NamedTuple):
    """Keys of entries without effect, by map."""

    failing: list[bytes]
    callers: list[bytes]
    probed: list[bytes]


def idle(state: KernelState, installed: Mapping[int, Entry], *, keep: int) -> Idle:
    """Select entries to delete: their backend no longer exists, or has had no failure for ``keep`` ns.

    An entry in ``failing`` stays while the agent's verdict on its backend is valid: the kernel looks for a verdict only
    if it finds that entry.
    """

    def has_gone(number: int, generation: int) -> bool:
        entry = installed.get(number)
        return entry is None or entry.generation != generation

    verdicts = state.verdicts()
    probed = [key for key, _ in state.probed if ID.unpack(key)[0] not in verdicts or ID.unpack(key)[0] not in installed]
    failing, callers = list[bytes](), list[bytes]()
    for key, value in state.failing:
        raw = codecs.FAILING.named(value)
        number, last = ID.unpack(key)[0], max(raw["last"], raw["until"])
        if has_gone(number, raw["generation"]) or (last + keep < state.now and number not in verdicts):
            failing.append(key)
    for key, value in state.callers:
        raw = codecs.CALLER_FAILING.named(value)
        if has_gone(raw["backend"], raw["generation"]) or max(raw["last"], raw["until"]) + keep < state.now:
            callers.append(key)
    return Idle(failing, callers, probed)


def forgotten(entries: Iterable[tuple[bytes, bytes]], *, now: int, keep: int) -> list[bytes]:
    """Keys of moved connections whose socket is closed and that had no packet for ``keep`` ns, since their last segment
    was lost. The reverse key follows its forward key."""
    keys = []
    for key, value in entries:
        raw = codecs.FLOW.named(value)
        closed = raw["socket_flags"] & codecs.FLOW_CLOSED
        if closed and not codecs.FLOW_KEY.named(key)["reverse"] and raw["used"] + keep < now:
            keys += [key, _reverse(key, raw)]
    return keys


def moved(entries: Iterable[tuple[bytes, bytes]]) -> int:
    """Number of moved connections."""
    return sum(not codecs.FLOW_KEY.named(key)["reverse"] for key, _ in entries)


def unanswered(entries: Iterable[tuple[bytes, bytes]], *, now: int, keep: int) -> int:
    """Number of SYNs sent within ``keep`` ns to backends that had not answered when the connect left them."""
    return sum(codecs.UNANSWERED.named(value)["sent"] + keep > now for _, value in entries)


def settled(counted: int, before: int, *, remaining: int) -> int:
    """Value of ``settled`` for a map with ``remaining`` entries; ``counted`` was read before the entries.

    Programs skip a map while both words are equal. So the value is ``counted`` for an empty map, and any other number
    for a map with entries: ``before``, unless the words are new and the map was carried over.
    """
    if not remaining:
        return counted
    return before if before != counted else (counted - 1) & 0xFFFFFFFF


def _reverse(forward: bytes, flow: Mapping[str, Any]) -> bytes:
    raw = codecs.FLOW_KEY.named(forward)
    return codecs.FLOW_KEY.pack(raw["pod"], flow["peer"], flow["pod_port"], flow["peer_port"], 1)


def _target(key: BackendKey) -> Target:
    return Target(key.address, key.port, key.protocol, key.cluster)


def _row(key: BackendKey, raw: Mapping[str, int], *, boot: float) -> Failure:
    start, until = (boot + raw[name] / 1e9 for name in ("since", "until"))
    reason, confirmed = codecs.REASONS[raw["reason"]], bool(raw["confirmed"])
    evidence = f"{raw['failures']} failed in a row"
    if confirmed:
        evidence = "the agent cannot connect either"
    error = f"ejected since {_clock(start)} until {_clock(until)}: {reason}, {evidence}"
    return Failure(key, error, reason, raw["failures"], round(start, 1), round(until, 1), confirmed)


def _caller_row(key: BackendKey, raw: Mapping[str, Any], *, boot: float) -> CallerFailure:
    start, until = (round(boot + raw[name] / 1e9, 1) for name in ("since", "until"))
    return CallerFailure(
        caller=raw["caller"],
        key=key,
        reason=codecs.REASONS[raw["reason"]],
        failures=raw["failures"],
        since=start,
        until=until,
        verdict=raw["verdict"],
    )


def _clock(seconds: float) -> str:
    return f"{bounds.since_epoch(seconds).time().isoformat(timespec='seconds')}Z"
