"""One service on demand: its backends, plans and flows, and what other commands and the API server have about it.

Explain, diagnose and Events are the output of the commands that people would type, run as processes of their own, so
that the page and the terminal cannot differ. Names in them are those of services that the page shows, never free text.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from isthmus.cli.ui.services import BackendView, backends
from isthmus.cli.ui.sources import Process, Source
from isthmus.cli.ui.view import lost_clusters
from isthmus.loadbalancer import shares
from isthmus.model import tables
from isthmus.model.flows import Flow

PATIENCE: Final = 30.0
"""Seconds that a command may take."""
LENGTH: Final = 60_000
"""Characters of a command's output that are shown."""
FLOWS: Final = 100
"""Flows that are shown, newest first."""
EVENTS: Final = 50


class Event(Struct, frozen=True, kw_only=True):
    """An Event of the API server about the service."""

    cluster: str
    time: str
    type: str
    reason: str
    object: str
    message: str
    count: int = 1


class Shares(Struct, frozen=True, kw_only=True):
    """Backends that a cluster's calls go to by its plan."""

    by: str
    port: str
    shares: Mapping[str, float]
    """Part of the calls by cluster, 0 to 1; empty if calls are refused."""


class Details(Struct, frozen=True, kw_only=True):
    """Facts about a service that are there at once, without a command."""

    name: str
    backends: list[BackendView]
    shares: list[Shares]
    flows: list[Flow]
    flows_off: dict[str, str]
    """Reason why a cluster has no flows, by cluster."""


def details(name: str, sources: Sequence[Source]) -> Details:
    """Return a service's backends, shares and newest flows."""
    processes = [source.process() for source in sources]
    found = backends(processes, lost_clusters(processes))
    flows = [flow for source in sources for flow in source.flows(name)]
    return Details(
        name=name,
        backends=[row for (service, _), rows in sorted(found.items()) if service == name for row in rows],
        shares=[each for process in processes for each in _shares(process, name)],
        flows=sorted(flows, key=lambda flow: -(flow.time + flow.took))[:FLOWS],
        flows_off={each.cluster: each.flows_off for each in processes if each.flows_off},
    )


def _shares(process: Process, name: str) -> list[Shares]:
    return [
        Shares(
            by=process.cluster,
            port=f"{plan.key.port}/{plan.key.protocol} {plan.key.family}",
            shares={cluster or "refused": round(part, 4) for cluster, part in shares.by_cluster(plan).items()},
        )
        for plan in process.rows(tables.PLANS).values()
        if (plan.import_of or plan.key.service) == name and plan.frontends
    ]


async def explain(name: str, source: Source) -> dict[str, Any]:
    """Return what ``isthmus explain`` prints about a service in one cluster, and the command."""
    words = ["explain", *source.words]
    _, text = await _isthmus(*words, "--", name)
    return {"command": _command(words, name), "text": text}


async def diagnose(name: str, source: Source) -> dict[str, Any]:
    """Return the hops that ``isthmus diagnose`` finds for a service in one cluster, and the command."""
    words = ["diagnose", *source.words]
    _, text = await _isthmus(*words, "-o", "json", "--", name)
    command = _command(words, name)
    try:
        hops = msgspec.json.decode(text)["services"][name]
    except (msgspec.DecodeError, LookupError, TypeError):
        return {"command": command, "error": text, "hops": []}
    return {"command": command, "error": "", "hops": hops}


def _command(words: Sequence[str], name: str) -> str:
    """The command as one types it, with the service in its usual place."""
    return shlex.join(["isthmus", words[0], name, *words[1:]])


async def events(name: str, kubectl: Sequence[str], cluster: str) -> dict[str, Any]:
    """Return the Events about a service's objects and pods in one cluster, or why they are unknown."""
    namespace, _, service = name.partition("/")
    if not kubectl:
        return {"events": [], "error": f"{cluster}: no kubeconfig of this cluster is known here (--context)"}
    code, text = await _run(*kubectl, "-n", namespace, "get", "events", "-o", "json")
    if code:
        return {"events": [], "error": f"{cluster}: {text.strip()}"}
    try:
        items = msgspec.json.decode(text)["items"]
    except (msgspec.DecodeError, LookupError, TypeError):
        return {"events": [], "error": f"{cluster}: kubectl's answer cannot be read"}
    found = [_event(item, cluster) for item in items if isinstance(item, dict)]
    chosen = [each for each in found if _concerns(each.object, service)]
    return {"events": sorted(chosen, key=lambda each: each.time, reverse=True)[:EVENTS], "error": ""}


def _event(item: Mapping[str, Any], cluster: str) -> Event:
    about = item.get("involvedObject") or {}
    time = item.get("lastTimestamp") or item.get("eventTime") or item.get("firstTimestamp") or ""
    count = item.get("count")
    return Event(
        cluster=cluster,
        time=str(time),
        type=str(item.get("type") or ""),
        reason=str(item.get("reason") or ""),
        object=f"{about.get('kind', '')} {about.get('name', '')}",
        message=str(item.get("message") or ""),
        count=count if isinstance(count, int) else 1,
    )


def _concerns(about: str, service: str) -> bool:
    """True for an object of the service's name, and for what controllers name after it (pods, slices)."""
    name = about.partition(" ")[2]
    return name == service or name.startswith(f"{service}-")


async def _isthmus(*words: str) -> tuple[int, str]:
    return await _run(sys.executable, "-m", "isthmus", *words)


async def _run(*command: str) -> tuple[int, str]:
    """Run a command; its exit code and what it prints, errors behind the output."""
    environment = {**os.environ, "NO_COLOR": "1"}
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
    except FileNotFoundError:
        return 127, f"{command[0]} is not in PATH"
    try:
        async with asyncio.timeout(PATIENCE):
            output, errors = await child.communicate()
    except TimeoutError:
        return 124, f"no answer in {PATIENCE:.0f} s"
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    text = output.decode(errors="replace") or errors.decode(errors="replace")
    return child.returncode or 0, text[:LENGTH] + ("…" if len(text) > LENGTH else "")
