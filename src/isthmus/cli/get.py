"""``isthmus get``: rows of any table of any process, once or as they change."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NoReturn, get_args

import click

from isthmus.admin.protocol import Listing
from isthmus.admin.query import NoTable, QueryError, Socket
from isthmus.cli import columns, completion, output, screen, sockets
from isthmus.cli.columns import Row
from isthmus.cli.follow import Change, follow

Format = Literal["table", "wide", "name", "json", "yaml"]

STATUS_OF: Final = {"plans": "plans_status", "objects": "objects_status", "backends": "failures"}
"""Tables that have a status table: a row for each row that could not be reconciled, with the error."""


class Selection(NamedTuple):
    """Selection of rows of a table. ``namespace`` is ``None`` for all namespaces."""

    table: str
    name: str | None
    namespace: str | None

    def has(self, row: Row) -> bool:
        """True if a row is selected."""
        where = columns.namespace(self.table, row)
        if self.namespace is not None and where is not None and where != self.namespace:
            return False
        return self.name is None or any(self.name in (name, name.rpartition("/")[2]) for name in columns.names(row))

    @property
    def under(self) -> str:
        """Prefix of the names of all selected rows, for tables that a process can list by prefix."""
        namespace = self.namespace or (self.name or "").rpartition("/")[0]
        return f"{namespace}/" if namespace else ""

    def __str__(self) -> str:
        suffix = f" called '{self.name}'" if self.name else ""
        return f"{self.table}{suffix}" + (f" in namespace {self.namespace}" if self.namespace else "")


class View(NamedTuple):
    """Format of rows as lines of cells."""

    selection: Selection
    wide: bool
    status: dict[str, Row] | None
    """Failures of the reconciler by key text; None where the table has no status table."""

    def heads(self, sample: Row, *, event: bool = False) -> list[str]:
        """The first line."""
        fixed = [*(["EVENT"] if event else []), *(["NAMESPACE"] if self._has_namespaces(sample) else []), "NAME"]
        return [
            *fixed,
            *(column.head for column in self._columns(sample)),
            *(["STATUS"] if self.status is not None else []),
        ]

    def cells(self, key: str, row: Row, *, sample: Row | None = None, event: str = "") -> list[str]:
        """A row's line."""
        table = self.selection.table
        fixed = [event] if event else []
        if self._has_namespaces(sample or row):
            fixed.append(columns.namespace(table, row) or "")
        cells = [
            *fixed,
            columns.title(table, row),
            *(columns.cell(column, row) for column in self._columns(sample or row)),
        ]
        return cells if self.status is None else [*cells, self._status(key)]

    def _columns(self, sample: Row) -> list[columns.Column]:
        return [column for column in columns.columns(self.selection.table, sample) if self.wide or not column.wide]

    def _has_namespaces(self, sample: Row) -> bool:
        table = self.selection.table
        return self.selection.namespace is None and columns.namespace(table, sample) is not None

    def _status(self, key: str) -> str:
        """A reconciler counts its attempts; what the kernel found out has none."""
        failure = (self.status or {}).get(key)
        if failure is None:
            return "ok"
        return f"{failure['error']} (tried {failure['attempts']}×)" if "attempts" in failure else failure["error"]


@click.command()
@click.argument("table", shell_complete=completion.tables)
@click.argument("name", required=False, shell_complete=completion.services)
@click.option("-n", "--namespace", metavar="NS", help="The namespace. [default: default]")
@click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(get_args(Format)),
    default="table",
    help="wide: all columns; name: NAMESPACE/NAME, each once, as this command takes them.",
)
@click.option("-w", "--watch", is_flag=True, help="Go on: redrawn on a terminal, else a line for each change.")
@sockets.options
def get(
    table: str,
    name: str | None,
    namespace: str | None,
    all_namespaces: bool,
    form: Format,
    watch: bool,
    socket: Path | None,
    cluster: str | None,
    lab: str | None,
) -> None:
    """Rows of TABLE: clusters, exports, imports, services, frontends, backends, plans, names, or any other.

    NAME, or NAMESPACE/NAME, gives those of one service. Without an option the process asked is this
    node's agent, else the operator; --cluster c2 asks those of a lab's cluster.

    On a narrow terminal wide cells are cut, then columns left out; -o json and a pipe have everything.

    \b
    isthmus get backends demo/echo -o wide    all columns of one service's backends
    isthmus get plans -A -w                   what is called, redrawn as it changes
    isthmus get faults -A -o yaml             every field
    isthmus get imports -A -o name | xargs -n1 isthmus diagnose

    Example: isthmus get imports -A
    """
    if watch and form in ("yaml", "name"):
        raise click.UsageError("-w goes with -o table, wide or json")
    if name and "/" in name:
        all_namespaces = True
    selection = Selection(columns.table_name(table), name, None if all_namespaces else namespace or "default")
    candidates = sockets.find(socket=socket, cluster=cluster, lab=lab)
    asked, listing = sockets.ask(candidates, lambda each: each.table(selection.table, under=selection.under))
    status = _statuses(asked, selection.table)
    if watch:
        _watch(asked, View(selection, form == "wide", status), as_json=form == "json")
    else:
        _print(listing, View(selection, form == "wide", status), form=form)


