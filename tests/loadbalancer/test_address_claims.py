"""Claims on addresses: attacks that are refused, and what each kind of claim may still have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows.balancing_world import ECHO, PERMISSIVE, World, make

from isthmus.config import ConfigError, load
from isthmus.loadbalancer import ClaimRules, Place, refusals
from isthmus.loadbalancer.claims import RefusalReason, rules
from isthmus.loadbalancer.explain import explain, services_called
from isthmus.model.balancing import FrontendType
from isthmus.model.islands import IslandPod
from isthmus.model.mcs import MANAGED_BY
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Node, Port
from isthmus.model.tables import REFUSED_CLAIMS

NODE = Node("n1", ("172.30.1.11",))

FOREIGN = [
    "127.0.0.1",
    "::1",
    "169.254.169.254",
    "10.96.0.1",  # the API server's Service
    "172.30.1.1",  # the API server itself
    "172.30.1.11",  # this node's kubelet
    "10.1.7.7",  # another namespace's pod
    "224.0.0.251",
    "255.255.255.255",
    "169.254.7.1",  # the node's name server
    "10.96.0.10",  # the cluster DNS
    "8.8.8.8",
]


def attacked() -> World:
    """A cluster with a node, the API server's Service and the cluster DNS, and a pod that the attacker may use."""
    world = World().put(NODE, make.service("default/kubernetes", cluster_ips=("10.96.0.1",), ports=(Port("", 443),)))
    world.put(make.service("kube-system/kube-dns", cluster_ips=("10.96.0.10",), ports=(Port("dns", 53, "UDP"),)))
    return world.put(make.pod(), make.endpoints("c1", "10.1.1.9"), make.endpoints("c1", "10.1.1.9", service=ECHO))


@pytest.mark.parametrize("address", FOREIGN)
def test_an_import_made_by_hand_takes_no_address(address: str) -> None:
    ports = tuple(Port(f"p{number}", number) for number in (53, 80, 443, 6443, 8080, 10250))
    world = attacked().put(make.imported(ips=(address,), ports=ports))
    assert (world.called(), world.reached()) == ({}, {})


@pytest.mark.parametrize("address", FOREIGN)
def test_an_import_cannot_name_another_address_than_its_derived_service_has(address: str) -> None:
    world = attacked().put(make.imported(ips=(address, "10.96.0.7")), make.derived())
    assert world.called() == {"10.96.0.7:80/TCP": make.DERIVED}


@pytest.mark.parametrize("address", FOREIGN)
def test_a_local_redirect_of_an_address_takes_none_for_a_tenant(address: str) -> None:
    policy = make.local(service="", address=address, ports=(Port("", 80),))
    world = attacked().put(policy)
    assert (world.called(), world.redirects) == ({}, [])


@pytest.mark.parametrize("address", FOREIGN)
def test_external_ips_take_no_address_unless_the_configuration_allows_them(address: str) -> None:
    world = attacked().put(make.globally(cluster_ips=(), external_ips=(address,)))
    assert world.called() == {}


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "224.0.0.251", "255.255.255.255", "0.0.0.0", "::1"]
)
def test_a_load_balancers_status_takes_no_reserved_address(address: str) -> None:
    world = attacked().put(make.globally(cluster_ips=(), type="LoadBalancer", load_balancer_ips=(address,)))
    assert world.called() == {}


@pytest.mark.parametrize("address", ["8.8.8.8", "172.30.1.12", "10.96.0.1"])
def test_a_host_port_is_called_at_addresses_of_its_node_only(address: str) -> None:
    name = ServiceName("demo/pod:host-port:8080")
    ports = (Port("", 8080, node_port=8080),)
    fields = {"type": "HostPort", "cluster_ips": (), "ports": ports, "source": "pods"}
    world = World("all").put(NODE, make.service(name, external_ips=(address,), **fields))
    assert world.called() == {}
    world.put(make.service(name, external_ips=("172.30.1.11",), **fields))
    assert world.called() == {"172.30.1.11:8080/TCP": name}


# The table of docs/trust.md


def table() -> list[tuple[str, str, str, str]]:
    text = (Path(__file__).parents[2] / "docs" / "trust.md").read_text()
    section = text.partition("## Who may claim an address")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:2] == "| "]
    return [(claim, address, configuration, result) for claim, address, configuration, result in rows[1:]]


