"""``isthmus flows``: calls of a node's pods, one by one, as they were or as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from math import floor, inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from isthmus import bounds
from isthmus.admin.protocol import FeedLine
from isthmus.admin.query import QueryError, Socket
from isthmus.bounds import OutOfBounds
from isthmus.cli import output, sockets
from isthmus.cli.arrivals import Arrivals
from isthmus.model.flows import End, Flow, is_failed

HEADS: Final = ("TIME", "POD", "SERVICE", "ASKED", "ANSWERED", "VERDICT", "STATE", "AFTER", "SENT", "RECEIVED")
LEAST: Final = ("RECEIVED", "SENT", "ASKED")
"""Columns that a narrow terminal leaves out first."""
WAITING: Final = 64
"""Lines read ahead of the terminal; beyond, the agent counts what is lost."""


LAST: Final = 2_000
"""Flows that are shown if neither their number nor their time is given."""
FOLLOWED: Final = 20
"""Flows that are shown before new ones if neither is given."""
ALL: Final = 1 << 31
LONGEST: Final = 366 * 86_400.0


class Moment(click.ParamType[float]):
    """``14:03``, ``14:03:20``, ``10m`` (ago) or a time of RFC 3339; as a Unix timestamp.

    A time of day is the last one that has been, in the local zone.
    """

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        now = datetime.now().astimezone()
        for read in (_time_of_day, _ago, _written):
            try:
                return read(value, now).timestamp()
            except (ValueError, OutOfBounds):
                pass
        why = f"{value!r} is none of 14:03, 14:03:20, 10m (ago) or 2026-11-27T14:03:20Z"
        raise click.BadParameter(why, ctx, param)


def _time_of_day(value: str, now: datetime) -> datetime:
    time_of_day = datetime.strptime(value, "%H:%M:%S" if value.count(":") == 2 else "%H:%M").time()
    today = datetime.combine(now.date(), time_of_day)  # local: summer time may have begun or ended since then
    return today.astimezone() if today.astimezone() <= now else (today - timedelta(days=1)).astimezone()


def _ago(value: str, now: datetime) -> datetime:
    return bounds.after(now, -bounds.duration(value, units=("d", "h", "m", "s"), most=LONGEST))


def _written(value: str, now: datetime) -> datetime:
    return bounds.timestamp(value)


class Wanted(NamedTuple):
    """Filter of flows; an empty field matches all. Times are Unix timestamps, of the state that a flow shows."""

    service: str
    pod: str
    cluster: str
    failed: bool
    since: float = 0.0
    until: float = inf

    def has(self, flow: Flow) -> bool:
        """True if a flow matches. A service without a port matches all its ports; a cluster, either backend's."""
        if self.service and self.service not in (flow.service, flow.service.rpartition(":")[0], flow.policy):
            return False
        if self.pod and self.pod not in (flow.pod, flow.source, flow.source.rpartition(":")[0].strip("[]")):
            return False
        if self.cluster and self.cluster not in (flow.asked.cluster, flow.answered.cluster):
            return False
        return self.since <= _moment(flow) <= self.until and (not self.failed or is_failed(flow))


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@click.option("--service", metavar="NS/NAME[:PORT]", default="", help="Calls of this Service or import.")
@click.option("--from", "pod", metavar="NS/POD", default="", help="Calls of this pod, or of this address.")
@click.option("--to-cluster", metavar="CLUSTER", default="", help="Calls whose first or last backend is there.")
@click.option("--failed", is_flag=True, help="Calls that failed, were refused, or were given up.")
@click.option("--since", type=Moment(), help="Calls since then: 14:03, 14:03:20, 10m (ago) or a time of RFC 3339.")
@click.option("--until", type=Moment(), help="Calls until then.")
@click.option(
    "--last", type=click.IntRange(0), help="How many of the newest. [default: 20 with -f, all with --since, else 2000]"
)
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table")
@sockets.options
def flows(
    follow: bool,
    service: str,
    pod: str,
    to_cluster: str,
    failed: bool,
    since: float | None,
    until: float | None,
    last: int | None,
    form: str,
    socket: Path | None,
    cluster: str | None,
    lab: str | None,
) -> None:
    """Calls of a node's pods: who called what, which backend was asked and which answered, and what came of it.

    The agent records one call of 256 and all that fail, and keeps the newest 20,000; datapath.flows = N records one
    call of N. With --context every node is asked.

    Example: isthmus flows --failed --since 14:00 --service demo/echo
    """
    if follow and until is not None:
        raise click.UsageError("--until ends before what comes: leave it or -f out")
    if since is not None and until is not None and until < since:
        why = f"--until is {_date(until)}, before --since, {_date(since)}: a time of day is the last one that has been"
        raise click.UsageError(why)
    selection = Wanted(service, pod, to_cluster, failed, since or 0.0, inf if until is None else until)
    if last is None:
        last = ALL if since is not None else FOLLOWED if follow else LAST
    asked = sockets.agents(pod=pod, socket=socket, cluster=cluster, lab=lab)
    write = _json if form == "json" else _Lines()
    try:
        if follow:
            _follow(asked, selection, last, write)
        else:
            _list(asked, selection, last, write)
    except QueryError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        return


