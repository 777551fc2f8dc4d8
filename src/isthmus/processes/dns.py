"""The node's name server, a process of its own: names are served while the agent is busy, restarting or away.

It follows the agent's ``names`` over the admin socket and answers from the last copy. The kernel steers questions
here only until the deadline that this process renews, and it does so only while it has names and its loop turns.
"""

from __future__ import annotations

import asyncio
import faulthandler
import resource
from collections.abc import Sequence
from functools import partial
from typing import Final

from prometheus_client.metrics_core import Metric

from isthmus import dns, logs, metrics
from isthmus.admin.client import TableStore
from isthmus.admin.protocol import ProcessStatus
from isthmus.config import Config
from isthmus.datapath.alive import Alive
from isthmus.model import tables
from isthmus.model.dns import Name
from isthmus.model.hosts import Endpoint, endpoint
from isthmus.model.services import Pod
from isthmus.processes import observing
from isthmus.processes.observing import Shown, View
from isthmus.processes.start import CannotStart, require, start, supervised
from isthmus.reflector import Reflector, State
from isthmus.running import Tasks
from isthmus.sources.sink import TableSink
from isthmus.statedb import Database

log = logs.get("dns")

PREFIX: Final = "isthmus_dns"

ASK_AGAIN = 30.0
"""Seconds between two questions to the cluster DNS whether it knows our zone."""

HUNG = 10.0
"""Seconds without a turn of the loop after which the process ends: its sockets would keep their share of questions."""

JOIN_EVERY = 0.02
"""Seconds between two looks whether the other process still serves the addresses."""

LIST_TIMEOUT = 5.0
"""Seconds that a list waits for the agent's names: they are shown also while the agent is away."""


def run(config: Config) -> int:
    """The process; its exit code."""
    return start("dns", main, config)


async def main(config: Config) -> None:
    """Wire the parts and run them."""
    require(config, dns__cluster_dns=config.dns.cluster_dns, dns__listen=config.dns.listen, dns__agent=config.dns.agent)
    async with supervised() as tasks:
        shown = Shown(tasks, config, PREFIX)
        allow_descriptors()
        names = Names(config)
        db, reflector, reflectors = names.db, names.reflector, (names.reflector, names.pods)
        server = _server(db, config)
        tasks.start("names", reflector.run)
        tasks.start("pods", names.pods.run)
        tasks.start("server", partial(serve, db, server, config))
        if config.datapath.cgroup and config.dns.mode != "off":
            tasks.start("alive", partial(stay_alive, names, server, config))
        shown.show(
            View(
                db=db,
                status=lambda: DnsStatus(reflectors=observing.states(reflectors), server=server.stats()),
                problems=lambda: observing.away([reflector]),
                awaited=lambda: db.snapshot().pending(tables.NAMES),
                families=lambda: [*observing.source_families(PREFIX, reflectors), *families(server.stats())],
                list_timeout=LIST_TIMEOUT,
            )
        )


class Names:
    """The agent's names in a table of this process, and what keeps them there."""

    def __init__(self, config: Config) -> None:
        self.db = Database(tables.NAMES, tables.PODS, tables.FAULTS)
        self.listed = asyncio.Event()
        """Set once a whole list, even a partial one, was written."""
        self.reflector = Reflector[Name](
            TableStore(config.dns.agent, tables.NAMES),
            TableSink(self.db, tables.NAMES, "agent", lambda row: row),
            name="names",
            max_delay=1.0,
            on_state=lambda state: self.listed.set() if state.synced else None,
        )
        self.pods = Reflector[Pod](
            TableStore(config.dns.agent, tables.PODS),
            TableSink(self.db, tables.PODS, "agent", lambda row: row),
            name="pods",
        )
        """The node's pods, which give the namespaces of callers. Nothing waits for them."""

    def __repr__(self) -> str:
        return f"<Names {self.reflector!r}>"


class DnsStatus(ProcessStatus, frozen=True, kw_only=True):
    """The name server's part of ``isthmus status``."""

    reflectors: dict[str, State]
    server: dns.ServerStats


def families(stats: dns.ServerStats) -> Sequence[Metric]:
    """Return the metrics of the name server."""
    upstream, tcp = stats.upstream, stats.tcp
    lost = {"unsent": stats.unsent, "dropped": stats.dropped, "failed": stats.failed, "refused": tcp.refused}
    forwarded = {"answered": upstream.answered, "timeout": upstream.timeouts, "dropped": upstream.dropped}
    return [
        metrics.SERVER_QUESTIONS.family(PREFIX, [(["udp"], stats.questions), (["tcp"], tcp.questions)]),
        metrics.SERVER_REPLIES.value(PREFIX, stats.replies),
        metrics.SERVER_LOST.family(PREFIX, (([reason], count) for reason, count in lost.items())),
        metrics.UPSTREAM_QUESTIONS.family(PREFIX, (([result], count) for result, count in forwarded.items())),
    ]