def configured(configuration: str) -> ClaimRules:
    cluster = ["cluster.pod_ranges=10.1.0.0/16", "cluster.service_ranges=10.96.0.0/16"]
    name, _, value = configuration.strip("`").partition(" = ")
    return rules(load(None, environment={}, flags=[*cluster, *([f"claims.{name}={value}"] if name else [])]))


def claimant(claim: str, address: str) -> tuple[Any, ...]:
    """The objects that make the claim."""
    node_port = (Port("http", 80, node_port=80),)
    match claim.partition(",")[0].replace("`", ""):
        case "cluster IP":
            return (make.service(cluster_ips=(address,)),)
        case "import's spec.ips" if "derived" in claim:
            return (make.imported(ips=(address,)), make.derived())
        case "import's spec.ips":
            manager = ((MANAGED_BY, "isthmus-operator" if "trusted" in claim else "somebody"),)
            return (make.imported(ips=(address,), annotations=manager),)
        case "load balancer's status":
            return (make.service(cluster_ips=(), type="LoadBalancer", load_balancer_ips=(address,)),)
        case "node port":
            return (make.service(cluster_ips=(), type="NodePort", ports=node_port),)
        case "host port":
            return (make.service(cluster_ips=(), type="HostPort", ports=node_port, external_ips=(address,)),)
        case "externalIPs":
            return (make.service(cluster_ips=(), external_ips=(address,)),)
        case "addressMatcher of a local redirect":
            namespace = "kube-system" if "kube-system" in claim else "demo"
            policy = make.local(f"{namespace}/near", service="", address=address, ports=(Port("", 80),))
            pods = [make.pod(f"{namespace}/near", addresses=("10.1.1.9", "fd01::9"))]
            return (policy, *pods)
        case "pod of an island":
            row = IslandPod(
                name=ServiceName("demo/derived-0.c2.web-0"),
                import_of=make.ECHO,
                cluster=ClusterName("c2"),
                pod="0",
                addresses=(address,),
                ports=(Port("http", 80),),
            )
            return (row,)
    raise AssertionError(f"docs/trust.md: no such claim: {claim}")


@pytest.mark.parametrize(("claim", "address", "configuration", "result"), table(), ids=lambda cell: cell or "-")
def test_each_row_of_the_table_in_trust_md_is_what_a_node_does(
    claim: str, address: str, configuration: str, result: str
) -> None:
    world = World("all", rules=configured(configuration)).put(NODE, Node("n2", ("172.30.1.12",)))
    world.put(*claimant(claim, address))
    called = {row.key.address for row in world.frontends}
    refused = {(row.address, row.reason) for row in world.refused}
    assert (address in called, refused) == ((True, set()) if result == "counts" else (False, {(address, result)}))


def test_the_table_has_every_reason_and_every_type_of_frontend() -> None:
    assert {result for *_, result in table()} == {"counts", *get_args(RefusalReason)}
    assert len({claim.partition(",")[0] for claim, *_ in table()}) == len(get_args(FrontendType))


def test_a_claim_is_judged_again_as_nodes_come_and_go() -> None:
    world = World("all", rules=PERMISSIVE).put(make.service(cluster_ips=(), external_ips=("172.30.1.12",)))
    assert (len(world.called()), world.refused) == (1, [])
    world.put(Node("n2", ("172.30.1.12",)))
    assert (world.called(), [row.reason for row in world.refused]) == ({}, ["ClusterAddress"])
    world.delete(Node("n2"))
    assert (len(world.called()), world.refused) == (1, [])


def test_a_claim_is_judged_again_as_the_derived_service_comes_and_goes() -> None:
    world = World().put(make.imported(ips=("10.96.0.7",)))
    assert [(row.kind, row.name, row.reason) for row in world.refused] == [("ServiceImport", ECHO, "NotAllocated")]
    assert world.put(make.derived()).refused == []
    assert len(world.delete(make.derived()).refused) == 1
    assert world.delete(make.imported()).refused == []


def test_an_object_that_names_a_thousand_addresses_is_a_few_rows() -> None:
    world = World().put(make.globally(external_ips=tuple(f"8.8.{n // 250}.{n % 250}" for n in range(1_000))))
    assert len(world.refused) == 16
    assert set(world.called()) == {"10.96.0.7:80/TCP"}


