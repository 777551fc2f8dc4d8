"""Sockets of probes: executes the rows of ``checks``, writes verdicts into ``probes``. Two tasks for all backends.

A probe is a socket that the event loop watches, and a row of ``_flights``; nothing is awaited for it. At most
``MOST_FLIGHTS`` are open, shared between namespaces. A backend whose probe raises is a row of ``faults``: it keeps its
last verdict, and is not probed until its check changes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from msgspec import Struct

from isthmus import logs
from isthmus.config import HealthSection
from isthmus.health import exchange
from isthmus.health.schedule import Schedule, namespace
from isthmus.model.balancing import BackendKey, Probe
from isthmus.model.hosts import family, joined
from isthmus.model.policies import HealthCheck
from isthmus.model.tables import CHECKS, FAULTS, NODES, PROBES
from isthmus.running import Tasks
from isthmus.statedb import Database, Faults

MOST_FLIGHTS: Final = 256
"""Probes open at a time: each has a file descriptor."""
LOOK: Final = 5.0
"""Seconds between counts of the cluster's nodes."""

log = logs.get("health")


class ProberStats(Struct, frozen=True):
    """Statistics of probing."""

    backends: int
    dead: int
    in_flight: int
    probes: int
    """Since the process started."""


@dataclass(slots=True)
class Flight:
    """A probe that has begun."""

    key: BackendKey
    turn: int
    check: HealthCheck
    deadline: float
    socket: socket.socket
    received: bytes = field(default=b"")


