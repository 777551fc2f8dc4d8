"""Envoy answers pods of its node, and no packet that comes to its address over an uplink."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import yaml
from datapath_worlds.uplink_node import ADDRESS, UplinkNode
from machine import programs
from meshes.proxy_serve import DATAGRAMS, PORT

DEPLOY = Path(__file__).parents[2] / "deploy" / "routes" / "envoy.yaml"
pytestmark = [
    pytest.mark.needs("envoy"),
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: needs root"),
]


SEND = f"""
import socket, sys, time
ends = time.monotonic() + float(sys.argv[1])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
    asking.settimeout(0.25)
    while time.monotonic() < ends:
        asking.sendto(b"answered", ("{ADDRESS}", {DATAGRAMS}))
        try:
            print(asking.recv(100).decode())
            break
        except TimeoutError:
            pass
"""
"""Sends a datagram every 0.25 s until one comes back or a time is over."""


def deployed() -> list[str]:
    """The capabilities that ``deploy/`` gives the container."""
    [daemon_set] = [each for each in yaml.safe_load_all(DEPLOY.read_text()) if each["kind"] == "DaemonSet"]
    [container] = daemon_set["spec"]["template"]["spec"]["containers"]
    context = container["securityContext"]
    assert (context["runAsUser"], context["allowPrivilegeEscalation"], "privileged" in context) == (0, False, False)
    assert context["capabilities"]["drop"] == ["ALL"]
    return list(context["capabilities"]["add"])


def ask(node: UplinkNode, namespace: str, *, patience: float = 60.0) -> str:
    """What a call from a namespace gets: the answer, or curl's exit status (28: no answer in that time)."""
    url = f"http://{ADDRESS}:{PORT}/"
    call = f"{programs.path('curl')} -sS --max-time {patience} {url} 2>/dev/null || echo $?"
    return node.run(namespace, "sh", "-c", call)


@pytest.mark.slow
def test_a_neighbour_on_an_uplink_does_not_reach_envoy_and_a_pod_does(uplink_node: UplinkNode, tmp_path: Path) -> None:
    uplink_node.serve("meshes.proxy_serve", str(tmp_path / "envoy"), "auto", capabilities=deployed())
    assert ask(uplink_node, uplink_node.pod) == "answered"
    deadline = time.monotonic() + 90
    while ask(uplink_node, uplink_node.neighbour, patience=1.0) != "28":  # from the supervisor's next look on
        assert time.monotonic() < deadline
    assert ask(uplink_node, uplink_node.pod) == "answered"
    uplink_node.ask_server("replace", answer="replaced ")
    assert [ask(uplink_node, uplink_node.neighbour, patience=0.5) for _ in range(4)] == ["28"] * 4
    assert ask(uplink_node, uplink_node.pod) == "answered"


def datagram(node: UplinkNode, namespace: str, *, patience: float) -> str:
    """What comes back to a namespace for a datagram, within a time in seconds; empty: nothing."""
    return node.run(namespace, sys.executable, "-c", SEND, str(patience))


@pytest.mark.slow
def test_a_datagram_of_a_neighbour_does_not_reach_envoy_and_one_of_a_pod_does(
    uplink_node: UplinkNode, tmp_path: Path
) -> None:
    uplink_node.serve("meshes.proxy_serve", str(tmp_path / "envoy"), "auto", capabilities=deployed())
    assert datagram(uplink_node, uplink_node.pod, patience=60) == "answered"
    deadline = time.monotonic() + 90
    while datagram(uplink_node, uplink_node.neighbour, patience=1):  # from the supervisor's next look on
        assert time.monotonic() < deadline
    assert datagram(uplink_node, uplink_node.pod, patience=60) == "answered"
    uplink_node.ask_server("replace", answer="replaced ")
    assert [datagram(uplink_node, uplink_node.neighbour, patience=0.5) for _ in range(4)] == [""] * 4
    assert datagram(uplink_node, uplink_node.pod, patience=60) == "answered"


def test_where_no_uplink_is_configured_neighbours_are_answered(uplink_node: UplinkNode, tmp_path: Path) -> None:
    uplink_node.serve("meshes.proxy_serve", str(tmp_path / "envoy"), "")
    assert ask(uplink_node, uplink_node.neighbour) == "answered"
    assert datagram(uplink_node, uplink_node.neighbour, patience=60) == "answered"
