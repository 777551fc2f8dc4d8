"""Facts and flows → answers to an assistant's questions. Pure; each returns the text of an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from isthmus.bounds import since_epoch
from isthmus.cli.assistant.answers import answer
from isthmus.cli.diagnosis.exporters import cluster_faults
from isthmus.cli.diagnosis.exporters import diagnose as walk
from isthmus.cli.diagnosis.facts import Facts, Process
from isthmus.cli.diagnosis.hops import Hop
from isthmus.cli.status import failing_rows
from isthmus.loadbalancer import explain as explaining
from isthmus.loadbalancer import shares
from isthmus.loadbalancer.selection import Place
from isthmus.model import tables
from isthmus.model.balancing import Plan
from isthmus.model.flows import End, Flow, is_failed
from isthmus.model.hosts import joined
from isthmus.model.names import ServiceName
from isthmus.model.services import Pod
from isthmus.times import timestamp

ADDRESSES: Final = ("A", "AAAA")
"""Types of DNS records that have the addresses of a name."""
CODES: Final = 40
"""Codes of faults that an answer counts beside its rows."""


class NoAnswer(Exception):  # noqa: N818
    """A question without an answer; the message has the reason and what to ask instead."""


def status(facts: Facts) -> str:
    """Return each process with its problems, and each cluster with its state."""
    every = (facts.agent, facts.operator, *facts.name_servers, *facts.nodes, *facts.others)
    processes = [_process(each) for each in every if each.expected or not each.error]
    processes.sort(key=lambda row: bool(row["ready"]))
    clusters = [
        {"cluster": row.name, "own": row.own, "state": row.state, "since": row.since, "reason": row.reason}
        for row in sorted(facts.agent.rows.all(tables.CLUSTERS), key=lambda row: (row.state == "ready", row.name))
    ]
    ready = all(row["ready"] for row in processes) and all(row["state"] == "ready" for row in clusters)
    return answer({"cluster": facts.cluster, "ready": ready}, {"processes": processes, "clusters": clusters})


def _process(process: Process) -> dict[str, Any]:
    if process.error:
        return {"process": str(process), "ready": False, "problems": [process.error]}
    failing = [f"{count} rows of {name} fail" for name, count in failing_rows(process.status)]
    problems = [*process.status.get("problems", ()), *failing]
    return {
        "process": str(process),
        "version": process.status.get("version", ""),
        "ready": bool(process.status.get("ready", True)) and not problems,
        "up_seconds": round(process.status.get("uptime", 0)),
        "problems": problems,
        "warnings": process.status.get("warnings", ()),
        "drains": process.status.get("drains", ()),
    }


def diagnose(facts: Facts, service: ServiceName | None, services: Sequence[ServiceName] = ()) -> str:
    """Return the faults on the way of a service's calls, or of the whole cluster and of ``services``, each with a cure.

    The first fault of each code precedes further ones of it, so that no kind of fault is cut off by another.
    """
    walks = {name: walk(facts, name) for name in ([service] if service else services)}
    hops = [("", hop) for hop in (() if service else cluster_faults(facts))]
    hops += [(str(name), hop) for name, hops_of_one in walks.items() for hop in hops_of_one]
    # The walks of two services meet the same process or peer: that is one fault, of the first of them.
    distinct: dict[tuple[str, str, str], tuple[str, Hop]] = {}
    for name, hop in hops:
        if hop.state == "fault":
            distinct.setdefault((hop.hop, hop.object, hop.code), (name, hop))
    faults = _one_of_each_first([*distinct.values()])
    codes = Counter(hop.code for _, hop in faults).most_common(CODES)
    head = {
        "subject": service or f"cluster {facts.cluster}",
        "faults_by_code": dict(codes),
        "verdict": "no fault found" if not faults else f"{len(faults)} fault{'s' * (len(faults) != 1)}",
        "hops_in_order": sum(hop.state == "ok" for _, hop in hops),
    }
    follows = [{"hop": hop.hop, "object": hop.object, "text": hop.text} for _, hop in hops if hop.state == "follows"]
    return answer(head, {"faults": [_fault(*each) for each in faults], "follows": follows if service else []})


def _one_of_each_first(faults: Sequence[tuple[str, Hop]]) -> list[tuple[str, Hop]]:
    first: dict[str, tuple[str, Hop]] = {}
    rest = []
    for name, hop in faults:
        if first.setdefault(hop.code, (name, hop)) != (name, hop):
            rest.append((name, hop))
    return [*first.values(), *rest]


def _fault(service: str, hop: Hop) -> dict[str, str]:
    return {
        "code": hop.code, "service": service, "hop": hop.hop, "object": hop.object, "text": hop.text, "cure": hop.cure,
    }  # fmt: skip


def explain(facts: Facts, service: ServiceName) -> str:
    """Return each port's backends with their shares, those left out with the reason, and notes on what decided so."""
    explanations = _explanations(facts, service)
    ports, backends, left_out = [], [], []
    for each in explanations:
        for path in each.paths:
            ports.append(_port(path))
            backends += [{"port": _port_name(path.plan), **row} for row in _targets(facts, path.plan)]
            left_out += [
                {"port": _port_name(path.plan), "cluster": out.backend.key.cluster, "reason": out.reason,
                 "address": joined(out.backend.key.address, out.backend.key.port)}
                for out in path.left_out
            ]  # fmt: skip
    notes = [{"text": note} for each in explanations for note in each.notes]
    rows = {"ports": ports, "notes": notes, "backends": backends, "not_used": left_out}
    return answer({"service": service, "called_in": facts.cluster}, rows)