class Prober:
    """One in each agent, and one in the leading operator."""

    def __init__(self, db: Database, section: HealthSection, *, node: str) -> None:
        self._db = db
        self._schedule = Schedule(section, node=node, random=Random())
        self._flights: dict[int, Flight] = {}
        self._held: Counter[str] = Counter()
        """Flights by namespace."""
        self._found: list[Probe] = []
        self._faults = Faults(db, FAULTS, PROBES.name)
        self._wake = asyncio.Event()
        self._probes = 0

    def __repr__(self) -> str:
        return f"<Prober {self.stats()}>"

    def stats(self) -> ProberStats:
        """Numbers, now."""
        return ProberStats(len(self._schedule), self._schedule.dead, len(self._flights), self._probes)

    async def run(self) -> None:
        """Probe, for ever."""
        async with Tasks() as tasks:
            tasks.start("checks", self._follow)
            tasks.start("probes", self._probe)

    async def _follow(self) -> None:
        """Keep the schedule equal to ``checks``. Delete the verdicts of backends that are no longer probed."""
        changes = self._db.changes(CHECKS)
        self._forget_removed()
        try:
            while True:
                await changes.wait()
                snapshot, changed = changes.next()
                gone = [change.key for change in changed if change.new is None]
                for change in changed:
                    with self._faults.attempt(change.key):
                        if change.new is not None:
                            self._schedule.put(change.new, time.monotonic())
                        else:
                            self._schedule.remove(change.key)
                probed = [key for key in gone if snapshot.get(PROBES, key) is not None]
                del snapshot
                if probed:
                    with self._db.write() as txn:
                        for key in probed:
                            txn.delete(PROBES, key)
                self._wake.set()
        finally:
            changes.close()

    def _forget_removed(self) -> None:
        """Probe nothing that an earlier run of :meth:`_follow` put into the schedule and that was removed since."""
        snapshot = self._db.snapshot()
        self._schedule.retain({row.key for row in snapshot.all(CHECKS)})
        gone = [row.key for row in snapshot.all(PROBES) if snapshot.get(CHECKS, row.key) is None]
        if gone:
            with self._db.write() as txn:
                txn.delete_all(PROBES, gone)

    async def _probe(self) -> None:
        counted = 0.0
        try:
            while True:
                now = time.monotonic()
                if now >= counted + LOOK:
                    counted, self._schedule.nodes = now, max(1, sum(1 for _ in self._db.snapshot().all(NODES)))
                self._wake.clear()
                self._expire(now)
                for key, turn, check in self._schedule.due(
                    now, room=MOST_FLIGHTS - len(self._flights), held=self._held
                ):
                    with self._faults.attempt(key):
                        self._start(key, turn, check, now)
                self._write()
                self._faults.publish()
                await self._pause(now)
        finally:
            for flight in list(self._flights.values()):
                self._land(flight)
                self._schedule.repeat(flight.key, flight.turn)

    async def _pause(self, now: float) -> None:
        """Until something is due, an answer is overdue, or a socket or a change of the checks wakes us."""
        moments = [flight.deadline for flight in self._flights.values()]
        if len(moments) < MOST_FLIGHTS and (due := self._schedule.wake_at()) is not None:
            moments.append(due)
        try:
            async with asyncio.timeout(max(0.0, min(moments) - now) if moments else LOOK):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _write(self) -> None:
        """Write changed verdicts, except of backends whose check was deleted meanwhile."""
        results, self._found = self._found, []
        if results:
            with self._db.write() as txn:
                for row in results:
                    if txn.get(CHECKS, row.key) is not None:
                        txn.put(PROBES, row)
                        address = joined(row.key.address, row.key.port)
                        log.info(
                            "backend answers" if row.healthy else "backend found dead",
                            backend=address,
                            cluster=row.key.cluster,
                            service=row.key.service,
                            reason=row.reason,
                        )

    def _start(self, key: BackendKey, turn: int, check: HealthCheck, now: float) -> None:
        self._probes += 1
        version = socket.AF_INET6 if family(key.address) == "IPv6" else socket.AF_INET
        try:
            opened = socket.socket(version, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:  # no descriptor is free: no verdict on the backend, but it is not reached either
            self._result(key, turn, f"cannot be probed: {error.strerror}")
            return
        flight = Flight(key, turn, check, now + check.timeout, opened)
        self._flights[opened.fileno()] = flight
        self._held[namespace(key)] += 1
        try:
            code = opened.connect_ex((key.address, check.port or key.port))
        except BaseException:
            self._land(flight)
            raise
        if code in (0, errno.EINPROGRESS):
            asyncio.get_running_loop().add_writer(opened.fileno(), self._in_flight, self._connected, flight)
        else:
            self._end(flight, os.strerror(code))

    def _in_flight(self, act: Callable[[Flight], None], flight: Flight) -> None:
        """Go on with a probe, as its socket is ready. One that raises ends without a verdict."""
        with self._faults.attempt(flight.key):
            try:
                act(flight)
            except BaseException:
                if self._flights.get(flight.socket.fileno()) is flight:
                    self._land(flight)
                self._wake.set()
                raise

    def _connected(self, flight: Flight) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_writer(flight.socket.fileno())
        if code := flight.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(flight, os.strerror(code))
            return
        port = flight.check.port or flight.key.port
        sent = exchange.request(flight.check, joined(flight.key.address, port))
        if not sent:
            self._end(flight, "")
            return
        try:
            flight.socket.send(sent)  # a request is far smaller than a new socket's buffer
        except OSError as error:
            self._end(flight, error.strerror or str(error))
        else:
            loop.add_reader(flight.socket.fileno(), self._in_flight, self._readable, flight)

    def _readable(self, flight: Flight) -> None:
        try:
            received = flight.socket.recv(4096)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(flight, error.strerror or str(error))
            return
        flight.received += received
        result = exchange.result(flight.check, flight.received, ended=not received)
        if result is not None:
            self._end(flight, result)

    def _expire(self, now: float) -> None:
        for flight in [each for each in self._flights.values() if each.deadline <= now]:
            self._end(flight, f"no answer within {flight.check.timeout:g} s")

    def _end(self, flight: Flight, reason: str) -> None:
        self._land(flight)
        self._result(flight.key, flight.turn, reason)

    def _land(self, flight: Flight) -> None:
        loop, number = asyncio.get_running_loop(), flight.socket.fileno()
        loop.remove_reader(number)
        loop.remove_writer(number)
        del self._flights[number]
        self._held -= Counter((namespace(flight.key),))  # without zeros: namespaces come and go
        flight.socket.close()

    def _result(self, key: BackendKey, turn: int, reason: str) -> None:
        row = self._schedule.done(key, turn, reason, now=time.monotonic(), wall=time.time())
        if row is not None:
            self._found.append(row)
        self._wake.set()
