"""From the PATCH of a TrafficPolicy to its effect on all nodes of a cluster, in a lab: make bench-policy-change.

c1 has several nodes, each with a pod that calls the import again and again; the policy sends all calls to c1, then all
to c2, in turn. A change is in effect when the last call that the old cluster answered has begun, on whichever node.
First calls go by the kernel, then through each node's Envoy: an HTTPRoute is in force that leads to the import itself.

Prints the median and the longest, and the part of it until the API server had answered; exit code 1 where the longest
is not below the target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from labs.lab_running import Running, lab_name, until

from isthmus import kube
from isthmus.config import KubernetesSection
from isthmus.kube.objects.policies import TRAFFIC_POLICY
from isthmus_lab import pod_exec, removal, startup
from isthmus_lab.demo.stage import IMPORT_NAME
from isthmus_lab.layout import Lab
from isthmus_lab.own_programs import IN_CONTAINER
from isthmus_lab.pod_exec import Container

FAILOVER: Final = Path(__file__).parents[1] / "examples" / "failover"
TARGET: Final = 0.5
"""Seconds until a change is in effect on all nodes."""
BEFORE: Final = 0.3
AFTER: Final = 1.0
"""Seconds of calls before and after a change."""
PODS, NODES = "10.1.", "172.30.1."
"""How addresses of c1's pods and nodes begin: by the kernel a server sees the pod, through Envoy the node."""
CALLERS: Final[dict[str, Any]] = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "caller", "namespace": "demo"},
    "spec": {
        "selector": {"matchLabels": {"app": "caller"}},
        "template": {
            "metadata": {"labels": {"app": "caller"}},
            "spec": {"containers": [{"name": "client", "image": "isthmus/client"}]},
        },
    },
}
ROUTE: Final[dict[str, Any]] = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "HTTPRoute",
    "metadata": {"name": "echo", "namespace": "demo"},
    "spec": {
        "parentRefs": [{"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "echo"}],
        "rules": [
            {"backendRefs": [{"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "echo", "port": 80}]}
        ],
    },
}


def policy(cluster: str) -> dict[str, Any]:
    """All calls to one cluster."""
    meta = {"name": "echo", "namespace": "demo"}
    spec = {"targetRef": {"name": "echo"}, "tiers": [{"clusters": [{"name": cluster}]}]}
    return {"apiVersion": "isthmus.io/v1alpha1", "kind": "TrafficPolicy", "metadata": meta, "spec": spec}


def callers(lab: Running) -> list[Container]:
    """A pod on each node of c1."""
    found = pod_exec.containers(lab.lab.clusters[0])
    return [each for each in found if each.pod.startswith("demo/caller-")]


@contextmanager
def calling(pods: list[Container]) -> Iterator[list[list[dict[str, Any]]]]:
    """Calls from all pods while the block runs; afterwards the results of each."""
    command = IN_CONTAINER.command("caller.py", IMPORT_NAME, "80", "--count", "100000", "--pause", "0.002")
    children = [pod_exec.run(pod, command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for pod in pods]
    found: list[list[dict[str, Any]]] = []
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        yield found
    finally:
        for child in children:
            child.terminate()
        for child in children:
            lines = child.communicate()[0].splitlines()
            found.append([json.loads(line) for line in lines if line.endswith(b"}")])


async def patched(lab: Running, cluster: str) -> tuple[float, float]:
    """When a change of the policy was sent, and when the API server had answered."""
    section = KubernetesSection(kubeconfig=str(lab.lab.kubeconfig), context="c1")
    async with await kube.connect(section) as client:
        await client.get(TRAFFIC_POLICY, "echo", "demo")  # connected
        began = time.time()
        await client.patch(TRAFFIC_POLICY, "demo", "echo", {"spec": policy(cluster)["spec"]})
        return began, time.time()


def once(lab: Running, pods: list[Container], cluster: str) -> tuple[float, float, int]:
    """Seconds to the effect, and to the API server's answer; calls that were made."""
    with calling(pods) as found:
        time.sleep(BEFORE)
        began, answered = asyncio.run(patched(lab, cluster))
        time.sleep(AFTER)
    failed = [call for calls in found for call in calls if not call["ok"]]
    if failed:
        raise SystemExit(f"bench-policy-change: {len(failed)} calls failed: {failed[0]}")
    old = [call["at"] for calls in found for call in calls if call["answer"]["cluster"] != cluster]
    if not all(calls and calls[-1]["answer"]["cluster"] == cluster for calls in found):
        raise SystemExit(f"bench-policy-change: not in effect after {AFTER:g} s")
    return max(old) - began, answered - began, sum(map(len, found))


def measured(lab: Running, pods: list[Container], path: str, times: int) -> float:
    """The longest of some changes; prints a line."""
    results = [once(lab, pods, ("c2", "c1")[turn % 2]) for turn in range(times)]
    took = [each[0] for each in results]
    server, calls = statistics.median(each[1] for each in results), sum(each[2] for each in results)
    print(
        f"{times} changes on {len(pods)} nodes, {path}: in effect after {statistics.median(took):.3f} s, longest"
        f" {max(took):.3f} s (of it {server:.3f} s the API server's); {calls} calls, 0 failed",
        flush=True,
    )
    return max(took)


def all_see(lab: Running, cluster: str, caller: str) -> bool:
    """Whether calls from every node go to that cluster, and its servers see callers whose addresses begin so."""
    found = [lab.exec(pod.pod, f"curl -sS --max-time 5 {IMPORT_NAME}", code=None) for pod in callers(lab)]
    answers = [json.loads(each) for each in found]
    return bool(answers) and all(each["cluster"] == cluster and each["caller"].startswith(caller) for each in answers)


def main() -> int:
    """Bring a lab up, change the policy again and again, take it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=4)
    wanted = parser.parse_args()
    lab = Running(Lab(lab_name("p"), 2, wanted.nodes))
    try:
        lab.cli("up", "--clusters", "2", "--nodes", str(wanted.nodes), "--from", str(FAILOVER))
        lab.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([CALLERS, policy("c1")]))
        until(lambda: len(callers(lab)) == wanted.nodes and all_see(lab, "c1", PODS), what="every node calls c1")
        longest = [measured(lab, callers(lab), "by the kernel", wanted.times)]
        if startup.envoy() is not None:
            lab.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(ROUTE))
            until(lambda: all_see(lab, "c1", NODES), what="every node's Envoy serves")
            longest.append(measured(lab, callers(lab), "through Envoy", wanted.times))
    finally:
        removal.remove(lab.lab)
    met = max(longest) < TARGET
    print(f"target: < {TARGET:g} s: {'met' if met else 'NOT met'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