def _print(listing: Listing[Any], view: View, *, form: Format) -> None:
    rows = _sorted(zip(listing.keys, listing.rows, strict=True), view)
    if form in ("json", "yaml"):
        document = {"table": view.selection.table, "complete": listing.complete, "pending": listing.pending}
        write: Callable[[Any], None] = output.json if form == "json" else output.yaml
        write(document | {"rows": [_with_status(key, row, view.status) for key, row in rows]})
    elif form == "name":
        for name in dict.fromkeys(next(iter(columns.names(row)), key) for key, row in rows):
            output.line(name)
    elif rows:
        for line in _table(rows, view):
            print(line)
    if not listing.complete and form in ("table", "wide"):
        output.note(f"not complete: still waiting for {', '.join(listing.pending)}")
    if not rows:
        _nothing(view.selection, form=form)


def _sorted(rows: Iterable[tuple[str, Row]], view: View) -> list[tuple[str, Row]]:
    """Return the selected rows with their keys, by namespace and key."""
    selected = [(key, row) for key, row in rows if view.selection.has(row)]
    return sorted(selected, key=lambda pair: (columns.namespace(view.selection.table, pair[1]) or "", pair[0]))


def _table(rows: Sequence[tuple[str, Row]], view: View) -> list[str]:
    sample = rows[0][1]
    return output.table_lines(view.heads(sample), [view.cells(key, row, sample=sample) for key, row in rows])


def _nothing(selection: Selection, *, form: Format) -> None:
    hint = (
        "; -A looks in all namespaces" if selection.namespace and selection.table not in columns.CLUSTER_SCOPED else ""
    )
    if selection.name:
        raise click.ClickException(f"no {selection}{hint}")
    if form in ("table", "wide"):
        output.note(f"No {selection}{hint}")


def _watch(socket: Socket, view: View, *, as_json: bool) -> None:
    """Redraw rows as they change; into a pipe and as JSON, write each change as a line of its own."""
    try:
        if output.is_terminal() and not as_json:
            _redraw(socket, view)
        write = _json_writer(view) if as_json else _line_writer(view)
        for changes in _selected(socket, view):
            write(changes)
    except KeyboardInterrupt:
        return
    except QueryError as error:
        raise click.ClickException(str(error)) from None


def _redraw(socket: Socket, view: View) -> NoReturn:
    """Draw the selected rows whenever they, their status or the terminal's size change."""
    rows: dict[str, Row] = {}
    followed = _followed(view, rows)
    drawn: object = None
    with screen.screen() as draw:
        for changes in follow(socket, followed, period=screen.PERIOD):
            for change in changes:
                _keep(followed[change.table], change)
            size = os.get_terminal_size(sys.stdout.fileno())
            if changes or size != drawn:
                selected = _sorted(rows.items(), view)
                draw(_table(selected, view) if selected else [f"No {view.selection}"])
                drawn = size
    raise AssertionError("a process is followed until it ends")


def _followed(view: View, rows: dict[str, Row]) -> dict[str, dict[str, Row]]:
    table = view.selection.table
    return {table: rows} if view.status is None else {table: rows, STATUS_OF[table]: view.status}


def _json_writer(view: View) -> Callable[[list[Change]], None]:
    def write(changes: list[Change]) -> None:
        for change in changes:
            row = change.row and _with_status(change.key, change.row, view.status)
            output.json({"event": change.event, "key": change.key, "row": row}, indent=0)

    return write


def _line_writer(view: View) -> Callable[[list[Change]], None]:
    widths: list[int] = []
    sample: Row = {}

    def write(changes: list[Change]) -> None:
        nonlocal sample
        rows = [(change, change.row or change.old or {}) for change in changes]
        if not rows:
            return
        sample = sample or rows[0][1]
        cells = [view.cells(change.key, row, sample=sample, event=change.event) for change, row in rows]
        output.lines(cells, widths=widths, heads=view.heads(sample, event=True))

    return write


def _selected(socket: Socket, view: View) -> Iterator[list[Change]]:
    """Changes of the selected rows, and of their status: the row is then printed again."""
    table = view.selection.table
    rows: dict[str, Row] = {}
    followed = _followed(view, rows)
    for changes in follow(socket, followed):
        printed: dict[str, Change] = {}
        for change in changes:
            _keep(followed[change.table], change)
            row = change.row or change.old or {}
            if change.table != table:
                row = rows.get(change.key, {})
                change = Change(table, "STATUS", change.key, row, row)
            if row and view.selection.has(row):
                printed[change.key] = change
        yield list(printed.values())


def _keep(rows: dict[str, Row], change: Change) -> None:
    if change.row is None:
        rows.pop(change.key, None)
    else:
        rows[change.key] = change.row


def _statuses(socket: Socket, table: str) -> dict[str, Row] | None:
    """Return a table's reconciler failures by key; ``None`` for a table without a reconciler."""
    if table not in STATUS_OF:
        return None
    try:
        listing = socket.table(STATUS_OF[table])
    except NoTable:
        return None
    except QueryError as error:
        raise click.ClickException(str(error)) from None
    return dict(zip(listing.keys, listing.rows, strict=True))


def _with_status(key: str, row: Row, statuses: Mapping[str, Row] | None) -> Row:
    if statuses is None:
        return row
    failure = statuses.get(key)
    return {**row, "status": {"ok": failure is None} | ({"error": failure["error"]} if failure else {})}
