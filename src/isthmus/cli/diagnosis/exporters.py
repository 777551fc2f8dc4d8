"""The walk in the exporting clusters: endpoints and their freshness, peers, exports, conflicts, namespaces, pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Final

from msgspec.structs import replace

from isthmus.cli.diagnosis import hops
from isthmus.cli.diagnosis.facts import Facts
from isthmus.cli.diagnosis.gateways import cut_off, exporters, gateways, through_gateways
from isthmus.cli.diagnosis.hops import Hop
from isthmus.cli.diagnosis.routes import routes
from isthmus.loadbalancer.explain import called
from isthmus.mcs.merged import importers, may_import
from isthmus.mcs.words import IMPORTERS
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.hosts import joined
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.services import Condition, EndpointSet
from isthmus.statedb import Reader

CLIENT_REFUSED: Final = "it refuses the client's certificate"
"""In the reason of a peer whose etcd does so (etcd/errors.py)."""
API: Final = "multicluster.x-k8s.io/v1beta1"


def diagnose(facts: Facts, service: ServiceName) -> tuple[Hop, ...]:
    """The walk of a call to a service. Where no hop names a cause, the first that fails is the fault itself."""
    found = _without_repetitions([hop for step in STEPS for hop in step(facts, service)])
    if all(hop.state != "fault" for hop in found):
        first = next((number for number, hop in enumerate(found) if hop.state == "follows"), None)
        if first is not None:
            found[first] = replace(found[first], state="fault", cure=f"isthmus explain {service}")
    return tuple(found)


def _without_repetitions(found: list[Hop]) -> list[Hop]:
    """One fault for one cause: without its API server an operator does not lead; without an operator all is silent.

    A stale cluster is one whose etcd is out of reach, whatever its operator does.
    """
    faults = {hop.object for hop in found if hop.state == "fault"}
    result: dict[tuple[str, str], Hop] = {}
    for hop in found:
        cluster = hop.object.removeprefix("cluster ").removesuffix("/operator")
        causes = {f"API server of {cluster}"} | (
            {f"{cluster}/operator"} if hop.object.startswith("cluster ") and hop.text.startswith("silent") else set()
        )
        follows = hop.state == "fault" and cluster != hop.object and bool(causes & faults)
        result.setdefault((hop.hop, hop.object), replace(hop, state="follows", cure="") if follows else hop)
    return list(result.values())


def endpoints(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """What the agent has from each cluster: how many are ready, from which source, how fresh that is."""
    rows = facts.agent.rows
    found: dict[tuple[str, str], list[EndpointSet]] = {}
    services = called(rows, service)
    derived = [each for each in services if each != service]  # stands for the import: the plain Service is not called
    for each in derived or services:
        for row in rows.by(tables.ENDPOINT_SETS, "service", each):
            found.setdefault((row.cluster or facts.cluster, row.source), []).append(row)
    for (cluster, source), sets in sorted(found.items()):
        conditions = [endpoint.condition for row in sets for endpoint in row.endpoints]
        ready = sum(each is Condition.READY for each in conditions)
        peer = next((row for row in rows.all(tables.CLUSTERS) if row.name == cluster), None)
        fresh = "" if peer is None or peer.own or peer.state == "ready" else f", as of {peer.since}: {peer.state}"
        text = f"{ready} of {len(conditions)} ready, from {source}{fresh}"
        yield Hop("endpoints", f"{service} in {cluster}", text, "ok" if ready and not fresh else "follows")
    for each in services:
        for failure in rows.by(tables.FAILURES, "service", each):
            key = failure.key
            where = f"{key.cluster} {joined(key.address, key.port)}"
            if failure.reason == "refused":
                cure = f"{facts.kubectl(key.cluster, split(service)[0])} get endpointslices -o yaml"
            else:
                node = facts.agent.status.get("place", {}).get("node", "this node")
                cure = f"open the way from {node} to {key.address}: routes, firewalls, NetworkPolicies; isthmus verify"
            yield Hop("endpoints", f"backend {where}", failure.error, "fault", cure)


def peers(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The clusters that export the service, or all where none does, are connected and keep their records."""
    found = [row for each in (facts.agent, facts.operator) for row in each.rows.all(tables.CLUSTERS)]
    found.sort(key=lambda row: (row.state != "ready", row.file_problem))
    rows = {row.name: row for row in found}  # of two, the one that fails
    exporting = exporters(facts, service)
    for row in sorted(rows.values(), key=lambda row: row.name):
        if not row.own and (row.name in exporting or not exporting - {facts.cluster}):
            hop = _peer(facts, row)
            yield replace(hop, state="follows", cure="") if cut_off(facts, service, row) else hop
            for each in facts.others:
                if each.cluster == row.name and not each.error:
                    yield from (replace(hop, hop="peer") for hop in hops.sources(facts, each))
                elif each.cluster == row.name and each.name == "operator":
                    yield Hop("peer", str(each), each.error, "fault", facts.revive(each))


