"""The agent's probes of backends that callers cannot connect to: they distinguish a dead backend from a caller's fault.

A caller's connects may fail by its own fault, or by a policy that denies it the backend. So they eject the backend for
that caller only. If the agent cannot connect either, the backend is ejected for all callers of the node.

A policy may also deny the node what it allows pods. So a failure of the agent is a verdict only if the agent connected
before, or connects to other backends of the service that are as far away (:func:`controls`). Otherwise the backend's
state stays unknown, and a second pod decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct

from isthmus import logs
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.failures import codecs
from isthmus.datapath.failures.watch import FailureWatch
from isthmus.datapath.services.installed import State
from isthmus.model.balancing import Backend, BackendKey, Ejection, Target
from isthmus.model.hosts import family, joined
from isthmus.model.names import ServiceName
from isthmus.model.services import Condition
from isthmus.model.tables import BACKENDS, CALLER_FAILURES, FAILURES, PODS
from isthmus.statedb import Changes, Database, Reader

PATIENCE: Final = 1.0
"""Seconds in which a backend has to accept one of two connects; the second begins at half time."""
SPACING: Final = 1.0
"""Minimum seconds between two probes of a backend, however often callers report it."""
AGAIN: Final = 5.0
"""Seconds until a backend that accepts is probed again, while it is ejected for some caller."""
ANSWERS_LIFETIME: Final = 2 * AGAIN + PATIENCE
"""Lifetime of the verdict ``answers`` in seconds: a late probe leaves no gap."""
MARGIN: Final = 3.0
"""Seconds by which the verdict ``dead`` outlives the next probe, so that no caller has to try the backend meanwhile."""
REMEMBERED: Final = 600.0
"""Seconds for which an earlier connect shows that policies let the agent connect; they change."""
MAX_REMEMBERED: Final = 4096
"""Bound of the backends whose last successful connect is remembered."""
MAX_PROBES: Final = 32
"""Backends probed at a time: two sockets each, with controls four."""
RATE: Final = 50
"""Probes that begin per second, whatever callers report."""
BURST: Final = 0.5
"""Seconds' worth of probes that may begin at once, as when a node dies."""
SAMPLE: Final = 16
"""Random backends of a service that are considered as controls; a service may have thousands."""
MAX_CONTROLS: Final = 2
"""Controls probed per service; one that accepts is enough."""
MAX_SERVICES: Final = 2
"""Services that a backend may belong to if controls are to decide; each needs a control of its own."""

log = logs.get("datapath")


class Suspect(Struct, frozen=True):
    """A backend that is ejected, for some callers or for all."""

    target: Target
    services: frozenset[ServiceName]
    callers: frozenset[int]
    reported: float
    """Time of its last ejection, Unix seconds."""


@dataclass(slots=True)
class ProbeState:
    """Probes of one suspect. Times are CLOCK_MONOTONIC, seconds."""

    due: float
    reported: float = 0.0
    began: float = -SPACING
    verdict: int = 0
    """``codecs.ANSWERS``, ``codecs.DEAD``, or 0 while unknown."""
    changed: float = 0.0
    """Time at which the verdict became this one."""
    level: int = 0
    """Number of probes in a row that failed after the first; the time between probes doubles with each."""
    running: bool = False


def find_suspects(reader: Reader) -> dict[Target, Suspect]:
    """Every backend that is currently ejected."""
    services: dict[Target, set[ServiceName]] = {}
    callers: dict[Target, set[int]] = {}
    reported: dict[Target, float] = {}

    def add(key: BackendKey, reported_at: float) -> Target:
        target = _target(key)
        services.setdefault(target, set()).add(key.service)
        reported[target] = max(reported_at, reported.get(target, 0.0))
        return target

    for failure in reader.all(FAILURES):
        add(failure.key, failure.since)
    for row in reader.all(CALLER_FAILURES):
        callers.setdefault(add(row.key, row.since), set()).add(row.caller)
    return {
        target: Suspect(target, frozenset(names), frozenset(callers.get(target, ())), reported[target])
        for target, names in services.items()
    }


def update_states(states: dict[Target, ProbeState], suspects: Mapping[Target, Suspect], now: float) -> None:
    """Drop backends that are no longer suspect, and make those due that callers have reported again."""
    for target in [target for target, state in states.items() if target not in suspects and not state.running]:
        del states[target]
    for target, suspect in suspects.items():
        state = states.setdefault(target, ProbeState(due=now))
        if suspect.reported != state.reported:
            state.reported = suspect.reported
            state.due = min(state.due, max(now, state.began + SPACING))


