"""Probes of the node's Envoy: a listener that echoes, and the verdict on its silence.

The kernel accepts connections for a process that hangs, and callers wait. So the agent connects to a listener that
exists for this, sends a few bytes and wants them back. The kernel assigns a connection to one worker; every connection
of a round must be answered, because a single worker that hangs fails its share of all calls.

The listener admits only connections from its own addresses, which no pod has.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from struct import Struct as Packing
from typing import Final, NamedTuple

from isthmus import logs
from isthmus.loadbalancer.envoy import ENVOY
from isthmus.model.hosts import family
from isthmus.model.tables import ENVOY_CHECKS, XDS_SERVED
from isthmus.model.xds import EnvoyCheck, Resource
from isthmus.proxy.messages import packed
from isthmus.proxy.resources import address, resource
from isthmus.statedb import Database, Snapshot

UNIT: Final = "health"
"""Name and unit of the listener. It is no Service's name: those have a slash."""
OWNER: Final = "proxy.health_port"
ECHO: Final = "envoy.extensions.filters.network.echo.v3.Echo"
BUFFER: Final = {"value": 4_096}
"""Bytes that Envoy buffers of a connection; a probe has eight."""

INTERVAL: Final = 0.2
"""Seconds from the start of a round to the start of the next one."""
PATIENCE: Final = 0.4
"""Seconds until a missing answer is a failure."""
ROUNDS: Final = 2
"""Consecutive failed rounds after which calls go past Envoy: a second after it stops, by INTERVAL and PATIENCE."""
LATE: Final = 0.2
"""Seconds by which a time-out may fire late. Beyond, this process stood still as well, and the round is void."""
IN_DOUBT: Final = 4
"""Connections per worker in the rounds after a failed one, so that a single hanging worker is met; otherwise one."""

HOLD: Final = 2.0
"""Seconds without a failed round after which calls go through Envoy again."""
LONGEST_HOLD: Final = 60.0
"""Upper bound of the hold, which doubles each time that Envoy hangs."""
STEADY: Final = 300.0
"""Seconds without hanging after which the hold is HOLD again."""

HELLO: Final = b"isthmus\n"
CLOSE_AT_ONCE: Final = Packing("ii").pack(1, 0)
"""``SO_LINGER`` that ends a connection by a reset, so that no probe is left in TIME_WAIT."""

log = logs.get("proxy")


def listener(addresses: Sequence[str], port: int) -> Resource:
    """Return the listener that is probed."""
    (first, *more) = [address(each, port) for each in addresses]
    own = [{"address_prefix": each, "prefix_len": {"value": 128 if ":" in each else 32}} for each in addresses]
    echo = {"name": "envoy.filters.network.echo", "typed_config": packed(ECHO)}
    return resource(
        "listener",
        UNIT,
        OWNER,
        UNIT,
        address=first,
        additional_addresses=[{"address": each} for each in more],
        filter_chains=[{"filter_chain_match": {"source_prefix_ranges": own}, "filters": [echo]}],
        enable_reuse_port={"value": True},
        per_connection_buffer_limit_bytes=BUFFER,
        stat_prefix=UNIT,
    )


class Verdict(NamedTuple):
    """The verdict on Envoy after some rounds. Times are seconds of a monotonic clock."""

    healthy: bool = True
    changed: float = float("-inf")
    """Time of the last change of ``healthy``."""
    failed: int = 0
    """Consecutive failed rounds."""
    recovering: float | None = None
    """Time of the first round since the last failed one, while it is not healthy."""
    hold: float = HOLD
    """Seconds without a failed round until it is healthy again."""

    def after(self, *, answered: bool, time: float) -> Verdict:
        """The verdict after another round."""
        failed = 0 if answered else self.failed + 1
        if self.healthy:
            if failed < ROUNDS:
                return self._replace(failed=failed)
            flaps = time - self.changed < STEADY
            return Verdict(False, time, failed, hold=min(self.hold * 2, LONGEST_HOLD) if flaps else HOLD)
        if not answered:
            return self._replace(failed=failed, recovering=None)
        began = time if self.recovering is None else self.recovering
        if time - began < self.hold:
            return self._replace(failed=failed, recovering=began)
        return Verdict(True, time, hold=self.hold)


