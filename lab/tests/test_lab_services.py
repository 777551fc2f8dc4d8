"""Services on the nodes of a lab: session affinity, datagrams, addresses of load balancers."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest
import yaml
from labs.lab_running import Running, until

pytestmark = [pytest.mark.lab, pytest.mark.slow]

STAY = 3
ECHO = """\
import os, socket
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.bind(("", 8053))
while True:
    _, who = here.recvfrom(99)
    here.sendto(os.environ["HOSTNAME"].encode(), who)
"""
ASK = """\
import socket, sys
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.settimeout(0.2)
here.connect((sys.argv[1], 53))
for _ in sys.stdin:
    output = "nobody"
    for _ in range(300):
        try:
            here.send(b"?")
            output = here.recv(99).decode()
        except (TimeoutError, ConnectionRefusedError):
            continue
        break
    print(output, flush=True)
"""


def workload(name: str, container: dict[str, Any], **service: Any) -> list[dict[str, Any]]:
    labels, meta = {"app": name}, {"name": name}
    pod = {"containers": [{"name": "main", **container}], "terminationGracePeriodSeconds": 1}
    spec = {
        "replicas": 3,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selector": labels, **service}},
    ]


def pod(name: str, image: str) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "image": image}], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def served(clusters: Running) -> Running:
    probe = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    named = [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    web = {"image": "isthmus/echo", "readinessProbe": probe, "env": named}
    short = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": STAY}}}
    lasting = {"selector": {"app": "web"}, "type": "LoadBalancer", "sessionAffinity": "ClientIP"}
    ports = [{"port": 80, "targetPort": 8080}]
    names = {"image": "python", "command": ["python3", "-c", ECHO]}
    datagrams = [{"port": 53, "targetPort": 8053, "protocol": "UDP"}]
    objects = [
        *workload("web", web, ports=ports, **short),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "lasting"}, "spec": {**lasting, "ports": ports}},
        *workload("names", names, ports=datagrams),
        pod("client", "isthmus/client"),
    ]
    clusters.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))
    for name in ("web", "names"):
        clusters.kubectl("rollout", "status", f"deployment/{name}", "--timeout=180s")
    clusters.kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=180s")
    return clusters


def answers(served: Running, address: str, times: int) -> list[str]:
    script = f"for i in $(seq {times}); do curl -sm30 http://{address} || echo '{{}}'; echo; done"
    lines = served.exec("default/client", script).splitlines()
    return [json.loads(line).get("pod", "nobody") for line in lines if line]


def test_a_client_stays_by_whichever_address_and_when_others_go(served: Running) -> None:
    balancer = served.kubectl("get", "service", "lasting", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
    (mine,) = set(answers(served, "lasting", 8) + answers(served, balancer, 8))
    pods = served.kubectl("get", "pods", "-l", "app=web", "-o", "name").split()
    other = next(name for name in pods if name != f"pod/{mine}")
    served.kubectl("delete", other, "--wait=false")
    until(
        lambda: (
            set(answers(served, "lasting", 2)) == {mine} and other not in served.kubectl("get", "pods", "-o", "name")
        )
    )
    served.kubectl("rollout", "status", "deployment/web", "--timeout=180s")
    assert set(answers(served, "lasting", 8)) == {mine}


def test_a_client_is_anybodys_again_when_its_time_is_up(served: Running) -> None:
    seen = set()
    for _ in range(20):  # always the same of three by chance: once in 10^9 runs
        seen.update(answers(served, "web", 1))
        if len(seen) > 1:
            return
        time.sleep(STAY + 0.5)
    pytest.fail(f"always {seen}")


def test_datagrams_of_a_socket_go_elsewhere_when_their_pod_goes(served: Running) -> None:
    address = served.kubectl("get", "service", "names", "-o", "jsonpath={.spec.clusterIP}")
    command = [*served.kubectl_command(), "exec", "-i", "client", "--", "python3", "-c", ASK, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asking:

        def ask() -> str:
            assert asking.stdin is not None
            assert asking.stdout is not None
            asking.stdin.write("\n")
            asking.stdin.flush()
            return asking.stdout.readline().strip()

        first = ask()
        served.kubectl("delete", "pod", first, "--wait=true")
        assert ask() not in (first, "nobody", "")
        asking.kill()
