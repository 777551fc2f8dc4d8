"""``isthmus verify``: does every cluster reach what every other exports?"""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from isthmus.cli import local, output, sockets

if TYPE_CHECKING:
    from isthmus.cli.diagnosis.facts import Facts
    from isthmus.cli.verification.clusters import Cluster
    from isthmus.cli.verification.objects import Call, Found, Result
    from isthmus.model.names import ServiceName


@click.command()
@click.option("--context", "contexts", multiple=True, metavar="NAME", help="A cluster's kubeconfig context; repeat it.")
@local.lab_option
@click.option("--image", default="python:3-alpine", show_default=True, help="An image with python3, for the pods.")
@click.option("--timeout", type=click.IntRange(min=1), default=60, show_default=True, metavar="SECONDS",
              help="For the pods to become ready, and again for the calls to succeed.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the namespace, for `isthmus diagnose`.")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table")
def verify(contexts: tuple[str, ...], lab: str | None, image: str, timeout: int, keep: bool, form: str) -> None:
    """Test the connectivity of a clusterset: names, TCP, UDP and headless names, in each family, between each pair.

    Every cluster gets a namespace with a pod, a Service, a headless Service and their exports; the namespace is deleted
    at the end, also after a failure or an interrupt. Shows of each pair whether its calls go by gateways, and of a call
    that fails which hop is wrong. Exits with 1 when a call does not succeed in time.

    Example: isthmus verify --context c1 --context c2
    """
    from isthmus.cli.verification import clusters, objects
    from isthmus.model.names import ServiceName

    contexts = (*filter(None, [sockets.context()]), *contexts)
    in_lab = "" if contexts else lab or local.default_lab()
    chosen = _of_contexts(contexts) if contexts else _of_lab(in_lab)
    numbers = {each.name: number for number, each in enumerate(chosen, 1)}
    namespace = f"isthmus-verify-{secrets.token_hex(3)}"
    before = signal.signal(signal.SIGTERM, _end)
    try:
        clusters.each(
            chosen,
            lambda cluster: cluster.apply(
                objects.manifests(namespace, cluster.name, numbers[cluster.name], image=image)
            ),
        )
        observed = clusters.each(chosen, lambda each: each.wait(namespace, numbers[each.name], seconds=timeout))
        results = clusters.verify(chosen, namespace, observed, seconds=timeout)
        services = {name: ServiceName(f"{namespace}/{objects.service(number)}") for name, number in numbers.items()}
        failing = {call.source for call, each in results.items() if any(each.checks.values())}
        facts = {source: _asked(source, services[source], lab=in_lab) for source in failing}
        results = {
            call: _with_faults(each, facts.get(call.source), services[call.target]) for call, each in results.items()
        }
    finally:
        warning = "" if keep else _delete(chosen, namespace, seconds=timeout)
        signal.signal(signal.SIGTERM, before)
    failed = sum(bool(why) for each in results.values() for why in each.checks.values())
    if form == "json":
        rows = [
            {"from": call.source, "to": call.target, "family": call.family, **msgspec.structs.asdict(each)}
            for call, each in results.items()
        ]
        output.json({"ok": not failed, "calls": rows, "namespace": namespace if keep else ""})
    else:
        _print(results, observed)
    if keep:
        output.note(f"namespace {namespace} is left: isthmus diagnose {namespace}/{objects.service(1)}")
    sys.exit(1 if failed or warning else 0)


def _of_contexts(names: tuple[str, ...]) -> list[Cluster]:
    from isthmus.cli.verification.clusters import Cluster

    if len(set(names)) != len(names) or len(names) < 2:
        raise click.UsageError("--context: name two or more clusters, each once")
    return [Cluster(name, ("--context", name)) for name in names]


def _of_lab(lab: str) -> list[Cluster]:
    from isthmus.cli.verification.clusters import Cluster

    if lab not in local.labs():
        local.cluster(None, lab=lab)  # raises with the labs there are
    path = str(local.LABS / lab / "kubeconfig")
    return [Cluster(name, ("--kubeconfig", path, "--context", name)) for name in local.clusters(lab)]


def _delete(chosen: list[Cluster], namespace: str, *, seconds: int) -> str:
    """Delete the namespace everywhere; where that fails, why, which is printed beside what failed before it."""
    from isthmus.cli.verification import clusters

    try:
        clusters.each(chosen, lambda each: each.delete(namespace, seconds=seconds))
    except click.ClickException as error:
        warning = f"namespace {namespace} may be left: {error.message}"
        output.note(warning)
        return warning
    return ""


def _end(number: int, _frame: Any) -> NoReturn:
    """SIGTERM ends the command as an interrupt does: what it made is deleted first."""
    sys.exit(128 + number)


def _asked(source: str, service: ServiceName, *, lab: str) -> Facts | None:
    """Facts of a calling cluster's processes about a namespace; ``None`` if they cannot be queried."""
    from isthmus.cli import diagnose, remote
    from isthmus.cli.diagnosis import facts

    try:
        if lab:
            found: Facts = diagnose.collect(service, pod="", socket=None, cluster=source, lab=lab)
            return found
        processes = {diagnose.kind(each.path): each for each in remote.find(source)}
        return facts.collect(processes, cluster="", others=(), service=service, context=source)
    except click.ClickException:
        return None


def _with_faults(result: Result, facts: Facts | None, service: ServiceName) -> Result:
    """Add the faulty hops to a result with a failed check, if the calling cluster's processes can be queried."""
    from isthmus.cli.diagnosis.exporters import diagnose as walk

    if facts is None or not any(result.checks.values()):
        return result
    return msgspec.structs.replace(result, faults=tuple(hop for hop in walk(facts, service) if hop.state == "fault"))


def _print(results: Mapping[Call, Result], observed: Mapping[str, Found]) -> None:
    from isthmus.cli import diagnose
    from isthmus.cli.verification import objects

    rows = [
        [
            call.source,
            call.target,
            call.family,
            *("failed" if each else "ok" for each in _checks(result)),
            result.path or "–",
        ]
        for call, result in results.items()
    ]
    without = ["none in common", *["–"] * len(objects.CHECKS), "–"]
    rows += [[*pair, *without] for pair in objects.without_family(observed)]
    output.table(["FROM", "TO", "FAMILY", *(each.upper() for each in objects.CHECKS), "PATH"], rows)
    for call, result in results.items():
        for why in dict.fromkeys(filter(None, _checks(result))):
            failed = ", ".join(each for each in objects.CHECKS if result.checks[each] == why)
            output.paragraph(f"✗ {call.source} → {call.target} {call.family} {failed}: ", why)
        diagnose.lines(result.faults)


def _checks(result: Result) -> list[str]:
    """Reasons why checks fail, in the order of the checks."""
    from isthmus.cli.verification import objects

    return [result.checks[each] for each in objects.CHECKS]
