"""The walk in the calling cluster: processes, name, resolver, hook, frontend, policy, plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

from isthmus import __version__
from isthmus.bounds import Syntax
from isthmus.cli.diagnosis import reasons
from isthmus.cli.diagnosis.facts import Facts, Process
from isthmus.cli.status import failing_rows
from isthmus.loadbalancer import drains, effects, shares
from isthmus.loadbalancer.explain import services_called, unanswered
from isthmus.loadbalancer.policies import effective
from isthmus.model import tables
from isthmus.model.clusters import reachability
from isthmus.model.drains import Draining
from isthmus.model.hosts import joined
from isthmus.model.names import ClusterName, ServiceName, derived, split
from isthmus.model.services import Condition

OBJECT: Final = Syntax(r"Drain ([a-z0-9-]{1,63})/([a-z0-9.-]{1,253})", most=323, meaning="the reason of a Drain")
"""The reason of a drain that an object asks for."""

State = Literal["ok", "fault", "follows"]


class Hop(Struct, frozen=True):
    """Result of the diagnosis at one hop."""

    hop: str
    object: str
    text: str
    state: State = "ok"
    """follows: it fails, and would not without a fault that another hop names."""
    cure: str = ""
    """The command that mends a fault, or shows more of it."""
    code: str = ""
    """Stable name of a kind of fault, a row of docs/faults.md; empty for other states."""


def processes(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Every process of the calling cluster answers, and is served by its API server and its etcd."""
    answering = [process for process in facts.name_servers if not process.error]
    for process in (facts.agent, facts.operator, *facts.name_servers):
        if not process.error:
            yield Hop("process", str(process), f"up {process.status['uptime']:.0f} s")
            yield from sources(facts, process)
            for reason in process.unreadable:
                text = f"{reason}; it is {process.status.get('version', 'another version')}, this command {__version__}"
                yield Hop(
                    "process",
                    f"{process}/tables",
                    text,
                    "fault",
                    "use the isthmus of the version that runs",
                    "row-unreadable",
                )
        elif process.expected:
            instead = f"; {answering[0]} answers in its place" if process in facts.name_servers and answering else ""
            yield away(facts, process, "process", instead=instead)


