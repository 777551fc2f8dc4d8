"""Packets on the fabric between islands while one calls the other."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from labs.fabric_packets import Captured
from labs.lab_running import Running, running_islands, until

ECHO = Path(__file__).parents[2] / "examples" / "echo"
GATEWAY = 15_443


@pytest.fixture
def islands() -> Iterator[Running]:
    """Two of them; c1 exports echo, which c2 has no pods of."""
    with running_islands("y", 2, ECHO, "c1") as running:
        yield running


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.needs("envoy")
def test_no_byte_of_a_call_and_no_pod_address_crosses_the_fabric_in_clear(islands: Running) -> None:
    """The calls appear in clear within the caller's node, which shows that they would be found."""
    url, mark = "http://echo.demo.svc.clusterset.local", secrets.token_hex(16)
    until(lambda: '"c1"' in islands.exec("demo/client", f"curl -sm30 {url}", cluster="c2"), what="c1 answers")
    node = islands.lab.clusters[1].nodes[0]
    with Captured(islands.lab.fabric) as fabric, Captured(node.namespace) as caller:
        each = f"for i in 1 2 3 4 5; do curl -sm30 {url}/{mark} -H 'x-mark: {mark}'; echo; done"
        answers = {line for line in islands.exec("demo/client", each, cluster="c2").splitlines() if line}
    assert len(answers) >= 1
    for text in (mark.encode(), *(answer.encode() for answer in answers)):
        assert caller.having(text) > 0
        assert fabric.having(text) == 0
    assert GATEWAY in fabric.ports()
    pods = [ip_network(f"10.{number}.0.0/16") for number in range(1, 10)]
    assert not [each for each in fabric.addresses() if any(ip_address(each) in network for network in pods)]
