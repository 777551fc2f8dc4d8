"""Codes and cures of faults by the sentence that a process reports: a reason of a source, or one of its problems.

A sentence names its own fault, so that it is matched here and not measured again. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from isthmus.bounds import Syntax
from isthmus.cli.diagnosis.facts import Facts, Process
from isthmus.mcs import unpublished

MAX_REASON: Final = 2048
"""Characters of a sentence that are looked at."""
ETCD_FULL: Final = f"{unpublished.CURE} (docs/troubleshooting.md, IsthmusEtcdNoSpace)"
"""Cure for an etcd that has reached its quota."""
HTTP_STATUS: Final = Syntax(r"(?:^|: |answers )([45]\d\d) [A-Za-z]", most=MAX_REASON, meaning="an HTTP status")
"""Status of an answer in a sentence of kube/errors.py or kube/transport.py."""
API_SERVER: Final = "the API server "
"""Beginning of a problem of a process with its API server (kube/transport.py)."""
NODE_CACHE: Final = "169.254.20.10"
"""Address of NodeLocal DNSCache, the one of its manifest."""
FREE_SPACE: Final = "there: df -h and du -xsh: free that file system, or enlarge it"
TIME_SERVICE: Final = "run a time service (chrony, systemd-timesyncd) on every machine: certificates depend on it"


class Mending(NamedTuple):
    """The cure for a fault, and the fault's code."""

    cure: str
    code: str


def of_apiserver(facts: Facts, process: Process, reason: str) -> Mending:
    """Judge an API server that a process cannot follow."""
    readyz = f"{facts.kubectl(process.cluster)} get --raw /readyz"
    match = HTTP_STATUS.search(reason)
    status = match[1] if match is not None else ""
    if status == "401":
        cure = f"the token of {process} is not valid: kubernetes.kubeconfig, or the service account of its pod"
        return Mending(cure, "token-invalid")
    if status == "403":
        cure = f"{process} lacks that right: apply its roles again (kubectl apply -k deploy/ in {process.cluster})"
        return Mending(cure, "right-missing")
    if status == "404":
        return Mending(f"isthmus install --context {process.cluster} applies the definitions", "definition-missing")
    if status == "429":
        levels = "/debug/api_priority_and_fairness/dump_priority_levels"
        return Mending(f"{facts.kubectl(process.cluster)} get --raw {levels}", "apiserver-throttles")
    if status.startswith("5"):
        return Mending(f"{readyz}?verbose", "apiserver-fails")
    if "does not answer" in reason:
        return Mending(f"{readyz} --request-timeout=5s", "apiserver-hung")
    return Mending(readyz, "apiserver-away")


def of_etcd(facts: Facts, process: Process, reason: str) -> Mending:
    """Judge an etcd that an operator cannot write."""
    if "permission denied" in reason:
        certs = "isthmus clusters certs there: it makes the etcd's users and roles, for cluster.name and no other"
        return Mending(facts.keys(process.cluster, by_hand=certs), "etcd-denies")
    if unpublished.reason(reason).name == "EtcdFull":
        return Mending(ETCD_FULL, "etcd-full")
    cure = facts.start(f"{process.cluster}/etcd") if facts.lab else "check etcd.endpoints of the operator"
    return Mending(cure, "etcd-away")


def of_hooks(facts: Facts, reason: str) -> Mending:
    """Judge programs that no call meets: the configuration, another agent, or the process itself."""
    if reason.startswith("datapath.cgroup") and " lacks " in reason:
        cure = "name a cgroup above all pods in datapath.cgroup: systemd-cgls on that node shows both"
        return Mending(cure, "pods-in-second-cgroup")
    if reason.startswith("datapath.cgroup"):
        cure = 'datapath.cgroup = "auto" finds the pods\' cgroup: isthmus install --set datapath.cgroup=auto'
        return Mending(cure, "cgroup-without-pods")
    if reason.startswith("two agents"):
        return Mending("kubectl get daemonsets -A lists the agents of both: remove one installation", "two-agents")
    return Mending(facts.start(facts.agent), "programs-detached")


def of_object(facts: Facts, cluster: str, namespace: str, error: str) -> Mending:
    """Judge an object that an operator could not write."""
    kubectl = facts.kubectl(cluster)
    if "failed calling webhook" in error:
        cure = f"{kubectl} get validatingwebhookconfigurations,mutatingwebhookconfigurations: start its Service's pods"
        return Mending(cure, "webhook-down")
    if "exceeded quota" in error:
        return Mending(f"{facts.kubectl(cluster, namespace)} describe resourcequota", "namespace-quota")
    if "written by somebody else" in error or "is not managed by" in error:  # desired.writer: Contested, Refused
        get = f"{facts.kubectl(cluster, namespace)} get serviceimports,serviceexports,services"
        cure = f"{get} -o yaml --show-managed-fields names who; isthmus check, whether it is another MCS implementation"
        return Mending(cure, "two-writers")
    return Mending(f"{facts.kubectl(cluster, namespace)} get serviceimports,services", "object-not-written")


def of_problem(facts: Facts, process: Process, problem: str) -> Mending:
    """Judge a problem that a process reports of itself: the first row of PROBLEMS that matches."""
    for text, mending in PROBLEMS:
        if text in problem:
            return mending(facts, process, problem)
    return Mending(facts.start(process), "process-problem")


def _cluster_dns(facts: Facts, process: Process, problem: str) -> Mending:
    """Judge pods that ask another name server than the configured one: the cluster's, or the cache of their node."""
    asked = problem.partition(" ask ")[2].partition(" for names")[0]
    install = f"isthmus install --context {facts.context or process.cluster}"
    if NODE_CACHE in asked:
        return Mending(f"{install} --set dns.resolvers={asked.replace(' ', '')}", "node-dns-cache")
    return Mending(f"{install} --set dns.cluster_dns={asked.replace(' ', '')}", "cluster-dns-wrong")


def _certificate(facts: Facts, process: Process, problem: str) -> Mending:
    code = "certificate-ended" if " ended at " in problem else "certificate-ends"
    return Mending(facts.keys(process.cluster, by_hand=f"isthmus clusters certs in {process.cluster}"), code)


PROBLEMS: Final[tuple[tuple[str, Callable[[Facts, Process, str], Mending]], ...]] = (
    ("clock is ", lambda *_: Mending(TIME_SERVICE, "clock-skewed")),
    (API_SERVER, of_apiserver),
    (" for names, and dns.cluster_dns has ", _cluster_dns),
    ("the certificate ", _certificate),
    ("refuses writes (", lambda *_: Mending(ETCD_FULL, "etcd-full")),
    ("No space left on device", lambda *_: Mending(FREE_SPACE, "disk-full")),
    ("datapath.cgroup ", lambda facts, _, problem: of_hooks(facts, problem)),
    ("two agents run on this node", lambda facts, _, problem: of_hooks(facts, problem)),
    ("calls are not translated", lambda facts, _, problem: of_hooks(facts, problem)),
    ("this node's Envoy ", lambda facts, *_: Mending(facts.replace_envoy(), "envoy-hung")),
    ("it cannot lead", lambda facts, process, _: Mending(
        f"{facts.kubectl(process.cluster, 'isthmus-system')} get leases", "operator-without-lease")),
)  # fmt: skip
"""Parts of problems of processes, and how each is judged."""