def allow_descriptors() -> None:
    """Use the hard limit of open files: each forwarded question has a socket of its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _server(db: Database, config: Config) -> dns.Server:
    upstream = _endpoint(config.dns.upstream or config.dns.cluster_dns[0], "dns.upstream")
    try:
        return dns.Server(
            db,
            zone=config.dns.zone,
            listen=_listen(config),
            upstream=upstream,
            uplinks=config.dns.uplinks,
            cluster_domain=config.dns.cluster_domain,
            shared=config.dns.instance != "only",
        )
    except dns.CannotListen as error:
        raise CannotStart(f"dns.listen: {error}") from None


def _listen(config: Config) -> list[Endpoint]:
    return [_endpoint(each, "dns.listen") for each in config.dns.listen]


async def serve(db: Database, server: dns.Server, config: Config) -> None:
    """Run the server; its one fatal error becomes the process's."""
    if config.dns.instance != "only":
        await may_join(db, _listen(config))
    try:
        await server.run()
    except dns.CannotListen as error:
        raise CannotStart(f"dns.listen: {error}") from None


async def may_join(db: Database, listen: list[Endpoint]) -> None:
    """Wait for the names while another process serves the addresses: half of its questions would fail here."""
    while dns.is_served(listen) and not db.snapshot().initialized(tables.NAMES):  # noqa: ASYNC110
        await asyncio.sleep(JOIN_EVERY)  # nothing announces that a socket of another process is closed


async def until_ready(names: Names, server: dns.Server) -> None:
    """Return when questions may be steered here: the first list is answered from, and is whole or has names.

    An agent without its API server sends a partial list, which is served. A list that is still being read is not: a
    name that is still missing would be answered SERVFAIL.
    """
    await names.listed.wait()
    await names.db.until(lambda now: now.initialized(tables.NAMES) or now.count(tables.NAMES) > 0)
    await server.answers(names.db.snapshot().revision(tables.NAMES))


async def stay_alive(names: Names, server: dns.Server, config: Config) -> None:
    """Renew the deadline thrice in its time, from the loop that answers: a loop that hangs renews nothing.

    Where the kernel can, it also watches the socket: a server that was killed is left at once.
    """
    await until_ready(names, server)
    alive = await Alive.open(config.datapath.pin, instance=config.dns.instance)
    if not alive.tie(server.socket):
        log.info("steering ends by the deadline alone: this kernel does not watch sockets")
    try:
        async with Tasks() as tasks:
            tasks.start("deadline", partial(renew, alive, config.dns.deadline))
            tasks.start("tcp", partial(choose_tcp, alive, server, config))
    finally:
        alive.close()


async def renew(alive: Alive, deadline: float) -> None:
    """Renew for ever; withdraw in the end. A thread that needs no interpreter ends the process whose loop hangs."""
    try:
        while True:
            faulthandler.dump_traceback_later(HUNG, exit=True)
            alive.renew(deadline)
            await asyncio.sleep(deadline / 3)
    finally:
        faulthandler.cancel_dump_traceback_later()
        alive.withdraw()


async def choose_tcp(alive: Alive, server: dns.Server, config: Config) -> None:
    """Steer TCP as configured, or while the cluster DNS does not know our zone.

    A cluster DNS that does not answer changes nothing. Answers over UDP send clients to TCP only where it is steered.
    """
    upstream = _endpoint(config.dns.upstream or config.dns.cluster_dns[0], "dns.upstream")
    alive.takes_tcp = server.truncates = config.dns.tcp == "steer"
    while config.dns.tcp == "auto":
        zone_known = await dns.knows_zone(upstream, config.dns.zone)
        if zone_known is not None and alive.takes_tcp == zone_known:
            log.info(
                "questions over TCP go to " + ("the cluster DNS, which knows the zone" if zone_known else "this server")
            )
            server.truncates = False
            alive.takes_tcp = not zone_known
            await asyncio.sleep(config.dns.deadline)  # until the kernel steers accordingly
            server.truncates = alive.takes_tcp
        await asyncio.sleep(ASK_AGAIN)


def _endpoint(text: str, field: str) -> Endpoint:
    try:
        return endpoint(text, port=53)
    except ValueError as error:
        raise CannotStart(f"{field} = {error}") from None
