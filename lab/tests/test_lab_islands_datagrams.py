"""Datagrams between two islands of a lab, by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from labs.lab_running import Running, running_islands, until

ECHO = Path(__file__).parents[2] / "examples" / "echo"
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: datagrams, namespace: demo}
spec:
  selector: {app: echo}
  ports: [{name: echo, port: 53, protocol: UDP, targetPort: 8080}]
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: datagrams, namespace: demo}
"""
CALL = """python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(10)
s.sendto(b"x", ("datagrams.demo.svc.clusterset.local", 53))
data, peer = s.recvfrom(2000)
print(peer[1], data.decode())
'"""


@pytest.fixture(scope="module")
def islands() -> Iterator[Running]:
    with running_islands("u", 2, ECHO) as running:
        yield running


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.needs("envoy")
def test_a_datagram_is_answered_by_a_pod_of_the_other_island(islands: Running, tmp_path: Path) -> None:
    (tmp_path / "service.yaml").write_text(SERVICE)
    islands.kubectl("apply", "-f", str(tmp_path / "service.yaml"), cluster="c2")
    words = ("-n", "demo", "get", "serviceimport", "datagrams", "-o", "jsonpath={.status.conditions[*].type}")
    until(lambda: "UDPThroughGateways" in islands.kubectl(*words, cluster="c1"), what="the condition")
    answer = until(lambda: islands.exec("demo/client", CALL, cluster="c1"), what="an answer")
    port, _, found = answer.partition(" ")
    assert port == "53", "the client sees the address that it called"
    assert (json.loads(found)["cluster"], json.loads(found)["protocol"]) == ("c2", "UDP")
