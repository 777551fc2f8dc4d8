"""Names and addresses of a lab, manifests by cluster, targets of exec."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from isthmus import config
from isthmus.model.services import Family
from isthmus_lab import cgroups, manifests, startup
from isthmus_lab.cli.lab import group
from isthmus_lab.families import SCHEMES
from isthmus_lab.layout import Lab
from isthmus_lab.pod_exec import NoSuchPod, parse
from isthmus_lab.supervisor import configs
from isthmus_lab.supervisor.programs import programs


def test_two_labs_never_own_each_others_namespaces() -> None:
    assert Lab("demo").owns("isthmus-demo-c12-p4095")
    assert Lab("demo").owns("isthmus-demo-fabric")
    for other in ("isthmus-demo2-fabric", "isthmus-dem-fabric", "isthmus-demo", "demo-fabric", "isthmus-demo-c1-x"):
        assert not Lab("demo").owns(other)


def test_the_place_of_a_cluster_is_in_the_configuration_of_its_processes() -> None:
    lab = Lab("demo", 3, places=(("east", "a"), ("east", "")))
    places = [(found.cluster.region, found.cluster.zone) for found in map(configs.operator, lab.clusters)]
    assert places == [("east", "a"), ("east", ""), ("", "")]
    assert [configs.agent(cluster.nodes[0]).cluster.region for cluster in lab.clusters] == ["east", "east", ""]


def test_what_a_lab_leaves_off_is_in_no_file_of_it() -> None:
    """The previous release's processes run in labs of today, and refuse a section that they do not know."""
    cluster = Lab("demo", 2, networks=("island",)).clusters[0]
    node = cluster.nodes[0]
    of_processes = (configs.operator(cluster), configs.agent(node), configs.gateway(node, envoy="/envoy"))
    assert not any("[identity]" in config.to_toml(each) for each in of_processes)
    proven = configs.agent(Lab("demo", 2, identity=True).clusters[0].nodes[0])
    assert "[identity]" in config.to_toml(proven)


@pytest.mark.parametrize("word", ["c9=east", "c1", "c1=", "c1=/a"])
def test_a_place_that_is_none_is_one_line(word: str) -> None:
    done = CliRunner().invoke(group, ["up", "--lab", "nolab", "--place", word])
    wanted = f"Error: --place {word}: want CLUSTER=REGION[/ZONE], a cluster of c1, c2, c3"
    assert (done.exit_code, done.stderr.strip()) == (1, wanted)


def test_flat_clusters_and_islands_may_be_in_one_lab() -> None:
    lab = Lab("demo", 4, networks=("flat", "flat", "island"))
    assert [cluster.network for cluster in lab.clusters] == ["", "", "c3", "c4"]
    assert [cluster.pod_cidrs[0] for cluster in lab.clusters] == [
        "10.1.0.0/16",
        "10.2.0.0/16",
        "10.1.0.0/16",
        "10.1.0.0/16",
    ]
    c1, c2, c3, _ = lab.clusters
    assert c2.etcd_seen_from(c1) == ("https://172.30.2.2:2379",)
    assert c2.etcd_seen_from(c3) == ("https://172.30.2.11:15443",), "across networks through the gateway"
    assert configs.operator(c1).cluster.gateways == ("172.30.1.11:15443",)


def test_every_gateway_node_is_published() -> None:
    lab = Lab("demo", 2, 3, ("island",), gateways=2)
    assert [node.gateway for node in lab.clusters[1].nodes] == [True, True, False]
    published = ("172.30.2.11:15443", "172.30.2.12:15443")
    assert configs.operator(lab.clusters[1]).cluster.gateways == published
    assert lab.clusters[1].etcd_seen_from(lab.clusters[0]) == tuple(f"https://{each}" for each in published)
    assert {each.name for each in programs(lab, etcd="/etcd", envoy="/envoy") if each.name.endswith("/gateway")} == {
        f"{cluster}/{node}/gateway" for cluster in ("c1", "c2") for node in ("n1", "n2")
    }


