"""Two clusters of both families, one with IPv4 first, one with IPv6: pods, Services, names and imports, called in each.

c1 has the pod and exports its Services; c2 only calls.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labs.host_packets import Watched
from labs.lab_running import Running, invoked, lab_name, until
from labs.lab_traces import host_network, traces

from isthmus.model.names import ServiceName, derived
from isthmus_lab import removal
from isthmus_lab.layout import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.needs("dig")]

MANIFESTS = Path(__file__).parent / "manifests" / "dual"
CLIENT = "demo/client"
OURS, THEIRS = "svc.cluster.local", "svc.clusterset.local"


@pytest.fixture(scope="module")
def lab(own_host: None) -> Iterator[Running]:
    running = Running(Lab(lab_name("d"), 2, families=(("IPv4", "IPv6"), ("IPv6", "IPv4"))))
    before = host_network()
    try:
        families = ("--ip-families=IPv4,IPv6", "--ip-families=c2=IPv6,IPv4")
        running.cli("up", "--clusters", "2", *families, f"--from={MANIFESTS}")
        until(lambda: ready(running), what="the pods")
        yield running
    finally:
        removal.remove(running.lab)
    assert host_network() == before
    assert traces(running.lab) == {name: [] for name in traces(running.lab)}


def ready(lab: Running) -> bool:
    pods = [pod for cluster in ("c1", "c2") for pod in got(lab, "pods", cluster=cluster)["items"]]
    states = [{c["type"]: c["status"] for c in pod.get("status", {}).get("conditions", ())} for pod in pods]
    return len(pods) == 3 and all(state.get("Ready") == "True" for state in states)


def got(lab: Running, *words: str, cluster: str = "c1") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.kubectl("-n", "demo", "get", *words, "-o", "json", cluster=cluster))
    return found


def addresses(lab: Running, name: str, *, cluster: str = "c1") -> list[str]:
    """A pod's."""
    return [each["ip"] for each in got(lab, "pod", name, cluster=cluster)["status"]["podIPs"]]


def called(lab: Running, *urls: str, pod: str = CLIENT, cluster: str = "c1") -> list[dict[str, str]]:
    """The pod that answers each URL, once one does; a URL that begins with 4 or 6 is called in that family."""
    script = "".join(f"until curl -s{url[0]} -m5 {url[1:]}; do sleep 0.1; done; " for url in urls)
    return [json.loads(line) for line in lab.exec(pod, script, cluster=cluster).splitlines()]


def dig(lab: Running, *questions: str, cluster: str = "c1") -> list[str]:
    """One answer to each."""
    script = f"dig +short +time=2 +tries=2 {' '.join(questions)}"
    return until(lambda: lab.exec(CLIENT, script, cluster=cluster, code=None).split(), what=script)  # type: ignore[no-any-return]


def test_pods_and_nodes_have_an_address_of_each_family_in_their_clusters_order(lab: Running) -> None:
    for cluster, mine in (("c1", ["10.1.1.", "fd00:10:1:1::"]), ("c2", ["fd00:10:2:1::", "10.2.1."])):
        status = got(lab, "pod", "client", cluster=cluster)["status"]
        ips = [each["ip"] for each in status["podIPs"]]
        assert status["podIP"] == ips[0]
        assert [ip.startswith(begins) for ip, begins in zip(ips, mine, strict=True)] == [True, True]
        assert lab.exec(CLIENT, "echo $MINE", cluster=cluster).strip() == ",".join(ips)
        node = got(lab, "node", f"{cluster}-n1", cluster=cluster)
        inside = [each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"]
        assert inside == [each["ip"] for each in status["hostIPs"]]
        nets = map(ipaddress.ip_network, node["spec"]["podCIDRs"])
        assert all(ip in net for ip, net in zip(map(ipaddress.ip_address, ips), nets, strict=True))


def test_a_service_is_called_in_both_families_and_the_pod_sees_the_callers_own_address(lab: Running) -> None:
    output = called(lab, "4web", "6web", "4four", "6six")
    mine = addresses(lab, "client")
    assert [each["caller"] for each in output] == [*mine, *mine]


def test_a_pod_reaches_itself_and_a_node_port_answers_in_both_families(lab: Running) -> None:
    assert [each["pod"] for each in called(lab, "4web", "6web", pod="demo/db-0")] == ["db-0"] * 2
    ports = ("4172.30.1.11:30080", "6[fd00:172:30:1::11]:30080")
    assert [each["pod"] for each in called(lab, *ports)] == ["db-0"] * 2


def test_a_service_address_without_endpoints_refuses_at_once(lab: Running) -> None:
    spec = {"ipFamilyPolicy": "RequireDualStack", "selector": {"app": "nobody"}, "ports": [{"port": 80}]}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "nobody"}, "spec": spec}
    lab.kubectl("-n", "demo", "apply", "-f", "-", stdin=json.dumps(body))
    four, six = got(lab, "service", "nobody")["spec"]["clusterIPs"]
    assert lab.exec(CLIENT, f"curl -s -m30 {four}; echo $?; curl -s -m30 [{six}]; echo $?").split() == ["7", "7"]


