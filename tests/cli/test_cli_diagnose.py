"""The walk of a call: of each fault, the hop and the object that are named, as a pure function of rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rows.balancing_world import make
from rows.calling_world import (
    C2,
    ECHO,
    NOT_READY,
    Clusters,
    backend,
    endpoints,
    misspelt,
    never_exported,
    no_etcd,
    no_process,
    not_joined,
    peer,
    policy,
    route,
    unexported,
)

from isthmus.cli.diagnose import all_services
from isthmus.cli.diagnosis.exporters import cluster_faults, diagnose
from isthmus.cli.diagnosis.facts import hooked
from isthmus.model import tables
from isthmus.model.balancing import CallerFailure
from isthmus.model.clusters import Cluster
from isthmus.model.drains import Drain, Draining
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.pods import IgnoredPod
from isthmus.model.policies import Policy, Share, Tier
from isthmus.model.services import Port
from isthmus.statedb import Fault
from isthmus.times import timestamp


def test_a_healthy_path_is_ok_at_every_hop() -> None:
    hops = diagnose(Clusters().facts(), ECHO)
    assert [hop for hop in hops if hop.state != "ok"] == []
    assert {hop.hop for hop in hops} == {
        "process", "name", "resolver", "hook", "frontend", "plan", "endpoints", "peer", "export", "namespace", "pods",
    }  # fmt: skip


def test_what_an_exporter_has_and_did_not_arrive_is_named() -> None:
    """Two pods in the network of one node: an older exporter publishes one of the two ports."""
    it = Clusters()
    both = make.endpoint("10.2.0.1", ports=(Port("http", 8080), Port("http", 9090)))
    it.exporter["endpoints"] = (tables.ENDPOINT_SETS, make.endpoints("c2", both, service=ECHO, source="kubernetes"))
    [fault] = it.faults()
    assert fault.object == "record of demo/echo of c2"
    assert fault.text == "1 not received in c1: 10.2.0.1:9090/TCP"
    it.world.put(make.cluster("c2", state="stale"))
    assert fault.object not in {each.object for each in it.faults()}


@pytest.mark.parametrize(("pod", "state"), [("demo/client", "fault"), ("demo/other", "ok"), ("", "ok")])
def test_what_one_pod_cannot_connect_to_is_a_fault_where_that_pod_is_asked_about(pod: str, state: str) -> None:
    it = Clusters()
    [backend] = it.world.backends
    seen: dict[str, Any] = {"reason": "silent", "failures": 3, "since": 1.0, "until": 2.0}
    row = CallerFailure(caller=7, key=backend.key, pod="demo/client", verdict="answers", **seen)
    it.agent.append((tables.CALLER_FAILURES, row))
    it.pod = pod
    [hop] = [hop for hop in diagnose(it.facts(), ECHO) if "demo/client alone avoids it" in hop.text]
    assert (hop.object, hop.state) == ("backend c2 10.2.0.1:8080", state)
    assert "silent, 3 failed in a row; the agent connects to it" in hop.text


def test_a_missing_name_server_is_named_with_the_one_that_answers_in_its_place() -> None:
    it = Clusters()
    no_process("dns-second")(it)
    assert [fault.text.partition("; ")[2] for fault in it.faults()] == ["c1/dns answers in its place"]
    no_process("dns")(it)
    assert [(fault.object, fault.text.partition("; ")[2]) for fault in it.faults()] == [
        ("c1/dns", ""), ("c1/dns-second", "")
    ]  # fmt: skip


def test_the_policy_in_force_is_a_hop_with_its_shares() -> None:
    it = Clusters()
    policy("c2")(it)
    [found] = [hop for hop in diagnose(it.facts(), ECHO) if hop.hop == "policy"]
    assert (found.object, found.text, found.state) == ("TrafficPolicy demo/p", "in force: c2 100%", "ok")


def test_a_route_to_a_cluster_is_well_and_one_to_nothing_names_the_part_of_the_calls() -> None:
    it = Clusters()
    route(backend("Cluster", "c2", 0))(it)
    assert it.faults() == []
    it = Clusters()
    route(backend("Cluster", "c2", 0, weight=3), backend("Service", "demo/nothere"))(it)
    [fault] = it.faults()
    missing = "500: Service demo/nothere with TCP port 80 does not exist"
    assert fault.text == f"25% of the calls of rule 1 are answered with {missing}"


def test_a_cluster_that_a_policy_names_and_that_does_not_exist_is_named() -> None:
    it = Clusters()
    policy("c9")(it)
    [fault] = it.faults()
    assert fault.text == (
        "leaves none of 1 ready backends to be called; "
        "every call is refused: no tier gives calls to a cluster with endpoints (c2); no cluster is called c9"
    )


def test_a_policy_or_a_route_for_what_does_not_exist_has_no_effect() -> None:
    typo = ServiceName("demo/ecko")
    it = Clusters()
    row = Policy(name=ServiceName("demo/p"), target=typo, tiers=(Tier((Share(C2),)),))
    it.agent.append((tables.POLICIES, row))
    route(backend("Cluster", "c2", 0), parent=typo)(it)
    assert typo in all_services(it.facts())
    found = {hop.object: hop.text for hop in diagnose(it.facts(), typo) if hop.hop in ("policy", "route")}
    assert found == {
        "TrafficPolicy demo/p": "has no effect: ServiceImport demo/ecko does not exist in c1",
        "HTTPRoute demo/r": "has no effect: its parent does not exist",
    }


@pytest.mark.parametrize(
    ("why", "cure"),
    [
        ("etcd https://c2: etcdserver: permission denied", "its etcd does not admit the user in its file: "),
        ("etcd https://c2: its certificate is refused: expired", "the authority in its file is not that of its etcd: "),
        ("etcd https://c2: it refuses the client's certificate: bad", "the certificate in its file has ended, or "),
        ("etcd https://c2: timed out", "isthmus clusters status; its etcd is "),
    ],
)
def test_the_cure_for_a_peer_fits_the_reason(why: str, cure: str) -> None:
    it = Clusters()
    peer("stale", why)(it)
    [fault] = it.faults()
    assert fault.cure.startswith(cure)


@pytest.mark.parametrize(("days", "faults"), [(1, 1), (10, 0)])
def test_a_peer_whose_certificate_ends_within_two_days_is_a_fault_with_the_cure(days: int, faults: int) -> None:
    it = Clusters()
    ends = datetime.now(UTC) + timedelta(days=days)
    row: Cluster = make.cluster("c2", state="ready", reason="the certificate that https://c2 shows ends")
    row = structs.replace(row, certificate_ends=timestamp(ends))
    it.operator["peer"] = (tables.CLUSTERS, row)
    it.world.put(row)
    found = it.faults()
    assert len(found) == faults
    assert all("isthmus clusters certs in c2" in each.cure for each in found)


def test_a_pod_is_looked_for_below_the_cgroup_of_this_machine_alone(tmp_path: Path) -> None:
    it = Clusters()
    it.pod = "demo/client"
    hooks = it.status["agent"]["datapath"]["hooks"]
    hooks["cgroup"] = str(tmp_path)
    assert hooked(it.facts()) is False
    assert hooked(structs.replace(it.facts(), context="c1")) is None
    hooks["cgroup"] = str(tmp_path / "elsewhere")
    assert hooked(it.facts()) is None


def test_outside_of_a_lab_the_cure_for_a_peer_is_connect_and_what_connects_it_by_hand() -> None:
    it = Clusters()
    not_joined(it)
    [cure] = [hop.cure for hop in diagnose(structs.replace(it.facts(), lab=""), ECHO) if hop.state == "fault"]
    by_hand = "isthmus clusters invite in c2, isthmus clusters join in c1"
    assert cure == f"isthmus connect c1 c2; where keys are made by hand: {by_hand}"
    assert [fault.cure for fault in it.faults()] == [by_hand]


@pytest.mark.parametrize(
    ("why", "cure"),
    [
        ("list services: 401 Unauthorized", "the token of c1/operator is not valid: "),
        ("list services: 403 Forbidden", "c1/operator lacks that right: "),
        ("list services: no route to host", "kubectl --context c1 get --raw /readyz"),
    ],
)
def test_the_cure_for_an_api_server_fits_the_reason(why: str, cure: str) -> None:
    it = Clusters()
    it.status["operator"]["reflectors"] = {"kubernetes/services": {"connected": False, "last_failure": why}}
    [fault] = it.faults()
    assert fault.cure.startswith(cure)


def test_what_waits_for_an_api_server_is_no_fault_of_its_own() -> None:
    it = Clusters()
    away = {"kubernetes/services": {"connected": False, "last_failure": "list services: 401 Unauthorized"}}
    pending = {name: {"pending": ["kubernetes"]} for name in ("names", "plans")}
    it.status["agent"] |= {"reflectors": away, "tables": pending, "unhooked": "plans are not programmed yet"}
    it.status["dns"]["reflectors"] = {"names": {"connected": False}}
    assert [fault.object for fault in it.faults()] == ["API server of c1"]


def test_an_etcd_that_is_away_is_a_fault_also_where_the_operator_has_ended_for_it() -> None:
    it = Clusters()
    peer("stale", "etcd https://c2: failed to connect")(it)
    it.errors["c2"] = "no process serves its socket"
    assert [fault.object for fault in it.faults()] == ["cluster c2", "c2/operator"]


def test_that_no_cluster_exports_follows_from_a_peer_whose_exports_are_not_known() -> None:
    it = Clusters()
    unexported(it)
    it.world.put(make.service())
    it.operator["service"] = (tables.SERVICES, make.service())
    del it.exporter["own"]
    peer("refused", "its cluster id is 2, but it joined with 1")(it)
    assert [fault.object for fault in it.faults()] == ["cluster c2"]


def drained(target: str, *, kind: str = "Cluster", reason: str) -> Callable[[Clusters], None]:
    drain = Drain(kind=kind, target=target, reason=reason, started="2026-11-22T07:00:00Z")

    def change(it: Clusters) -> None:
        it.world.put(Draining(by=C2, drain=drain))

    return change


OWN, OTHER = "Drain isthmus-system/cluster-c2", "Drain isthmus-system/maintenance"
SERVICE = "Drain demo/service-echo"
DRAINS: dict[str, tuple[Callable[[Clusters], None], str, str]] = {
    "a cluster": (drained("c2", reason=OWN), "cluster c2", "isthmus clusters undrain c2 --context c2"),
    "a service": (drained("demo/echo", kind="Service", reason=SERVICE), "service demo/echo",
                  "isthmus services undrain demo/echo --context c2"),
    "by an object of another name": (drained("c2", reason=OTHER), "cluster c2",
                                     "kubectl --context c2 -n isthmus-system delete drain maintenance"),
    "a peer's reason is no command": (drained("c2", reason="Drain a/b; reboot"), "cluster c2", "ends with its reason"),
}  # fmt: skip


@pytest.mark.parametrize("case", DRAINS)
def test_a_drain_is_a_hop_with_its_object_and_what_ends_it(case: str) -> None:
    change, thing, command = DRAINS[case]
    it = Clusters()
    it.world.put(make.endpoints("c1", "10.1.0.1"))
    change(it)
    [found] = [hop for hop in diagnose(it.facts(), ECHO) if hop.hop == "drain"]
    assert (found.object, found.state) == (thing, "ok")
    assert found.text.startswith("is drained since 2026-11-22T07:00:00Z (Drain ")
    assert found.text.endswith(command)
    assert "1 of 2 backends;" in found.text


def test_a_drain_that_leaves_nothing_else_names_what_is_still_called() -> None:
    it = Clusters()
    drained("c2", reason=OWN)(it)
    [found] = [hop for hop in diagnose(it.facts(), ECHO) if hop.hop == "drain"]
    assert "1 of 1 backends, 1 of them still called as nothing else is there;" in found.text


def test_a_drain_of_something_else_is_no_hop() -> None:
    it = Clusters()
    drained("c3", reason=OWN)(it)
    assert "drain" not in {hop.hop for hop in diagnose(it.facts(), ECHO)}


def test_a_typo_is_answered_with_the_nearest_name() -> None:
    it = Clusters()
    misspelt(it)
    [fault] = it.faults()
    assert "demo/echoo" in fault.text


def test_endpoints_of_a_peer_that_is_not_ready_say_as_of_when_they_are() -> None:
    it = Clusters()
    row: Cluster = structs.replace(make.cluster("c2", state="stale"), since="2026-01-01T10:00:00Z")
    it.world.put(row)
    [found] = [hop for hop in diagnose(it.facts(), ECHO) if hop.hop == "endpoints"]
    assert (found.state, found.text) == ("follows", "1 of 1 ready, from clusterset, as of 2026-01-01T10:00:00Z: stale")


def test_where_nothing_names_a_cause_the_first_hop_that_fails_is_the_fault() -> None:
    it = Clusters()
    it.agent.clear()
    [fault] = it.faults()
    assert (fault.hop, fault.object) == ("name", "demo/echo")
    assert "explain" not in fault.cure  # which names the faults of this walk: the reader would go in a circle


def test_a_fault_that_follows_from_another_is_no_fault_of_its_own() -> None:
    it = Clusters()
    endpoints(NOT_READY)(it)
    assert {hop.hop for hop in diagnose(it.facts(), ECHO) if hop.state == "follows"} == {"plan", "endpoints"}


def test_without_a_service_processes_peers_and_problems_are_walked_though_nothing_is_exported() -> None:
    it = Clusters()
    never_exported(it)
    peer("stale", "connection refused")(it)
    it.status["operator"]["problems"] = ["the lease cannot be renewed: 403 Forbidden"]
    it.status["agent"]["tables"] = {"plans_status": {"rows": 2, "pending": []}}
    found = {hop.object: hop.text for hop in cluster_faults(it.facts())}
    assert found == {
        "cluster c2": "stale: connection refused",
        "c1/operator reports": "the lease cannot be renewed: 403 Forbidden",
        "c1/agent fails": "2 rows of plans",
    }


def test_a_problem_whose_cause_a_hop_names_is_one_fault() -> None:
    it = Clusters()
    no_etcd("operator")(it)
    it.status["operator"]["problems"] = ["the etcd cannot be written: no route"]
    assert [hop.object for hop in cluster_faults(it.facts())] == ["etcd of c1"]


def test_an_export_that_was_deleted_with_its_namespace_is_not_only_missing() -> None:
    it = Clusters()
    never_exported(it)
    del it.operator["namespace"]
    faults = {fault.hop: fault.text for fault in it.faults()}
    assert faults["namespace"].startswith("does not exist")
    assert "namespace demo does not exist in c1" in faults["export"]


def test_a_port_without_a_target_is_a_fault_with_its_reason() -> None:
    it = Clusters()
    it.world.put(make.endpoints("c2", make.endpoint("10.2.0.1", ports=(Port("http", 80),))))
    it.world.put(make.derived(ports=(Port("http", 80), Port("https", 443))), make.imported(clusters=(C2,)))
    [fault] = [fault for fault in it.faults() if fault.hop == "plan"]
    assert fault.object == "demo/echo at 443/TCP IPv4"
    assert fault.text.endswith("none of the 1 endpoints in c2 counts for this port")


def fault(name: str, **fields: Any) -> Fault:
    given: dict[str, Any] = {"part": "policies", "cause": "bug", "error": "KeyError: 'x'", "since": 1.0}
    return Fault(**given | fields, name=name)


UNREADABLE = fault(
    "demo/echo-first",
    kind="trafficpolicies.isthmus.io",
    cause="unreadable",
    error="Expected `array`, got `str` - at `$.spec.tiers`",
)


def test_a_fault_of_the_service_is_named_with_its_object_and_what_mends_it() -> None:
    it = Clusters()
    it.agent.append((tables.FAULTS, UNREADABLE))
    it.operator["fault"] = (tables.FAULTS, UNREADABLE)
    it.agent.append((tables.FAULTS, fault("other/echo", kind="services", cause="malformed")))
    [hop] = it.faults()
    assert hop.object == "trafficpolicies.isthmus.io demo/echo-first"
    assert hop.text == (
        "failed in c1/agent, c1/operator and keeps its last good state: Expected `array`, got `str` - at `$.spec.tiers`"
    )
    assert hop.cure.endswith("-n demo get trafficpolicies.isthmus.io echo-first -o yaml: mend that field")


@pytest.mark.parametrize(
    ("row", "concerns"),
    [
        (fault("demo/echo", part="frontends, backends, plans"), True),
        (fault("demo/derived-1", part="frontends, backends, plans"), False),
        (fault(derived(ECHO), part="frontends, backends, plans"), True),
        (fault("c2 demo/echo", part="exports"), True),
        (fault("demo/echo-x7abc", kind="endpointslices.discovery.k8s.io", cause="malformed"), True),
        (fault("demo/other-x7abc", kind="endpointslices.discovery.k8s.io", cause="malformed"), False),
        (fault("other/p", kind="trafficpolicies.isthmus.io", cause="unreadable"), False),
    ],
)
def test_only_faults_that_may_be_of_the_service_are_named(row: Fault, concerns: bool) -> None:
    it = Clusters()
    it.agent.append((tables.FAULTS, row))
    assert bool(it.faults()) == concerns


def test_without_a_service_all_faults_are_named_up_to_a_few() -> None:
    it = Clusters()
    it.agent += [(tables.FAULTS, fault(f"other/{number}")) for number in range(30)]
    found = [hop for hop in cluster_faults(it.facts()) if hop.hop == "fault"]
    assert len(found) == 11
    assert (found[-1].object, found[-1].cure) == ("20 more", "isthmus get faults")


def test_a_caller_that_is_left_alone_is_told_who_answers_its_calls() -> None:
    it = Clusters()
    it.pod, it.hooked = "demo/client", True  # type: ignore[assignment]
    it.agent.append((tables.IGNORED_PODS, IgnoredPod("demo/client", "u", "container istio-proxy")))
    text = "left alone (container istio-proxy): its calls of imports go to their addresses, for its mesh or kube-proxy"
    assert [hop.text for hop in diagnose(it.facts(), ECHO) if hop.hop == "hook"] == [text]
    it.world.put(Cluster(name=ClusterName("c2"), network="there", gateways=("192.0.2.1:15443",), state="ready"))
    assert [hop.text for hop in diagnose(it.facts(), ECHO) if hop.hop == "hook"] == [f"{text}, which do not call c2"]
