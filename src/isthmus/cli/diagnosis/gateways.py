"""The walk from the caller's node to an island: certificate, trust of either side, listener, gateways.

A gateway that refuses a node's certificate looks to the node like one that does not answer: TLS 1.3 has the caller's
certificate judged after the caller has finished. So what both processes know of certificates and members is compared
first; that checks fail follows from what is found there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from isthmus.cli.diagnosis import hops
from isthmus.cli.diagnosis.facts import Facts, Process
from isthmus.cli.diagnosis.hops import Hop
from isthmus.gateway.naming import service_sni
from isthmus.identity import allow
from isthmus.identity.allow import ClusterLabels
from isthmus.loadbalancer import envoy
from isthmus.loadbalancer.explain import services_called
from isthmus.model import tables
from isthmus.model.clusters import Cluster, reachability
from isthmus.model.export_policies import ExportPolicy
from isthmus.model.islands import IslandListener
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.statedb import Reader

SNIS: Final = 3
"""Most SNIs of a service to show; it has one for each of its ports, or for each port of each pod."""


def gateways(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Hops between this node and the pods of each island that exports the service, or may: see :func:`_islands`."""
    islands = _islands(facts, service)
    if facts.agent.error or not islands:
        return
    calling = facts.agent.status.get("calling")
    if not calling:
        text = "calls no gateways: proxy.directory and gateway.identity are not configured"
        cure = "docs/islands.md, Setting it up; Envoy: tools/setup envoy"
        yield Hop("gateway", str(facts.agent), text, "fault", cure, "islands-not-configured")
        return
    if calling["problem"]:
        cure = facts.keys(facts.cluster, by_hand="isthmus clusters certs")
        yield Hop("gateway", f"certificate of {facts.agent}", calling["problem"], "fault", cure, "node-certificate")
    else:
        yield Hop("gateway", f"certificate of {facts.agent}", f"ends {_day(calling['certificate_ends'])}")
    for island in islands:
        hops = [*_trust(facts, calling, island), *_listener(facts, service, island)]
        yield from hops
        yield from _policy(facts, service, island)
        explained = bool(calling["problem"]) or any(hop.state == "fault" for hop in hops)
        for hop in _checks(facts, service, calling, island):
            yield replace(hop, state="follows", cure="", code="") if explained and hop.state == "fault" else hop


def through_gateways(island: Cluster) -> bool:
    """True if a cluster's etcd is followed through its gateways."""
    return bool(_followed_at(island) & {*island.gateways})


def cut_off(facts: Facts, service: ServiceName, island: Cluster) -> bool:
    """True if a cluster's etcd is unreachable because its gateways fail, whose hops show the fault."""
    checks = facts.agent.rows.by(tables.GATEWAY_CHECKS, "cluster", island.name)
    failing = {row.address for row in checks if not row.healthy}
    walked = {each.name for each in _islands(facts, service)}
    followed = _followed_at(island)
    return island.state != "ready" and island.name in walked and bool(followed) and followed <= failing


def _followed_at(island: Cluster) -> set[str]:
    """Addresses of a cluster's etcd endpoints, as address:port."""
    return {each.removeprefix("https://") for each in island.endpoints}


def exporters(facts: Facts, service: ServiceName) -> set[ClusterName]:
    """The clusters that export a service, as far as it is known here."""
    imported = facts.agent.rows.get(tables.IMPORTS, service)
    exporting = {row.cluster for row in facts.operator.rows.all(tables.EXPORTS) if row.name == service}
    return exporting | set(imported.clusters if imported is not None else ())


def _islands(facts: Facts, service: ServiceName) -> list[Cluster]:
    """The clusters that are reached through gateways and export the service.

    Where no other cluster is known to export it: also those whose records do not arrive, or not all of them.
    """
    rows, exporting = facts.agent.rows, exporters(facts, service)
    own = next((row for row in rows.all(tables.CLUSTERS) if row.own), None)
    nobody = not exporting - {facts.cluster}
    clusters = sorted(rows.all(tables.CLUSTERS), key=lambda row: row.name)
    islands = [row for row in clusters if row.name in exporting or (nobody and row.state != "ready")]
    return [row for row in islands if not row.own and reachability(own, row) == "gateway"]


def _gateway(facts: Facts, island: Cluster) -> Process | None:
    """The island's first gateway process, where it can be asked: in a lab."""
    return next((each for each in facts.others if (each.cluster, each.name) == (island.name, "gateway")), None)


def _trust(facts: Facts, calling: Mapping[str, Any], island: Cluster) -> Iterator[Hop]:
    """Either side has the other's authority, and the gateway has a certificate that is good."""
    if island.name not in calling["members"]:
        text = f"{facts.agent} has no authority of it, so its gateways' certificates are refused"
        cure = facts.connect(island.name, by_hand="isthmus clusters refresh")
        yield Hop("gateway", f"cluster {island.name}", text, "fault", cure, "authority-missing")
    gateway = _gateway(facts, island)
    if gateway is None:
        return
    if gateway.error:
        yield hops.away(facts, gateway, "gateway")
        return
    for problem in gateway.status.get("problems", ()):
        if problem.startswith("/"):  # a file of its certificate; its sources are another hop's
            yield Hop(
                "gateway",
                f"certificate of {gateway}",
                problem,
                "fault",
                "there: isthmus clusters certs",
                "gateway-certificate",
            )
    if facts.cluster not in gateway.status["members"]:
        text = f"has no authority of {facts.cluster}, or distrusts it: its nodes' certificates are refused"
        cure = f"isthmus clusters trust {facts.cluster} --context {island.name}; there: isthmus clusters refresh"
        yield Hop("gateway", str(gateway), text, "fault", cure, "gateway-distrusts")


