"""The shares in a policy's status are those of calls: in each family, to an island, by the kernel and by a route."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from labs.lab_running import Running, lab_name, until

from isthmus_lab import removal
from isthmus_lab.families import Families
from isthmus_lab.layout import Lab, Network

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
FAMILIES: Final[tuple[Families, ...]] = (("IPv4", "IPv6"), ("IPv6",), ("IPv4", "IPv6"))
NETWORKS: Final[tuple[Network, ...]] = ("flat", "flat", "island")
BATCH: Final = 1_000
CALLS: Final = {"IPv4": 10_000, "IPv6": 10_000, "route": 3_000}
"""Two points are four standard deviations of 10,000 calls by the kernel's random choice; Envoy takes turns."""
WITHIN: Final = 0.02
POLICY: Final = """
apiVersion: isthmus.io/v1alpha1
kind: TrafficPolicy
metadata: {name: echo, namespace: demo}
spec:
  targetRef: {kind: ServiceImport, name: echo}
  tiers:
    - clusters: [{name: c1, weight: 50}, {name: c2, weight: 30}, {name: c3, weight: 20}]
  healthCheck: {type: TCP, intervalSeconds: 1, unhealthyThreshold: 2}
"""
ROUTE: Final = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: echo, namespace: demo}
spec:
  parentRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: echo}]
  rules: [{backendRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: echo, port: 80}]}]
"""

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.needs("envoy", "kubectl"), pytest.mark.timeout(1_500)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    """c1 calls, with both families; c2 has IPv6 alone; c3 is an island. All export echo, with two pods each."""
    running = Running(Lab(lab_name("m"), 3, 1, NETWORKS, FAMILIES))
    words = ("--ip-families", "IPv4,IPv6", "--ip-families", "c2=IPv6", "--network", "c3=island")
    try:
        running.cli("up", "--clusters", "3", *words, "--from", str(EXAMPLES / "echo"))
        for cluster in ("c1", "c2", "c3"):
            running.kubectl("apply", "-f", str(EXAMPLES / "echo" / "c1"), cluster=cluster)
            running.kubectl("apply", "-f", str(EXAMPLES / "echo" / "export"), cluster=cluster)
        running.kubectl("apply", "-f", "-", stdin=POLICY)
        yield running
    finally:
        removal.remove(running.lab)


def status(lab: Running) -> dict[str, dict[str, float]]:
    """The shares in the policy's status, by family."""
    text = lab.kubectl("-n", "demo", "get", "trafficpolicy", "echo", "-o", "jsonpath={.status.shares}")
    found = {}
    for part in text.split("; "):
        family, _, shares = part.rpartition(": ")
        found[family] = {name: float(percent) / 100 for name, percent in re.findall(r"(c\d) ([\d.]+)%", shares)}
    return found


def measured(lab: Running, calls: int, family: int) -> dict[str, float]:
    """The part of calls that each cluster answered, a connection each; every call is answered."""
    url = f"http://echo.demo.svc.clusterset.local/?n=[1-{BATCH}]"
    script = f"curl -sS -{family} -m30 -H 'Connection: close' '{url}' | grep -o '\"cluster\": *\"[^\"]*\"'"
    seen: Counter[str] = Counter()
    for _ in range(calls // BATCH):
        seen.update(line.split('"')[3] for line in lab.exec("demo/client", script).splitlines())
    assert seen.total() == calls
    return {name: count / calls for name, count in seen.items()}


def agrees(part: dict[str, float], expected: dict[str, float]) -> bool:
    return all(abs(part.get(name, 0.0) - expected.get(name, 0.0)) <= WITHIN for name in {*part, *expected})


def test_calls_have_the_shares_of_the_status_in_each_family_and_by_a_route(lab: Running) -> None:
    shares = until(
        lambda: found if {*(found := status(lab)).get("IPv6", {})} == {"c1", "c2", "c3"} else None, what="all shares"
    )
    assert shares["IPv4"] == {"c1": pytest.approx(5 / 7, abs=0.001), "c3": pytest.approx(2 / 7, abs=0.001)}
    assert shares["IPv6"] == {"c1": 0.5, "c2": 0.3, "c3": 0.2}
    for family in (4, 6):
        until(lambda family=family: agrees_roughly(lab, family), what=f"calls by IPv{family}")  # type: ignore[misc]
        part = measured(lab, CALLS[f"IPv{family}"], family)
        assert agrees(part, shares[f"IPv{family}"]), part
    lab.kubectl("apply", "-f", "-", stdin=ROUTE)
    until(lambda: {*measured(lab, BATCH, 4)} == {"c1", "c2", "c3"}, what="the route")
    part = measured(lab, CALLS["route"], 4)
    assert agrees(part, shares["IPv6"]), part


def agrees_roughly(lab: Running, family: int) -> bool:
    """True once the node's plan has every cluster."""
    return {*measured(lab, BATCH, family)} == {*status(lab)[f"IPv{family}"]}


def test_the_status_follows_a_failover_as_calls_do(lab: Running) -> None:
    """An island whose gateway is killed, then a cluster that is cut off: its backends answer no probe."""
    lab.cli("kill", "c3/n1/gateway-envoy")
    until(
        lambda: by_ipv6(status(lab)) == {"c1": pytest.approx(5 / 8, abs=0.001), "c2": pytest.approx(3 / 8, abs=0.001)}
    )
    until(lambda: {*measured(lab, BATCH, 6)} == {"c1", "c2"}, what="no call to c3")
    lab.cli("cut", "c1", "c2")
    until(lambda: by_ipv6(status(lab)) == {"c1": 1.0}, what="c1 alone in the status")
    until(lambda: {*measured(lab, BATCH, 6)} == {"c1"}, what="no call to c2")
    lab.cli("heal", "c1", "c2")
    lab.cli("start", "c3/n1/gateway-envoy")
    until(lambda: by_ipv6(status(lab)) == {"c1": 0.5, "c2": 0.3, "c3": 0.2}, what="all shares again")


def by_ipv6(shares: dict[str, dict[str, float]]) -> dict[str, float]:
    """The shares by IPv6; families that agree are shown once."""
    return shares.get("IPv6") or shares.get("", {})
