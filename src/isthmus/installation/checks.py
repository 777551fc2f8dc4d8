"""Judgements about a cluster before and after an installation, each from what was read. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from msgspec import Struct

from isthmus import bounds
from isthmus.installation.facts import Facts
from isthmus.installation.plan import Plan
from isthmus.installation.rendering import Object

State = Literal["ok", "warning", "fault"]

MAX_SKEW: Final = 60.0
"""Seconds by which this machine's clock may differ from the API server's, and a node's Lease from it."""
AHEAD: Final = 5.0
"""Seconds by which a node's clock may be ahead: its Lease is dated by it, and then read at once."""
SHOWN: Final = 4
"""Names that a sentence lists."""


class Check(Struct, frozen=True):
    """Result of one check."""

    cluster: str
    check: str
    state: State
    text: str
    cure: str = ""


class Right(Struct, frozen=True):
    """A verb on a resource. ``namespace`` is empty for the whole cluster, ``name`` for every object."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}" + (f"/{self.name}" if self.name else "")


def of_facts(cluster: str, facts: Facts, plan: Plan) -> Iterator[Check]:
    """Kernels, other implementations, and what else speaks against the plan."""
    if not facts.kernels.values or any(each.startswith("unknown") for each in facts.kernels.values):
        yield Check(cluster, "kernels", "warning", f"not known of every node: {facts.kernels}")
    else:
        old = ", ".join(facts.old_kernels[:SHOWN])
        text = ", ".join(facts.kernels.values) + (f"; older than Linux 5.10: {old}" if old else "")
        yield Check(cluster, "kernels", "warning" if old else "ok", text, "boot a newer kernel there" if old else "")
    existing = (*facts.implementations.values, *facts.definitions.values)
    if not facts.implementations.values:
        text = f"none; definitions: {facts.definitions}" if facts.definitions.values else "none"
        yield Check(cluster, "other implementations", "ok", text)
    cure = f"isthmus install --context {cluster}, with that option"
    yield from (Check(cluster, "plan", "fault", each, cure if "--" in each else "") for each in plan.blockers)
    yield from (Check(cluster, "plan", "warning", each) for each in plan.warnings)
    if not plan.blockers and not plan.warnings and not existing:
        yield Check(cluster, "plan", "ok", "nothing speaks against it")


def user_rights(objects: Iterable[Object], resources: Mapping[str, tuple[str, str]], namespace: str) -> list[Right]:
    """Rights that an installation needs. ``resources``: group and plural of a kind by its name."""
    namespaces = {each["kind"]: namespace if "namespace" in each["metadata"] else "" for each in objects}
    rights = [
        Right(verb, *resources[kind], place)
        for kind, place in namespaces.items()
        if kind in resources
        for verb in ("get", "create", "patch", "delete")
    ]
    return [*rights, Right("create", "", "pods/exec", namespace), Right("list", "", "nodes")]


def account_rights(objects: Iterable[Object]) -> dict[str, list[Right]]:
    """Rights of each ServiceAccount, by the roles and bindings of an installation."""
    objects = list(objects)
    roles = {(each["kind"], each["metadata"]["name"]): each for each in objects if each["kind"].endswith("Role")}
    rights: dict[str, list[Right]] = {}
    for binding in objects:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        role = roles.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
        namespace = binding["metadata"].get("namespace", "")
        for subject in binding["subjects"]:
            if role is not None and subject["kind"] == "ServiceAccount":
                rights.setdefault(subject["name"], []).extend(_rights(role, namespace))
    return rights


def _rights(role: Object, namespace: str) -> Iterator[Right]:
    for rule in role["rules"]:
        lists = (rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [""]))
        for group, resource, verb, name in itertools.product(*lists):
            yield Right(verb, group, resource, namespace, name)


def of_rights(cluster: str, whose: str, denied: Sequence[Right] | None, total: int) -> Check:
    """Rights of the user, or of a ServiceAccount; ``denied`` is ``None`` if the API server answers no reviews."""
    if denied is None:
        return Check(cluster, "rights", "warning", f"{whose}: not known, this API server has no SubjectAccessReviews")
    if not denied:
        return Check(cluster, "rights", "ok", f"{whose} has all {total}")
    names = ", ".join(str(each) for each in denied[:SHOWN]) + (", …" if len(denied) > SHOWN else "")
    cure = (
        "ask for the role cluster-admin"
        if whose == "this user"
        else f"isthmus install --context {cluster} applies the roles"
    )
    return Check(cluster, "rights", "fault", f"{whose} lacks {len(denied)} of {total}: {names}", cure)


def of_clocks(cluster: str, skew: float, renewals: Mapping[str, datetime], now: datetime) -> Iterator[Check]:
    """Clocks of this machine and of the nodes, compared with the API server's.

    ``skew``: seconds by which this machine is ahead of it, ``now``: this machine's time, ``renewals``: when each
    node's kubelet last renewed its Lease, by the node's own clock.
    """
    if abs(skew) > MAX_SKEW:
        how = "ahead of" if skew > 0 else "behind"
        text = f"this machine is {abs(skew):.0f} s {how} the API server"
        yield Check(cluster, "clocks", "fault", text, "set this machine's clock")
    server = now - bounds.span(skew)
    ages = {node: (server - renewed).total_seconds() for node, renewed in renewals.items()}
    ahead = [node for node, age in sorted(ages.items()) if age < -AHEAD]
    late = [node for node, age in sorted(ages.items()) if age > MAX_SKEW]
    if ahead:
        text = f"{', '.join(ahead[:SHOWN])}: ahead of the API server by up to {-min(ages.values()):.0f} s"
        yield Check(cluster, "clocks", "fault", text, "run a time service on the nodes: certificates depend on it")
    if late:
        text = f"{', '.join(late[:SHOWN])}: Lease of the node renewed up to {max(ages.values()):.0f} s ago"
        yield Check(cluster, "clocks", "warning", text, "the clock is behind, or the kubelet is away")
    if not ahead and not late and abs(skew) <= MAX_SKEW:
        yield Check(cluster, "clocks", "ok", f"this machine and {len(ages)} nodes agree with the API server")


def of_agents(cluster: str, statuses: Mapping[str, Mapping[str, Any]], nodes: int) -> Iterator[Check]:
    """Problems that agents report of their nodes, their cgroup and DNS included."""
    wrong = {node: [*status.get("problems", ())] for node, status in statuses.items()}
    for problem in dict.fromkeys(each for problems in wrong.values() for each in problems):
        where = [node for node, problems in wrong.items() if problem in problems]
        shown = ", ".join(where[:SHOWN]) + (f" and {len(where) - SHOWN} more" if len(where) > SHOWN else "")
        yield Check(cluster, "agents", "fault", f"{shown}: {problem}", f"isthmus diagnose --context {cluster}")
    if len(statuses) < nodes:
        text = f"{len(statuses)} of {nodes} nodes have an agent that answers"
        yield Check(cluster, "agents", "fault", text, "isthmus install waits, and names what pods lack")
    elif not any(wrong.values()):
        yield Check(cluster, "agents", "ok", f"{len(statuses)} nodes: programs attached to a cgroup that has pods")


def of_address(cluster: str, shown: Mapping[str, str], addresses: Sequence[str]) -> Check:
    """The name server's addresses on ``lo`` of each node. ``shown``: output of ``ip -o address`` by node."""
    lacking = {
        node: missing
        for node, text in shown.items()
        if (missing := [each for each in addresses if f" {each}/" not in text])
    }
    if not lacking:
        return Check(cluster, "name server's address", "ok", f"{', '.join(addresses)} on {len(shown)} nodes")
    [(node, missing), *more] = lacking.items()
    text = f"{node}: no {', '.join(missing)} on lo" + (f", nor on {len(more)} more nodes" if more else "")
    restart = "kubectl -n isthmus-system rollout restart daemonset/isthmus-agent: its first container adds them"
    return Check(cluster, "name server's address", "fault", text, restart)


def of_packets(source: str, target: str, reason: str, *, islands: bool) -> Check:
    """Packets of up to 1,400 and 9,000 bytes from a pod to one of another cluster. ``reason``: why not, or empty."""
    name = f"packets to {target}"
    if not reason:
        return Check(source, name, "ok", "TCP both ways, datagrams of 1,400 bytes and of the path MTU (up to 9,000)")
    if islands:
        return Check(
            source, name, "ok", f"not from pod to pod ({reason}): the clusters are islands, gateways carry calls"
        )
    cure = "route between the pods' ranges, and the MTU of links between them; or install both as islands"
    return Check(source, name, "fault", reason, cure)