def test_the_cluster_dns_knows_both_families_on_both_its_addresses_and_a_pod_by_its_name(lab: Running) -> None:
    web, pod = got(lab, "service", "web")["spec"]["clusterIPs"], addresses(lab, "db-0")
    asked = []
    for server in ("@10.96.0.10", "@fd00:10:96::10"):
        asked += [f"{server} web.demo.{OURS} {kind}" for kind in ("A", "AAAA")]
        asked += [f"{server} db-0.db.demo.{OURS} {kind}" for kind in ("A", "AAAA")]
        asked += [f"{server} -x {ip}" for ip in web]
    wanted = [*web, *pod, f"web.demo.{OURS}.", f"web.demo.{OURS}."] * 2
    until(lambda: dig(lab, *asked) == wanted, what="every answer")
    assert f"db-0.db.demo.{OURS}." in dig(lab, f"-x {pod[1]}"), "it is behind the derived Service, too"


def test_an_import_has_an_address_of_each_family_and_slices_of_each(lab: Running) -> None:
    for name, families in (("web", ["IPv4", "IPv6"]), ("six", ["IPv6"])):
        until(
            lambda name=name, families=families: len(imported(lab, name)["ips"]) == len(families),  # type: ignore[misc]
            what=f"{name}'s addresses",
        )
        found = imported(lab, name)
        assert found["ipFamilies"] == families
        assert [f"IPv{ipaddress.ip_address(ip).version}" for ip in found["ips"]] == families
        behind = derived(ServiceName(f"demo/{name}")).partition("/")[2]
        spec = got(lab, "service", behind, cluster="c2")["spec"]
        assert (sorted(spec["ipFamilies"]), set(spec["clusterIPs"])) == (families, set(found["ips"]))
        until(lambda behind=behind, families=families: slices(lab, behind) == families, what="slices")  # type: ignore[misc]


def imported(lab: Running, name: str) -> dict[str, Any]:
    """Spec of an import in c2."""
    found: dict[str, Any] = got(lab, "serviceimport", name, cluster="c2")["spec"]
    return found


def slices(lab: Running, service: str) -> list[str]:
    """Families of the slices of a Service of c2."""
    words = ("endpointslices", "-l", f"kubernetes.io/service-name={service}")
    return sorted(each["addressType"] for each in got(lab, *words, cluster="c2")["items"])


def test_an_import_is_called_by_name_from_the_other_cluster_in_both_families(lab: Running) -> None:
    web, six = f"web.demo.{THEIRS}", f"six.demo.{THEIRS}"
    first, second = addresses(lab, "client", cluster="c2")

    def counted() -> set[str]:
        output = called(lab, f"4{web}", f"6{web}", f"6{six}", cluster="c2")
        assert [(each["cluster"], each["caller"]) for each in output] == [("c1", second), ("c1", first), ("c1", first)]
        maps = json.loads(lab.isthmus("bpf", "maps", "-o", "json", cluster="c2"))
        return {row["service"].rpartition("/")[2] for row in maps["counters"] if row["verdict"] == "called"}

    until(lambda: counted() == {"IPv4", "IPv6"}, what="the kernel sends them, not the rules of plain Services")
    explained = lab.isthmus("explain", "-n", "demo", "web", cluster="c2")
    assert "80/TCP IPv4 at 10.96." in explained
    assert "80/TCP IPv6 at [fd00:10:96::" in explained


def test_names_of_the_clusterset_are_answered_whichever_address_of_the_cluster_dns_is_asked(lab: Running) -> None:
    ips = got(lab, "serviceimport", "web", cluster="c2")["spec"]["ips"]
    pod = addresses(lab, "db-0")
    asked = []
    for server in ("@10.96.0.10", "@fd00:10:96::10"):
        asked += [f"{server} web.demo.{THEIRS} {kind}" for kind in ("A", "AAAA")]
        asked += [f"{server} db-0.c1.db.demo.{THEIRS} {kind}" for kind in ("A", "AAAA")]
        asked += [f"{server} -x {ip}" for ip in ips]
    wanted = [*ips, *pod, f"web.demo.{THEIRS}.", f"web.demo.{THEIRS}."] * 2
    until(lambda: dig(lab, *asked, cluster="c2") == wanted, what="every answer")
    assert "nameserver fd00:10:96::10\n" in lab.exec(CLIENT, "cat /etc/resolv.conf", cluster="c2")


def test_no_packet_of_ipv6_leaves_the_lab(lab: Running) -> None:
    with Watched() as watched:
        output = lab.exec(
            CLIENT, "curl -s6 -m1 [2001:db8::1]; curl -s6 -m1 [fd00:10:96::dead]; curl -s6 -m1 web >&2; echo end"
        )
    assert output == "end\n"
    assert watched.found == []


def test_both_families_are_verified_between_every_pair(lab: Running) -> None:
    done = invoked(["verify", "--lab", lab.lab.name, "--timeout", "90"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        [source, target, each, *["ok"] * 4, "local" if source == target else "direct"]
        for source in ("c1", "c2")
        for target, families in (("c1", ("IPv4", "IPv6")), ("c2", ("IPv6", "IPv4")))
        for each in families
    ]
