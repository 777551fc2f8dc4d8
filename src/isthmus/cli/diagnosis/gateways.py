"""The walk from the caller's node to an island: certificate, trust of either side, listener, gateways.

A gateway that refuses a node's certificate looks to the node like one that does not answer: TLS 1.3 has the caller's
certificate judged after the caller has finished. So what both processes know of certificates and members is compared
first; that checks fail follows from what is found there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from isthmus.cli.diagnosis.facts import Facts, Process
from isthmus.cli.diagnosis.hops import Hop
from isthmus.gateway.naming import service_sni
from isthmus.loadbalancer.explain import called
from isthmus.model import tables
from isthmus.model.clusters import Cluster, reachability
from isthmus.model.islands import IslandListener
from isthmus.model.names import ClusterName, ServiceName
from isthmus.statedb import Reader

SNIS: Final = 3
"""How many SNIs of a service are shown: one for each of its ports, or for each port of each pod."""


def gateways(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """What is between this node and the pods of each island that exports the service, or may: see :func:`_islands`."""
    islands = _islands(facts, service)
    if facts.agent.error or not islands:
        return
    calling = facts.agent.status.get("calling")
    if not calling:
        text = "calls no gateways: proxy.directory and gateway.identity are not configured"
        cure = "docs/islands.md, Setting it up; Envoy: tools/setup envoy"
        yield Hop("gateway", str(facts.agent), text, "fault", cure)
        return
    if calling["problem"]:
        yield Hop("gateway", f"certificate of {facts.agent}", calling["problem"], "fault", "isthmus clusters certs")
    else:
        yield Hop("gateway", f"certificate of {facts.agent}", f"ends {_day(calling['certificate_ends'])}")
    for island in islands:
        found = [*_trust(facts, calling, island), *_listener(facts, service, island)]
        yield from found
        explained = bool(calling["problem"]) or any(hop.state == "fault" for hop in found)
        for hop in _checks(facts, service, calling, island):
            yield replace(hop, state="follows", cure="") if explained and hop.state == "fault" else hop


def through_gateways(island: Cluster) -> bool:
    """Whether a cluster's etcd is followed through its gateways."""
    return bool(_followed_at(island) & {*island.gateways})


def cut_off(facts: Facts, service: ServiceName, island: Cluster) -> bool:
    """Whether a cluster's etcd is out of reach for want of its gateways, whose hops are the fault."""
    checks = facts.agent.rows.by(tables.GATEWAY_CHECKS, "cluster", island.name)
    failing = {row.address for row in checks if not row.healthy}
    walked = {each.name for each in _islands(facts, service)}
    followed = _followed_at(island)
    return island.state != "ready" and island.name in walked and bool(followed) and followed <= failing


def _followed_at(island: Cluster) -> set[str]:
    """Where a cluster's etcd is followed, as address:port."""
    return {each.removeprefix("https://") for each in island.endpoints}


def exporters(facts: Facts, service: ServiceName) -> set[ClusterName]:
    """The clusters that export a service, as far as it is known here."""
    imported = facts.agent.rows.get(tables.IMPORTS, service)
    found = {row.cluster for row in facts.operator.rows.all(tables.EXPORTS) if row.name == service}
    return found | set(imported.clusters if imported is not None else ())


def _islands(facts: Facts, service: ServiceName) -> list[Cluster]:
    """The clusters that are reached through gateways and export the service.

    Where no other cluster is known to export it: also those whose records do not arrive, or not all of them.
    """
    rows, exporting = facts.agent.rows, exporters(facts, service)
    own = next((row for row in rows.all(tables.CLUSTERS) if row.own), None)
    nobody = not exporting - {facts.cluster}
    known = sorted(rows.all(tables.CLUSTERS), key=lambda row: row.name)
    called = [row for row in known if row.name in exporting or (nobody and row.state != "ready")]
    return [row for row in called if not row.own and reachability(own, row) == "gateway"]


