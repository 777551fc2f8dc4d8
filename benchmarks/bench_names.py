"""In a lab of two clusters: when a deleted import does not exist any more, and what a pod's first question gets.

    make bench-names                                # TIMES=20

deleted: from the moment at which somebody deletes a ServiceImport of c2 (its operator, which would make it again, is
paused) to the first NXDOMAIN in a pod of c2, which asks without a pause. started: pods whose program calls
getaddrinfo as the first thing it does, with the search domains and ndots:5 of every pod: whether each gets the
import's address, and how long the call takes. Ends with 1 where an answer is wrong or the aim of deletions is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import dns.message
import dns.rcode
from answers.names_node import within
from labs.lab_running import Running, lab_name, until
from machine import programs

from isthmus import kube
from isthmus.config import KubernetesSection
from isthmus.kube.objects.mcs import SERVICE_IMPORT
from isthmus_lab import pod_exec, removal
from isthmus_lab.demo.stage import IMPORT_NAME
from isthmus_lab.layout import Lab

ROOT: Final = Path(__file__).parents[1]
ECHO: Final = ROOT / "examples" / "echo"
OPERATOR: Final = "c2/operator"
IMAGE: Final = "bench/resolve"
AIM: Final = 0.1
"""Seconds from the deletion to NXDOMAIN, the slowest of all."""


def main() -> int:
    """Bring a lab up, measure, take it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    times = parser.parse_args().times
    lab = Running(Lab(lab_name("n"), 2, 1))
    with tempfile.TemporaryDirectory(dir="/opt") as directory:
        program = Path(directory) / "resolve"  # pods see the root file system, and no other mount
        source = ROOT / "tests" / "support" / "answers" / "resolve.c"
        subprocess.run([programs.path("gcc"), "-O1", "-o", str(program), str(source)], check=True)
        try:
            lab.cli("up", "--clusters", "2", "--from", str(ECHO), "--image", f"{IMAGE}={program}")
            lab.kubectl("apply", "-f", str(ECHO / "export"))
            until(lambda: imported(lab), what="c2 has the import")
            gone = deletions(lab, times)
            calls = started(lab, times, until(lambda: imported(lab), what="c2 has the import again"))
        finally:
            removal.remove(lab.lab)
    print(f"{times} deleted imports: NXDOMAIN after {figures(gone, 1_000)} ms")
    print(
        f"{times} pods, {len(calls)} with the import's address from their first call, which took {figures(calls, 1)} ms"
    )
    return int(max(gone) >= AIM or len(calls) < times)


def figures(numbers: list[float], scale: float) -> str:
    """Median and the highest."""
    return f"{statistics.median(numbers) * scale:.1f}, at most {max(numbers) * scale:.1f}" if numbers else "–"


def imported(lab: Running) -> str:
    """The address of the import in c2, which the name servers there have too."""
    found = json.loads(lab.kubectl("-n", "demo", "get", "svcim", "echo", "-o", "json", cluster="c2"))
    assert lab.exec("demo/client", f"getent ahosts {IMPORT_NAME}", cluster="c2").split()[0] == found["spec"]["ips"][0]
    return str(found["spec"]["ips"][0])


def deletions(lab: Running, times: int) -> list[float]:
    """Seconds from each deletion to NXDOMAIN."""
    cluster = lab.lab.clusters[1]
    pod = pod_exec.find(cluster, "demo/client")
    with within(Path(f"/proc/{pod.pid}/ns/net")):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.settimeout(1)
        sock.connect((cluster.schemes[0].cluster_dns, 53))
        return [deletion(lab, sock) for _ in range(times)]


def deletion(lab: Running, sock: socket.socket) -> float:
    """Seconds from one deletion to NXDOMAIN; the import is there again afterwards."""
    lab.cli("pause", OPERATOR)
    began = asyncio.run(deleted(lab))
    while code(sock) != dns.rcode.NXDOMAIN:
        pass
    took = time.monotonic() - began
    lab.cli("start", OPERATOR)
    while code(sock) != dns.rcode.NOERROR:
        time.sleep(0.05)
    return took


async def deleted(lab: Running) -> float:
    """When the import's deletion was asked for, once it is done."""
    section = KubernetesSection(kubeconfig=str(lab.lab.kubeconfig), context="c2")
    async with await kube.connect(section) as client:
        began = time.monotonic()
        assert await client.delete(SERVICE_IMPORT, "demo", "echo")
    return began


def code(sock: socket.socket) -> int:
    """The code of the answer to the import's name."""
    query = dns.message.make_query(IMPORT_NAME, "A")
    sock.send(query.to_wire())
    while not query.is_response(reply := dns.message.from_wire(sock.recv(512))):
        pass
    return int(reply.rcode())


def started(lab: Running, times: int, address: str) -> list[float]:
    """Milliseconds of the first call of pods that got the import's address by it."""
    lab.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": pods(times)}), cluster="c2"
    )
    phase = "jsonpath={.items[*].status.phase}"
    words = ("-n", "demo", "get", "pods", "-l", "app=resolve", "-o", phase)
    until(lambda: set(lab.kubectl(*words, cluster="c2").split()) <= {"Succeeded", "Failed"}, what="all pods have ended")
    logs = [lab.kubectl("-n", "demo", "logs", f"resolve-{n}", cluster="c2").split() for n in range(times)]
    return [float(log[-1]) for log in logs if log[0] == address]


def pods(times: int) -> list[dict[str, Any]]:
    """Pods that resolve the import and end."""
    container = {"name": "resolve", "image": IMAGE, "args": [IMPORT_NAME, "timed"]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    return [
        {"apiVersion": "v1", "kind": "Pod", "spec": spec}
        | {"metadata": {"name": f"resolve-{n}", "namespace": "demo", "labels": {"app": "resolve"}}}
        for n in range(times)
    ]


if __name__ == "__main__":
    sys.exit(main())
