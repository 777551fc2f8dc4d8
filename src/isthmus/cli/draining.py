"""``drain`` and ``undrain`` of clusters, nodes and services: an object of the own API server, so it outlives processes.

Asked for in the cluster that is drained, or has the node or service, it counts in the whole clusterset, since that
cluster publishes it. Asked for about another cluster, it counts for callers of the own one alone.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import floor
from typing import TYPE_CHECKING, Any, Literal

import click

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.cli import apiserver, exporting, groups, output, sockets
from isthmus.cli.apiserver import FIELD_MANAGER, Server

if TYPE_CHECKING:
    from isthmus import kube
    from isthmus.model.drains import DrainKind

MAX_DURATION = 10 * 365 * 86_400
"""Seconds. What a Drain takes is less, and bounded by its schema."""
WHERE = ("kubeconfig", "context", "namespace")
"""Options that select the API server and its namespace, which the command that undoes a drain needs too."""


class Duration(click.ParamType[int]):
    """``90s``, ``10m``, ``1h30m``; in seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value == "0":
            return 0
        try:
            return floor(bounds.duration(value, units=("d", "h", "m", "s"), digits=9, most=MAX_DURATION))
        except OutOfBounds as error:
            self.fail(str(error), param, ctx)


_how = (
    click.option(
        "--for",
        "deadline",
        type=Duration(),
        help="How long connections that are there may go on; then they are closed. [default: as long as they last]",
    ),
    click.option(
        "--existing",
        type=click.Choice(["keep", "close"]),
        default="keep",
        show_default=True,
        help="keep: connections go on, until --for is over. close: they are closed once no new call is made.",
    ),
    click.option("--ramp", type=Duration(), default="0", help="Over how long new calls decrease to none. [default: 0]"),
    click.option("--end-after", type=Duration(), help="The drain ends by itself after this. [default: undrain]"),
)


def _options(command: click.decorators.FC) -> click.decorators.FC:
    command = apiserver.options(command)
    for option in reversed(_how):
        command = option(command)
    return command


def _undrain_options(command: click.decorators.FC) -> click.decorators.FC:
    ramp = click.option(
        "--ramp", type=Duration(), default="0", help="Over how long new calls grow back to all. [default: 0]"
    )
    return ramp(apiserver.options(command))


@click.command("drain")
@click.argument("name")
@_options
def drain_cluster(name: str, **options: Any) -> None:
    """Send no new call to cluster NAME. Run in NAME itself, it counts everywhere; elsewhere, for callers there.

    Example: isthmus clusters drain c2 --for 2h --context c2
    """
    _drain("Cluster", name, **options)


@click.command("undrain")
@click.argument("name")
@_undrain_options
def undrain_cluster(name: str, ramp: int, **server: Any) -> None:
    """End `isthmus clusters drain NAME`: new calls come back at once, or over --ramp.

    Example: isthmus clusters undrain c2 --context c2
    """
    _undrain("Cluster", name, ramp, Server(**server))


@click.group(cls=groups.Group)
def nodes() -> None:
    """Nodes of the own cluster: drain and undrain."""


@nodes.command("drain")
@click.argument("name")
@_options
def drain_node(name: str, **options: Any) -> None:
    """Send no new call to pods on node NAME, from anywhere in the clusterset. Pods stay where they are.

    Example: isthmus nodes drain c1-n2 --for 30m
    """
    _drain("Node", name, **options)


@nodes.command("undrain")
@click.argument("name")
@_undrain_options
def undrain_node(name: str, ramp: int, **server: Any) -> None:
    """End `isthmus nodes drain NAME`: new calls come back at once, or over --ramp.

    Example: isthmus nodes undrain c1-n2
    """
    _undrain("Node", name, ramp, Server(**server))


@click.group(cls=groups.Group)
def services() -> None:
    """Services of the own cluster: export, drain and undrain."""


services.add_command(exporting.export)


@services.command("drain")
@click.argument("name", metavar="NAMESPACE/NAME")
@_options
def drain_service(name: str, **options: Any) -> None:
    """Send no new call to this cluster's part of a service; other clusters that export it take them.

    Example: isthmus services drain demo/echo --ramp 10m
    """
    _drain("Service", name, **options)


@services.command("undrain")
@click.argument("name", metavar="NAMESPACE/NAME")
@_undrain_options
def undrain_service(name: str, ramp: int, **server: Any) -> None:
    """End `isthmus services drain NAMESPACE/NAME`: new calls come back at once, or over --ramp.

    Example: isthmus services undrain demo/echo --ramp 10m
    """
    _undrain("Service", name, ramp, Server(**server))


