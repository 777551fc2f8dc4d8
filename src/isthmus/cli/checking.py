"""Reads and tries what ``isthmus check`` judges: rights, clocks, agents, pods."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec
from msgspec import Struct

from isthmus import bounds, kube
from isthmus.cli import surveying
from isthmus.cli.surveying import PODS
from isthmus.config import DnsSection, load
from isthmus.datapath.services import placement
from isthmus.installation import SYSTEM, checks, removal, rendering, shipped
from isthmus.installation import plan as planning
from isthmus.installation.checks import Check, Right
from isthmus.installation.facts import ApiObject
from isthmus.installation.plan import Plan
from isthmus.kube.objects.coordination import LEASE
from isthmus.kube.objects.meta import Meta, Wire

NODE_LEASES: Final = "kube-node-lease"
AT_ONCE: Final = 16
"""Reviews of rights that are asked for at a time."""
PATIENCE: Final = 20


class ReviewStatus(Wire, frozen=True):
    """Answer to a review."""

    allowed: bool = False


class Review(Wire, frozen=True):
    """A SelfSubjectAccessReview or a SubjectAccessReview."""

    metadata: Meta = Meta()
    status: ReviewStatus = ReviewStatus()


GROUP: Final = "authorization.k8s.io"
OWN_REVIEW: Final = kube.Kind(
    GROUP, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", Review, namespaced=False
)
REVIEW: Final = kube.Kind(GROUP, "v1", "subjectaccessreviews", "SubjectAccessReview", Review, namespaced=False)


async def check(client: kube.Client, cluster: str) -> tuple[list[Check], Plan]:
    """Check what the API server knows. Returns the results and the plan of an installation as it is, or would be."""
    folder = shipped.directory("deploy")
    facts = await surveying.survey(client)
    plan = planning.plan(facts, planning.Flags(context=cluster), folder)
    objects = rendering.render(folder, plan.options)
    results = [*checks.of_facts(cluster, facts, plan), await _user(client, cluster, objects)]
    results += await _clocks(client, cluster)
    if facts.installed is None:
        results.append(Check(cluster, "installed", "warning", "not yet", f"isthmus install --context {cluster}"))
    else:
        results += await _accounts(client, cluster, objects)
    return results, plan


async def _user(client: kube.Client, cluster: str, objects: list[rendering.Object]) -> Check:
    resources: dict[str, tuple[str, str]] = {}
    for api_version, name in dict.fromkeys((each["apiVersion"], each["kind"]) for each in objects):
        kind = await client.kind(api_version, name, ApiObject)
        resources[name] = (kind.group, kind.resource)
    rights = checks.user_rights(objects, resources, SYSTEM)
    return checks.of_rights(cluster, "this user", await _denied(client, rights), len(rights))


async def _accounts(client: kube.Client, cluster: str, objects: list[rendering.Object]) -> list[Check]:
    results = []
    for account, rights in checks.account_rights(objects).items():
        user = f"system:serviceaccount:{SYSTEM}:{account}"
        results.append(checks.of_rights(cluster, account, await _denied(client, rights, user=user), len(rights)))
    return results


async def _denied(client: kube.Client, rights: Iterable[Right], *, user: str = "") -> list[Right] | None:
    """Return the rights that a user, or oneself, does not have; ``None`` if the API server cannot be asked."""
    rights, limit = list(dict.fromkeys(rights)), asyncio.Semaphore(AT_ONCE)

    async def allowed(right: Right) -> bool:
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource,
            "namespace": right.namespace, "name": right.name,
        }  # fmt: skip
        spec: dict[str, Any] = {"resourceAttributes": attributes} | ({"user": user} if user else {})
        async with limit:
            return (await client.create(REVIEW if user else OWN_REVIEW, "", {"spec": spec})).status.allowed

    try:
        answers = await asyncio.gather(*map(allowed, rights))
    except kube.NotFound:
        return None
    return [right for right, answer in zip(rights, answers, strict=True) if not answer]


async def _clocks(client: kube.Client, cluster: str) -> list[Check]:
    try:
        leases = await client.list(LEASE, NODE_LEASES)
    except kube.Forbidden as error:
        return [Check(cluster, "clocks", "warning", f"not read: {error}")]
    times = {each.metadata.name: each.spec.renew_time for each in leases}
    renewals = {node: bounds.timestamp(each) for node, each in times.items() if each is not None}
    return list(checks.of_clocks(cluster, client.skew, renewals, datetime.now(UTC)))


def dns_of(plan: Plan) -> DnsSection:
    """The DNS configuration of an installation."""
    return load(None, environment=plan.variables).dns


def resolver(cluster: str, text: str, plan: Plan) -> Check:
    """Compare a pod's resolv.conf with the configured cluster DNS, as the agents do."""
    pod_resolver = placement.resolver(text)
    problem = placement.dns_problem(dns_of(plan), placement.Placement(1, 1, resolvers=(pod_resolver,)))
    if not pod_resolver.domain:
        text = f"a pod's search list is not Kubernetes': {' '.join(pod_resolver.nameservers) or 'no nameserver'}"
        return Check(cluster, "cluster DNS", "warning", text)
    if problem:
        cure = f"isthmus install --context {cluster} --set dns.cluster_dns={','.join(pod_resolver.nameservers)}"
        return Check(cluster, "cluster DNS", "fault", problem, cure)
    text = f"pods ask {', '.join(pod_resolver.nameservers)}, and search {pod_resolver.domain}"
    return Check(cluster, "cluster DNS", "ok", text)