def select_due(
    states: Mapping[Target, ProbeState], suspects: Mapping[Target, Suspect], now: float, *, room: int
) -> list[Target]:
    """Return the backends to probe now, at most ``room``.

    Callers take turns: one that reports many backends does not delay what another reports.
    """
    waiting = sorted(
        (target for target in suspects if not states[target].running and states[target].due <= now),
        key=lambda target: states[target].due,
    )
    turns: dict[int, int] = {}
    ranked = list[tuple[int, Target]]()
    for target in waiting:
        caller = min(suspects[target].callers, key=lambda number: (turns.get(number, 0), number), default=0)
        ranked.append((turns.get(caller, 0), target))
        turns[caller] = turns.get(caller, 0) + 1
    return [target for _, target in sorted(ranked, key=lambda pair: pair[0])][:room]


def controls(reader: Reader, suspect: Suspect, suspects: Mapping[Target, Suspect]) -> list[list[Target]]:
    """Return, for each service of a backend, some other ready backends of its cluster that are as far away.

    Most networks let a node connect to its own pods whatever policies deny, so a pod of this node shows nothing of
    others. Empty if the backend belongs to too many services: a tenant may make one of another's pod and its own.
    """
    if len(suspect.services) > MAX_SERVICES:
        return []
    local = {address for pod in reader.all(PODS) for address in pod.addresses}
    near = suspect.target.address in local

    def is_control(row: Backend) -> bool:
        usable = row.condition is Condition.READY and row.healthy and row.key.protocol == "TCP" and not row.stands_for
        as_far = row.key.cluster == suspect.target.cluster and (row.key.address in local) == near
        return usable and as_far and _target(row.key) != suspect.target and _target(row.key) not in suspects

    backends = (reader.by(BACKENDS, "service", service) for service in sorted(suspect.services))
    samples = (random.sample(rows, min(SAMPLE, len(rows))) for rows in backends)
    return [[_target(row.key) for row in rows if is_control(row)][:MAX_CONTROLS] for rows in samples]


def record_result(state: ProbeState, accepted: bool, *, reachable: bool, now: float, times: Ejection) -> float:
    """Update the state by a probe's result, and return the verdict's lifetime in seconds; 0 if there is no verdict.

    ``reachable``: policies let the agent connect to the backend.
    """
    state.running = False
    verdict = codecs.ANSWERS if accepted else codecs.DEAD if reachable else 0
    if verdict != state.verdict:
        state.changed = now
    state.level = state.level + 1 if verdict == state.verdict != codecs.ANSWERS else 0
    state.verdict = verdict
    if accepted:
        state.due = now + AGAIN
        return ANSWERS_LIFETIME
    pause = min(times.longest, max(SPACING, times.first) * 2 ** min(state.level, 16))
    state.due = now + pause
    return pause + MARGIN if reachable else 0.0


def _target(key: BackendKey) -> Target:
    return Target(key.address, key.port, key.protocol, key.cluster)