def _list(asked: Sequence[Socket], selection: Wanted, last: int, write: Any) -> None:
    lines = [line for each in asked for line in each.feed("flows", last=ALL)]
    flows_kept = sorted((flow for line in lines for flow in _rows(line, selection)), key=_moment)
    write(flows_kept[max(0, len(flows_kept) - last) :])
    _note_first(lines, selection)
    _note_lost(sum(line.lost for line in lines))
    if not flows_kept:
        output.note("No flows")


def _follow(asked: Sequence[Socket], selection: Wanted, last: int, write: Any) -> None:
    """Write matching flows that the nodes keep, then new ones, in the order in which they arrive here."""
    lines: Arrivals[FeedLine[Any] | QueryError] = Arrivals(WAITING)
    for each in asked:
        threading.Thread(target=_read, args=(each, lines), daemon=True).start()
    first = [_next(lines) for _ in asked]
    kept = sorted((flow for line in first for flow in _rows(line, selection)), key=_moment)
    write(kept[max(0, len(kept) - last) :])
    _note_first(first, selection)
    while True:
        line = _next(lines)
        write(list(_rows(line, selection)))
        _note_lost(line.lost)


def _read(socket: Socket, lines: Arrivals[FeedLine[Any] | QueryError]) -> None:
    try:
        for line in socket.feed("flows", last=ALL, follow=True):
            lines.put(line)
        lines.put(QueryError(f"the process at {socket.path} has ended"))
    except QueryError as error:
        lines.put(error)


def _next(lines: Arrivals[FeedLine[Any] | QueryError]) -> FeedLine[Any]:
    line = lines.get()
    if isinstance(line, QueryError):
        raise line
    return line


def _rows(line: FeedLine[Any], selection: Wanted) -> Iterator[Flow]:
    return (flow for flow in _flows(line.rows) if selection.has(flow))


def _flows(rows: Iterable[Any]) -> tuple[Flow, ...]:
    return msgspec.convert(rows, tuple[Flow, ...])


def _moment(flow: Flow) -> float:
    return flow.time + flow.took


def _note_first(lines: Sequence[FeedLine[Any]], selection: Wanted) -> None:
    """Note which calls are recorded, and from when on, if the nodes keep no older ones of those that are asked for."""
    for note in sorted({line.note for line in lines if line.note}):
        output.note(note[:1].upper() + note[1:])
    oldest = [min(map(_moment, _flows(line.rows))) for line in lines if line.displaced and line.rows]
    if selection.since and oldest and (first := max(oldest)) > selection.since:
        output.note(f"Older records than of {_clock(first)} were displaced by newer ones on a node")


def _note_lost(count: int) -> None:
    if count:
        output.note(f"{count} records were lost: more came than were read, or than are kept of one caller")


def _json(flows: Sequence[Flow]) -> None:
    for flow in flows:
        output.json(flow, indent=0)


class _Lines:
    """Lines below one another; the heads before the first."""

    def __init__(self) -> None:
        self._widths: list[int] = []

    def __call__(self, flows: Sequence[Flow]) -> None:
        """Print flows."""
        if flows:
            output.lines([_cells(flow) for flow in flows], widths=self._widths, heads=HEADS, least=LEAST)


def _cells(flow: Flow) -> tuple[str, ...]:
    state = f"{flow.state}: {flow.reason}" if flow.reason else flow.state
    ended = flow.state == "ended"
    return (
        _clock(_moment(flow)),
        _caller(flow),
        flow.service or (f"{flow.called} by {flow.policy}" if flow.policy else flow.called),
        _end(flow.asked),
        _end(flow.answered) if flow.answered != flow.asked else "",
        f"{flow.verdict} (caller)" if flow.for_caller else flow.verdict,
        state,
        _duration(flow.took) if flow.took else "",
        str(flow.sent) if ended else "",
        str(flow.received) if ended else "",
    )


def _caller(flow: Flow) -> str:
    """The calling pod; of a refused caller from another cluster the number and the account, or its address."""
    if flow.caller:
        return f"{flow.caller} ({flow.identity}, {flow.source})"
    return flow.pod or flow.source


def _end(end: End) -> str:
    """A backend, or the gateways of an island that the call may have passed, where the address is this node's Envoy."""
    if not end.gateways:
        return f"{end.cluster} {end.address}".strip()
    more = f" or {len(end.gateways) - 1} more" if len(end.gateways) > 1 else ""
    return f"{end.cluster} by gateway {end.gateways[0]}{more}"


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds)) + f".{floor(seconds % 1 * 1000):03}"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.3g}ms" if seconds < 1 else f"{seconds:.1f}s"
