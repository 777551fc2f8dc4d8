"""The server's link-local address answers pods of the node, and no packet that comes to it over an uplink."""

from __future__ import annotations

import os
import sys

import pytest
from datapath_worlds.uplink_node import ADDRESS, UplinkNode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: needs root")

ASK = """
import socket, sys, dns.message, dns.query
query = dns.message.make_query("echo.demo.svc.clusterset.local", "A")
if sys.argv[2] == "udp":
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(float(sys.argv[3]))
        sock.connect((sys.argv[1], 53))
        sock.send(query.to_wire())
        try:
            print(dns.message.from_wire(sock.recv(512)).answer[0][0])
        except TimeoutError:
            print("nothing")
else:
    try:
        print(dns.query.tcp(query, sys.argv[1], timeout=float(sys.argv[3])).answer[0][0])
    except dns.exception.Timeout:
        print("nothing")
"""


def ask(node: UplinkNode, namespace: str, transport: str, *, patience: float = 10.0) -> str:
    """What a question from a namespace gets."""
    return node.run(namespace, sys.executable, "-c", ASK, ADDRESS, transport, str(patience))


@pytest.mark.parametrize("uplinks", ["auto", "eth0"])
@pytest.mark.parametrize("transport", ["udp", "tcp"])
@pytest.mark.slow
def test_a_neighbour_on_an_uplink_is_not_answered_and_a_pod_is(
    uplink_node: UplinkNode, transport: str, uplinks: str
) -> None:
    uplink_node.serve("answers.dns_serve", ADDRESS, uplinks)
    assert ask(uplink_node, uplink_node.pod, transport) == "10.96.0.7"
    assert ask(uplink_node, uplink_node.neighbour, transport, patience=0.5) == "nothing"


def test_where_no_uplink_is_configured_everybody_is_answered(uplink_node: UplinkNode) -> None:
    uplink_node.serve("answers.dns_serve", ADDRESS, "")
    assert ask(uplink_node, uplink_node.neighbour, "udp") == "10.96.0.7"
