"""``isthmus flows``: sampled calls of a node's pods, one by one, as they were or as they come."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from isthmus.admin.protocol import FeedLine
from isthmus.admin.query import QueryError, Socket
from isthmus.cli import output, sockets
from isthmus.model.flows import FAILED, End, Flow

HEADS: Final = ("TIME", "POD", "SERVICE", "ASKED", "ANSWERED", "VERDICT", "STATE", "AFTER", "SENT", "RECEIVED")
WAITING: Final = 64
"""Lines read ahead of the terminal; beyond, the agent counts what is lost."""


class Wanted(NamedTuple):
    """Which flows are shown; an empty field is no condition."""

    service: str
    pod: str
    cluster: str
    failed: bool

    def has(self, flow: Flow) -> bool:
        """Whether a flow is meant. A service without a port is any of its ports; a cluster, that of either backend."""
        if self.service and self.service not in (flow.service, flow.service.rpartition(":")[0]):
            return False
        if self.pod and self.pod not in (flow.pod, flow.source, flow.source.rpartition(":")[0].strip("[]")):
            return False
        if self.cluster and self.cluster not in (flow.asked.cluster, flow.answered.cluster):
            return False
        return not self.failed or flow.verdict in FAILED or flow.state == "given up"


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@click.option("--service", metavar="NS/NAME[:PORT]", default="", help="Calls of this Service or import.")
@click.option("--from", "pod", metavar="NS/POD", default="", help="Calls of this pod, or of this address.")
@click.option("--to-cluster", metavar="CLUSTER", default="", help="Calls whose first or last backend is there.")
@click.option("--failed", is_flag=True, help="Calls that failed, were refused, or were given up.")
@click.option("--last", type=click.IntRange(0), help="How many of the newest, at most. [default: 20 with -f, else all]")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table")
@sockets.options
def flows(
    follow: bool,
    service: str,
    pod: str,
    to_cluster: str,
    failed: bool,
    last: int | None,
    form: str,
    socket: Path | None,
    cluster: str | None,
    lab: str | None,
) -> None:
    """Calls of a node's pods: who called what, which backend was asked and which answered, and what came of it.

    The agent samples them: datapath.flows = N records one call of N. With --context every node is asked.
    """
    wanted = Wanted(service, pod, to_cluster, failed)
    asked = _agents(pod, socket=socket, cluster=cluster, lab=lab)
    write = _json if form == "json" else _Lines()
    try:
        if follow:
            _follow(asked, wanted, 20 if last is None else last, write)
        else:
            _list(asked, wanted, last, write)
    except QueryError as why:
        raise click.ClickException(str(why)) from None
    except KeyboardInterrupt:
        return


def _agents(pod: str, *, socket: Path | None, cluster: str | None, lab: str | None) -> list[Socket]:
    if context := sockets.context():
        from isthmus.cli import remote

        return remote.agents(context, node=remote.node_of(context, pod) if "/" in pod else "")
    return sockets.find(socket=socket, cluster=cluster, lab=lab)[:1]


def _list(asked: Sequence[Socket], wanted: Wanted, last: int | None, write: Any) -> None:
    lines = [line for each in asked for line in each.feed("flows", last=1 << 31)]
    found = sorted((flow for line in lines for flow in _rows(line, wanted)), key=_moment)
    write(found if last is None else found[max(0, len(found) - last) :])
    _note_lost(sum(line.lost for line in lines))
    if not found:
        output.note("No flows")


def _follow(asked: Sequence[Socket], wanted: Wanted, last: int, write: Any) -> None:
    """What is kept, as far as it is wanted, then what comes; of all nodes in the order in which it comes here."""
    lines: queue.Queue[FeedLine[Any] | QueryError] = queue.Queue(WAITING)
    for each in asked:
        threading.Thread(target=_read, args=(each, lines), daemon=True).start()
    first = [_next(lines) for _ in asked]
    kept = sorted((flow for line in first for flow in _rows(line, wanted)), key=_moment)
    write(kept[max(0, len(kept) - last) :])
    while True:
        line = _next(lines)
        write(list(_rows(line, wanted)))
        _note_lost(line.lost)


def _read(socket: Socket, lines: queue.Queue[FeedLine[Any] | QueryError]) -> None:
    try:
        for line in socket.feed("flows", last=1 << 31, follow=True):
            lines.put(line)
        lines.put(QueryError(f"the process at {socket.path} has ended"))
    except QueryError as why:
        lines.put(why)


def _next(lines: queue.Queue[FeedLine[Any] | QueryError]) -> FeedLine[Any]:
    line = lines.get()
    if isinstance(line, QueryError):
        raise line
    return line


def _rows(line: FeedLine[Any], wanted: Wanted) -> Iterator[Flow]:
    return (flow for flow in msgspec.convert(line.rows, tuple[Flow, ...]) if wanted.has(flow))


def _moment(flow: Flow) -> float:
    return flow.time + flow.took


def _note_lost(count: int) -> None:
    if count:
        output.note(f"{count} records were lost: more came than were read")


def _json(found: Sequence[Flow]) -> None:
    for flow in found:
        output.json(flow, indent=0)


class _Lines:
    """Lines below one another; the heads before the first."""

    def __init__(self) -> None:
        self._widths: list[int] = []

    def __call__(self, found: Sequence[Flow]) -> None:
        """Print flows."""
        if found:
            heads = [] if self._widths else [HEADS]
            output.lines([*heads, *map(_cells, found)], widths=self._widths)


def _cells(flow: Flow) -> tuple[str, ...]:
    state = f"{flow.state}: {flow.reason}" if flow.reason else flow.state
    ended = flow.state == "ended"
    return (
        _clock(_moment(flow)),
        flow.pod or flow.source,
        flow.service or flow.called,
        _end(flow.asked),
        _end(flow.answered) if flow.answered != flow.asked else "",
        flow.verdict,
        state,
        _duration(flow.took) if flow.took else "",
        str(flow.sent) if ended else "",
        str(flow.received) if ended else "",
    )


def _end(end: End) -> str:
    """A backend; of an island the gateways that the call may have gone through, the address being this node's Envoy."""
    if not end.gateways:
        return f"{end.cluster} {end.address}".strip()
    more = f" or {len(end.gateways) - 1} more" if len(end.gateways) > 1 else ""
    return f"{end.cluster} by gateway {end.gateways[0]}{more}"


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at % 1 * 1000):03}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.3g}ms" if seconds < 1 else f"{seconds:.1f}s"
