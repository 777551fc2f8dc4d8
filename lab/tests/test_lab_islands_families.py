"""Islands of both families and of IPv6 alone: followed, called by import and by the names of pods, through gateways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import IPv6Network, ip_address
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import Running, lab_name, until

from isthmus.config import GatewaySection
from isthmus_lab import removal
from isthmus_lab.families import Families
from isthmus_lab.layout import Lab

EXAMPLES = Path(__file__).parents[2] / "examples"
FAMILIES: tuple[Families, ...] = (("IPv4", "IPv6"), ("IPv4", "IPv6"), ("IPv6",))
ECHO, DB = "echo.demo.svc.clusterset.local", "db.demo.svc.clusterset.local:8080"
[STAND_INS] = [IPv6Network(each) for each in GatewaySection().pod_addresses if ":" in each]

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.needs("envoy")]


@pytest.fixture(scope="module")
def islands() -> Iterator[Running]:
    """c1 and c2 have both families, c3 has IPv6; c1 exports echo, of both families, and all a headless db."""
    running = Running(Lab(lab_name("k"), 3, 1, ("island",), FAMILIES))
    families = ("--ip-families", "IPv4,IPv6", "--ip-families", "c3=IPv6")
    try:
        running.cli("up", "--clusters", "3", "--network", "island", *families, "--from", str(EXAMPLES / "headless"))
        for cluster in ("c1", "c2", "c3"):
            running.kubectl("apply", "-f", str(EXAMPLES / "headless" / "export"), cluster=cluster)
        for part in ("c1", "export"):
            running.kubectl("apply", "-f", str(EXAMPLES / "echo" / part))
        yield running
    finally:
        removal.remove(running.lab)


def called(islands: Running, cluster: str, family: int, name: str) -> tuple[str, str]:
    """(cluster, pod) that answers a call of a name in a family; nothing where none does."""
    script = f"curl -s -{family} -m30 http://{name}/"
    output = islands.exec("demo/client", script, cluster=cluster, code=None)
    found: dict[str, Any] = json.loads(output) if output.startswith("{") else {}
    return found.get("cluster", ""), found.get("pod", "")


@pytest.mark.parametrize(("cluster", "family"), [("c2", 4), ("c2", 6), ("c3", 6)])
def test_an_import_is_called_in_each_family_that_the_caller_has(islands: Running, cluster: str, family: int) -> None:
    until(lambda: called(islands, cluster, family, ECHO)[0] == "c1", what="c1 answers")


@pytest.mark.parametrize(("cluster", "of"), [("c1", "c2"), ("c1", "c3"), ("c3", "c1")])
def test_a_pod_is_called_by_its_name_in_ipv6_whichever_family_it_has_itself(
    islands: Running, cluster: str, of: str
) -> None:
    """Pods have only the family of their Service: IPv4 in c1 and c2, IPv6 in c3."""
    for pod in ("db-0", "db-1"):
        name = f"{pod}.{of}.{DB}"
        until(lambda name=name, pod=pod: called(islands, cluster, 6, name) == (of, pod), what=name)  # type: ignore[misc]
        host = name.partition(":")[0]
        found = islands.exec("demo/client", f"getent ahostsv6 {host} | cut -d' ' -f1", cluster=cluster).split()
        assert len({*found}) == 1
        assert ip_address(found[0]) in STAND_INS


def test_an_island_of_ipv6_is_followed_through_its_gateways_and_follows_others(islands: Running) -> None:
    """Machines have an address of every family of the lab; a gateway is published at its cluster's primary one."""
    for cluster, peer, at in (("c1", "c3", "[fd00:172:30:3::11]"), ("c3", "c1", "172.30.1.11")):
        rows = json.loads(islands.isthmus("get", "clusters", "-o", "json", cluster=cluster))["rows"]
        [row] = [each for each in rows if each["name"] == peer]
        assert (row["state"], row["endpoints"]) == ("ready", [f"https://{at}:15443"])