def multipath(cluster: str, pause: str, plan: Plan) -> list[Check]:
    """Judge a pod's net.mptcp.blackhole_timeout; nothing where the kernel lacks it or connects are not moved."""
    if not pause or load(None, environment=plan.variables).datapath.rescue == "off":
        return []
    if pause == "0":
        return [Check(cluster, "Multipath TCP", "ok", "stays on in pods when backends are silent")]
    text = f"off in a pod for {pause} s after a connect that several silent backends have not answered"
    cure = "where applications use Multipath TCP, net.mptcp.blackhole_timeout=0 in pods (docs/datapath.md)"
    return [Check(cluster, "Multipath TCP", "warning", text, cure)]


def agents(kubectl: list[str], cluster: str, pods: Mapping[str, str], plan: Plan) -> list[Check]:
    """Ask the agent of each node, by its pod, through kubectl. ``pods``: pod by node."""
    statuses, shown = {}, {}
    for node, pod in pods.items():
        if text := _exec(kubectl, pod, "isthmus", "status", "-o", "json", "--socket", "/run/isthmus/agent.sock"):
            status = _agent_status(text)
            if status is not None:
                statuses[node] = status
        if text := _exec(kubectl, pod, "ip", "-o", "address", "show", "dev", "lo"):
            shown[node] = text
    addresses = [each.rpartition(":")[0].strip("[]") for each in dns_of(plan).listen]
    results = list(checks.of_agents(cluster, statuses, len(pods)))
    return [*results, *([checks.of_address(cluster, shown, addresses)] if shown else [])]


def _agent_status(text: str) -> Mapping[str, Any] | None:
    """The agent's part of ``isthmus status -o json``; ``None`` if it did not answer."""
    try:
        return msgspec.json.decode(text, type=_Statuses).processes.get("agent")
    except msgspec.MsgspecError:
        return None


class _Statuses(Struct, frozen=True):
    processes: dict[str, dict[str, Any]] = {}


def _exec(kubectl: list[str], pod: str, *command: str) -> str:
    """Output of a command in an agent's container; empty if it cannot be run."""
    words = [*kubectl, "-n", SYSTEM, "exec", pod, "-c", "agent", "--", *command]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False).stdout
    except FileNotFoundError:
        raise click.ClickException("kubectl is not in PATH: agents are asked through it") from None
    except subprocess.TimeoutExpired:
        return ""


async def agent_pods(client: kube.Client) -> dict[str, str]:
    """The agent's pod of each node."""
    pods = await surveying.Reader(client).list(PODS, SYSTEM, label_selector=f"{removal.NAME}=isthmus-agent")
    nodes = {each.metadata.name: str((each.spec or {}).get("nodeName") or "") for each in pods}
    return {node: pod for pod, node in nodes.items() if node}