def _peer(facts: Facts, row: Cluster) -> Hop:
    if row.file_problem:
        text = f"its file cannot be used, and what was read of it before counts: {row.file_problem}"
        return Hop("peer", f"cluster {row.name}", text, "fault", "mend that file: `isthmus clusters join` writes it")
    if row.state == "ready":
        return Hop(
            "peer", f"cluster {row.name}", f"ready since {row.since}" + (f": {row.reason}" if row.reason else "")
        )
    why = row.reason or row.last_failure_reason
    text = f"{row.state} since {row.since}" + (f": {why}" if why else "")
    if str(row.state) == "silent":
        return Hop("peer", f"cluster {row.name}", text, "fault", facts.start(f"{row.name}/operator"))
    return Hop("peer", f"cluster {row.name}", text, "fault", _reach(row, why))


def _reach(row: Cluster, why: str) -> str:
    """What mends a peer that is not followed, by the reason for that."""
    rejoin = f"isthmus clusters invite in {row.name}, isthmus clusters join here"
    if "authentication failed" in why or "permission denied" in why:
        return f"its etcd does not admit the user in its file: {rejoin}"
    if CLIENT_REFUSED in why:
        return f"the certificate in its file has ended, or is of another authority than its etcd trusts: {rejoin}"
    if "certificate" in why.lower():
        return f"the authority in its file is not that of its etcd: isthmus clusters refresh, or {rejoin}"
    behind = "behind its gateways, " if through_gateways(row) else ""
    return f"isthmus clusters status; its etcd is {behind}{', '.join(row.endpoints) or 'not configured'}"