class Confirmation:
    """Probes ejected backends, and writes verdicts to the map ``probed``; ``watch`` copies them to the tables.

    One per datapath; run its ``run()`` as a task.
    """

    def __init__(self, maps: Maps, state: State, db: Database, watch: FailureWatch) -> None:
        self._maps = maps
        self._state = state
        self._db = db
        self._watch = watch
        self._states: dict[Target, ProbeState] = {}
        self._connected: dict[Target, float] = {}
        """Time at which each backend last proved reachable, the oldest first."""
        self._wake = asyncio.Event()
        self._free = time.monotonic()
        """Time at which the rate allows the next probe."""
        self.probes = 0

    def __repr__(self) -> str:
        return f"<Confirmation: {len(self._states)} suspects, {self.probes} probes>"

    async def run(self) -> None:
        """Probe, for ever. It may be restarted, and then begins with the current suspects."""
        self._states.clear()
        self._adopt()
        async with asyncio.TaskGroup() as tasks:
            for table in (FAILURES, CALLER_FAILURES):
                tasks.create_task(self._follow(self._db.changes(table)))
            while True:
                self._wake.clear()
                for probe in self._begin(time.monotonic()):
                    tasks.create_task(probe)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause(time.monotonic())):
                        await self._wake.wait()

    async def _follow(self, changes: Changes[Any]) -> None:
        try:
            while True:
                await changes.wait()
                changes.next()
                self._wake.set()
        finally:
            changes.close()

    def _begin(self, now: float) -> list[Coroutine[Any, Any, None]]:
        """Select the probes that begin now."""
        snapshot = self._db.snapshot()
        suspects = find_suspects(snapshot)
        update_states(self._states, suspects, now)
        self._free = max(self._free, now - BURST)
        running = sum(state.running for state in self._states.values())
        room = max(0, min(MAX_PROBES - running, math.floor((now - self._free) * RATE)))
        targets = select_due(self._states, suspects, now, room=room)
        self._free += len(targets) / RATE
        for target in targets:
            self._states[target].running, self._states[target].began = True, now
        return [self._probe(suspects[target]) for target in targets]

    def _pause(self, now: float) -> float | None:
        """Seconds until a probe is due and allowed; ``None`` while nothing is suspect."""
        moments = [state.due for state in self._states.values() if not state.running]
        return max(0.0, min(moments) - now, self._free + 1 / RATE - now) if moments else None

    async def _probe(self, suspect: Suspect) -> None:
        self.probes += 1
        target, state = suspect.target, self._states[suspect.target]
        reason = await connect(target)
        reachable = bool(reason) and await self._is_reachable(suspect)
        before = state.verdict
        times = self._state.ejection
        lifetime = record_result(state, not reason, reachable=reachable, now=time.monotonic(), times=times)
        if not reason:
            self._remember(target)
        self._write(target, state, lifetime)
        self._report(target, reason, before, state.verdict)
        self._watch.look_soon()
        self._wake.set()

    async def _is_reachable(self, suspect: Suspect) -> bool:
        """True if policies let the agent connect to the backend."""
        if time.monotonic() - self._connected.get(suspect.target, -REMEMBERED) < REMEMBERED:
            return True
        snapshot = self._db.snapshot()
        targets = controls(snapshot, suspect, find_suspects(snapshot))
        del snapshot
        return bool(targets) and all(await asyncio.gather(*map(any_accepts, targets)))

    def _adopt(self) -> None:
        """Assume, as an earlier agent did, that policies allow connects to the backends that it found dead."""
        for key, value in self._maps.items("probed"):
            raw, entry = codecs.PROBED.named(value), self._state.backends.get(ID.unpack(key)[0])
            if entry is not None and entry.generation == raw["generation"] and raw["verdict"] == codecs.DEAD:
                self._remember(entry.target)

    def _remember(self, target: Target) -> None:
        self._connected.pop(target, None)
        if len(self._connected) >= MAX_REMEMBERED:
            del self._connected[next(iter(self._connected))]
        self._connected[target] = time.monotonic()

    def _write(self, target: Target, state: ProbeState, lifetime: float) -> None:
        entry = self._state.by_target.get(target)
        if entry is None:
            return
        key = ID.pack(entry.id)
        if lifetime:
            times = round(state.changed * 1e9), time.monotonic_ns() + round(lifetime * 1e9)
            self._maps.put("probed", [(key, codecs.PROBED.pack(entry.generation, state.verdict, *times))])
        else:
            self._maps.drop("probed", [key])

    def _report(self, target: Target, reason: str, before: int, verdict: int) -> None:
        """Log and count a verdict that differs from the one before."""
        backend = {"backend": joined(target.address, target.port), "cluster": target.cluster}
        if verdict == codecs.DEAD != before:
            self._watch.count("ejected", cluster=target.cluster, reason=reason)
            log.info("backend ejected: the agent cannot connect either", **backend, reason=reason)
        elif before == codecs.DEAD != verdict:
            self._watch.count("restored", cluster=target.cluster, reason=reason)
            log.info("backend restored: the agent connects to it", **backend)


async def any_accepts(targets: Sequence[Target]) -> bool:
    """True if one of these backends accepts a connection."""
    return not all(await asyncio.gather(*map(connect, targets)))


async def connect(target: Target) -> str:
    """Return why a backend accepts no connection, one of ``codecs.REASONS``; empty if it does.

    The first of two connects that ends decides, so that one lost packet is no silence.
    """
    tries = [asyncio.create_task(_connect(target, delay)) for delay in (0.0, PATIENCE / 2)]
    done, waiting = await asyncio.wait(tries, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return min((task.result() for task in done), default="silent")


async def _connect(target: Target, delay: float) -> str:
    await asyncio.sleep(delay)
    version = socket.AF_INET6 if family(target.address) == "IPv6" else socket.AF_INET
    try:
        with socket.socket(version, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as opened:
            await asyncio.get_running_loop().sock_connect(opened, (target.address, target.port))
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "unreachable"
    return ""
