"""The walk in the calling cluster: processes, name, resolver, hook, frontend, policy, plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

from isthmus.cli.diagnosis.facts import Facts, Process
from isthmus.loadbalancer import drains, shares
from isthmus.loadbalancer.explain import called
from isthmus.loadbalancer.policies import counting
from isthmus.model import tables
from isthmus.model.drains import Draining
from isthmus.model.hosts import joined
from isthmus.model.names import ServiceName, split
from isthmus.model.policies import ANY_OTHER, THIS_CLUSTER, Policy
from isthmus.model.services import Condition
from isthmus.statedb import Reader

OBJECT: Final = re.compile(r"Drain ([a-z0-9-]{1,63})/([a-z0-9.-]{1,253})")
"""The reason of a drain that an object asks for."""

State = Literal["ok", "fault", "follows"]


class Hop(Struct, frozen=True):
    """What was found at one hop."""

    hop: str
    object: str
    text: str
    state: State = "ok"
    """follows: it fails, and would not without a fault that another hop names."""
    cure: str = ""
    """The command that mends a fault, or shows more of it."""


def processes(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Every process of the calling cluster answers, and is served by its API server and its etcd."""
    answering = [each for each in facts.name_servers if not each.error]
    for each in (facts.agent, facts.operator, *facts.name_servers):
        if not each.error:
            yield Hop("process", str(each), f"up {each.status['uptime']:.0f} s")
            yield from sources(facts, each)
        elif each.expected:
            instead = f"; {answering[0]} answers in its place" if each in facts.name_servers and answering else ""
            yield Hop("process", str(each), each.error + instead, "fault", facts.revive(each))


def sources(facts: Facts, process: Process) -> Iterator[Hop]:
    """What a process watches and writes can be reached."""
    away = {name: state for name, state in process.status.get("reflectors", {}).items() if not state["connected"]}
    kubernetes = [state for name, state in away.items() if name != "names"]
    if kubernetes:
        why = kubernetes[0]["last_failure"] or "not listed yet"
        text = f"{process} works from the last known state: {why}"
        yield Hop("process", f"API server of {process.cluster}", text, "fault", _admit(facts, process, why))
    publisher = process.status.get("publisher", {})
    if publisher.get("error"):
        if "permission denied" in publisher["error"]:
            cure = "isthmus clusters certs there: it makes the etcd's users and roles, for cluster.name and no other"
        else:
            cure = facts.start(f"{process.cluster}/etcd") if facts.lab else "check etcd.endpoints of the operator"
        text = f"{process} cannot publish: {publisher['error']}"
        yield Hop("process", f"etcd of {process.cluster}", text, "fault", cure)


def _admit(facts: Facts, process: Process, why: str) -> str:
    """What mends an API server that is away, or that refuses a process's token or rights."""
    if "401 " in why:
        return f"the token of {process} is not valid: kubernetes.kubeconfig, or the service account of its pod"
    if "403 " in why:
        return f"{process} lacks that right: apply its roles again (kubectl apply -k deploy/ in {process.cluster})"
    return f"{facts.kubectl(process.cluster)} get --raw /readyz"


def incomplete(process: Process, table: str) -> bool:
    """Whether a table of a process waits for a source: the hop of that source is the fault, if there is one."""
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
            yield Hop("resolver", str(each), "does not receive the agent's names", "fault", facts.start(each))
        elif (zone := server.get("zone", "")) and own and not any(row.name.endswith(f".{zone}") for row in named):
            text = f"answers for {zone}, which none of the agent's names is in: dns.zone of both has to be the same"
            yield Hop("resolver", str(each), text, "fault", f"correct it, then {facts.start(each)}")
        elif not names and own:
            yield Hop("resolver", str(each), f"has no names; the agent has {own}", "fault", facts.start(each))
        else:
            yield Hop("resolver", str(each), text if connected else f"{text}; copy of an agent that is away")


