"""``isthmus lab``: clusters on this machine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from isthmus.cli import groups
from isthmus_lab.cli import faults, image
from isthmus_lab.cli.labs import find_lab, join, other_labs
from isthmus_lab.cli.options import lab_name, new_lab_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isthmus_lab.families import Families
    from isthmus_lab.images import Image
    from isthmus_lab.layout import Lab, Network
    from isthmus_lab.record import ApiServer, Datapath


_apiserver = click.option(
    "--apiserver", type=click.Choice(["small", "real"]), default="small", show_default=True,
    help="The lab's own, or kube-apiserver and kube-controller-manager.",
)  # fmt: skip
_families = click.option(
    "--ip-families", "families", multiple=True, metavar="FAMILIES",
    help="IPv4, IPv6, or both, the primary one first; c2=IPv6 for one cluster.  [default: IPv4]",
)  # fmt: skip


@click.group(cls=groups.Group)
def group() -> None:
    """Make a clusterset on this machine, look at it, and remove it without a trace."""


@group.command()
@new_lab_name
@click.option("--clusters", default=3, show_default=True, help="How many: c1, c2, …")
@click.option("--nodes", default=1, show_default=True, help="Nodes of each cluster.")
@click.option("--network", "networks", multiple=True, metavar="NETWORK",
              help="flat: clusters reach each other's pods; island: only gateways; c3=island for one cluster.  "
                   "[default: flat]")  # fmt: skip
@click.option("--gateways", default=1, show_default=True, help="Gateway nodes of each cluster, with islands.")
@click.option(
    "--identity", is_flag=True, help="Callers prove their identity, and ExportPolicies are enforced (needs root)."
)
@_families
@click.option(
    "--place", "places", multiple=True, metavar="CLUSTER=REGION[/ZONE]",
    help="Where a cluster is, as policies select it; repeatable.",
)  # fmt: skip
@click.option("--from", "directory", type=click.Path(path_type=Path), help="Apply DIR/*.yaml and DIR/CLUSTER/*.yaml.")
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="NAME=COMMAND…",
    help="A stand-in for an image, or for all that match, as in '*=…'; repeatable.",
)
@click.option(
    "--stand-in-missing",
    is_flag=True,
    help="Images without a stand-in get one that listens on the container's ports and answers.",
)
@click.option("--images", "file", type=click.Path(path_type=Path), help="A YAML file of stand-ins: NAME: COMMAND….")
@_apiserver
@click.option(
    "--datapath", type=click.Choice(["isthmus", "kube-proxy"]), default="isthmus", show_default=True,
    help="Ours, or kube-proxy and CoreDNS with the operator only (with --apiserver real).",
)  # fmt: skip
@click.option("--without-isthmus", is_flag=True, hidden=True, help="Clusters only: no agent, dns, operator.")
def up(
    name: str,
    clusters: int,
    nodes: int,
    networks: tuple[str, ...],
    gateways: int,
    identity: bool,
    families: tuple[str, ...],
    places: tuple[str, ...],
    directory: Path | None,
    images: tuple[str, ...],
    stand_in_missing: bool,
    file: Path | None,
    apiserver: ApiServer,
    datapath: Datapath,
    without_isthmus: bool,
) -> None:
    """Start a lab and wait until all of it is ready.

    Example: isthmus lab up --clusters 2 --from examples/echo
    """
    from isthmus.etcd import EtcdError
    from isthmus_lab import confinement, manifests, removal, startup
    from isthmus_lab.layout import Lab

    of_clusters = _networks(networks, clusters), _of_clusters(families, clusters), _places(places, clusters)
    lab = Lab(name, clusters, nodes, *of_clusters, gateways=gateways, identity=identity)
    try:
        lab, notice = startup.located(lab)
        own = _images(images, file, stand_in_missing=stand_in_missing)
        startup.check(lab, isthmus=not without_isthmus, apiserver=apiserver, datapath=datapath)
        applied = manifests.of_lab(directory, lab) if directory else {}
        if not (without_isthmus or lab.loopback) and datapath == "isthmus" and startup.envoy() is None:
            click.echo("no Envoy here, so routes (HTTPRoute, GRPCRoute) are unknown: tools/setup envoy", err=True)
        if notice:
            click.echo(notice, err=True)
        doors = confinement.begin(lab)
        startup.reserve(lab)
    except (startup.CannotStart, confinement.NotConfined, manifests.BadManifest, EtcdError) as error:
        raise click.ClickException(str(error)) from None
    try:
        startup.start(lab, images=own, isthmus=not without_isthmus, apiserver=apiserver, datapath=datapath, doors=doors)
        asyncio.run(startup.follow(lab, _report))
    except (startup.CannotStart, EtcdError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        removal.remove(lab)
        raise click.ClickException("interrupted; the lab is removed") from None
    if applied and (problems := [*asyncio.run(_apply(lab, applied)), *_unknown_images(applied, own)]):
        raise click.ClickException("not everything could be applied:\n" + "\n".join(f"  {line}" for line in problems))
    click.echo(f"lab {name} is up: isthmus lab exec, isthmus lab status, KUBECONFIG={lab.kubeconfig}")


@group.command()
@lab_name
def down(name: str) -> None:
    """Remove a lab, whatever state it is in.

    Example: isthmus lab down
    """
    from isthmus_lab import removal
    from isthmus_lab.layout import Lab

    lab = Lab(name)
    join(lab)
    if not removal.exists(lab):
        raise click.ClickException(f"there is no lab {name}{other_labs()}")
    try:
        removal.remove(lab)
    except (removal.StillThere, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"lab {name} is gone")


@group.command()
@lab_name
@click.option("-c", "--container", default="", help="A container of the pod; the first if not given.")
@click.argument("cluster")
@click.argument("pod", metavar="NAMESPACE/POD")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
def exec(name: str, container: str, cluster: str, pod: str, command: tuple[str, ...]) -> None:
    """Run a command in a pod (NAMESPACE/POD or NAMESPACE/deploy/NAME); its exit code is passed on.

    Example: isthmus lab exec c1 demo/client -- curl -sS echo.demo.svc.clusterset.local
    """
    from isthmus_lab import pod_exec

    lab = find_lab(name)
    if (where := lab.cluster(cluster)) is None:
        raise click.ClickException(f"lab {name} has no cluster {cluster}: it has c1 to c{lab.size}")
    try:
        target = pod_exec.find(where, pod, container=container)
        sys.exit(pod_exec.wait(pod_exec.run(target, command)))
    except pod_exec.NoSuchPod as reason:
        raise click.ClickException(str(reason)) from None
    except OSError as error:
        print(f"Error: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


@group.command()
@lab_name
@click.option("--content", is_flag=True, help="Print the file, not where it is.")
def kubeconfig(name: str, content: bool) -> None:
    """Print the path of a kubeconfig with a context per cluster: c1, c2, …

    Example: isthmus lab kubeconfig
    """
    lab = find_lab(name)
    if not lab.kubeconfig.exists():
        raise click.ClickException(f"lab {name} has no kubeconfig yet: isthmus lab status")
    click.echo(lab.kubeconfig.read_text() if content else str(lab.kubeconfig), nl=not content)


@group.command()
@lab_name
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@click.option("--ignored", is_flag=True, help="Instead, fields of applied objects that nothing in the lab acts on.")
def status(name: str, output: str, ignored: bool) -> None:
    """Show the lab's processes and pods.

    Example: isthmus lab status
    """
    from isthmus.cli import output as show

    if ignored:
        _show_ignored(name, output)
        return
    report = asyncio.run(_status(find_lab(name)))
    if output == "json":
        show.json(report)
        return
    show.table(["PROCESS", "STATE", "PID", "RESTARTS", "WHY"], [_program(each) for each in report["programs"]])
    if report["pods"]:
        print()
        heads = ["CLUSTER", "POD", "STATE", "ADDRESS", "WHY"]
        show.table(heads, [[p["cluster"], p["pod"], p["state"], p["address"], p["why"]] for p in report["pods"]])
    for line in report["network"]:
        print(line)
    for line in report["trouble"]:
        print(line, file=sys.stderr)


@group.command()
@new_lab_name
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout at the end, and nothing else.")
@click.option("--keep", is_flag=True, help="Leave the lab up, and print what is worth trying.")
@click.option(
    "--from", "directory", type=click.Path(path_type=Path),
    help="The manifests of the story, in place of those of examples/.",
)  # fmt: skip
@_apiserver
@_families
@click.option(
    "--story", type=click.Choice(["export", "failover", "islands", "karmada"]), default="export", show_default=True,
    help="One export and sixty calls; where policies send calls while clusters fail; clusters behind gateways; or "
         "members of Karmada, by its own programs.",
)  # fmt: skip
def demo(
    name: str,
    as_json: bool,
    keep: bool,
    directory: Path | None,
    apiserver: ApiServer,
    families: tuple[str, ...],
    story: Literal["export", "failover", "islands", "karmada"],
) -> None:
    """Run a story in a lab of three or four clusters. Exit code 0 only if every step held.

    Example: isthmus lab demo
    """
    from isthmus_lab import confinement
    from isthmus_lab.demo import run as demonstration
    from isthmus_lab.layout import Lab

    chosen = demonstration.STORIES[story]
    try:
        doors = confinement.begin(Lab(name, chosen.clusters))
    except confinement.NotConfined as error:
        raise click.ClickException(str(error)) from None
    ended = demonstration.run(
        chosen,
        doors=doors,
        name=name,
        directory=directory,
        json=as_json,
        keep=keep,
        apiserver=apiserver,
        families=_of_clusters(families, chosen.clusters),
    )
    sys.exit(0 if asyncio.run(ended) else 1)


def _images(options: tuple[str, ...], file: Path | None, *, stand_in_missing: bool = False) -> dict[str, Image]:
    from isthmus_lab import images

    try:
        missing = {"*": images.STAND_IN} if stand_in_missing else {}
        return {**(images.of_file(file) if file else {}), **dict(map(images.parse_option, options)), **missing}
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def _of_clusters(words: tuple[str, ...], clusters: int) -> tuple[Families, ...]:
    from isthmus_lab import families

    try:
        return families.parse_all(words, clusters)
    except families.BadFamilies as error:
        raise click.ClickException(str(error)) from None


def _networks(words: tuple[str, ...], clusters: int) -> tuple[Network, ...]:
    """The network of each cluster; the later word wins."""
    networks: list[Network] = ["flat"] * clusters
    names = [f"c{number}" for number in range(1, clusters + 1)]
    kinds: dict[str, Network] = {"flat": "flat", "island": "island"}
    for word in words:
        name, equals, kind = word.rpartition("=")
        if kind not in kinds or (equals and name not in names):
            raise click.ClickException(f"--network {word}: want flat or island, or CLUSTER=… of {', '.join(names)}")
        for number in [names.index(name)] if equals else range(clusters):
            networks[number] = kinds[kind]
    return tuple(networks)


def _places(words: tuple[str, ...], clusters: int) -> tuple[tuple[str, str], ...]:
    places = [("", "")] * clusters
    for word in words:
        name, _, place = word.partition("=")
        region, _, zone = place.partition("/")
        if name not in (names := [f"c{n}" for n in range(1, clusters + 1)]) or not region:
            raise click.ClickException(f"--place {word}: want CLUSTER=REGION[/ZONE], a cluster of {', '.join(names)}")
        places[names.index(name)] = (region, zone)
    return tuple(places)


def _program(program: dict[str, Any]) -> list[str]:
    return [program["name"], program["state"], str(program["pid"] or ""), str(program["restarts"]), program["failure"]]


def _report(step: dict[str, Any]) -> None:
    """A line for what is whole, and for what went wrong; ``lab status`` and the log have the rest."""
    if step.get("ready") or ("/" in step["step"] and "failure" not in step):
        return
    failure = f"  {step['failure']}" if "failure" in step else ""
    click.echo(f"{step['seconds']:7.2f} s  {step['step']}{failure}", err=True)


def _unknown_images(objects: dict[str, list[Any]], own: Mapping[str, Image]) -> list[str]:
    from isthmus_lab import manifests

    unknown = manifests.unknown_images([each for listed in objects.values() for each in listed], own=own)
    return [*unknown, "--stand-in-missing gives every such image a program that listens and answers"] if unknown else []


async def _apply(lab: Lab, objects: dict[str, list[Any]]) -> list[str]:
    from isthmus import kube
    from isthmus.config import KubernetesSection
    from isthmus_lab import manifests

    async def one(cluster: str) -> list[str]:
        section = KubernetesSection(kubeconfig=str(lab.kubeconfig), context=cluster)
        async with await kube.connect(section) as client:
            return [f"{cluster}: {problem}" for problem in await manifests.apply(client, objects[cluster])]

    return [line for lines in await asyncio.gather(*map(one, objects)) for line in lines]


def _show_ignored(name: str, output: str) -> None:
    from isthmus.cli import output as show
    from isthmus_lab import lab_status, record

    find_lab(name)
    report = asyncio.run(lab_status.ignored(record.read(name)))
    if output == "json":
        show.json(report)
        return
    heads = ["CLUSTER", "KIND", "OBJECT", "FIELD"]
    show.table(heads, [[each[head.lower()] for head in heads] for each in report["ignored"]])
    for line in report["trouble"]:
        print(line, file=sys.stderr)


async def _status(lab: Lab) -> dict[str, Any]:
    from isthmus_lab import lab_status

    return await lab_status.status(lab)


@group.command()
@lab_name
@click.option("-f", "--follow", is_flag=True, help="Print what comes, until interrupted.")
@click.option("--tail", type=click.IntRange(min=0), metavar="LINES", help="Only the last lines.  [default: all]")
@click.argument("process", metavar="CLUSTER[/nN]/PROCESS")
def logs(name: str, follow: bool, tail: int | None, process: str) -> None:
    """Print the log of one of the lab's processes, as in c1/operator, c1/n2/agent, or of its supervisor.

    Example: isthmus lab logs c1/n1/agent -f
    """
    from isthmus_lab import process_logs

    lab = find_lab(name)
    try:
        for line in process_logs.read(process_logs.find(lab, process), tail=tail, follow=follow):
            click.echo(line, nl=False)
    except process_logs.NoSuchLog as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        pass


for _command in (*faults.COMMANDS, image.group):
    group.add_command(_command)

if __name__ == "__main__":
    group()
