"""Facts of a cluster, each with its source, and the plan that follows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from isthmus.installation import plan as planning
from isthmus.installation import reading, rendering, shipped
from isthmus.installation.facts import KUBE_SYSTEM, UNKNOWN, ApiObject, Facts, Installed, Known, Observed
from isthmus.installation.plan import Flags
from isthmus.kube.objects.meta import ManagedMeta
from isthmus.model.names import valid_cluster

DEPLOY = shipped.directory("deploy")


def thing(name: str, namespace: str = "", *, labels: dict[str, str] | None = None, **fields: Any) -> ApiObject:
    return ApiObject(metadata=ManagedMeta(name=name, namespace=namespace, labels=labels), **fields)


def node(name: str, kernel: str = "6.1.0", *, cidrs: tuple[str, ...] = (), **spec: Any) -> ApiObject:
    status = {"nodeInfo": {"kernelVersion": kernel}, "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}
    return thing(name, spec={"podCIDRs": list(cidrs), **spec}, status=status)


def workload(name: str, *args: str, namespace: str = KUBE_SYSTEM) -> ApiObject:
    return thing(name, namespace, spec={"template": {"spec": {"containers": [{"name": name, "args": list(args)}]}}})


def control_plane(program: str, *options: str) -> ApiObject:
    return thing(program, KUBE_SYSTEM, spec={"containers": [{"name": program, "command": [program, *options]}]})


KUBEADM = {"ClusterConfiguration": "networking: {dnsDomain: x.org, podSubnet: 10.1.0.0/16, serviceSubnet: 10.2.0.0/16}"}
DNS = thing("kube-dns", KUBE_SYSTEM, spec={"clusterIP": "10.2.0.10", "clusterIPs": ["10.2.0.10"]})


def of(**fields: Any) -> Facts:
    return reading.read(Observed(**fields))


def test_ranges_come_from_what_assigns_them_before_what_only_repeats_them() -> None:
    kubeadm = {(KUBE_SYSTEM, "kubeadm-config"): KUBEADM}
    nodes = (node("a", cidrs=("10.9.0.0/24",)), node("b", cidrs=("10.9.1.0/24",)))
    assert of(nodes=nodes).pods == Known(("10.9.0.0/23",), "spec.podCIDRs of Nodes")
    assert of(nodes=nodes, config_maps=kubeadm).pods.values == ("10.1.0.0/16",)
    option = (control_plane("kube-controller-manager", "--cluster-cidr=10.3.0.0/16,fd00::/48"),)
    assert of(nodes=nodes, config_maps=kubeadm, control_plane=option).pods.values == ("10.3.0.0/16", "fd00::/48")
    pools = (thing("p", spec={"cidr": "10.4.0.0/16"}), thing("off", spec={"cidr": "10.5.0.0/16", "disabled": True}))
    assert of(control_plane=option, ip_pools=pools).pods == Known(("10.4.0.0/16",), "Calico's IPPools")
    cilium = {(KUBE_SYSTEM, "cilium-config"): {"cluster-pool-ipv4-cidr": "10.6.0.0/16"}}
    assert of(config_maps=cilium).pods.values == ("10.6.0.0/16",)
    assert of(config_maps=kubeadm).services == Known(
        ("10.2.0.0/16",), "ConfigMap kube-system/kubeadm-config, serviceSubnet"
    )
    assert of().services is UNKNOWN


def test_the_cluster_dns_is_what_kubelets_write_and_a_cache_is_a_further_resolver() -> None:
    cache = workload("node-local-dns", "-localip", "169.254.20.10,10.2.0.10")
    facts = of(services=(DNS,), daemon_sets=(cache,))
    assert facts.dns == Known(("10.2.0.10",), "Service kube-system/kube-dns")
    assert facts.dns_cache.values == ("169.254.20.10", "10.2.0.10")
    variables = planning.plan(facts, Flags(context="c1"), DEPLOY).variables
    assert (variables["ISTHMUS_DNS_CLUSTER_DNS"], variables["ISTHMUS_DNS_RESOLVERS"]) == ("10.2.0.10", "169.254.20.10")
    kubelet = {(KUBE_SYSTEM, "kubelet-config"): {"kubelet": "clusterDNS: [169.254.20.10]\nclusterDomain: x.org"}}
    facts = of(services=(DNS,), config_maps=kubelet)
    assert facts.dns.values == ("169.254.20.10",)
    assert planning.plan(facts, Flags(context="c1"), DEPLOY).variables["ISTHMUS_DNS_CLUSTER_DOMAIN"] == "x.org"


def test_two_families_set_the_addresses_of_both() -> None:
    dual = thing("kube-dns", KUBE_SYSTEM, spec={"clusterIPs": ["fd00::a", "10.2.0.10"]})
    variables = planning.plan(of(services=(dual,)), Flags(context="c1"), DEPLOY).variables
    assert variables["ISTHMUS_CLUSTER_FAMILIES"] == "IPv6,IPv4"
    assert variables["ISTHMUS_DNS_CLUSTER_DNS"] == "fd00::a,10.2.0.10"
    assert variables["ISTHMUS_DNS_LISTEN"] == "169.254.7.1:53,[fd00:169:254:7::1]:53"


def test_products_are_known_by_their_workloads_and_what_is_unknown_is_so() -> None:
    cilium = {"kube-proxy-replacement": "true", "cluster-name": "east", "cluster-id": "7"}
    facts = of(
        nodes=(node("a", "5.4.0"), node("b", "5.10.0"), node("c", "6.1.0", providerID="aws:///i-1")),
        daemon_sets=(workload("cilium"), workload("ztunnel", namespace="istio-system")),
        deployments=(workload("istiod", namespace="istio-system"), workload("submariner-operator", namespace="s")),
        config_maps={(KUBE_SYSTEM, "cilium-config"): cilium},
    )
    assert facts.network == Known(("Cilium",), "DaemonSet kube-system/cilium")
    assert facts.meshes.values == ("Istio", "Istio ambient")
    assert facts.implementations.values == ("Submariner",)
    assert facts.proxy.values == ("replaced by Cilium",)
    assert (facts.name.values, facts.id.values) == (("east",), ("7",))
    assert facts.old_kernels == ("a",)
    assert facts.load_balancer.values == ("aws",)
    assert of().proxy is UNKNOWN
    assert of(daemon_sets=(workload("kube-proxy"),)).proxy.values == ("iptables",)
    config = {(KUBE_SYSTEM, "kube-proxy"): {"config.conf": "mode: nftables"}}
    assert of(daemon_sets=(workload("kube-proxy"),), config_maps=config).proxy.values == ("nftables",)


@pytest.mark.parametrize(
    "text",
    [
        "a: 2026-13-01",
        "a: 0b2",
        "[" * 5_000,
        "networking: x",
        "networking: [x]",
        "&a [*a, *a]",
        "\x00",
        "mode: " + "[a]",
    ],
)
def test_a_document_that_cannot_be_read_is_an_unknown_fact(text: str) -> None:
    names = {"kubeadm-config": "ClusterConfiguration", "kubelet-config": "kubelet", "kube-proxy": "config.conf"}
    maps = {(KUBE_SYSTEM, name): {key: text} for name, key in names.items()}
    facts = of(config_maps=maps, daemon_sets=(workload("kube-proxy"),))
    assert (facts.services, facts.pods, facts.domain) == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert facts.proxy.values == ("iptables",)


def test_what_is_no_range_is_none_wherever_it_is_written() -> None:
    networking = "networking: {podSubnet: 'x, 10.1.0.0/16', serviceSubnet: '10.2.0.0/33,fd00::/112 ', dnsDomain: x}"
    facts = of(config_maps={(KUBE_SYSTEM, "kubeadm-config"): {"ClusterConfiguration": networking}})
    assert (facts.pods.values, facts.services.values, facts.domain.values) == (
        ("10.1.0.0/16",),
        ("fd00::/112",),
        ("x",),
    )
    networking = "networking: {podSubnet: x, serviceSubnet: ','}"
    facts = of(config_maps={(KUBE_SYSTEM, "kubeadm-config"): {"ClusterConfiguration": networking}})
    assert (facts.pods, facts.services) == (UNKNOWN, UNKNOWN)
    assert of(service_cidrs=(thing("kubernetes", spec={"cidrs": ["x", "10.2.0.0/16"]}),)).services.values == (
        "10.2.0.0/16",
    )


def test_a_range_of_a_node_with_bits_beyond_its_prefix_counts_as_its_network() -> None:
    assert of(nodes=(node("a", cidrs=("10.9.0.7/24",)),)).pods.values == ("10.9.0.0/24",)


def test_a_flag_precedes_what_is_installed_and_that_precedes_what_is_found() -> None:
    before = Installed({"ISTHMUS_CLUSTER_NAME": "old", "ISTHMUS_DNS_CLUSTER_DNS": "10.2.0.99"}, ("mirror",), {})
    observed = of(services=(DNS,))
    facts = Facts(dns=observed.dns, uid="u", installed=before)
    plan = planning.plan(facts, Flags(context="c1"), DEPLOY)
    assert plan.variables["ISTHMUS_CLUSTER_NAME"] == "old"
    assert plan.variables["ISTHMUS_DNS_CLUSTER_DNS"] == "10.2.0.99"
    assert plan.components == ("mirror",)
    assert any("--set dns.cluster_dns=10.2.0.10 changes it" in each for each in plan.warnings)
    changed = planning.plan(facts, Flags(settings={"ISTHMUS_DNS_CLUSTER_DNS": "10.2.0.10"}, name="new"), DEPLOY)
    assert (changed.variables["ISTHMUS_CLUSTER_NAME"], changed.variables["ISTHMUS_DNS_CLUSTER_DNS"]) == (
        "new", "10.2.0.10",
    )  # fmt: skip


def test_an_image_of_a_registry_stays_unless_an_option_changes_it_and_another_version_is_a_warning() -> None:
    default = rendering.images(DEPLOY)["isthmus"]
    version = default.rpartition(":")[2]

    def planned(image: str, **images: str) -> planning.Plan:
        before = Installed({"ISTHMUS_CLUSTER_NAME": "c1"}, ("mirror",), {"isthmus": image})
        return planning.plan(Facts(installed=before), Flags(images=images), DEPLOY)

    same = planned(f"registry.example:5000/isthmus:{version}")
    assert same.images == {"isthmus": f"registry.example:5000/isthmus:{version}"}
    assert not any("--image" in each for each in same.warnings)
    assert planned("registry.example/isthmus@sha256:0f").images == {"isthmus": "registry.example/isthmus@sha256:0f"}
    assert planned("registry.example/isthmus:old", isthmus="x:1").images == {"isthmus": "x:1"}
    assert planned("isthmus:old").images == {"isthmus": default}, "it is of no registry, and follows the version"
    other = planned("registry.example:5000/isthmus:old")
    assert other.images == {"isthmus": "registry.example:5000/isthmus:old"}
    assert (
        f"image isthmus is installed as registry.example:5000/isthmus:old, not of {version} as this command: "
        "isthmus upgrade, or --image"
    ) in other.warnings


@pytest.mark.parametrize(
    ("facts", "flags", "blocker"),
    [
        (Facts(), Flags(context="c1"), "the cluster DNS is unknown"),
        (Facts(version=Known(("v1.28.9",), "/version")), Flags(context="c1"), "Kubernetes v1.28.9 is older than 1.29"),
        (Facts(karmada=Known(("its control plane",), "x")), Flags(context="c1"), "this is a Karmada control plane"),
        (Facts(), Flags(context="c1", components=("routes",)), "component routes: the cluster has no definitions"),
        (Facts(), Flags(context="c1", components=("islands",)), "component islands: add --set cluster.network=NAME"),
        (
            Facts(),
            Flags(context="c1", settings={"ISTHMUS_CLUSTERSET_THROUGH_MIRROR": "true"}, without=("mirror",)),
            "clusterset.through_mirror wants the components keys and mirror",
        ),
        (Facts(), Flags(context="c1", components=("nosuch",)), "there is no component 'nosuch'"),
        (Facts(), Flags(context="c1", name="Not_A_Name"), "'Not_A_Name' is no cluster's name"),
        (
            Facts(implementations=Known(("Submariner",), "x")),
            Flags(context="c1"),
            "Submariner implements the MCS API here",
        ),
    ],
)
def test_what_makes_an_installation_useless_is_a_blocker(facts: Facts, flags: Flags, blocker: str) -> None:
    assert any(each.startswith(blocker) for each in planning.plan(facts, flags, DEPLOY).blockers)


def test_a_new_installation_has_three_etcds_where_three_nodes_take_pods() -> None:
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    small = (node("a"), node("b"), node("c", taints=[taint]), node("d", unschedulable=True))
    large = (*small, node("e"))
    context = Flags(context="c1")
    assert "replicated" not in planning.plan(of(nodes=small), context, DEPLOY).components
    assert "replicated" in planning.plan(of(nodes=large), context, DEPLOY).components
    without = Flags(context="c1", without=("keys",))
    assert "replicated" not in planning.plan(of(nodes=large), without, DEPLOY).components
    one = Installed({}, ("keys", "mirror"), {})
    facts = structs.replace(of(nodes=large), installed=one)
    assert "replicated" not in planning.plan(facts, context, DEPLOY).components
    wanted = planning.plan(facts, Flags(context="c1", components=("replicated",)), DEPLOY)
    assert any("delete statefulset isthmus-etcd" in each for each in wanted.warnings)
    alone = planning.plan(of(), Flags(context="c1", components=("replicated",), without=("keys",)), DEPLOY)
    assert any(each.startswith("component replicated: ") for each in alone.blockers)


@given(st.text(min_size=1, max_size=120))
def test_a_name_from_a_context_is_a_clusters_name_or_empty(context: str) -> None:
    name = planning.derived_name(context)
    assert name in ("", "default") or valid_cluster(name)


@given(st.text(max_size=40), st.sets(st.integers(1, 255), max_size=255))
def test_a_number_is_the_same_each_time_and_no_others(uid: str, taken: set[int]) -> None:
    number = planning.derived_id(uid, taken)
    assert number == planning.derived_id(uid, taken)
    assert number not in taken
    assert 1 <= number <= 255 or len(taken) == 255


def test_pod_ranges_of_nodes_are_left_to_the_agents_which_follow_nodes_that_come_later() -> None:
    facts = of(nodes=(node("a", cidrs=("10.9.0.0/24",)),), services=(DNS,))
    plan = planning.plan(facts, Flags(context="c1"), DEPLOY)
    assert plan.variables["ISTHMUS_CLUSTER_POD_RANGES"] == ""
    assert not any("pod ranges are unknown" in each for each in plan.warnings)


def test_an_issuer_brings_the_rights_to_request_its_certificates() -> None:
    context = Flags(context="c1")
    assert "issuer" not in planning.plan(of(), context, DEPLOY).components
    wanted = structs.replace(context, settings={"ISTHMUS_KEYS_ISSUER": "isthmus"})
    assert "issuer" in planning.plan(of(), wanted, DEPLOY).components
    installed = structs.replace(of(), installed=Installed({"ISTHMUS_KEYS_ISSUER": "isthmus"}, ("keys",), {}))
    assert "issuer" in planning.plan(installed, context, DEPLOY).components
    ended = structs.replace(context, settings={"ISTHMUS_KEYS_ISSUER": ""})
    assert "issuer" not in planning.plan(installed, ended, DEPLOY).components
    alone = planning.plan(of(), structs.replace(wanted, without=("keys",)), DEPLOY)
    assert any(each.startswith("keys.issuer: ") for each in alone.blockers)