@pytest.mark.parametrize("word", ["c9=island", "peninsula", "c1=", "c1=peninsula"])
def test_a_network_that_is_none_is_one_line(word: str) -> None:
    done = CliRunner().invoke(group, ["up", "--lab", "nolab", "--network", word])
    wanted = f"Error: --network {word}: want flat or island, or CLUSTER=… of c1, c2, c3"
    assert (done.exit_code, done.stderr.strip()) == (1, wanted)


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_addresses_of_all_clusters_and_nodes_differ(family: Family) -> None:
    lab, scheme = Lab("demo", 64, 40, families=((family,),)), SCHEMES[family]
    nodes = [node for cluster in lab.clusters for node in cluster.nodes]
    addresses = [node.address for node in nodes] + [cluster.address for cluster in lab.clusters]
    assert len({*addresses, *(cluster.gateway(scheme) for cluster in lab.clusters)}) == 64 * 42
    assert len({node.pod_cidrs for node in nodes}) == 64 * 40
    assert max(len(node.wire) for node in nodes) <= 15, "an interface's name has at most 15 characters"


@pytest.mark.parametrize(
    ("lab", "message"),
    [
        (Lab("Demo"), "--lab Demo"),
        (Lab("a-b"), "--lab a-b"),
        (Lab(size=0), "--clusters 0"),
        (Lab(nodes=99), "--nodes 99"),
    ],
)
def test_a_lab_that_cannot_be_is_refused_with_the_flag(lab: Lab, message: str) -> None:
    with pytest.raises(startup.CannotStart, match=message):
        startup.check(lab)


@pytest.mark.parametrize(
    ("target", "parsed"),
    [
        ("demo/client", ("demo", "pod", "client")),
        ("demo/deploy/echo", ("demo", "deployment", "echo")),
        ("deploy/echo", ("default", "deployment", "echo")),
        ("client", ("default", "pod", "client")),
    ],
)
def test_a_pod_is_named_as_in_kubectl(target: str, parsed: tuple[str, str, str]) -> None:
    assert parse(target) == parsed


def test_what_is_no_pods_name_is_refused() -> None:
    with pytest.raises(NoSuchPod, match="a/b/c/d: want NAMESPACE/POD"):
        parse("a/b/c/d")


def write(directory: Path, name: str, text: str) -> None:
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).write_text(text)


def test_manifests_go_to_all_clusters_or_to_the_one_of_their_folder(tmp_path: Path) -> None:
    write(tmp_path, "all.yaml", "kind: Service\nmetadata: {name: a}\n---\nkind: Namespace\nmetadata: {name: n}\n")
    write(tmp_path, "c2/only.yaml", "kind: Service\nmetadata: {name: b}\n")
    found = manifests.of_lab(tmp_path, Lab("demo", 2))
    assert [m.body["kind"] for m in found["c1"]] == ["Namespace", "Service"], "what others need comes first"
    assert [m.body["metadata"]["name"] for m in found["c2"]] == ["n", "a", "b"]


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    write(tmp_path, "bad.yaml", "a: [1")
    with pytest.raises(manifests.BadManifest, match=r"bad\.yaml"):
        manifests.of_lab(tmp_path, Lab("demo", 1))


def test_a_pod_that_goes_while_pods_are_listed_is_left_out(tmp_path: Path) -> None:
    """`lab exec` lists pods while a rollout ends others."""
    for pod in ("demo_a", "demo_b", "demo_c"):
        (tmp_path / pod / "echo").mkdir(parents=True)
    found = cgroups.groups(tmp_path, depth=2)
    first = next(found)
    gone = next(path for path in sorted(tmp_path.iterdir()) if path != first.parent)
    (gone / "echo").rmdir()
    gone.rmdir()
    assert first.parent != gone
    assert [path.name for path in (first, *found)] == ["echo", "echo"]
