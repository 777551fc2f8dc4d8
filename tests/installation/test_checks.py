"""Judgements of ``isthmus check``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from isthmus.cli import checking
from isthmus.installation import checks, reading, rendering, shipped
from isthmus.installation import plan as planning
from isthmus.installation.checks import Right
from isthmus.installation.facts import Facts, Known, Observed
from isthmus.installation.plan import Flags, Plan

DEPLOY = shipped.directory("deploy")
NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
FACTS = Facts(
    version=Known(("v1.34.4",), "/version"),
    uid="0",
    dns=Known(("10.96.0.10",), "Service kube-system/kube-dns"),
    kernels=Known(("6.1.0 (2)",), "Nodes"),
    pods=Known(("10.1.0.0/16",), "kubeadm"),
    services=Known(("10.96.0.0/16",), "kubeadm"),
    proxy=Known(("iptables",), "kube-proxy"),
    load_balancer=Known(("MetalLB",), "DaemonSets"),
)


def planned(facts: Facts = FACTS, **flags: str) -> Plan:
    settings = {f"ISTHMUS_{name.upper()}": value for name, value in flags.items()}
    return planning.plan(facts, Flags(context="c1", settings=settings), DEPLOY)


def test_a_pods_resolv_conf_is_judged_as_the_agents_judge_it() -> None:
    text = "search demo.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.{}\n"
    right = checking.resolver("c1", text.format("10"), planned())
    wrong = checking.resolver("c1", text.format("11"), planned())
    assert (right.state, right.text) == ("ok", "pods ask 10.96.0.10, and search cluster.local")
    assert wrong.state == "fault"
    assert "pods of this node ask 10.96.0.11 for names, and dns.cluster_dns has 10.96.0.10" in wrong.text
    assert wrong.cure == "isthmus install --context c1 --set dns.cluster_dns=10.96.0.11"
    assert checking.resolver("c1", "nameserver 8.8.8.8\n", planned()).state == "warning"


def test_a_pods_pause_of_multipath_tcp_is_named_where_connects_are_moved() -> None:
    [check] = checking.multipath("c1", "3600", planned())
    assert (check.state, check.text.split(" after")[0]) == ("warning", "off in a pod for 3600 s")
    assert "net.mptcp.blackhole_timeout=0" in check.cure
    assert [each.state for each in checking.multipath("c1", "0", planned())] == ["ok"]
    assert checking.multipath("c1", "", planned()) == []
    assert checking.multipath("c1", "3600", planned(datapath_rescue="off")) == []


def test_clocks_are_compared_with_that_of_the_api_server() -> None:
    def states(skew: float, *ages: float) -> list[str]:
        server = NOW - timedelta(seconds=skew)
        renewals = {f"n{number}": server - timedelta(seconds=age) for number, age in enumerate(ages)}
        return [each.state for each in checks.of_clocks("c1", skew, renewals, NOW)]

    assert states(0, 3, 9) == ["ok"]
    assert states(30, 3, 9) == ["ok"]
    assert states(90, 3) == ["fault"]
    assert states(-3600, 3) == ["fault"]
    assert states(0, 3, -20) == ["fault"]
    assert states(0, 3, 300) == ["warning"]


def test_problems_of_agents_name_their_nodes_once() -> None:
    problem = "datapath.cgroup /x has none of this node's 3 pods"
    statuses: dict[str, dict[str, list[str]]] = {
        "n1": {"problems": [problem]},
        "n2": {"problems": []},
        "n3": {"problems": [problem]},
    }
    [found] = checks.of_agents("c1", statuses, 3)
    assert (found.state, found.text) == ("fault", f"n1, n3: {problem}")
    [lacking] = checks.of_agents("c1", {"n1": {"problems": []}}, 2)
    assert lacking.text == "1 of 2 nodes have an agent that answers"
    assert [each.state for each in checks.of_agents("c1", {"n1": {"problems": []}}, 1)] == ["ok"]


def test_a_node_without_the_name_servers_address_is_named() -> None:
    shown = {"n1": "1: lo    inet 169.254.7.1/32 scope host lo", "n2": "1: lo    inet 127.0.0.1/8 scope host lo"}
    found = checks.of_address("c1", shown, ["169.254.7.1"])
    assert (found.state, found.text) == ("fault", "n2: no 169.254.7.1 on lo")
    assert checks.of_address("c1", {"n1": shown["n1"]}, ["169.254.7.1"]).state == "ok"


def test_packets_that_do_not_pass_are_a_fault_unless_the_clusters_are_islands() -> None:
    assert checks.of_packets("c1", "c2", "", islands=False).state == "ok"
    assert checks.of_packets("c1", "c2", "timed out", islands=False).state == "fault"
    assert checks.of_packets("c1", "c2", "timed out", islands=True).state == "ok"


def test_the_rights_of_each_account_are_those_of_its_roles() -> None:
    rights = checks.account_rights(rendering.render(DEPLOY))
    assert {"isthmus-agent", "isthmus-operator", "isthmus-keys"} <= rights.keys()
    assert Right("list", "discovery.k8s.io", "endpointslices") in rights["isthmus-agent"]
    assert Right("create", "coordination.k8s.io", "leases", "isthmus-system") in rights["isthmus-operator"]
    denied = checks.of_rights("c1", "isthmus-agent", [Right("list", "", "pods")], 9)
    assert (denied.state, denied.text) == ("fault", "isthmus-agent lacks 1 of 9: list pods")


def test_what_speaks_against_a_plan_is_a_fault_and_what_is_odd_a_warning() -> None:
    assert [each.state for each in checks.of_facts("c1", FACTS, planned())] == ["ok", "ok", "ok"]
    unknown = Facts(uid="0")
    found = {each.text: each.state for each in checks.of_facts("c1", unknown, planned(unknown))}
    assert any(text.startswith("the cluster DNS is unknown") and state == "fault" for text, state in found.items())
    assert any(text.startswith("pod ranges are unknown") and state == "warning" for text, state in found.items())
    old = reading.read(Observed()).old_kernels
    assert old == ()