def plan_of_call(facts: Facts, name: str, pod: str) -> str:
    """Return what a call from a pod to a name would try, and in which shares. ``pod``: NAMESPACE/POD."""
    namespace = pod.partition("/")[0] or "default"
    service = service_of(name, namespace)
    callers = [row for row in facts.agent.rows.all(tables.PODS) if row.name == pod]
    names = [row for row in facts.agent.rows.all(tables.NAMES) if row.name == _host(name) and row.type in ADDRESSES]
    answers = sorted({each for row in names for each in row.answers})
    ports, backends = [], []
    for each in _explanations(facts, service):
        for path in each.paths:
            proxies = [consumer for consumer in path.plan.consumers if consumer.namespace == namespace]
            ports.append({**_port(path), "for_this_namespace": [_envoy(consumer.target) for consumer in proxies]})
            backends += [{"port": _port_name(path.plan), **row} for row in _targets(facts, path.plan)]
    backends.sort(key=lambda row: (row["port"], row["tier"], bool(row.get("passed_over"))))
    head = {
        "service": service,
        "from": pod or f"any pod of namespace {namespace}",
        "caller": _caller(facts, callers) if pod else "",
        "name_answers": answers,
        "how": "one backend of the lowest tier, by weight; if it refuses or is silent, another one",
    }
    return answer(head, {"ports": ports, "tried": backends})


def _caller(facts: Facts, pods: Sequence[Pod]) -> str:
    if not pods:
        return "this node's agent knows no such pod: it runs on another node, or not at all"
    hooked = {True: "", False: "; its calls are not translated: it runs outside the hooked cgroup", None: ""}
    ignored = any(row.name == pods[0].name for row in facts.agent.rows.all(tables.IGNORED_PODS))
    left_alone = "; its calls are left alone (isthmus get ignored_pods -A)" if ignored else ""
    return f"{pods[0].phase}, {'ready' if pods[0].ready else 'not ready'}{hooked[facts.pod_hooked]}{left_alone}"


def service_of(name: str, namespace: str) -> ServiceName:
    """Return the service that a name means for pods of a namespace: a DNS name, NAMESPACE/NAME, or a bare name."""
    if "/" in name:
        return ServiceName(name)
    labels = _host(name).split(".")
    if "svc" in labels[2:]:  # before the service there may be a pod's hostname and a cluster
        place = labels.index("svc", 2)
        return ServiceName(f"{labels[place - 1]}/{labels[place - 2]}")
    return ServiceName(f"{labels[1]}/{labels[0]}" if len(labels) > 1 else f"{namespace}/{labels[0]}")


