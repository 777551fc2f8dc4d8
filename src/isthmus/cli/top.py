"""``isthmus top``: services by calls, failures and the time to an established connection, redrawn every two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import click
import msgspec

from isthmus.admin.query import NoTable, QueryError, Socket
from isthmus.cli import output, rates, screen, sockets
from isthmus.cli.rates import Counts, Load
from isthmus.model.flows import Flow

HEADS: Final = ("SERVICE", "CALLS/S", "FAILED/S", "RESCUED/S", "P50", "P99", "RECORDED")
LEAST: Final = ("RECORDED", "RESCUED/S")
"""Columns that a narrow terminal leaves out first."""
FLOWS: Final = 2_000
"""Records of each agent from which times are taken: a screen is for the last minute, not for a history."""
ASKED: Final = 8
"""Agents asked at a time: through kubectl each is a process of its own."""
PATIENCE: Final = 4.0
"""Seconds for which a period waits for agents. One that needs longer is displayed as silent, and still waited for."""

Order = Literal["calls", "failed", "p99"]


class Reading(NamedTuple):
    """Answer of one agent."""

    counts: Counts
    flows: list[tuple[Flow, int]]
    """Records, each with the number of calls of which the agent records one."""


class Period(NamedTuple):
    """Services' loads in one period, of the agents that answered at its beginning and its end."""

    services: list[Load]
    silent: Mapping[str, str]
    """Reason for each agent that did not answer at the end of the period, by its node."""


@click.command()
@click.option("-n", "--namespace", metavar="NS", default="", help="Services of one namespace. [default: all]")
@click.option("--sort", type=click.Choice(["calls", "failed", "p99"]), default="calls", help="Column to sort by.")
@click.option("--once", is_flag=True, help="One table of one period, then end.")
@click.option("--every", metavar="SECONDS", type=click.FloatRange(0.5, 60), default=2.0, help="Period. [default: 2]")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table")
@sockets.options
def top(
    namespace: str,
    sort: Order,
    once: bool,
    every: float,
    form: str,
    socket: Path | None,
    cluster: str | None,
    lab: str | None,
) -> None:
    """Services that pods call, busiest first, redrawn every two seconds. Calls are of one node, with --context of all.

    \b
    CALLS/S    all calls, counted by the kernel
    FAILED/S   those that no backend answered: refused, silent, unreachable
    RESCUED/S  those that another backend answered than the one first asked
    P50, P99   time from connect() to an established TCP connection, as seen by
               the caller's kernel, of the last minute's calls that were recorded
               (datapath.flows: one of 256, and all that were rescued, which are
               weighted so); empty if none was. It includes no request.
    RECORDED   connections from which these times are
    An agent that does not answer is named above the table, which goes on
    without its node's calls; with -o json it is in "silent".

    \b
    isthmus top -n demo --sort p99           slowest connects of a namespace
    isthmus top --once -o json               for scripts: rates over two seconds
    isthmus --context c1 top                 all nodes of a cluster

    Example: isthmus top --once --every 5
    """
    agents = sockets.agents(socket=socket, cluster=cluster, lab=lab)
    redrawn = form == "table" and not once and output.is_terminal()
    try:
        with screen.screen() if redrawn else nullcontext(_print) as draw:
            for period in _loads(agents, every, namespace):
                period.services.sort(key=ORDERS[sort])
                if form == "json":
                    output.json({"seconds": every, **period._asdict()}, indent=2 if once else 0)
                else:
                    draw(_lines(period, len(agents)))
                if once:
                    break
    except QueryError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        return


ORDERS: Final[Mapping[Order, Callable[[Load], Any]]] = {
    "calls": lambda row: (-row.calls, row.service),
    "failed": lambda row: (-row.failed, -row.calls, row.service),
    "p99": lambda row: (-(row.p99 or 0.0), -row.calls, row.service),
}


def _loads(agents: Sequence[Socket], every: float, namespace: str) -> Iterator[Period]:
    """Yield the services' loads at the end of each period, for ever. QueryError if no agent answers at first."""
    with ThreadPoolExecutor(ASKED) as pool:
        readings = Readings(agents, pool)
        before, silent = readings.take()
        if not before:
            raise QueryError(next(iter(silent.values())))
        while True:
            time.sleep(every)
            now, silent = readings.take()
            # A rate over more than the period would be none of now: an agent counts from its second answer in a row.
            pairs = [(before[number].counts, later.counts) for number, later in now.items() if number in before]
            flows = [flow for each in now.values() for flow in each.flows]
            connections = rates.connections(flows, since=time.time() - rates.WINDOW)
            yield Period(rates.loads(pairs, connections, namespace=namespace), silent)
            before = now


class Readings:
    """Asks all agents at a time. One that hangs has its question open, and is asked no second one meanwhile."""

    def __init__(self, agents: Sequence[Socket], pool: ThreadPoolExecutor) -> None:
        self._agents = agents
        self._pool = pool
        self._open: dict[int, Future[Reading]] = {}
        """Questions without an answer, by the agent's number."""

    def take(self) -> tuple[dict[int, Reading], dict[str, str]]:
        """Return what each agent answers within ``PATIENCE`` seconds, and reasons of the others by their names."""
        new = {n: self._pool.submit(_read, agent) for n, agent in enumerate(self._agents) if n not in self._open}
        self._open |= new
        wait(new.values(), timeout=PATIENCE)
        found: dict[int, Reading] = {}
        silent: dict[str, str] = {}
        for number, agent in enumerate(self._agents):
            if not self._open[number].done():
                silent[agent.name] = "it has not answered yet"
                continue
            try:
                found[number] = self._open.pop(number).result()
            except QueryError as error:
                silent[agent.name] = str(error)
        return found, silent


def _read(agent: Socket) -> Reading:
    try:
        counted = rates.counts(agent.counters("calls"), time.monotonic())
    except NoTable:
        raise QueryError(f"{agent.path} counts no calls: it is no agent, or one of an earlier version") from None
    return Reading(counted, _flows(agent))


def _flows(agent: Socket) -> list[tuple[Flow, int]]:
    """Return what the agent recorded; nothing if it records none."""
    try:
        lines = list(agent.feed("flows", last=FLOWS))
    except NoTable:
        return []
    datapath = agent.status().get("datapath") or {}
    one_of = (datapath.get("flows") or {}).get("one_of", 1)
    return [(flow, one_of) for line in lines for flow in msgspec.convert(line.rows, list[Flow])]


def _lines(period: Period, agents: int) -> list[str]:
    services, silent = period
    calls, failed = sum(row.calls for row in services), sum(row.failed for row in services)
    some = f"{agents - len(silent)} of " if silent else ""
    nodes = f"{some}{agents} node{'s' if agents != 1 else ''}"
    head = f"{time.strftime('%H:%M:%S')}   {nodes}   {calls:.1f} calls/s, {failed:.1f} failed/s"
    table = output.table_lines(HEADS, [_cells(row) for row in services], least=LEAST) if services else ["No calls"]
    absent = [f"{name} does not answer: {reason}" for name, reason in sorted(silent.items())]
    return [*map(output.cut, (head, *absent)), "", *table]


def _cells(row: Load) -> tuple[str, ...]:
    rate = [f"{each:.1f}" if each else "0" for each in (row.calls, row.failed, row.rescued)]
    return row.service, *rate, _duration(row.p50), _duration(row.p99), str(row.recorded or "")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:.3g}ms" if seconds < 1 else f"{seconds:.1f}s"


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()
