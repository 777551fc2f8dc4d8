"""``isthmus karmada``: members of a Karmada control plane as a clusterset."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isthmus.cli import groups, output
from isthmus.cli.joining import of_a_cluster, own_cluster
from isthmus.config import Config, ConfigError, load

if TYPE_CHECKING:
    from isthmus.karmada import Control, Member, Report

KEYS = "karmada-system"

_options = (
    click.option(
        "--karmada-kubeconfig",
        "kubeconfig",
        type=click.Path(exists=True, dir_okay=False),
        help="Of Karmada's API server. [default: $KUBECONFIG, or the pod's service account]",
    ),
    click.option("--karmada-context", "context", default="", help="A context of it. [default: its current one]"),
    click.option(
        "--keys-namespace",
        "namespace",
        default=KEYS,
        show_default=True,
        help="Where members' keys are kept. Karmada must never propagate Secrets of it.",
    ),
)


def _of_a_control_plane(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_options):
        command = option(command)
    return command


@click.group(cls=groups.Group)
def group() -> None:
    """Members of a Karmada control plane as a clusterset."""


@group.command()
@_of_a_control_plane
@click.option(
    "--definitions",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of CustomResourceDefinitions that members get, and Karmada's API server does not; repeatable.",
)
@click.option("--once", is_flag=True, help="Make one round and end: 0 where everything is as it should be.")
def join(kubeconfig: str | None, context: str, namespace: str, files: tuple[Path, ...], once: bool) -> None:
    """Join all members that Isthmus is placed in, and keep them joined as members come and go.

    Runs until it is stopped; of several replicas one works. Keys and peers travel as Works: no member's kubeconfig is
    needed.

    Example: isthmus karmada join --karmada-kubeconfig karmada-apiserver.config --once
    """
    from isthmus.processes import karmada as process

    config, definitions = _config(kubeconfig, context), [each for file in files for each in _definitions(file)]
    if not once:
        sys.exit(process.join(config, namespace=namespace, definitions=definitions))
    report = _reported(config, namespace, lambda control: control.round(), definitions=definitions)
    print(f"{sum(each.joins for each in report.members)} members; {report.written} objects written or removed")
    for problem in report.problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if report.problems else 0)


@group.command()
@_of_a_control_plane
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table")
def status(kubeconfig: str | None, context: str, namespace: str, form: str) -> None:
    """State of each member. Exits with 1 where one has not got what it needs to be joined.

    Example: isthmus karmada status --karmada-kubeconfig karmada-apiserver.config
    """
    report = _reported(_config(kubeconfig, context), namespace, lambda control: control.status())
    states = {each.name: _state(each, report) for each in report.members}
    if form == "json":
        members = [
            {**_fields(each), "state": states[each.name][0], "reason": states[each.name][1]} for each in report.members
        ]
        output.json({"members": members, "drained": report.drained})
    else:
        output.table(
            ["MEMBER", "ID", "STATE", "READY", "REGION", "ZONES", "ETCD", "TAINTS", "REASON"],
            [_line(each, states[each.name]) for each in report.members],
        )
        for sentence in report.drained:
            print(f"drained: {sentence} is moved away")
    sys.exit(1 if any(state == "pending" for state, _ in states.values()) else 0)


@group.command()
@of_a_cluster
def access(file: Path | None, flags: tuple[str, ...]) -> None:
    """Keep the users of a member's etcd equal to the keys that `join` brought. Runs in the member, beside its etcd.

    Example: isthmus karmada access --config c1/operator.toml
    """
    from isthmus.processes import karmada as process

    home = own_cluster(file, flags)
    sys.exit(process.access(load(file, environment=os.environ, flags=flags), home))


def _config(kubeconfig: str | None, context: str) -> Config:
    options = {"kubeconfig": kubeconfig or "", "context": context}
    try:
        named = [f"kubernetes.{field}={value}" for field, value in options.items() if value]
        return load(None, environment=os.environ, flags=named)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def _definitions(file: Path) -> list[dict[str, Any]]:
    import yaml

    try:
        documents = [document for document in yaml.safe_load_all(file.read_text()) if document]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.ClickException(f"{file}: {' '.join(str(error).split())}") from None
    for document in documents:
        if (
            not isinstance(document, dict)
            or document.get("kind") != "CustomResourceDefinition"
            or "metadata" not in document
        ):
            raise click.ClickException(f"{file}: want CustomResourceDefinitions and nothing else")
    return documents


def _reported(
    config: Config,
    namespace: str,
    act: Callable[[Control], Coroutine[Any, Any, Report]],
    *,
    definitions: Sequence[dict[str, Any]] = (),
) -> Report:
    from isthmus import kube, logs
    from isthmus.karmada import Control
    from isthmus.reflector import Expired, Transient

    logs.configure(level="error", form="text")

    async def ask() -> Report:
        async with await kube.connect(config.kubernetes) as client:
            return await act(Control(client, namespace=namespace, definitions=definitions))

    try:
        return asyncio.run(ask())
    except (kube.KubeError, ConfigError, Transient, Expired, OSError) as error:
        raise click.ClickException(str(error)) from None


def _state(member: Member, report: Report) -> tuple[str, str]:
    """State of a member in one word, and its reason."""
    if member.problem:
        return "out", member.problem
    missing = [each for each in report.deliveries if each.member == member.name and not each.applied]
    if missing:
        return "pending", f"Work {missing[0].name}: {missing[0].message or 'not applied'}"
    if not member.endpoints:
        return "pending", "its etcd has no address yet"
    return "joined", member.warning


def _line(member: Member, state: tuple[str, str]) -> list[str]:
    return [
        member.name,
        str(member.id or "-"),
        state[0],
        "yes" if member.ready else "no",
        member.region or "-",
        ",".join(member.zones) or "-",
        ",".join(member.endpoints) or "-",
        ",".join(member.taints) or "-",
        state[1],
    ]


def _fields(member: Member) -> dict[str, Any]:
    return {name: getattr(member, name) for name in member.__struct_fields__}
