"""The walk in the exporting clusters: endpoints and their age, peers, exports, conflicts, namespaces, pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final

from msgspec.structs import replace

from isthmus.bounds import since_epoch
from isthmus.cli.diagnosis import faults, hops, reasons
from isthmus.cli.diagnosis.callers import refused
from isthmus.cli.diagnosis.facts import Facts, Process
from isthmus.cli.diagnosis.gateways import cut_off, exporters, gateways, refused_gateways, through_gateways
from isthmus.cli.diagnosis.hops import Hop, State
from isthmus.cli.diagnosis.machines import machines
from isthmus.cli.diagnosis.refusals import refusals, refused_here
from isthmus.cli.diagnosis.routes import l4_routes, routes
from isthmus.cli.diagnosis.stalls import stalls
from isthmus.clusterset import endpoints as records
from isthmus.loadbalancer.explain import services_called
from isthmus.mcs import unpublished
from isthmus.mcs.merge import merge
from isthmus.mcs.merged import importers, may_import
from isthmus.mcs.records import published_endpoints
from isthmus.mcs.words import IMPORTERS
from isthmus.model import tables
from isthmus.model.addresses import reserved
from isthmus.model.balancing import BackendKey, Failure
from isthmus.model.clusters import Cluster, is_ending
from isthmus.model.hosts import joined
from isthmus.model.names import ClusterName, ServiceName, derived, split
from isthmus.model.services import Condition, Endpoint, EndpointSet
from isthmus.model.sources import CLUSTERSET
from isthmus.statedb import Reader
from isthmus.times import timestamp

CLIENT_REFUSED: Final = "it refuses the client's certificate"
"""Part of a peer's failure reason if its etcd refuses our certificate (etcd/errors.py)."""
PORTS_SHOWN: Final = 3
"""Addresses with ports that a hop lists."""
NODES_SHOWN: Final = 3
"""Further nodes that a kind of fault names."""
CALLERS_SHOWN: Final = 3
"""Backends that single callers cannot connect to of which a hop is shown."""
API: Final = "multicluster.x-k8s.io/v1beta1"
LAST_RESORT: Final = "isthmus gather: no hop names the cause, so report it with that file"


def diagnose(facts: Facts, service: ServiceName) -> tuple[Hop, ...]:
    """The walk of a call to a service. Where no hop names a cause, the first that fails is the fault itself."""
    hops = _without_repetitions([hop for step in STEPS for hop in step(facts, service)])
    if all(hop.state != "fault" for hop in hops):
        first = next((number for number, hop in enumerate(hops) if hop.state == "follows"), None)
        if first is not None:
            hops[first] = replace(hops[first], state="fault", cure=LAST_RESORT, code="cause-unknown")
    return tuple(hops)


def cluster_faults(facts: Facts) -> tuple[Hop, ...]:
    """Faults of the calling cluster that concern no one service: processes, sources, peers, keys, hooks and ``faults``.

    A process's own problems are left out if a hop with its cause names them already.
    """
    nothing = ServiceName("")
    steps = (hops.processes, machines, hops.hook, hops.envoy, all_peers, refused_gateways)
    found = _without_repetitions([hop for step in steps for hop in step(facts, nothing)])
    wrong = [*(hop for hop in found if hop.state == "fault"), *faults.every(facts)]
    own = (*wrong, *(hop for hop in hops.problems(facts) if not _explained(hop, wrong)))
    return (*own, *_of_further_nodes(facts, own))


def _of_further_nodes(facts: Facts, known: Sequence[Hop]) -> Iterator[Hop]:
    """Faults that only further nodes have, a few of each kind: what is wrong everywhere is wrong on the first node."""
    seen = {(hop.hop, hop.object, hop.code) for hop in known}
    by_code: dict[str, list[Hop]] = {}
    for node in facts.nodes:
        for hop in cluster_faults(replace(facts, agent=node, name_servers=(), nodes=(), others=())):
            if (hop.hop, hop.object, hop.code) not in seen:
                where = "" if str(node) in hop.object else f" (of {node})"
                by_code.setdefault(hop.code, []).append(replace(hop, object=f"{hop.object}{where}"))
    for found in by_code.values():
        yield from found[:NODES_SHOWN]
        if more := found[NODES_SHOWN:]:
            yield replace(more[0], object=f"{len(more)} more nodes", text=f"the same: {more[0].text}")


