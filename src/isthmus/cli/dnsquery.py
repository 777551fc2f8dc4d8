"""``isthmus dns query``: the answer to a name, its server and the reason; ``--from`` queries as a pod would."""

from __future__ import annotations

import time
from pathlib import Path
from socket import AF_INET, AF_INET6, SOCK_DGRAM
from socket import socket as Socket  # noqa: N812 an option of the command is called socket
from typing import Any

import click
import msgspec

from isthmus.admin.query import QueryError
from isthmus.cli import output, sockets

PATIENCE = 5.0
"""Seconds to wait for a reply."""


@click.command()
@click.argument("name")
@click.argument("type_", metavar="[TYPE]", default="A")
@click.option("--from", "pod", metavar="NS/POD", help="Ask as this pod of this node does, too (root, on the node).")
@click.option("--cluster-domain", default="cluster.local", show_default=True, help="The cluster's own domain.")
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text")
@sockets.options
def query(
    name: str,
    type_: str,
    pod: str | None,
    cluster_domain: str,
    form: str,
    socket: Path | None,
    cluster: str | None,
    lab: str | None,
) -> None:
    """Show the answer to NAME, who gives it (kernel, node's server, cluster DNS), and why.

    Example: isthmus dns query echo.demo.svc.clusterset.local --cluster c3
    """
    import dns.rdatatype

    from isthmus.datapath.names.route import route, zone_of
    from isthmus.model.dns import Name
    from isthmus.zone.codec import Unwritable

    name, type_ = name.rstrip(".").lower(), type_.upper()
    agent = sockets.find(socket=socket, cluster=cluster, lab=lab)[0]
    try:
        number = dns.rdatatype.from_text(type_).value
    except dns.rdatatype.UnknownRdatatype:
        raise click.UsageError(f"no type '{type_}': A, AAAA, SRV, PTR, TXT, …") from None
    try:
        listed, status = agent.table("names"), agent.status()
        pods = agent.table("pods").rows if pod else []
    except QueryError as error:
        raise click.ClickException(str(error)) from None
    datapath = status.get("datapath") or {}
    rows = msgspec.convert(listed.rows, list[Name])
    zone = zone_of(rows, cluster_domain=cluster_domain, complete=listed.complete)
    if zone is None:
        raise click.ClickException("the agent has no names yet")
    mode = datapath.get("names", {}).get("mode", "off")
    try:
        answer = msgspec.to_builtins(route(zone, rows, name, type_, number, mode=mode))
    except Unwritable as error:
        raise click.UsageError(str(error)) from None
    if pod:
        answer["asked"] = _asked(zone.name, rows, pods, pod, name, type_, datapath)
    output.json(answer) if form == "json" else _print(answer)


def _asked(zone: str, rows: Any, pods: Any, pod: str, name: str, type_: str, datapath: Any) -> dict[str, Any]:
    """The reply to a question of the pod to the cluster DNS, by links and hooks as its own, and how long it took."""
    import dns.message
    import dns.rcode

    from isthmus.datapath.core.namespaces import inside_pod
    from isthmus.datapath.services.callers import pid_of

    addresses = {address for row in pods if row["name"] == pod for address in row["addresses"]}
    if not addresses:
        raise click.ClickException(f"no pod {pod} on this node")
    server = next((row.answers[0] for row in rows if row.name == f"ns.dns.{zone}"), "")
    pods_cgroup = Path(datapath.get("hooks", {}).get("cgroup", ""))
    pid = pid_of(pods_cgroup, addresses)
    if not server or not pid:
        raise click.ClickException(f"no network namespace of {pod} here, or no cluster DNS: run it on its node")

    wire = dns.message.make_query(name, type_).to_wire()

    def ask() -> tuple[bytes, float]:
        family = AF_INET6 if ":" in server else AF_INET
        with Socket(family, SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect((server, 53))
            started = time.perf_counter()
            sock.send(wire)
            return sock.recv(4096), time.perf_counter() - started

    try:
        raw, spent = inside_pod(pods_cgroup, pid, ask)
    except TimeoutError:
        return {"server": server, "rcode": "no reply", "answers": []}
    except OSError as error:
        raise click.ClickException(f"cannot ask as {pod}: {error.strerror or error}") from None
    reply = dns.message.from_wire(raw)
    answers = [str(item) for rrset in reply.answer for item in rrset]
    rcode = dns.rcode.to_text(reply.rcode())
    return {"server": server, "rcode": rcode, "answers": answers, "microseconds": round(spent * 1e6)}


def _print(found: dict[str, Any]) -> None:
    output.line(f"{found['name']} {found['type']}: {found['answerer']}: {found['why']}")
    if found["rcode"]:
        output.line(f"  {found['rcode']}")
    for answer in found["answers"]:
        output.line(f"  {answer}")
    if asked := found.get("asked"):
        spent = f" in {asked['microseconds']} µs" if "microseconds" in asked else ""
        output.line(f"asked {asked['server']}: {asked['rcode']}{spent}")
        for answer in asked["answers"]:
            output.line(f"  {answer}")