def hook(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The caller's calls are translated: the programs are attached, and its pod is below their cgroup."""
    if facts.agent.error:
        return
    datapath, why = facts.agent.status.get("datapath"), facts.agent.status.get("unhooked", "")
    if why:
        state: State = "follows" if incomplete(facts.agent, "plans") else "fault"
        yield Hop("hook", str(facts.agent), why, state, facts.start(facts.agent))
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
        yield Hop("hook", f"pod {facts.pod}", text, "fault", cure)
    elif facts.pod_hooked is False:
        text = f"none of its processes runs below {cgroup}: its calls are not translated"
        yield Hop("hook", f"pod {facts.pod}", text, "fault", "name the pods' cgroup in datapath.cgroup of the agent")
    else:
        yield Hop(
            "hook",
            f"pod {facts.pod}",
            f"below {cgroup}" if facts.pod_hooked else f"not visible here; {cgroup} is hooked",
        )


def frontend(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The addresses that are called are answered for this service."""
    if facts.agent.error:
        return
    rows = facts.agent.rows
    for refused in rows.all(tables.REFUSED_CLAIMS):
        if service in (refused.name, refused.service):
            yield Hop(
                "frontend", f"{refused.kind} {refused.name}", refused.message, "fault", f"isthmus explain {service}"
            )
    found = [row for each in called(rows, service) for row in rows.by(tables.FRONTENDS, "service", each)]
    imported = rows.get(tables.IMPORTS, service)
    if found:
        yield Hop("frontend", str(service), ", ".join(sorted(str(row.key) for row in found)[:3]))
    elif imported is not None and imported.type == "Headless":
        yield Hop("frontend", str(service), "headless: the name answers with the pods' own addresses")
    elif imported is None and rows.by(tables.SERVICES, "name", service):
        yield Hop("frontend", str(service), "a plain Service of this cluster: kube-proxy's, not Isthmus'", "follows")
    else:
        yield Hop("frontend", str(service), "no address is answered", "follows")


def policy(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Policies of the service can be followed, and the one in force leaves calls somewhere to go."""
    rows = facts.agent.rows
    services = called(rows, service)
    found = [row for each in services for row in rows.by(tables.POLICIES, "service", each)]
    missing = [] if services else [row for row in rows.all(tables.POLICIES) if row.target == service]
    for row in (*found, *missing):
        if why := row.invalid or ("" if services else f"{row.kind} {row.target} does not exist in {facts.cluster}"):
            cure = f"{facts.kubectl(facts.cluster, split(row.name)[0])} edit trafficpolicy {split(row.name)[1]}"
            yield Hop("policy", f"{row.policy_kind} {row.name}", f"has no effect: {why}", "fault", cure)
    if (in_force := counting(found)) is None:
        return
    subject = f"{in_force.policy_kind} {in_force.name}"
    plans = rows.by(tables.PLANS, "service", in_force.service)
    backends = rows.by(tables.BACKENDS, "service", in_force.service)
    ready = [row for row in backends if row.condition is Condition.READY]
    if any(shares.by_cluster(each) for each in plans) or not ready:
        parts = shares.by_cluster(plans[0]) if plans else {}
        text = f"in force: {shares.text(parts)}{_unknown(rows, in_force)}"
        yield Hop("policy", subject, text, "ok" if parts else "follows")
    else:
        text = f"leaves none of {len(ready)} ready backends to be called{_unknown(rows, in_force)}"
        yield Hop("policy", subject, text, "fault", f"isthmus explain {service}")


def _unknown(rows: Reader, row: Policy) -> str:
    """The clusters that a policy names and that are none of the clusterset, as the end of a sentence."""
    named = {share.cluster for tier in row.tiers for share in tier.shares} - {"", ANY_OTHER, THIS_CLUSTER}
    unknown = sorted(named - {each.name for each in rows.all(tables.CLUSTERS)})
    return f"; no cluster is called {', '.join(unknown)}" if unknown else ""


def drain(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """What is drained of the service: by which object, whether it is called nevertheless, and what ends that."""
    rows = facts.agent.rows
    services = called(rows, service)
    backends = [row for each in services for row in rows.by(tables.BACKENDS, "service", each)]
    plans = [row for each in services for row in rows.by(tables.PLANS, "service", each)]
    targets = {(target.address, target.port) for row in plans for group in row.groups for target in group.targets}
    for row in sorted(rows.all(tables.DRAINING), key=lambda row: row.key):
        drained = drains.Drained([row])
        meant = [each.key for each in backends if drained.of(each) is not None]
        if meant:
            still = sum((key.address, key.port) in targets for key in meant)
            nothing_else = f", {still} of them still called as nothing else is there" if still and not row.left else ""
            text = (
                f"{drains.state(row)}: {len(meant)} of {len(backends)} backends{nothing_else}; {_undrain(facts, row)}"
            )
            yield Hop("drain", f"{row.drain.kind.lower()} {row.drain.target}", text)


def _undrain(facts: Facts, row: Draining) -> str:
    """What ends a drain. Peers publish its reason: only a name of an object goes into a command."""
    found = OBJECT.fullmatch(row.drain.reason)
    if found is None:
        return "ends with its reason"
    namespace, name = found.groups()
    kind, target = row.drain.kind, row.drain.target
    if name == f"{kind.lower()}-{target.rpartition('/')[2]}":
        return f"undrain: isthmus {kind.lower()}s undrain {target} --context {row.by}"
    return f"undrain: {facts.kubectl(row.by, namespace)} delete drain {name}"


def plan(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """The plan has targets, and is in the kernel's maps."""
    if facts.agent.error:
        return
    rows = facts.agent.rows
    services = called(rows, service)
    plans = [row for each in services for row in rows.by(tables.PLANS, "service", each)]
    for status in rows.all(tables.PLANS_STATUS):
        if any(each in str(status.key) for each in services):
            yield Hop("plan", f"plan of {service}", f"not in the maps: {status.error}", "fault", "isthmus bpf maps")
    targets = [target for row in plans for group in row.groups for target in group.targets]
    if targets:
        shown = ", ".join(f"{each.cluster} {joined(each.address, each.port)}" for each in targets[:3])
        more = f" and {len(targets) - 3} more" if len(targets) > 3 else ""
        stays = f"; a client stays for {plans[0].affinity_timeout} s" if plans[0].affinity_timeout else ""
        yield Hop("plan", str(service), f"{shown}{more}{stays}")
    elif plans:
        yield Hop("plan", str(service), "no target: calls are refused at once", "follows")