def _policy(facts: Facts, service: ServiceName, island: Cluster) -> Iterator[Hop]:
    """An ExportPolicy by which the island's gateway refuses this cluster, where the gateway can be asked."""
    gateway = _gateway(facts, island)
    if gateway is None:
        return
    policy = allow.judging(gateway.rows)(service)
    if policy is None or policy.audit:
        return
    if refused := _refused(facts, policy, allow.labels_of(gateway.rows)):
        namespace, name = split(policy.name)
        cure = f"{facts.kubectl(island.name, namespace)} describe exportpolicy {name}"
        text = f"refuse {refused}"
        yield Hop("gateway", f"gateways of {island.name}", text, "fault", cure, "refused-by-policy")


def _refused(facts: Facts, policy: ExportPolicy, labels: ClusterLabels) -> str:
    """Return the refused cluster or pod with the reason; empty if the policy allows the call."""
    clusters, cluster = allow.clusters_allowed(policy, labels), ClusterName(facts.cluster)
    if clusters is not None and cluster not in clusters:
        return f"{cluster}: ExportPolicy {policy.name} allows {', '.join(sorted(clusters)) or 'no cluster'}"
    allowed = allow.accounts_allowed(policy, cluster, labels)
    pod = facts.agent.rows.get(tables.PODS, facts.pod) if facts.pod else None
    if pod is None or allow.EVERY_ACCOUNT in allowed:
        return ""
    if pod.host_network or facts.agent.status.get("proving") is None:
        why = "it is in the network of its node" if pod.host_network else "identity.enabled is not set on its node"
        return f"{pod.name}: {why}, so it proves no account" if policy.require else ""
    namespace, account = pod.name.partition("/")[0], pod.service_account
    if allow.allows(allowed, namespace, account):
        return ""
    return f"{pod.name}: ExportPolicy {policy.name} does not allow {namespace}/{account}"


def _listener(facts: Facts, service: ServiceName, island: Cluster) -> Iterator[Hop]:
    """This node's Envoy takes calls for the island."""
    rows = facts.agent.rows
    listeners = _listeners(rows, service, island)
    if listeners and not envoy.answers(rows):
        yield from hops.envoy(facts, service)
        return
    for row in listeners:
        if rows.get(tables.XDS_SERVED, row.name) is None:
            text = f"not served by this node's Envoy yet: calls of {island.name} go elsewhere"
            subject = f"listener of {row.service}:{row.called}" if row.pod else f"listener of port {row.called}"
            yield Hop("gateway", subject, text, "fault", facts.start(f"{facts.cluster}/envoy"), "listener-not-served")


def _listeners(rows: Reader, service: ServiceName, island: Cluster) -> list[IslandListener]:
    """The listeners of this node's Envoy for the island's part of a service."""
    found = [
        row for each in services_called(rows, service) for row in rows.by(tables.ISLAND_LISTENERS, "service", each)
    ]
    return [row for row in found if row.cluster == island.name]


def _checks(facts: Facts, service: ServiceName, calling: Mapping[str, Any], island: Cluster) -> Iterator[Hop]:
    """Results of this node's Envoy's checks of each gateway."""
    rows, gateway = facts.agent.rows, _gateway(facts, island)
    listeners = sorted(_listeners(rows, service, island), key=lambda row: (row.service, row.port, row.protocol))
    domain = calling["domain"]
    names = [service_sni(service, row.port, domain, protocol=row.protocol, pod=row.pod) for row in listeners]
    snis = ", ".join(names[:SNIS]) + (f" and {len(names) - SNIS} more" if len(names) > SNIS else "")
    ends = gateway.status.get("certificate_ends") if gateway is not None and not gateway.error else None
    more = (f"; SNI {snis}" if snis else "") + (f"; its certificate ends {_day(ends)}" if ends else "")
    yield from (hop for hop in refused_gateways(facts, service) if hop.object.endswith(f" of {island.name}"))
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
        yield Hop("gateway", subject, f"{row.reason}{more}", "fault", cure, "gateway-silent")


def refused_gateways(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """No peer publishes a gateway at an address that nothing here may dial."""
    rows = {(row.cluster, row.address): row for each in (facts.agent, facts.operator)
            for row in each.rows.all(tables.REFUSED_GATEWAYS)}  # fmt: skip
    for (cluster, address), row in sorted(rows.items()):
        cure = f"correct cluster.gateways in the configuration of {cluster}'s operator"
        yield Hop(
            "gateway", f"gateway {address} of {cluster}", f"is refused: {row.message}", "fault", cure, "gateway-refused"
        )


def _day(moment: str | None) -> str:
    """A moment of JSON, to the minute."""
    return f"{moment[:16].replace('T', ' ')} UTC" if moment else "at an unknown time"
