"""``isthmus lab kill|pause|start|cut|heal|link``: fault injection: processes, pods, machines, links."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from isthmus_lab.cli.labs import find_lab
from isthmus_lab.cli.options import lab_name

if TYPE_CHECKING:
    from isthmus_lab.faults import Action
    from isthmus_lab.layout import Lab

T = TypeVar("T")
NO_NETWORK = (
    "a lab on loopback addresses has no network to cut: kill or pause its processes and pods, or make it as root"
)

_WHAT = "CLUSTER[/node/N|/pod/NS/NAME|/PROCESS]"
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


@click.command()
@lab_name
@click.argument("what", metavar=_WHAT)
def kill(name: str, what: str) -> None:
    """Kill a process, a pod, a machine or a cluster; what is no pod stays dead until it is started.

    Example: isthmus lab kill c2/node/1
    """
    _inject(name, "kill", what)
    if what.endswith("/etcd"):
        from isthmus_lab import etcd_program

        if warning := etcd_program.inspect(etcd_program.find()).warning:
            click.echo(warning, err=True)


@click.command()
@lab_name
@click.argument("what", metavar=_WHAT)
def pause(name: str, what: str) -> None:
    """Stop a process, pod, machine or cluster where it is: it keeps its connections and answers nothing.

    Example: isthmus lab pause c2/operator
    """
    _inject(name, "pause", what)


@click.command()
@lab_name
@click.option(
    "--python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Interpreter in whose environment another release is installed: Isthmus' processes are replaced by its own.",
)
@click.argument("what", metavar=_WHAT)
def start(name: str, what: str, python: Path | None) -> None:
    """Start again what was killed, let go on what was paused; with --python, replace it by another release.

    Example: isthmus lab start c2/node/1
    """
    if python is None:
        _inject(name, "start", what)
        return
    from isthmus_lab import faults

    lab = find_lab(name)
    replaced = _run(faults.replace(lab, _target(lab, what), python.absolute()))
    click.echo(f"replaced {', '.join(replaced)}")


@click.command()
@lab_name
@click.option("--one-way", is_flag=True, help="From the first to the second only.")
@click.option("--loud", is_flag=True, help="Refuse (RST, unreachable) instead of dropping.")
@click.argument("a")
@click.argument("b")
def cut(name: str, one_way: bool, loud: bool, a: str, b: str) -> None:
    """Let nothing pass between two clusters, nodes, or one and CLUSTER/apiserver, CLUSTER/etcd or CLUSTER/gateway.

    Example: isthmus lab cut c1 c2 --one-way
    """
    from isthmus_lab import faults
    from isthmus_lab.network.impairments import Cut

    lab = _with_network(name)
    new = Cut(_target(lab, a), _target(lab, b), one_way, loud)
    _run(faults.cut(lab, new))
    click.echo(str(new))


@click.command()
@lab_name
@click.argument("a", required=False)
@click.argument("b", required=False)
def heal(name: str, a: str | None, b: str | None) -> None:
    """Undo cuts and links: between two, of one, or all.

    Example: isthmus lab heal c1 c2
    """
    from isthmus_lab import faults

    lab = _with_network(name)
    healed = _run(faults.heal(lab, *(_target(lab, each) if each else None for each in (a, b))))
    click.echo(f"healed {healed}")


@click.command()
@lab_name
@click.option("--delay", default="0ms", help="Each way, as in 40ms.")
@click.option("--jitter", default="0ms", help="Around the delay.")
@click.option("--loss", default="0%", help="Of packets, each way, as in 1%.")
@click.option("--rate", default="", help="Each way, as in 50mbit.")
@click.argument("a")
@click.argument("b")
def link(name: str, delay: str, jitter: str, loss: str, rate: str, a: str, b: str) -> None:
    """Make the way between two clusters or nodes slow, lossy or narrow; without options it is as new.

    Example: isthmus lab link c1 c2 --delay 40ms --loss 1%
    """
    from isthmus_lab import faults
    from isthmus_lab.network.impairments import Link

    lab = _with_network(name)
    new = Link(
        _target(lab, a),
        _target(lab, b),
        delay=_quantity("--delay", delay, r"([\d.]+)(ms|s)", {"ms": 1, "s": 1000}),
        jitter=_quantity("--jitter", jitter, r"([\d.]+)(ms|s)", {"ms": 1, "s": 1000}),
        loss=_quantity("--loss", loss, r"([\d.]+)(%)", {"%": 0.01}, most=1.0),
        rate=int(_quantity("--rate", rate, r"([\d.]+)([kmg]?)bit", UNITS)) if rate else 0,
    )
    _run(faults.link(lab, new))
    click.echo(str(new))


COMMANDS = (kill, pause, start, cut, heal, link)


def _inject(name: str, action: Action, what: str) -> None:
    from isthmus_lab import faults

    lab = find_lab(name)
    click.echo(_run(faults.inject(lab, action, _target(lab, what))))


def _with_network(name: str) -> Lab:
    lab = find_lab(name)
    if lab.loopback:
        raise click.ClickException(NO_NETWORK)
    return lab


def _target(lab: Lab, text: str) -> Any:
    from isthmus_lab import fault_targets

    try:
        return fault_targets.parse(lab, text)
    except fault_targets.NoSuchTarget as error:
        raise click.ClickException(str(error)) from None


def _run(what: Coroutine[Any, Any, T]) -> T:
    from isthmus_lab.fault_targets import NoSuchTarget

    try:
        return asyncio.run(what)
    except (NoSuchTarget, OSError) as error:
        raise click.ClickException(str(error)) from None


def _quantity(
    flag: str, text: str, form: str, units: dict[str, float] | dict[str, int], *, most: float = 1e15
) -> float:
    match = re.fullmatch(form, text.strip().lower())
    try:
        value = float(match[1]) * units[match[2]] if match else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise click.ClickException(
            f"{flag} {text}: want a number and one of {', '.join(unit or 'bit' for unit in units)}"
        )
    return value
