"""The walk of a call into an island: of each fault, the hop and the object that are named, as a function of rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from rows.island_world import (
    AT,
    ISLAND,
    OWN,
    SNI,
    Island,
    dead,
    ended_there,
    expired,
    expired_there,
    hung,
    not_for_us,
    refused,
    unconfigured,
    unknown_here,
    unknown_there,
    unserved,
)

from isthmus.model import tables
from isthmus.model.export_policies import Allow, ExportPolicy
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Pod

CASES: dict[str, tuple[Callable[[Island], None], str, str, str]] = {
    "gateway down": (dead, "gateway", f"gateway {AT} of c2", f"its checks fail; SNI {SNI}"),
    "own certificate ended": (expired, "gateway", "certificate of c1/agent", "ended at 2026-11-21 10:00 UTC"),
    "its certificate ended": (expired_there, "gateway", "certificate of c2/gateway", "ended at 2026-11-21 10:00 UTC"),
    "its authority is not known": (unknown_here, "gateway", "cluster c2", "c1/agent has no authority of it"),
    "our authority is not known": (unknown_there, "gateway", "c2/gateway", "has no authority of c1"),
    "its process has ended": (ended_there, "gateway", "c2/gateway", "has ended"),
    "listener not served": (unserved, "gateway", "listener of port 80", "not served by this node's Envoy"),
    "the node's Envoy hangs": (hung, "process", "Envoy of the node of c1/agent", "nothing answers"),
    "gateway refused": (refused, "gateway", "gateway 172.30.1.2:6443 of c2", "is refused: 172.30.1.2 is an address"),
    "no Envoy on this node": (unconfigured, "gateway", "c1/agent", "calls no gateways"),
    "export for others": (not_for_us, "export", "export of c2", "for c3 only"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_hop_that_fails_on_the_way_to_an_island_is_the_one_fault(case: str) -> None:
    change, hop, thing, text = CASES[case]
    it = Island()
    change(it)
    [fault] = [each for each in it.gateway_hops() if each.state == "fault"]
    assert (fault.hop, fault.object) == (hop, thing)
    assert text in fault.text
    assert fault.cure


WEB = Pod(name="shop/web-1", uid="1", addresses=("10.1.0.7",), service_account="web")


@pytest.mark.parametrize(
    ("account", "proving", "require", "want"),
    [
        ("web", {}, True, ""),
        ("job", {}, True, "refuse shop/web-1: ExportPolicy demo/callers does not allow shop/web"),
        ("web", None, True, "refuse shop/web-1: identity.enabled is not set on its node, so it proves no account"),
        ("web", None, False, ""),
    ],
    ids=["allowed", "another account", "nothing is proven", "nothing has to be proven"],
)
def test_a_pod_whose_account_gateways_refuse_is_named(
    account: str, proving: dict[str, str] | None, require: bool, want: str
) -> None:
    it = Island()
    rules = (Allow(cluster=ClusterName("c1"), namespace="shop", service_account=account),)
    it.policies = [ExportPolicy(name=ServiceName("demo/callers"), allow=rules, require=require)]
    it.pod, it.more, it.proving = WEB.name, [(tables.PODS, WEB)], proving
    texts = [hop.text for hop in it.gateway_hops() if hop.object == "gateways of c2"]
    assert texts == ([want] if want else [])


def test_what_is_well_on_the_way_has_its_sni_and_the_end_of_both_certificates() -> None:
    found = [(hop.object, hop.text) for hop in Island().gateway_hops() if hop.hop == "gateway"]
    assert found == [
        ("certificate of c1/agent", "ends 2027-11-22 10:00 UTC"),
        (f"gateway {AT} of c2", f"answers; SNI {SNI}; its certificate ends 2027-10-21 09:00 UTC"),
    ]


def stale(it: Island) -> None:
    it.island = replace(ISLAND, state="stale", endpoints=(f"https://{AT}",), reason="cannot be reached")


def test_an_etcd_that_is_followed_through_gateways_of_which_none_answers_is_no_second_fault() -> None:
    it = Island()
    stale(it)
    dead(it)
    assert [each.object for each in it.hops() if each.state == "fault"] == [f"gateway {AT} of c2"]
    [peer] = [each for each in it.hops() if each.hop == "peer"]
    assert (peer.object, peer.state) == ("cluster c2", "follows")
    assert "cannot be reached" in peer.text


def test_an_export_that_does_not_arrive_for_want_of_a_gateway_is_that_gateways_fault() -> None:
    """As in a cluster that has not heard of the service before."""
    it = Island()
    stale(it)
    dead(it)
    it.imported = it.listener = None
    assert [each.object for each in it.hops() if each.state == "fault"][:1] == [f"gateway {AT} of c2"]
    assert "cluster c2" not in [each.object for each in it.hops() if each.state == "fault"]


def test_an_etcd_behind_a_gateway_that_answers_is_a_fault_with_the_way_to_it() -> None:
    it = Island()
    stale(it)
    [fault] = [each for each in it.hops() if each.state == "fault"]
    assert (fault.hop, fault.object) == ("peer", "cluster c2")
    assert fault.cure == f"isthmus clusters status; its etcd is behind its gateways, https://{AT}"


def test_an_etcd_that_is_reached_without_gateways_is_a_fault_of_its_own() -> None:
    it = Island()
    stale(it)
    it.island = replace(it.island, endpoints=("https://172.30.2.2:2379",))
    dead(it)
    faults = [each for each in it.hops() if each.state == "fault"]
    assert [each.object for each in faults] == [f"gateway {AT} of c2", "cluster c2"]
    assert faults[1].cure == "isthmus clusters status; its etcd is https://172.30.2.2:2379"


def test_where_the_gateway_cannot_be_asked_its_checks_are_what_is_known() -> None:
    it = Island()
    it.lab = ""
    dead(it)
    [fault] = [each for each in it.gateway_hops() if each.state == "fault"]
    assert fault.object == f"gateway {AT} of c2"
    assert fault.cure.startswith("kubectl --context c2 -n isthmus-system get pods")


def test_a_cluster_of_this_network_has_no_gateway_on_its_way() -> None:
    it = Island()
    it.island = replace(ISLAND, network=OWN.network)
    assert "gateway" not in {hop.hop for hop in it.hops()}
