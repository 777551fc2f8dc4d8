"""The sockets: probes as ``checks`` has them, and verdicts into ``probes``. Two tasks, however many backends.

A probe is a socket that the event loop watches, and a row of ``_flights``; nothing is awaited for it. At most
``MOST_FLIGHTS`` are open.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from dataclasses import dataclass, field
from random import Random
from typing import Final

from msgspec import Struct

from isthmus import logs
from isthmus.config import HealthSection
from isthmus.health import exchange
from isthmus.health.schedule import Schedule
from isthmus.model.balancing import BackendKey, Probe
from isthmus.model.hosts import family, joined
from isthmus.model.policies import HealthCheck
from isthmus.model.tables import CHECKS, NODES, PROBES
from isthmus.statedb import Database

MOST_FLIGHTS: Final = 256
"""Probes open at a time: each has a file descriptor."""
LOOK: Final = 5.0
"""Seconds between counts of the cluster's nodes."""

log = logs.get("health")


class ProberStats(Struct, frozen=True):
    """How probing goes."""

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
    """One per agent."""

    def __init__(self, db: Database, section: HealthSection, *, node: str) -> None:
        self._db = db
        self._schedule = Schedule(section, node=node, random=Random())
        self._flights: dict[int, Flight] = {}
        self._found: list[Probe] = []
        self._wake = asyncio.Event()
        self._probes = 0

    def __repr__(self) -> str:
        return f"<Prober {self.stats()}>"

    def stats(self) -> ProberStats:
        """Numbers, now."""
        return ProberStats(len(self._schedule), self._schedule.dead, len(self._flights), self._probes)

    async def run(self) -> None:
        """Probe, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="checks")
            tasks.create_task(self._probe(), name="probes")

    async def _follow(self) -> None:
        """Keep the schedule as ``checks`` is. A verdict on what is no longer probed goes."""
        changes = self._db.changes(CHECKS)
        try:
            while True:
                await changes.wait()
                snapshot, found = changes.next()
                gone = [change.key for change in found if change.new is None]
                for change in found:
                    if change.new is not None:
                        self._schedule.put(change.new, time.monotonic())
                    else:
                        self._schedule.remove(change.key)
                known = [key for key in gone if snapshot.get(PROBES, key) is not None]
                del snapshot
                if known:
                    with self._db.write() as txn:
                        for key in known:
                            txn.delete(PROBES, key)
                self._wake.set()
        finally:
            changes.close()

    async def _probe(self) -> None:
        counted = 0.0
        try:
            while True:
                now = time.monotonic()
                if now >= counted + LOOK:
                    counted, self._schedule.nodes = now, max(1, sum(1 for _ in self._db.snapshot().all(NODES)))
                self._wake.clear()
                self._expire(now)
                for key, turn, check in self._schedule.due(now, room=MOST_FLIGHTS - len(self._flights)):
                    self._start(key, turn, check, now)
                self._write()
                await self._pause(now)
        finally:
            for flight in list(self._flights.values()):
                self._land(flight)

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
        """Write verdicts that changed, but for what is no longer to be probed: that may have gone meanwhile."""
        found, self._found = self._found, []
        if found:
            with self._db.write() as txn:
                for row in found:
                    if txn.get(CHECKS, row.key) is not None:
                        txn.put(PROBES, row)
                        at = joined(row.key.address, row.key.port)
                        log.info(
                            "backend answers" if row.healthy else "backend found dead",
                            backend=at,
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
        code = opened.connect_ex((key.address, check.port or key.port))
        if code in (0, errno.EINPROGRESS):
            asyncio.get_running_loop().add_writer(opened.fileno(), self._connected, flight)
        else:
            self._end(flight, os.strerror(code))

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
            loop.add_reader(flight.socket.fileno(), self._readable, flight)

    def _readable(self, flight: Flight) -> None:
        try:
            received = flight.socket.recv(4096)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(flight, error.strerror or str(error))
            return
        flight.received += received
        found = exchange.result(flight.check, flight.received, ended=not received)
        if found is not None:
            self._end(flight, found)

    def _expire(self, now: float) -> None:
        for flight in [each for each in self._flights.values() if each.deadline <= now]:
            self._end(flight, f"no answer within {flight.check.timeout:g} s")

    def _end(self, flight: Flight, why: str) -> None:
        self._land(flight)
        self._result(flight.key, flight.turn, why)

    def _land(self, flight: Flight) -> None:
        loop, number = asyncio.get_running_loop(), flight.socket.fileno()
        loop.remove_reader(number)
        loop.remove_writer(number)
        del self._flights[number]
        flight.socket.close()

    def _result(self, key: BackendKey, turn: int, why: str) -> None:
        row = self._schedule.done(key, turn, why, now=time.monotonic(), wall=time.time())
        if row is not None:
            self._found.append(row)
        self._wake.set()
