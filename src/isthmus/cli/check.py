"""``isthmus check``: everything an installation depends on, before it and after it."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from isthmus.cli import output, proxied, sockets

if TYPE_CHECKING:
    from isthmus.cli.verification.clusters import Cluster
    from isthmus.installation.checks import Check
    from isthmus.installation.plan import Plan

MARKS: Final = {"ok": "✓", "warning": "!", "fault": "✗"}


@click.command()
@proxied.options(multiple=True)
@click.option(
    "--pods/--no-pods", default=True, help="Run a pod in each cluster, for its DNS and for packets. [default: pods]"
)
@click.option("--image", default="python:3-alpine", show_default=True, help="An image with python3, for the pods.")
@click.option("--timeout", type=click.IntRange(min=1), default=60, show_default=True, metavar="SECONDS",
              help="For the pods to become ready, and again for their calls.")  # fmt: skip
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table")
def check(contexts: tuple[str, ...], kubeconfig: Path | None, pods: bool, image: str, timeout: int, form: str) -> None:
    """Check clusters before and after an installation, and name what to do about each fault.

    Kernels, other implementations, rights of this user and of our ServiceAccounts, clocks, a pod's resolv.conf against
    the configured cluster DNS; of an installation its agents, with the cgroup of the pods and the address of the name
    server; between two or more clusters packets of 1,400 and 9,000 bytes from pod to pod. The pods' namespace is
    deleted at the end. Exits with 1 if there is a fault.

    Example: isthmus check --context c1 --context c2
    """
    from isthmus.cli import checking
    from isthmus.installation import plan as planning

    chosen = contexts or (sockets.context(),)
    if len(set(chosen)) != len(chosen):
        raise click.UsageError("--context: name each cluster once")
    results: list[Check] = []
    plans: dict[str, Plan] = {}
    for context in chosen:
        checks, plan, agents = proxied.run(lambda: _read(context, kubeconfig))  # noqa: B023 run at once
        name = context or plan.variables[planning.NAME]
        results += checks
        plans[name] = plan
        if agents:
            results += checking.agents(proxied.kubectl(context, kubeconfig), name, agents, plan)
    if pods:
        results += _with_pods(dict(zip(plans, chosen, strict=True)), plans, kubeconfig, image=image, seconds=timeout)
    faults = sum(each.state == "fault" for each in results)
    if form == "json":
        output.json({"ok": not faults, "checks": results})
    else:
        _print(results, faults)
    sys.exit(bool(faults))


async def _read(context: str, kubeconfig: Path | None) -> tuple[list[Check], Plan, Mapping[str, str]]:
    from isthmus.cli import checking

    name = context or await proxied.current(kubeconfig)
    async with proxied.client(context, kubeconfig) as client:
        results, plan = await checking.check(client, name)
        return results, plan, await checking.agent_pods(client)


def _with_pods(
    contexts: Mapping[str, str], plans: Mapping[str, Plan], kubeconfig: Path | None, *, image: str, seconds: int
) -> list[Check]:
    """Checks by a pod in each cluster; a cluster whose pod does not run has that as its fault."""
    from isthmus.cli.verification import objects
    from isthmus.cli.verification.clusters import Cluster
    from isthmus.installation.checks import Check

    namespace = f"isthmus-check-{secrets.token_hex(3)}"
    clusters = [Cluster(name, tuple(proxied.kubectl(each, kubeconfig)[1:])) for name, each in contexts.items()]
    running: dict[str, tuple[Cluster, tuple[str, ...]]] = {}
    results: list[Check] = []
    try:
        for number, cluster in enumerate(clusters, 1):
            try:
                # The namespace and the pod alone: no Service, no export.
                cluster.apply(objects.manifests(namespace, cluster.name, number, image=image)[:2])
                running[cluster.name] = cluster, cluster.pod_addresses(namespace, seconds=seconds)
            except click.ClickException as error:
                results.append(Check(cluster.name, "pods", "fault", error.message, "--image names another image"))
        results += _judged(namespace, running, plans, seconds=seconds)
    finally:
        for cluster in clusters:
            try:
                cluster.delete(namespace, seconds=seconds)
            except click.ClickException as error:
                output.note(f"namespace {namespace} may be left: {error.message}")
    return results


def _judged(
    namespace: str, running: Mapping[str, tuple[Cluster, tuple[str, ...]]], plans: Mapping[str, Plan], *, seconds: int
) -> list[Check]:
    from isthmus.cli import checking
    from isthmus.cli.verification import objects
    from isthmus.installation import checks
    from isthmus.installation import plan as planning
    from isthmus.model.hosts import family

    results = []
    for name, (cluster, addresses) in running.items():
        results.append(checking.resolver(name, cluster.resolv_conf(namespace), plans[name]))
        results += checking.multipath(name, cluster.multipath_pause(namespace), plans[name])
        peers = [(other, each[1]) for other, each in running.items() if other != name]
        families = {family(each) for each in addresses}
        targets = [
            (other, objects.direct_target(other, of_family))
            for other, peer_addresses in peers
            for each in sorted(families)
            if (of_family := [address for address in peer_addresses if family(address) == each])
        ]
        answers = cluster.call(namespace, [target for _, target in targets], seconds=seconds) if targets else []
        for (other, _), answer in zip(targets, answers, strict=True):
            networks = {plans[each].variables.get(planning.NETWORK, "") for each in (name, other)}
            results.append(checks.of_packets(name, other, answer["direct"], islands=len(networks) > 1))
    return results


def _print(results: list[Check], faults: int) -> None:
    rows = [(each.cluster, each.check, MARKS[each.state], each.text) for each in results]
    output.table(("CLUSTER", "CHECK", "", "RESULT"), rows)
    cures = dict.fromkeys((each.cluster, each.check, each.cure) for each in results if each.cure and each.state != "ok")
    for cluster, name, cure in cures:
        output.paragraph(f"  → {cluster} {name}: ", cure)
    output.line(f"✗ {faults} faults" if faults else "✓ no fault")