def test_what_is_not_ours_to_answer_is_not_refused_either() -> None:
    world = World().put(make.service(external_ips=("8.8.8.8",)))
    assert world.refused == []


def test_explain_names_the_address_and_the_reason() -> None:
    world = World().put(make.globally(external_ips=("8.8.8.8",)))
    world.put(make.imported("demo/other", ips=("127.0.0.1",)))
    world.put(make.local(service="", address="169.254.169.254", ports=(Port("", 80),)))
    snapshot = world.settle().db.snapshot()
    at = Place(ClusterName("c1"), "n1")
    notes = {
        name: [
            note
            for service in services_called(snapshot, ServiceName(name))
            for note in explain(snapshot, service, place=at).notes
            if note.startswith("not called")
        ]
        for name in ("demo/echo", "demo/other", "demo/near")
    }
    off = "8.8.8.8: spec.externalIPs are off (claims.external_ips)"
    reserved = "127.0.0.1 is reserved (loopback): nothing may claim it"
    namespaces = "169.254.169.254: policies of kube-system may name an address (claims.redirect_namespaces)"
    assert notes == {
        "demo/echo": [f"not called at 8.8.8.8, as Service demo/echo asks: {off}"],
        "demo/other": [f"not called at 127.0.0.1, as ServiceImport demo/other asks: {reserved}"],
        "demo/near": [f"not called at 169.254.169.254, as CiliumLocalRedirectPolicy demo/near asks: {namespaces}"],
    }


@pytest.mark.parametrize("field", ["claims.clusterset_ranges", "claims.redirect_ranges", "cluster.pod_ranges"])
def test_a_range_that_is_none_is_an_error_that_names_its_field(field: str) -> None:
    config = load(None, environment={}, flags=[f"{field}=10.0.0.1/8"])
    with pytest.raises(ConfigError, match=rf"^{field}: '10\.0\.0\.1/8' is not a range of IP addresses"):
        rules(config)


# Services that another proxy serves


@pytest.mark.parametrize("label", ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"])
@pytest.mark.parametrize("services", ["multicluster", "all"])
def test_a_service_of_another_proxy_is_left_alone_and_keeps_its_address(label: str, services: str) -> None:
    labelled = make.globally(labels=((label, "other"),))
    world = World(services, rules=PERMISSIVE).put(labelled, make.pod(), make.local(), make.endpoints("c1", "10.1.1.2"))
    world.put(make.globally("demo/thief", cluster_ips=(), external_ips=("10.96.0.7",)))
    assert world.called() == {}
    world.put(make.globally())
    assert world.called() == {"10.96.0.7:80/TCP": "demo/echo"}


ADDRESSES = st.sampled_from([("10.96.0.7",), ("10.96.0.8",), ("127.0.0.1",)])
OTHER = ServiceName("demo/other")
STANDING = st.one_of(
    st.builds(lambda ips: make.imported(ips=ips), ADDRESSES),
    st.builds(lambda ips: make.derived(cluster_ips=ips), ADDRESSES),
    st.builds(lambda ips, of: make.derived(cluster_ips=ips, import_of=of), ADDRESSES, st.sampled_from(["", OTHER])),
    st.builds(lambda ips: make.imported(OTHER, ips=ips), ADDRESSES),
    st.builds(lambda ips: make.derived(cluster_ips=ips, source="files"), ADDRESSES),
    st.builds(lambda ips: make.service("demo/labelled", cluster_ips=ips, import_of=ServiceName(ECHO)), ADDRESSES),
)
STEPS = st.lists(st.lists(st.tuples(STANDING, st.sampled_from([True, True, False])), max_size=3), max_size=4)


@settings(max_examples=400)
@given(STEPS, st.sampled_from([ClaimRules(), PERMISSIVE]))
def test_after_any_changes_each_import_has_the_refusals_that_its_final_rows_make(
    steps: list[list[Any]], by: ClaimRules
) -> None:
    """Whatever came first, the import or what stands for it, and whichever of them changed last."""
    world = World(rules=by)
    for changes in steps:
        for row, there in changes:
            (world.put if there else world.delete)(row)
        found, now = world.refused, world.db.snapshot()
        computed = [
            each
            for name in (ECHO, OTHER)
            for each in refusals.compute(now, ("ServiceImport", name), node="n1", which="multicluster", rules=by)
        ]
        assert found == sorted(computed, key=REFUSED_CLAIMS.key)