def _explained(problem: Hop, hops: list[Hop]) -> bool:
    """True if another fault has the sentence of a problem, ends with its reason, or is that of the same API server."""
    server = f"API server of {problem.object.partition('/')[0]}" if problem.text.startswith(reasons.API_SERVER) else ""
    return any(
        hop.object == server or problem.text in hop.text or hop.text.rpartition(": ")[2] in problem.text for hop in hops
    )


def all_peers(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Every other cluster is connected and keeps its records."""
    return (_peer(facts, row) for row in _clusters(facts) if not row.own)


def _clusters(facts: Facts) -> list[Cluster]:
    """Every cluster by the agent and the operator; of two rows the one that fails."""
    rows = [row for process in (facts.agent, facts.operator) for row in process.rows.all(tables.CLUSTERS)]
    rows.sort(key=lambda row: (row.state != "ready", row.file_problem))
    return [row for _, row in sorted({row.name: row for row in rows}.items())]


def _without_repetitions(hops: list[Hop]) -> list[Hop]:
    """One fault for one cause: without its API server an operator does not lead; without an operator all is silent.

    A stale cluster is one whose etcd is out of reach, whatever its operator does.
    """
    wrong = {hop.object for hop in hops if hop.state == "fault"}
    result: dict[tuple[str, str], Hop] = {}
    for hop in hops:
        cluster = hop.object.removeprefix("cluster ").removesuffix("/operator")
        causes = {f"API server of {cluster}"} | (
            {f"{cluster}/operator"} if hop.object.startswith("cluster ") and hop.text.startswith("silent") else set()
        )
        follows = hop.state == "fault" and cluster != hop.object and bool(causes & wrong)
        result.setdefault((hop.hop, hop.object), replace(hop, state="follows", cure="", code="") if follows else hop)
    return list(result.values())


def endpoints(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Endpoints that the agent has from each cluster: how many are ready, from which source, how fresh."""
    rows = facts.agent.rows
    sets_by_cluster: dict[tuple[str, str], list[EndpointSet]] = {}
    services = services_called(rows, service)
    derived = [each for each in services if each != service]  # stands for the import: the plain Service is not called
    for each in derived or services:
        for row in rows.by(tables.ENDPOINT_SETS, "service", each):
            sets_by_cluster.setdefault((row.cluster or facts.cluster, row.source), []).append(row)
    for (cluster, source), sets in sorted(sets_by_cluster.items()):
        conditions = [endpoint.condition for row in sets for endpoint in row.endpoints]
        ready = sum(each is Condition.READY for each in conditions)
        peer = next((row for row in rows.all(tables.CLUSTERS) if row.name == cluster), None)
        fresh = "" if peer is None or peer.own or peer.state == "ready" else f", as of {peer.since}: {peer.state}"
        text = f"{ready} of {len(conditions)} ready, from {source}{fresh}"
        yield Hop("endpoints", f"{service} in {cluster}", text, "ok" if ready and not fresh else "follows")
    for each in services:
        yield from (_failing(facts, service, failure) for failure in rows.by(tables.FAILURES, "service", each))
        yield from _failing_for_callers(facts, each)
        yield from _denied(facts, each)


def _failing(facts: Facts, service: ServiceName, failure: Failure) -> Hop:
    """A backend that this node cannot connect to; answers of a silent one may be dropped by rp_filter."""
    key = failure.key
    subject = f"backend {key.cluster} {joined(key.address, key.port)}"
    if failure.reason == "refused":
        cure = f"{facts.kubectl(key.cluster, split(service)[0])} get endpointslices -o yaml"
        return Hop("endpoints", subject, failure.error, "fault", cure, "backend-refuses")
    if drops := (facts.agent.status.get("machine") or {}).get("reverse_path_drops", 0):
        text = f"{failure.error}; rp_filter of this node has dropped {drops} packets that came by another way"
        cure = f"there: ip route get {key.address}; route both ways alike, or sysctl -w net.ipv4.conf.all.rp_filter=2"
        return Hop("endpoints", subject, text, "fault", cure, "route-asymmetric")
    node = facts.agent.status.get("place", {}).get("node", "this node")
    cure = f"open the way from {node} to {key.address}: routes, firewalls, NetworkPolicies; isthmus verify"
    return Hop("endpoints", subject, failure.error, "fault", cure, "backend-silent")


def arrivals(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The agent has exactly the addresses and ports that the operators of the imported clusters have."""
    imported = facts.agent.rows.get(tables.IMPORTS, service)
    for operator in facts.operators:
        cluster, own = ClusterName(operator.cluster), operator.rows.get(tables.OWN_EXPORTS, service)
        if own is None or own.export is None or cluster == facts.cluster:
            continue
        merged = operator.rows.get(tables.MERGED, service) or merge([own.export])
        if merged is not None and imported is not None and cluster in imported.clusters:
            published = records.callable_endpoints(published_endpoints(operator.rows, merged, own.export, cluster))
            yield from _arrival(facts, service, cluster, published)


def _arrival(facts: Facts, service: ServiceName, cluster: ClusterName, published: list[Endpoint]) -> Iterator[Hop]:
    sets = facts.agent.rows.by(tables.ENDPOINT_SETS, "service", derived(service))
    received = [
        endpoint
        for row in sets
        if (row.cluster, row.source) == (cluster, CLUSTERSET)
        for endpoint in row.endpoints
        if not reserved(endpoint.address)  # only a lab on loopback addresses publishes those
    ]
    lacking, obsolete = _ports(published) - _ports(received), _ports(received) - _ports(published)
    # Where the exporter has none, its pods are the fault; what a peer lacks while it is not ready follows from that.
    ready = any(row.name == cluster and row.state == "ready" for row in facts.agent.rows.all(tables.CLUSTERS))
    is_fault = ready and bool(published) and not refused_here(facts, service, cluster)
    cure = f"{facts.kubectl(facts.cluster, split(service)[0])} describe serviceimport {split(service)[1]}"
    for ports, text, code in (
        (lacking, "not received", "record-not-received"),
        (obsolete, "called that it has no more", "record-obsolete"),
    ):
        if ports:
            shown = ", ".join(sorted(ports)[:PORTS_SHOWN]) + (", …" if len(ports) > PORTS_SHOWN else "")
            text = f"{len(ports)} {text} in {facts.cluster}: {shown}"
            state: State = "fault" if is_fault else "follows"
            yield Hop(
                "endpoints", f"record of {service} of {cluster}", text, state, *((cure, code) if is_fault else ())
            )


def _ports(endpoints: Iterable[Endpoint]) -> set[str]:
    return {f"{joined(each.address, port.port)}/{port.protocol}" for each in endpoints for port in each.ports}


def _failing_for_callers(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Backends that single callers cannot connect to: a fault where it is the pod that is asked about."""
    failures = [row for row in facts.agent.rows.by(tables.CALLER_FAILURES, "service", service) if row.verdict != "dead"]
    for row in sorted(failures, key=lambda row: (row.pod != facts.pod, row.pod, row.key))[:CALLERS_SHOWN]:
        own = bool(row.pod) and row.pod == facts.pod
        text = f"{row.pod or 'one caller'} alone avoids it: {row.reason}, {row.failures} failed in a row"
        text += "; the agent connects to it" if row.verdict == "answers" else ""
        where = f"backend {row.key.cluster} {joined(row.key.address, row.key.port)}"
        cure = f"{_policies(facts, row.pod, row.key)}; no IP_TTL or IP_MINTTL on the pod's sockets" if own else ""
        yield Hop("endpoints", where, text, "fault" if own else "ok", cure, "one-pod-denied" if own else "")


def _denied(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Backends that a policy on the path denies to callers, and answers so: a fault where it is the pod asked about."""
    rows = facts.agent.rows.by(tables.DENIALS, "service", service)
    for row in sorted(rows, key=lambda row: (row.pod != facts.pod, row.pod, row.key))[:CALLERS_SHOWN]:
        own = bool(row.pod) and row.pod == facts.pod
        where = f"backend {row.key.cluster} {joined(row.key.address, row.key.port)}"
        connects = f", {row.connects} connects, the last at {timestamp(since_epoch(row.last))}"
        if (refusal := refused(facts, row)) is not None:
            text, cure, code = f"{row.pod} is {refusal.text}{connects}", refusal.cure, "caller-refused"
        else:
            text = f"a policy on the path denies it to {row.pod or 'one caller'}: ICMP administratively prohibited"
            text += connects
            cure = _policies(facts, row.pod, row.key) + "; a firewall or gateway between them"
            code = "path-denied"
        yield Hop("endpoints", where, text, *(("fault", cure, code) if own else ("ok", "", "")))


def _policies(facts: Facts, pod: str, backend: BackendKey) -> str:
    """Commands that list the network policies of the caller's and of the backend's namespace."""
    callers = f"{facts.kubectl(facts.cluster, split(ServiceName(pod))[0])} get networkpolicies"
    exporters = f"{facts.kubectl(backend.cluster or facts.cluster, split(backend.service)[0])} get networkpolicies"
    return f"{callers}; {exporters}"


def peers(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The clusters that export the service, or all where none does, are connected and keep their records."""
    exporting = exporters(facts, service)
    for row in _clusters(facts):
        if not row.own and (row.name in exporting or not exporting - {facts.cluster}):
            hop = _peer(facts, row)
            yield replace(hop, state="follows", cure="", code="") if cut_off(facts, service, row) else hop
            for process in facts.others:
                if process.cluster == row.name and not process.error:
                    yield from (replace(hop, hop="peer") for hop in hops.sources(facts, process))
                elif process.cluster == row.name and process.name == "operator":
                    yield hops.away(facts, process, "peer")


def _peer(facts: Facts, row: Cluster) -> Hop:
    if row.file_problem:
        text = f"its file cannot be used, and what was read of it before counts: {row.file_problem}"
        cure = "mend that file: `isthmus keys` or `isthmus clusters join` wrote it"
        return Hop("peer", f"cluster {row.name}", text, "fault", cure, "peer-file-broken")
    if row.state == "ready" and is_ending(row.certificate_ends, datetime.now(UTC)):
        cure = facts.keys(row.name, by_hand=f"isthmus clusters certs in {row.name}, then isthmus clusters refresh here")
        return Hop("peer", f"cluster {row.name}", row.reason, "fault", cure, "peer-certificate-ends")
    if row.state == "ready":
        return Hop(
            "peer", f"cluster {row.name}", f"ready since {row.since}" + (f": {row.reason}" if row.reason else "")
        )
    reason = row.reason or row.last_failure_reason
    text = str(row.state) + (f" since {row.since}" if row.since else "") + (f": {reason}" if reason else "")
    if str(row.state) == "silent":
        return Hop("peer", f"cluster {row.name}", text, "fault", facts.start(f"{row.name}/operator"), "peer-silent")
    return Hop("peer", f"cluster {row.name}", text, "fault", *_reach(facts, row, reason))


def _reach(facts: Facts, row: Cluster, reason: str) -> reasons.Mending:
    """Judge a peer that is not followed, by the reason."""
    rejoin = _join(facts, row.name)
    if "authentication failed" in reason or "permission denied" in reason:
        return reasons.Mending(f"its etcd does not admit the user in its file: {rejoin}", "peer-denies-user")
    if row.state == "distrusted":
        return reasons.Mending(f"isthmus clusters trust {row.name}", "peer-distrusted")
    if CLIENT_REFUSED in reason:
        cure = f"the certificate in its file has ended, or is of another authority than its etcd trusts: {rejoin}"
        return reasons.Mending(cure, "peer-refuses-certificate")
    if "certificate" in reason.lower():
        refresh = facts.connect(row.name, by_hand=f"isthmus clusters refresh, or {_invite(facts, row.name)}")
        return reasons.Mending(f"the authority in its file is not that of its etcd: {refresh}", "peer-untrusted")
    behind = "behind its gateways, " if through_gateways(row) else ""
    endpoints = ", ".join(row.endpoints) or "not configured"
    code = "peer-refused" if row.state == "refused" else "peer-unreachable"
    return reasons.Mending(f"isthmus clusters status; its etcd is {behind}{endpoints}", code)


def _join(facts: Facts, cluster: str) -> str:
    """Return the cure for a peer that has to be joined anew."""
    return facts.connect(cluster, by_hand=_invite(facts, cluster))


def _invite(facts: Facts, cluster: str) -> str:
    return f"isthmus clusters invite in {cluster}, isthmus clusters join in {facts.cluster}"


def exports(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """A cluster exports the service, its export is valid, and has arrived here."""
    arrived = {row.cluster for row in facts.operator.rows.all(tables.EXPORTS) if row.name == service}
    wrong = False
    valid: set[str] = set()
    for operator in facts.operators:
        row = operator.rows.get(tables.OWN_EXPORTS, service)
        if row is not None and row.export is None:
            wrong = True
            cure = f"{facts.kubectl(operator.cluster, split(service)[0])} describe serviceexport {split(service)[1]}"
            subject = f"ServiceExport {service} in {operator.cluster}"
            yield Hop("export", subject, row.message or str(row.reason), "fault", cure, "export-invalid")
        elif row is not None:
            valid.add(operator.cluster)
            yield from _unpublished(operator, service)
    refused = dict(_not_for_us(facts, service))
    for cluster in sorted(arrived | valid):
        if cluster in refused:
            all_refused = arrived <= refused.keys()
            cure = f"{facts.kubectl(cluster, split(service)[0])} describe serviceexport {split(service)[1]}"
            yield Hop(
                "export",
                f"export of {cluster}",
                refused[cluster],
                *(("fault", cure, "export-for-others") if all_refused else ("ok", cure)),
            )
        elif cluster in arrived or cluster == facts.cluster:
            yield Hop("export", f"export of {cluster}", "valid")
        else:
            yield Hop("export", f"export of {cluster}", f"valid there, and not received in {facts.cluster}", "follows")
            if not facts.operator.error and facts.operator.rows.get(tables.CLUSTERS, ClusterName(cluster)) is None:
                text = f"{facts.cluster} has not joined it: clusterset.directory of its operator has no file of it"
                yield Hop("peer", f"cluster {cluster}", text, "fault", _join(facts, cluster), "peer-not-joined")
    if not arrived and not valid and not wrong and not facts.operator.error:
        hops = _no_export(facts, service)
        yield replace(hops, state="follows", cure="", code="") if _unknown_exports(facts) else hops


def _unpublished(operator: Process, service: ServiceName) -> Iterator[Hop]:
    """An export whose last change the exporter's etcd does not have."""
    for status in unpublished.read(operator.rows, service)[:1]:
        reason = unpublished.reason(status.error)
        subject = f"ServiceExport {service} in {operator.cluster}"
        if reason.name == "EtcdFull":
            yield Hop(
                "export",
                subject,
                f"its last change is not published: {status.error}",
                "fault",
                reasons.ETCD_FULL,
                "etcd-full",
            )
        else:
            cure = f"isthmus status in {operator.cluster} has what keeps its operator from its etcd"
            yield Hop("export", subject, f"its last change is not published: {status.error}", "follows", cure)


def _not_for_us(facts: Facts, service: ServiceName) -> Iterator[tuple[str, str]]:
    """The clusters whose export may not be imported here, each with a sentence of why."""
    own = ClusterName(facts.cluster)
    for row in facts.operator.rows.all(tables.EXPORTS):
        if row.name == service and row.cluster != own and not may_import(own, row):
            allowed = ", ".join(importers(row) or ()) or "no cluster"
            yield row.cluster, f"for {allowed} only, by its annotation {IMPORTERS}: not for {own}"


def _unknown_exports(facts: Facts) -> bool:
    """True if some peer's exports are unknown: it may export the service, and its own hop shows the fault."""
    rows = facts.operator.rows.all(tables.CLUSTERS)
    return any("serviceexports" not in row.synced for row in rows if not row.own and row.state != "ready")


def _no_export(facts: Facts, service: ServiceName) -> Hop:
    exported = {row.name for each in facts.operators for row in each.rows.all(tables.OWN_EXPORTS)}
    exported |= {row.name for row in facts.operator.rows.all(tables.EXPORTS)}
    namespace, name = split(service)
    for each in (*facts.operators[1:], facts.operator):
        if each.rows.by(tables.SERVICES, "name", service):
            export = f"{{apiVersion: {API}, kind: ServiceExport, metadata: {{name: {name}, namespace: {namespace}}}}}"
            cure = f"echo '{export}' | {facts.kubectl(each.cluster)} apply -f -"
            subject = f"Service {service} in {each.cluster}"
            text = f"exists, and no cluster exports it{_without_namespace(facts, namespace)}"
            return Hop("export", subject, text, "fault", cure, "never-exported")
    near = get_close_matches(service, sorted(exported), n=1, cutoff=0.6)
    text = "no cluster exports a service of this name" + (f"; there is {near[0]}" if near else "")
    text += _without_namespace(facts, namespace)
    cure = f"isthmus diagnose {near[0]}" if near else "isthmus get imports -A"
    return Hop("export", str(service), text, "fault", cure, "no-such-service")


def _without_namespace(facts: Facts, namespace: str) -> str:
    """Clusters without the namespace, as the end of a sentence: an export that was deleted with it is not missing by
    itself."""
    asked = [each for each in facts.operators if not each.error]
    lacking = [each.cluster for each in asked if each.rows.get(tables.NAMESPACES, namespace) is None]
    return f"; namespace {namespace} does not exist in {', '.join(lacking)}" if lacking else ""


def conflicts(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The exporting clusters agree, and what follows from their exports could be written here."""
    merged = facts.operator.rows.get(tables.MERGED, service)
    namespace, name = split(service)
    if (quota := facts.operator.rows.get(tables.OVER_QUOTA, service)) is not None:
        text = f"no derived Service: {namespace} has its share of the {quota.limit} that {facts.cluster} may have"
        yield Hop(
            "conflict", f"ServiceImport {service}", text, "fault", "isthmus get over_quota -A", "imports-over-quota"
        )
    for conflict in merged.conflicts if merged is not None else ():
        cure = f"{facts.kubectl(facts.cluster, namespace)} describe serviceimport {name}"
        yield Hop(
            "conflict",
            f"ServiceImport {service}",
            f"{conflict.reason}: {conflict.message}",
            "fault",
            cure,
            "exports-conflict",
        )
    for status in facts.operator.rows.all(tables.OBJECTS_STATUS):
        if status.key[1] in (service, derived(service)):
            mending = reasons.of_object(facts, facts.cluster, namespace, status.error)
            yield Hop("conflict", f"objects of {service}", f"not written: {status.error}", "fault", *mending)


def namespaces(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The service's namespace exists where it is called from."""
    namespace, _ = split(service)
    if facts.operator.error:
        return
    if facts.operator.rows.get(tables.NAMESPACES, namespace) is not None:
        yield Hop("namespace", f"namespace {namespace} in {facts.cluster}", "exists")
    else:
        text = "does not exist: an import is written only into a namespace that exists"
        cure = f"{facts.kubectl(facts.cluster)} create namespace {namespace}"
        yield Hop("namespace", f"namespace {namespace} in {facts.cluster}", text, "fault", cure, "namespace-missing")


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
    endpoints = [endpoint for row in sets for endpoint in row.endpoints]
    ready = [endpoint for endpoint in endpoints if endpoint.condition is Condition.READY]
    port_names = {port.name for port in spec.ports} if spec is not None else set()
    subject = f"pods of {service} in {cluster}"
    selector = ",".join(f"{key}={value}" for key, value in spec.selector) if spec is not None else ""
    cure = f"{facts.kubectl(cluster, namespace)} get pods -l '{selector}'"
    if not endpoints:
        return Hop("pods", subject, f"no pod matches the selector {selector or '(none)'}", "fault", cure, "no-pods")
    if not ready:
        return Hop("pods", subject, f"0 of {len(endpoints)} are ready", "fault", cure, "no-ready-pod")
    missing = port_names - {port.name for endpoint in ready for port in endpoint.ports}
    if missing:
        text = f"none has the target port of {', '.join(repr(each) for each in sorted(missing))}"
        cure = f"{facts.kubectl(cluster, namespace)} get service,endpointslices -o yaml"
        return Hop("pods", subject, text, "fault", cure, "target-port-missing")
    return Hop("pods", subject, f"{len(ready)} of {len(endpoints)} are ready")


STEPS: Final[tuple[Callable[[Facts, ServiceName], Iterator[Hop]], ...]] = (
    hops.processes, machines, hops.name, hops.resolver, hops.hook, hops.frontend, hops.policy, hops.drain, hops.plan,
    routes, l4_routes, gateways, endpoints, stalls, arrivals, peers, exports, refusals, conflicts, namespaces, pods,
    faults.of_service,
)  # fmt: skip