def _drain(
    kind: DrainKind,
    name: str,
    *,
    deadline: int | None,
    existing: Literal["keep", "close"],
    ramp: int,
    end_after: int | None,
    **server: Any,
) -> None:
    """Write the object. Where it is there already, the drain begins anew, by what is asked for now."""
    from isthmus import kube
    from isthmus.kube.objects.drains import DRAIN
    from isthmus.sources import drains
    from isthmus.times import timestamp

    if existing == "close" and deadline is not None:
        raise click.UsageError("--for is how long connections are kept: it excludes --existing close")
    if deadline is not None and deadline < ramp:
        raise click.UsageError("--for is less than --ramp: calls would still be made")
    space, target = _target(kind, name)
    spec: dict[str, Any] = {"existing": existing.capitalize(), "rampSeconds": ramp}
    spec |= {"deadlineSeconds": deadline} if deadline is not None else {}
    now = datetime.now(UTC)
    spec |= {"endTime": timestamp(bounds.after(now, end_after))} if end_after is not None else {}

    async def write(client: kube.Client, namespace: str) -> None:
        await _exists(client, kind, target, space)
        object_namespace, object_name = space or namespace, drains.object_name(kind, target)
        try:
            await client.get(DRAIN, object_name, object_namespace)
            spec["startTime"] = timestamp(now)
        except kube.NotFound:
            pass  # it begins when the API server creates it
        await client.apply(
            DRAIN, object_namespace, object_name, drains.body(kind, target, spec), field_manager=FIELD_MANAGER
        )

    apiserver.carry_out(Server(**server), write)
    output.note(f"{kind.lower()} {name} {_meaning(existing, ramp, deadline, end_after)}")
    given = {field: server[field] or (sockets.context() if field == "context" else "") for field in WHERE}
    options = "".join(f" --{field} {value}" for field, value in given.items() if value)
    output.note(f"look: kubectl get drains -A; undo: isthmus {kind.lower()}s undrain {name}{options}")


async def _exists(client: kube.Client, kind: DrainKind, name: str, namespace: str) -> None:
    """Refuse a node or a Service that does not exist, such as a typo. A user who may not read it is not refused."""
    from isthmus import kube
    from isthmus.kube.objects.core import NODE, SERVICE

    if kind == "Cluster":
        return
    try:
        if kind == "Node":
            await client.get(NODE, name)
        else:
            await client.get(SERVICE, name, namespace)
    except kube.NotFound:
        shown = "nodes" if kind == "Node" else f"services -n {namespace}"
        raise click.ClickException(f"there is no {kind.lower()} {name} in this cluster: kubectl get {shown}") from None
    except kube.KubeError:
        return  # what the object itself meets is the error


def _meaning(existing: str, ramp: int, deadline: int | None, end_after: int | None) -> str:
    calls = f"takes fewer new calls, and none after {ramp} s" if ramp else "takes no new call"
    closed = "when no new call is made" if existing == "close" else f"{deadline} s from now" if deadline else ""
    what = f"connections that are there are closed {closed}" if closed else "connections that are there go on"
    return f"{calls}; {what}" + (f"; the drain ends by itself after {end_after} s" if end_after is not None else "")


def _undrain(kind: DrainKind, name: str, ramp: int, server: Server) -> None:
    """Delete the object, or write that it ends after a ramp, over which its readers give calls back."""
    from isthmus import kube
    from isthmus.kube.objects.drains import DRAIN
    from isthmus.sources import drains

    space, target = _target(kind, name)
    found: list[bool] = []
    growing = f", and all of its share after {ramp} s: the Drain ends then" if ramp else ""
    object_name = drains.object_name(kind, target)

    async def delete(client: kube.Client, namespace: str) -> None:
        found.append(await client.delete(DRAIN, space or namespace, object_name))

    async def end(client: kube.Client, namespace: str) -> None:
        try:
            drain = await client.get(DRAIN, object_name, space or namespace)
        except kube.NotFound:
            found.append(False)
            return
        spec = drains.ending(drain, datetime.now(UTC), ramp)
        if spec is None:
            nonlocal growing
            growing = f" already, and all of its share from {drain.spec.end_time} on"
        else:
            body = drains.body(kind, target, spec)
            await client.apply(DRAIN, space or namespace, object_name, body, field_manager=FIELD_MANAGER)
        found.append(True)

    apiserver.carry_out(server, end if ramp else delete)
    if not found[0]:
        raise click.ClickException(f"{kind.lower()} {name} is not drained by a command here: kubectl get drains -A")
    output.note(f"{kind.lower()} {name} takes new calls again{growing}")


def _target(kind: DrainKind, name: str) -> tuple[str, str]:
    """The namespace that the object has to be in, empty for that of Isthmus, and the target's name."""
    from isthmus.model.names import valid_cluster

    if kind == "Service":
        namespace, slash, short = name.partition("/")
        if not slash or not namespace or not short:
            raise click.UsageError(f"'{name}': want NAMESPACE/NAME")
        return namespace, short
    if kind == "Cluster" and not valid_cluster(name):
        raise click.ClickException(f"'{name}' cannot be a cluster's name")
    return "", name