def exports(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """A cluster exports the service, its export is valid, and has arrived here."""
    arrived = {row.cluster for row in facts.operator.rows.all(tables.EXPORTS) if row.name == service}
    wrong = False
    valid: set[str] = set()
    for each in facts.operators:
        row = each.rows.get(tables.OWN_EXPORTS, service)
        if row is not None and row.export is None:
            wrong = True
            yield Hop(
                "export", f"ServiceExport {service} in {each.cluster}", row.message or str(row.reason), "fault",
                f"{facts.kubectl(each.cluster, split(service)[0])} describe serviceexport {split(service)[1]}",
            )  # fmt: skip
        elif row is not None:
            valid.add(each.cluster)
    refused = dict(_not_for_us(facts, service))
    for cluster in sorted(arrived | valid):
        if cluster in refused:
            alone = arrived <= refused.keys()
            cure = f"{facts.kubectl(cluster, split(service)[0])} describe serviceexport {split(service)[1]}"
            yield Hop("export", f"export of {cluster}", refused[cluster], "fault" if alone else "ok", cure)
        elif cluster in arrived or cluster == facts.cluster:
            yield Hop("export", f"export of {cluster}", "valid")
        else:
            yield Hop("export", f"export of {cluster}", f"valid there, and not received in {facts.cluster}", "follows")
            if not facts.operator.error and facts.operator.rows.get(tables.CLUSTERS, ClusterName(cluster)) is None:
                text = f"{facts.cluster} has not joined it: clusterset.directory of its operator has no file of it"
                cure = f"isthmus clusters invite in {cluster}, isthmus clusters join in {facts.cluster}"
                yield Hop("peer", f"cluster {cluster}", text, "fault", cure)
    if not arrived and not valid and not wrong and not facts.operator.error:
        found = _no_export(facts, service)
        yield replace(found, state="follows", cure="") if _unknown_exports(facts) else found


def _not_for_us(facts: Facts, service: ServiceName) -> Iterator[tuple[str, str]]:
    """The clusters whose export may not be imported here, each with a sentence of why."""
    own = ClusterName(facts.cluster)
    for row in facts.operator.rows.all(tables.EXPORTS):
        if row.name == service and row.cluster != own and not may_import(own, row):
            allowed = ", ".join(importers(row) or ()) or "no cluster"
            yield row.cluster, f"for {allowed} only, by its annotation {IMPORTERS}: not for {own}"


def _unknown_exports(facts: Facts) -> bool:
    """Whether some peer's exports are not known: it may export the service, and its own hop is the fault."""
    rows = facts.operator.rows.all(tables.CLUSTERS)
    return any("serviceexports" not in row.synced for row in rows if not row.own and row.state != "ready")


def _no_export(facts: Facts, service: ServiceName) -> Hop:
    known = {row.name for each in facts.operators for row in each.rows.all(tables.OWN_EXPORTS)}
    known |= {row.name for row in facts.operator.rows.all(tables.EXPORTS)}
    namespace, name = split(service)
    for each in (*facts.operators[1:], facts.operator):
        if each.rows.by(tables.SERVICES, "name", service):
            export = f"{{apiVersion: {API}, kind: ServiceExport, metadata: {{name: {name}, namespace: {namespace}}}}}"
            cure = f"echo '{export}' | {facts.kubectl(each.cluster)} apply -f -"
            subject = f"Service {service} in {each.cluster}"
            return Hop("export", subject, "exists, and no cluster exports it", "fault", cure)
    near = get_close_matches(service, sorted(known), n=1, cutoff=0.6)
    text = "no cluster exports a service of this name" + (f"; there is {near[0]}" if near else "")
    cure = f"isthmus diagnose {near[0]}" if near else "isthmus get imports -A"
    return Hop("export", str(service), text, "fault", cure)


def conflicts(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The exporting clusters agree, and what follows from their exports could be written here."""
    merged = facts.operator.rows.get(tables.MERGED, service)
    namespace, name = split(service)
    if (quota := facts.operator.rows.get(tables.OVER_QUOTA, service)) is not None:
        text = f"no derived Service: {facts.cluster} has its limit of {quota.limit}"
        yield Hop("conflict", f"ServiceImport {service}", text, "fault", "isthmus get over_quota -A")
    for conflict in merged.conflicts if merged is not None else ():
        cure = f"{facts.kubectl(facts.cluster, namespace)} describe serviceimport {name}"
        yield Hop("conflict", f"ServiceImport {service}", f"{conflict.reason}: {conflict.message}", "fault", cure)
    for status in facts.operator.rows.all(tables.OBJECTS_STATUS):
        if service in str(status.key):
            cure = f"{facts.kubectl(facts.cluster, namespace)} get serviceimports,services"
            yield Hop("conflict", f"objects of {service}", f"not written: {status.error}", "fault", cure)


def namespaces(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The service's namespace exists where it is called from."""
    namespace, _ = split(service)
    if facts.operator.error:
        return
    exported = any(row.name == service for row in facts.operator.rows.all(tables.EXPORTS))
    if facts.operator.rows.get(tables.NAMESPACES, namespace) is not None:
        yield Hop("namespace", f"namespace {namespace} in {facts.cluster}", "exists")
    elif exported:
        text = "does not exist: an import is written only into a namespace that exists"
        cure = f"{facts.kubectl(facts.cluster)} create namespace {namespace}"
        yield Hop("namespace", f"namespace {namespace} in {facts.cluster}", text, "fault", cure)


def pods(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The exporter's Service has pods that are ready and have its ports."""
    for each in facts.operators:
        own = each.rows.get(tables.OWN_EXPORTS, service)
        if own is not None and own.export is not None:
            yield _pods(facts, each.rows, service, each.cluster)


def _pods(facts: Facts, rows: Reader, service: ServiceName, cluster: str) -> Hop:
    namespace, _ = split(service)
    spec = next(iter(rows.by(tables.SERVICES, "name", service)), None)
    sets = [row for row in rows.by(tables.ENDPOINT_SETS, "service", service) if row.cluster in ("", cluster)]
    found = [endpoint for row in sets for endpoint in row.endpoints]
    ready = [endpoint for endpoint in found if endpoint.condition is Condition.READY]
    wanted = {port.name for port in spec.ports} if spec is not None else set()
    subject = f"pods of {service} in {cluster}"
    selector = ",".join(f"{key}={value}" for key, value in spec.selector) if spec is not None else ""
    cure = f"{facts.kubectl(cluster, namespace)} get pods -l '{selector}'"
    if not found:
        return Hop("pods", subject, f"no pod matches the selector {selector or '(none)'}", "fault", cure)
    if not ready:
        return Hop("pods", subject, f"0 of {len(found)} are ready", "fault", cure)
    missing = wanted - {port.name for endpoint in ready for port in endpoint.ports}
    if missing:
        text = f"none has the target port of {', '.join(repr(each) for each in sorted(missing))}"
        cure = f"{facts.kubectl(cluster, namespace)} get service,endpointslices -o yaml"
        return Hop("pods", subject, text, "fault", cure)
    return Hop("pods", subject, f"{len(ready)} of {len(found)} are ready")


STEPS: Final[tuple[Callable[[Facts, ServiceName], Iterator[Hop]], ...]] = (
    hops.processes, hops.name, hops.resolver, hops.hook, hops.frontend, hops.policy, hops.drain, hops.plan,
    routes, gateways, endpoints, peers, exports, conflicts, namespaces, pods,
)  # fmt: skip
