"""Connections that stall between callers and backends: by the size of their segments, or all of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.bounds import since_epoch
from isthmus.cli.diagnosis.facts import Facts, Process
from isthmus.cli.diagnosis.gateways import exporters
from isthmus.cli.diagnosis.hops import Hop
from isthmus.loadbalancer.explain import services_called
from isthmus.model import tables
from isthmus.model.names import ServiceName
from isthmus.model.stalls import Stall
from isthmus.times import timestamp


def stalls(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Connections of the service get acknowledgments, in both directions: answers may be larger than calls."""
    services = {service, *services_called(facts.agent.rows, service)}
    exporting = exporters(facts, service)
    for process in (facts.agent, *facts.nodes, *facts.others):
        for row in process.stalls:
            concerns = row.service in services if row.service else row.cluster in exporting
            own = process.cluster == facts.cluster
            if concerns and (own or row.sends == "answers"):
                yield _hop(facts, process, row, services)


def _hop(facts: Facts, process: Process, row: Stall, services: set[ServiceName]) -> Hop:
    path = f"{row.sends} of {row.service} {'to' if row.sends == 'calls' else 'from'} {row.cluster}"
    path = path if row.service else f"calls to gateways of {row.cluster}"
    subject = path if process is facts.agent else f"{path} (of {process})"
    many = "connection stalls" if row.connections == 1 else "connections stall"
    text = f"{row.connections} {many} since {timestamp(since_epoch(row.since))}, with {', '.join(row.peers)}: "
    if row.by_size:
        text += f"segments of {row.segment} bytes are not acknowledged, smaller ones are: large packets are lost, and "
        text += f"no ICMP error lowers the path MTU of {row.path_mtu}"
    else:
        text += f"segments of {row.segment} bytes are not acknowledged"
    if _unreachable(facts, row, services):
        return Hop("path", subject, text, "follows")
    if row.by_size:
        cure = (
            "isthmus verify names the size that passes: make it the MTU of the pods' network, or let ICMP "
            "'fragmentation needed' and 'packet too big' pass between the clusters"
        )
        return Hop("path", subject, text, "fault", cure, "path-mtu")
    cure = f"open the way of established connections with {row.peers[0]}: routes, firewalls, conntrack; isthmus verify"
    return Hop("path", subject, text, "fault", cure, "path-stalls")


def _unreachable(facts: Facts, row: Stall, services: set[ServiceName]) -> bool:
    """True if another hop shows that nothing passes: the peer is not followed, or its backends cannot be connected."""
    rows = facts.agent.rows
    peers = (each for each in rows.all(tables.CLUSTERS) if each.name == row.cluster and not each.own)
    failures = (each for name in services for each in rows.by(tables.FAILURES, "service", name))
    return any(each.state != "ready" for each in peers) or any(each.key.cluster == row.cluster for each in failures)