def _gateway(facts: Facts, island: Cluster) -> Process | None:
    """The island's first gateway process, where it can be asked: in a lab."""
    return next((each for each in facts.others if (each.cluster, each.name) == (island.name, "gateway")), None)


def _trust(facts: Facts, calling: Mapping[str, Any], island: Cluster) -> Iterator[Hop]:
    """Either side has the other's authority, and the gateway has a certificate that is good."""
    if island.name not in calling["members"]:
        text = f"{facts.agent} has no authority of it, so its gateways' certificates are refused"
        yield Hop("gateway", f"cluster {island.name}", text, "fault", "isthmus clusters refresh")
    gateway = _gateway(facts, island)
    if gateway is None:
        return
    if gateway.error:
        yield Hop("gateway", str(gateway), gateway.error, "fault", facts.start(gateway))
        return
    for problem in gateway.status.get("problems", ()):
        if problem.startswith("/"):  # a file of its certificate; its sources are another hop's
            yield Hop("gateway", f"certificate of {gateway}", problem, "fault", "there: isthmus clusters certs")
    if facts.cluster not in gateway.status["members"]:
        text = f"has no authority of {facts.cluster}, or distrusts it: its nodes' certificates are refused"
        cure = f"isthmus clusters trust {facts.cluster} --context {island.name}; there: isthmus clusters refresh"
        yield Hop("gateway", str(gateway), text, "fault", cure)


def _listener(facts: Facts, service: ServiceName, island: Cluster) -> Iterator[Hop]:
    """This node's Envoy takes calls for the island."""
    rows = facts.agent.rows
    for row in _listeners(rows, service, island):
        if rows.get(tables.XDS_SERVED, row.name) is None:
            text = f"not served by this node's Envoy yet: calls of {island.name} go elsewhere"
            subject = f"listener of {row.service}:{row.called}" if row.pod else f"listener of port {row.called}"
            yield Hop("gateway", subject, text, "fault", facts.start(f"{facts.cluster}/envoy"))


def _listeners(rows: Reader, service: ServiceName, island: Cluster) -> list[IslandListener]:
    """The listeners of this node's Envoy for the island's part of a service."""
    found = [row for each in called(rows, service) for row in rows.by(tables.ISLAND_LISTENERS, "service", each)]
    return [row for row in found if row.cluster == island.name]


def _checks(facts: Facts, service: ServiceName, calling: Mapping[str, Any], island: Cluster) -> Iterator[Hop]:
    """What this node's Envoy found of each gateway."""
    rows, gateway = facts.agent.rows, _gateway(facts, island)
    listeners = sorted(_listeners(rows, service, island), key=lambda row: (row.service, row.port, row.protocol))
    domain = calling["domain"]
    found = [service_sni(service, row.port, domain, protocol=row.protocol, pod=row.pod) for row in listeners]
    snis = ", ".join(found[:SNIS]) + (f" and {len(found) - SNIS} more" if len(found) > SNIS else "")
    ends = gateway.status.get("certificate_ends") if gateway is not None and not gateway.error else None
    more = (f"; SNI {snis}" if snis else "") + (f"; its certificate ends {_day(ends)}" if ends else "")
    for row in sorted(rows.by(tables.GATEWAY_CHECKS, "cluster", island.name), key=lambda row: row.address):
        subject = f"gateway {row.address} of {island.name}"
        if row.healthy:
            yield Hop("gateway", subject, f"answers{more}")
            continue
        cure = (
            facts.start(f"{island.name}/gateway-envoy")
            if facts.lab
            else f"{facts.kubectl(island.name, 'isthmus-system')} get pods -o wide; is {row.address} reached from here?"
        )
        yield Hop("gateway", subject, f"{row.reason}{more}", "fault", cure)


def _day(moment: str | None) -> str:
    """A moment of JSON, to the minute."""
    return f"{moment[:16].replace('T', ' ')} UTC" if moment else "at an unknown time"