def envoy(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The Envoy of the caller's node answers, if it is probed."""
    for row in facts.agent.rows.all(tables.ENVOY_CHECKS):
        if not row.healthy:
            text = f"calls go past it: it {row.reason}"
            yield Hop(
                "process", f"Envoy of the node of {facts.agent}", text, "fault", facts.replace_envoy(), "envoy-hung"
            )


def problems(facts: Facts) -> Iterator[Hop]:
    """Every problem that a process of the calling cluster reports, and rows that it could not put into effect."""
    for process in (facts.agent, facts.operator, *facts.name_servers):
        for problem in process.status.get("problems", ()):
            mending = reasons.of_problem(facts, process, problem)
            yield Hop("process", f"{process} reports", problem, "fault", *mending)
        for table, failing in failing_rows(process.status) if not process.error else ():
            cure = f"isthmus get {table} -A"
            text = f"{failing} rows of {table.removesuffix('_status')}"
            yield Hop("process", f"{process} fails", text, "fault", cure, "rows-not-written")


def sources(facts: Facts, process: Process) -> Iterator[Hop]:
    """Check that a process reaches the API server and the etcd that it watches and writes."""
    away = {name: state for name, state in process.status.get("reflectors", {}).items() if not state["connected"]}
    kubernetes = [state for name, state in away.items() if name.startswith("kubernetes/")]
    if kubernetes:
        reason = kubernetes[0]["last_failure"] or "not listed yet"
        text = f"{process} works from the last known state: {reason}"
        yield Hop(
            "process", f"API server of {process.cluster}", text, "fault", *reasons.of_apiserver(facts, process, reason)
        )
    publisher = process.status.get("publisher", {})
    if error := publisher.get("error"):
        text = f"{process} cannot publish: {error}"
        yield Hop("process", f"etcd of {process.cluster}", text, "fault", *reasons.of_etcd(facts, process, error))


def away(facts: Facts, process: Process, hop: str, *, instead: str = "") -> Hop:
    """The fault of a process that cannot be asked: it has ended, or it runs and does not answer."""
    code = "process-hung" if "no answer in time" in process.error else "process-ended"
    return Hop(hop, str(process), process.error + instead, "fault", facts.revive(process), code)


def incomplete(process: Process, table: str) -> bool:
    """True if a table of a process awaits a source, whose own hop then shows the fault."""
    return bool(process.status.get("tables", {}).get(table, {}).get("pending"))


def name(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The clusterset name of the service has answers."""
    if facts.agent.error:
        return
    namespace, short = split(service)
    rows = [row for row in facts.agent.rows.all(tables.NAMES) if row.name.startswith(f"{short}.{namespace}.svc.")]
    answers = [(row.name, row.type, answer) for row in rows for answer in row.answers if row.type in ("A", "AAAA")]
    if answers:
        found, _, _ = answers[0]
        yield Hop("name", found, ", ".join(f"{kind} {answer}" for _, kind, answer in answers[:3]))
    elif rows:
        yield Hop("name", rows[0].name, "exists and has no address", "follows")
    else:
        yield Hop("name", str(service), "there is no such name in the clusterset's zone", "follows")


def resolver(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The node's name servers have the names that the agent has."""
    named = list(facts.agent.rows.all(tables.NAMES))
    own = len(named)
    for each in facts.name_servers:
        if each.error:
            continue  # processes() names it
        names, server = each.status["tables"]["names"]["rows"], each.status.get("server", {})
        connected = each.status["reflectors"]["names"]["connected"]
        text = f"{names} names, {server.get('questions', 0)} questions so far"
        if not connected and incomplete(facts.agent, "names"):
            yield Hop("resolver", str(each), "waits for the agent's names, which are not complete", "follows")
        elif not connected and not facts.agent.error:
            yield Hop(
                "resolver",
                str(each),
                "does not receive the agent's names",
                "fault",
                facts.start(each),
                "resolver-cut-off",
            )
        elif (zone := server.get("zone", "")) and own and not any(row.name.endswith(f".{zone}") for row in named):
            text = f"answers for {zone}, which none of the agent's names is in: dns.zone of both has to be the same"
            yield Hop("resolver", str(each), text, "fault", f"correct it, then {facts.start(each)}", "resolver-zone")
        elif not names and own:
            yield Hop(
                "resolver",
                str(each),
                f"has no names; the agent has {own}",
                "fault",
                facts.start(each),
                "resolver-empty",
            )
        else:
            yield Hop("resolver", str(each), text if connected else f"{text}; copy of an agent that is away")


def hook(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The caller's calls are translated: the programs are attached, and its pod is below their cgroup."""
    if facts.agent.error:
        return
    datapath, reason = facts.agent.status.get("datapath"), facts.agent.status.get("unhooked", "")
    if reason:
        mending = reasons.of_hooks(facts, reason)
        waits = incomplete(facts.agent, "plans")
        yield Hop("hook", str(facts.agent), reason, *(("follows",) if waits else ("fault", *mending)))
        return
    if datapath is None:
        yield Hop("hook", str(facts.agent), "no datapath.cgroup is configured: calls take kube-proxy's path")
        return
    cgroup = datapath["hooks"]["cgroup"]
    if not facts.pod:
        yield Hop("hook", cgroup, datapath["hooks"]["detail"])
    elif facts.agent.rows.get(tables.PODS, facts.pod) is None:
        node = facts.agent.status.get("place", {}).get("node", "")
        text = f"not a pod of node {node}, whose agent was asked"
        cure = f"{facts.kubectl(facts.cluster, facts.pod.partition('/')[0])} get pods -o wide"
        yield Hop("hook", f"pod {facts.pod}", text, "fault", cure, "pod-of-another-node")
    elif facts.pod_hooked is False:
        text = f"none of its processes runs below {cgroup}: its calls are not translated"
        cure, _ = reasons.of_hooks(facts, "datapath.cgroup")
        yield Hop("hook", f"pod {facts.pod}", text, "fault", cure, "pod-outside-cgroup")
    elif (ignored := facts.agent.rows.get(tables.IGNORED_PODS, facts.pod)) is not None:
        yield _left_alone(facts, service, ignored.reason)
    else:
        yield Hop(
            "hook",
            f"pod {facts.pod}",
            f"below {cgroup}" if facts.pod_hooked else f"not visible here; {cgroup} is hooked",
        )


def _left_alone(facts: Facts, service: ServiceName, reason: str) -> Hop:
    """A pod whose calls are not translated: a fault if only islands export the service, which it cannot call."""
    exporters, islands = _exporters(facts, service), _exporting_islands(facts, service)
    text = f"left alone ({reason}): its calls of imports go to their addresses, for its mesh or kube-proxy"
    text += f", which do not call {', '.join(sorted(islands))}" if islands else ""
    if not islands or islands != exporters:
        return Hop("hook", f"pod {facts.pod}", text)
    namespace, name = split(ServiceName(facts.pod))
    cure = f"{facts.kubectl(facts.cluster, namespace)} annotate pod {name} isthmus.io/datapath=translate"
    return Hop("hook", f"pod {facts.pod}", text, "fault", cure, "sidecar-before-island")


def _exporters(facts: Facts, service: ServiceName) -> set[ClusterName]:
    """Clusters that have endpoints of a service."""
    rows = facts.agent.rows
    services = services_called(rows, service)
    return {
        each.cluster for name in services for each in rows.by(tables.ENDPOINT_SETS, "service", name) if each.cluster
    }


def _exporting_islands(facts: Facts, service: ServiceName) -> set[ClusterName]:
    """Clusters that export a service from another network: only the translation of calls knows their gateways."""
    rows = facts.agent.rows
    own = rows.get(tables.CLUSTERS, ClusterName(facts.cluster))
    exporters = _exporters(facts, service)
    return {name for name in exporters if reachability(own, rows.get(tables.CLUSTERS, name)) != "direct"}


def frontend(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The addresses that are called are answered for this service."""
    if facts.agent.error:
        return
    rows = facts.agent.rows
    for refused in rows.all(tables.REFUSED_CLAIMS):
        if service in (refused.name, refused.service):
            subject, cure = f"{refused.kind} {refused.name}", f"isthmus explain {service}"
            yield Hop("frontend", subject, refused.message, "fault", cure, "address-refused")
    frontends = [row for each in services_called(rows, service) for row in rows.by(tables.FRONTENDS, "service", each)]
    imported = rows.get(tables.IMPORTS, service)
    if frontends:
        yield Hop("frontend", str(service), ", ".join(sorted(str(row.key) for row in frontends)[:3]))
    elif imported is not None and imported.type == "Headless":
        yield Hop("frontend", str(service), "headless: the name answers with the pods' own addresses")
    elif imported is None and rows.by(tables.SERVICES, "name", service):
        yield Hop("frontend", str(service), "a plain Service of this cluster: kube-proxy's, not Isthmus'", "follows")
    else:
        yield Hop("frontend", str(service), "no address is answered", "follows")


def policy(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Policies of the service can be followed, and the one in force leaves calls somewhere to go."""
    rows = facts.agent.rows
    services = services_called(rows, service)
    policies = [row for each in services for row in rows.by(tables.POLICIES, "service", each)]
    missing = [] if services else [row for row in rows.all(tables.POLICIES) if row.target == service]
    for row in (*policies, *missing):
        if reason := row.invalid or ("" if services else f"{row.kind} {row.target} does not exist in {facts.cluster}"):
            cure = f"{facts.kubectl(facts.cluster, split(row.name)[0])} edit trafficpolicy {split(row.name)[1]}"
            yield Hop(
                "policy",
                f"{row.policy_kind} {row.name}",
                f"has no effect: {reason}",
                "fault",
                cure,
                "policy-without-effect",
            )
    if (in_force := effective(policies)) is None:
        return
    subject = f"{in_force.policy_kind} {in_force.name}"
    plans = rows.by(tables.PLANS, "service", in_force.service)
    backends = rows.by(tables.BACKENDS, "service", in_force.service)
    ready = [row for row in backends if row.condition is Condition.READY]
    ignored = effects.ignored_fields(rows, in_force, ClusterName(facts.cluster))
    without = f"; {effects.summary(ignored)}" if ignored else ""
    if any(shares.by_cluster(each) for each in plans) or not ready:
        parts = shares.by_cluster(plans[0]) if plans else {}
        text = f"in force: {shares.text(parts)}{without}"
        yield Hop("policy", subject, text, "ok" if parts else "follows")
    else:
        text = f"leaves none of {len(ready)} ready backends to be called{without}"
        yield Hop("policy", subject, text, "fault", f"isthmus explain {service}", "policy-leaves-nothing")


def drain(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Drained backends of the service: by which object, how many are still called, how to end it."""
    rows = facts.agent.rows
    services = services_called(rows, service)
    backends = [row for each in services for row in rows.by(tables.BACKENDS, "service", each)]
    plans = [row for each in services for row in rows.by(tables.PLANS, "service", each)]
    targets = {(target.address, target.port) for row in plans for group in row.groups for target in group.targets}
    for row in sorted(rows.all(tables.DRAINING), key=lambda row: row.key):
        drained = drains.Drained([row])
        drained_backends = [each.key for each in backends if drained.drain_of(each) is not None]
        if drained_backends:
            still = sum((key.address, key.port) in targets for key in drained_backends)
            nothing_else = f", {still} of them still called as nothing else is there" if still and not row.left else ""
            count = f"{len(drained_backends)} of {len(backends)} backends"
            text = f"{drains.state(row)}: {count}{nothing_else}; {_undrain(facts, row)}"
            yield Hop("drain", f"{row.drain.kind.lower()} {row.drain.target}", text)


def _undrain(facts: Facts, row: Draining) -> str:
    """Return how to end a drain. A peer publishes its reason, so a command takes only an object's name from it."""
    match = OBJECT.match(row.drain.reason)
    if match is None:
        return "ends with its reason"
    namespace, name = match.groups()
    kind, target = row.drain.kind, row.drain.target
    if name == f"{kind.lower()}-{target.rpartition('/')[2]}":
        return f"undrain: isthmus {kind.lower()}s undrain {target} --context {row.by}"
    return f"undrain: {facts.kubectl(row.by, namespace)} delete drain {name}"


def plan(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The plan has targets, and is in the kernel's maps."""
    if facts.agent.error:
        return
    rows = facts.agent.rows
    services = services_called(rows, service)
    plans = [row for each in services for row in rows.by(tables.PLANS, "service", each)]
    for status in rows.all(tables.PLANS_STATUS):
        if status.key.service in {*services, service, derived(service)}:
            text = f"port {status.key.port} is not in the maps: {status.error}"
            yield Hop("plan", f"plan of {service}", text, "fault", "isthmus bpf maps", "plan-not-programmed")
    targets = [target for row in plans for group in row.groups for target in group.targets if target.address]
    place = facts.agent.status.get("place") or {}
    own = ClusterName(place.get("cluster", facts.cluster))
    reasons = {row.key: unanswered(rows, row, cluster=own) for row in plans if not any(g.targets for g in row.groups)}
    if targets:
        for key, reason in reasons.items():
            text = f"no target: calls of this port are refused at once: {reason}"
            yield Hop(
                "plan",
                f"{service} at {key.port}/{key.protocol} {key.family}",
                text,
                "fault",
                f"isthmus explain {service}",
                "port-without-target",
            )
        shown = ", ".join(f"{each.cluster} {joined(each.address, each.port)}" for each in targets[:3])
        more = f" and {len(targets) - 3} more" if len(targets) > 3 else ""
        stays = f"; a client stays for {plans[0].affinity_timeout} s" if plans[0].affinity_timeout else ""
        yield Hop("plan", str(service), f"{shown}{more}{stays}")
    elif plans:
        text = f"no target: calls are refused at once: {'; '.join(dict.fromkeys(reasons.values()))}"
        yield Hop("plan", str(service), text, "follows")