class Prober:
    """Probes the node's Envoy and keeps the row of ``envoy_checks``; :meth:`run` until cancelled."""

    def __init__(self, db: Database, addresses: Sequence[str], port: int, *, workers: int) -> None:
        self._db = db
        self._addresses = addresses
        self._port = port
        self._workers = workers

    def __repr__(self) -> str:
        return f"<Prober of {', '.join(self._addresses)} port {self._port}>"

    async def run(self) -> None:
        """Probe each Envoy that serves the listener. A verdict ends with its Envoy."""
        while True:
            await self._db.until(_is_served)
            try:
                await self._follow()
            finally:
                with self._db.write() as txn:
                    txn.delete(ENVOY_CHECKS, ENVOY)

    async def _follow(self) -> None:
        loop, verdict = asyncio.get_running_loop(), Verdict()
        # Awaited beside the rounds: within one, this Envoy may end and the next one serve the listener.
        ended = asyncio.create_task(self._db.until(lambda now: not _is_served(now)))
        try:
            while not ended.done():
                began = loop.time()
                in_doubt = verdict.failed or not verdict.healthy
                problem = await self._round(self._workers * (IN_DOUBT if in_doubt else 1))
                if problem is not None and not ended.done():
                    verdict = verdict.after(answered=not problem, time=loop.time())
                    if problem:
                        log.debug("round failed", problem=problem, failed=verdict.failed, healthy=verdict.healthy)
                    self._publish(healthy=verdict.healthy, problem=problem)
                await asyncio.wait([ended], timeout=max(0.0, began + INTERVAL - loop.time()))
        finally:
            ended.cancel()

    async def _round(self, count: int) -> str | None:
        """Make a round of connections and return the problem with one of them; empty if all were answered.

        ``None`` if the round is void: this process was late or lacks descriptors, or a connection was refused, and then
        the kernel moves callers to other backends.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        problems = await asyncio.gather(*(self._probe(each) for each in islice(cycle(self._addresses), count)))
        late = loop.time() - began > PATIENCE + LATE
        return None if late or None in problems else next(filter(None, problems), "")

    async def _probe(self, host: str) -> str | None:
        """Make a connection and return the problem with it; empty if it was answered, None if it was not accepted."""
        loop, domain = asyncio.get_running_loop(), socket.AF_INET if family(host) == "IPv4" else socket.AF_INET6
        try:
            async with asyncio.timeout(PATIENCE):
                with socket.socket(domain, socket.SOCK_STREAM) as connection:
                    connection.setblocking(False)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSE_AT_ONCE)
                    connection.bind((host, 0))
                    await loop.sock_connect(connection, (host, self._port))
                    await loop.sock_sendall(connection, HELLO)
                    answer = await loop.sock_recv(connection, len(HELLO))
        except TimeoutError:
            return "its listeners accept connections and nothing answers them"
        except (ConnectionResetError, BrokenPipeError):
            answer = b""
        except OSError:
            return None
        return "" if answer == HELLO else "it closes connections without an answer"

    def _publish(self, *, healthy: bool, problem: str) -> None:
        """Write the row if the verdict has changed."""
        before = self._db.snapshot().get(ENVOY_CHECKS, ENVOY)
        if before is not None and before.healthy == healthy:
            return
        if not healthy:
            log.warning("calls go past this node's Envoy, which does not answer", why=problem)
        elif before is not None:
            log.warning("calls go through this node's Envoy again")
        with self._db.write() as txn:
            txn.put(ENVOY_CHECKS, EnvoyCheck(healthy, "" if healthy else f"does not answer: {problem}", time.time()))


def _is_served(snapshot: Snapshot) -> bool:
    return snapshot.get(XDS_SERVED, UNIT) is not None


def problems(snapshot: Snapshot) -> Iterator[str]:
    """Yield a sentence while this node's Envoy does not answer."""
    for row in snapshot.all(ENVOY_CHECKS):
        if not row.healthy:
            yield f"this node's Envoy {row.reason}; routes have no effect here and no island is called"