def _host(name: str) -> str:
    return name.rstrip(".").lower()


def flows(recorded: Iterable[Flow], *, service: str, pod: str, failed: bool, since: float) -> str:
    """Return recorded calls, newest first. ``since``: Unix time, s."""
    selected = [
        flow
        for flow in recorded
        if (not service or service in (flow.service, flow.service.rpartition(":")[0]))
        and (not pod or pod in (flow.pod, flow.source))
        and (not failed or is_failed(flow))
        and flow.time + flow.took >= since
    ]
    selected.sort(key=lambda flow: -(flow.time + flow.took))
    verdicts = Counter(f"{flow.verdict}, {flow.state}" for flow in selected)
    head = {"records": len(selected), "by_verdict_and_state": dict(verdicts.most_common(20))}
    return answer(head, {"flows": [_flow(flow) for flow in selected]})


def _flow(flow: Flow) -> dict[str, Any]:
    return {
        "time": timestamp(since_epoch(flow.time + flow.took)),
        "from": flow.pod or flow.source,
        "service": flow.service or flow.called,
        "asked": _end(flow.asked),
        "answered": _end(flow.answered) if flow.answered != flow.asked else "",
        "verdict": flow.verdict,
        "state": flow.state,
        "reason": flow.reason,
        "after_ms": round(flow.took * 1000, 3),
    }


def _end(end: End) -> str:
    return f"{end.cluster} by a gateway" if end.gateways else f"{end.cluster} {end.address}".strip()


def _explanations(facts: Facts, service: ServiceName) -> list[explaining.Explanation]:
    if facts.agent.error:
        raise NoAnswer(f"{facts.agent}: {facts.agent.error}; ask diagnose")
    place = msgspec.convert(facts.agent.status.get("place"), Place | None)
    if place is None:
        raise NoAnswer("the process has no place in its status; only an agent has")
    reader = facts.agent.rows
    explanations = [
        explaining.explain(reader, each, place=place) for each in explaining.services_called(reader, service)
    ]
    if not explanations:
        raise NoAnswer(f"no service or import is called {service} in {facts.cluster}; ask diagnose with this service")
    return explanations


def _port(path: explaining.PlanExplanation) -> dict[str, Any]:
    return {
        "port": _port_name(path.plan),
        "called_at": [str(each) for each in path.plan.frontends][:4],
        "shares": shares.text(path.shares),
        "refused_because": path.unanswered,
        "tiers": [f"{each.clusters}: {100 * each.part:.3g}%, {each.usable} usable" for each in path.tiers],
    }


def _port_name(plan: Plan) -> str:
    return f"{plan.key.port}/{plan.key.protocol} {plan.key.family}"


def _targets(facts: Facts, plan: Plan) -> Iterator[dict[str, Any]]:
    ejected = {
        (row.key.cluster, row.key.address, row.key.port): f"ejected on this node: {row.error}"
        for row in facts.agent.rows.all(tables.FAILURES)
    }
    clusters: Mapping[str, Any] = {row.name: row for row in facts.agent.rows.all(tables.CLUSTERS)}
    for group in plan.groups:
        for target in group.targets:
            cluster = clusters.get(target.cluster)
            lag = f"{cluster.state} since {cluster.since}" if cluster and cluster.state != "ready" else ""
            yield {
                "tier": group.tier,
                "weight": group.weight,
                "cluster": target.cluster,
                "address": joined(target.address, target.port) if target.address else "calls are refused",
                "through": _envoy(target) if target.proxy else "",
                "passed_over": ejected.get((target.cluster, target.address, target.port), ""),
                "cluster_state": lag,
            }


def _envoy(target: Any) -> str:
    return f"this node's Envoy at {joined(target.address, target.port)}"
