"""``helm template deploy/chart`` has the objects of kustomize, and refuses wrong values by name."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from clusters.manifests import assert_equal, by_name
from machine import programs

from isthmus.cli import root
from isthmus.installation import rendering, shipped
from isthmus.installation.plan import LINK_LOCAL
from isthmus.installation.rendering import Options

pytestmark = [pytest.mark.kube, pytest.mark.needs("helm")]

DEPLOY = shipped.directory("deploy")
COMPONENTS = ("keys", "mirror", "routes", "islands", "monitoring", "replicated")
"""Those of which every set is compared. The component issuer adds two objects and changes none, so one set has it."""
SETS = [
    chosen
    for size in range(7)
    for chosen in combinations(COMPONENTS, size)
    if ("islands" not in chosen or "routes" in chosen) and ("replicated" not in chosen or "keys" in chosen)
] + [("keys", "issuer")]
LEAST = {"cluster": {"name": "c7", "id": 7}, "dns": {"clusterDns": ["10.96.0.10"]}}
VARIABLES = {"ISTHMUS_CLUSTER_NAME": "c7", "ISTHMUS_CLUSTER_ID": "7"}


def helm(command: str, folder: Path, values: Mapping[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    """A command of Helm about the chart, which may read nothing of this machine's user."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)))
    name = ("isthmus",) if command == "template" else ()
    return subprocess.run(
        [programs.path("helm"), command, *name, str(DEPLOY / "chart"), f"--values={file}", *options],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(folder)},
        timeout=60,
    )


def templated(folder: Path, values: Mapping[str, Any], *options: str) -> list[dict[str, Any]]:
    done = helm("template", folder, values, "--namespace=isthmus-system", "--include-crds", *options)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def same(folder: Path, values: Mapping[str, Any], options: Options) -> None:
    """Assert that the chart has the objects of the bases, but for the Namespace, which is the user's."""
    expected = [each for each in rendering.render(DEPLOY, options) if each["kind"] != "Namespace"]
    assert_equal(templated(folder, values, "--skip-tests"), expected)


@pytest.mark.parametrize("chosen", SETS, ids="+".join)
def test_objects_equal_those_of_the_bases_for_each_set_of_components(chosen: tuple[str, ...], tmp_path: Path) -> None:
    values: dict[str, Any] = {
        **copy.deepcopy(LEAST),
        "components": {name: name in chosen for name in (*COMPONENTS, "issuer")},
    }
    variables = dict(VARIABLES)
    if "islands" in chosen:
        values["cluster"]["network"] = variables["ISTHMUS_CLUSTER_NETWORK"] = "west"
    same(tmp_path, values, Options(components=chosen, variables=variables))


def test_objects_equal_those_of_the_bases_with_every_setting(tmp_path: Path) -> None:
    values = {
        "image": "registry.example:5000/isthmus:x",
        "envoyImage": "registry.example/isthmus-envoy@sha256:" + 64 * "0",
        "families": ["IPv6", "IPv4"],
        "cluster": {
            "name": "c7",
            "id": 7,
            "podRanges": ["10.1.0.0/16", "fd00:1::/48"],
            "serviceRanges": ["10.96.0.0/12"],
            "nodeRanges": ["192.0.2.0/24"],
            "region": "<ü&b>",
            "zone": "3",
            "labels": {"tier": "1", "example.com/a": "", "b": "yes"},
            "network": "west",
            "gateways": ["gateway.example:15443", "192.0.2.1:15443"],
        },
        "dns": {"clusterDns": ["10.96.0.10", "fd00:10:96::a"]},
        "components": {"routes": True, "islands": True},
        "settings": {
            "datapath": {"max_entries": 4_194_304, "grace": 0.25, "destroy_tcp": True, "flows": "off"},
            "keys": {"lifetime": 7_776_000, "hosts": ["a.example", "b.example"]},
        },
    }
    variables = {
        "ISTHMUS_CLUSTER_NAME": "c7",
        "ISTHMUS_CLUSTER_ID": "7",
        "ISTHMUS_CLUSTER_POD_RANGES": "10.1.0.0/16,fd00:1::/48",
        "ISTHMUS_CLUSTER_SERVICE_RANGES": "10.96.0.0/12",
        "ISTHMUS_CLUSTER_NODE_RANGES": "192.0.2.0/24",
        "ISTHMUS_CLUSTER_REGION": "<ü&b>",
        "ISTHMUS_CLUSTER_ZONE": "3",
        "ISTHMUS_CLUSTER_LABELS": "b=yes,example.com/a=,tier=1",
        "ISTHMUS_CLUSTER_NETWORK": "west",
        "ISTHMUS_CLUSTER_GATEWAYS": "gateway.example:15443,192.0.2.1:15443",
        "ISTHMUS_CLUSTER_FAMILIES": "IPv6,IPv4",
        "ISTHMUS_DNS_CLUSTER_DNS": "10.96.0.10,fd00:10:96::a",
        "ISTHMUS_DNS_LISTEN": f"{LINK_LOCAL['IPv4']}:53,[{LINK_LOCAL['IPv6']}]:53",
        "ISTHMUS_PROXY_LISTEN": ",".join(LINK_LOCAL.values()),
        "ISTHMUS_DATAPATH_MAX_ENTRIES": "4194304",
        "ISTHMUS_DATAPATH_GRACE": "0.25",
        "ISTHMUS_DATAPATH_DESTROY_TCP": "true",
        "ISTHMUS_DATAPATH_FLOWS": "off",
        "ISTHMUS_KEYS_LIFETIME": "7776000",
        "ISTHMUS_KEYS_HOSTS": "a.example,b.example",
    }
    images = {"isthmus": values["image"], "isthmus-envoy": values["envoyImage"]}
    parts = ("keys", "mirror", "routes", "islands")
    same(tmp_path, values, Options(components=parts, variables=variables, images=images))  # type: ignore[arg-type]


def test_lint_finds_nothing_to_warn_about(tmp_path: Path) -> None:
    done = helm("lint", tmp_path, LEAST, "--strict", "--namespace=isthmus-system")
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


WRONG = {
    "cluster.id=0": "at '/cluster/id': minimum: got 0, want 1",
    "cluster.id=256": "at '/cluster/id': maximum: got 256, want 255",
    "cluster.id=one": "at '/cluster/id': got string, want integer",
    "cluster.name=West": "at '/cluster/name': 'West' does not match pattern",
    "cluster.name=default": "at '/cluster/name': 'not' failed",
    "cluster.name=" + 33 * "a": "at '/cluster/name': maxLength: got 33, want 32",
    "cluster.podRanges={10.0.0.0/33}": "at '/cluster/podRanges/0': '10.0.0.0/33' does not match pattern",
    "cluster.serviceRanges={10.0.0.256/8}": "at '/cluster/serviceRanges/0': '10.0.0.256/8' does not match pattern",
    "cluster.nodeRanges=10.0.0.0/8": "at '/cluster/nodeRanges': got string, want array",
    "cluster.gateways={192.0.2.1}": "at '/cluster/gateways/0': '192.0.2.1' does not match pattern",
    "cluster.labels.a=b c": "at '/cluster/labels/a': 'b c' does not match pattern",
    "dns.clusterDns={kube-dns}": "at '/dns/clusterDns/0': 'kube-dns' does not match pattern",
    "dns.listen={169.254.7.1}": "at '/dns/listen/0': '169.254.7.1' does not match pattern",
    "families={IPv5}": "at '/families/0': value must be one of 'IPv4', 'IPv6'",
    "components.islands=true": "at '/components/routes': value must be true",
    "components.island=true": "at '/components': additional properties 'island' not allowed",
    "settings.datapath.flow=1": "at '/settings/datapath': additional properties 'flow' not allowed",
    "settings.datapath.max_entries=0": "at '/settings/datapath/max_entries': minimum: got 0, want 1",
    "settings.cluster.id=3": "at '/settings': additional properties 'cluster' not allowed",
    "image=": "at '/image': '' does not match pattern",
    "replicas=3": "at '': additional properties 'replicas' not allowed",
}


@pytest.mark.parametrize("setting", WRONG)
def test_a_wrong_value_is_refused_by_name(setting: str, tmp_path: Path) -> None:
    done = helm("template", tmp_path, LEAST, "--namespace=isthmus-system", "--set", setting)
    assert done.returncode != 0
    assert WRONG[setting] in done.stderr
    assert not done.stdout


def test_an_island_needs_the_name_of_its_network(tmp_path: Path) -> None:
    values = {**LEAST, "components": {"routes": True, "islands": True}}
    done = helm("template", tmp_path, values, "--namespace=isthmus-system")
    assert "at '/cluster/network': minLength: got 0, want 1" in done.stderr


def test_what_only_the_user_knows_is_asked_for(tmp_path: Path) -> None:
    done = helm("template", tmp_path, {}, "--namespace=isthmus-system")
    assert "at '/cluster': missing properties 'name', 'id'" in done.stderr
    assert "at '/dns': missing property 'clusterDns'" in done.stderr


def test_another_namespace_is_refused(tmp_path: Path) -> None:
    done = helm("template", tmp_path, LEAST, "--namespace=mesh")
    assert "Isthmus runs in the namespace isthmus-system, not in 'mesh': add --namespace isthmus-system" in done.stderr


def test_the_hook_asks_processes_of_a_node_at_the_sockets_that_their_configuration_has(tmp_path: Path) -> None:
    with_hook, without = (by_name(templated(tmp_path, LEAST, *more)) for more in ((), ("--skip-tests",)))
    [hook] = (with_hook[name] for name in with_hook.keys() - without.keys())
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "test"
    sockets = set()
    for container in hook["spec"]["containers"]:
        arguments = container["args"]
        with click.Context(root) as context:
            command = root.get_command(context, arguments[0])
            assert command is not None
            command.make_context(arguments[0], arguments[1:], parent=context)
        sockets.add(arguments[arguments.index("--socket") + 1])
    config = next(each["data"] for name, each in without.items() if name[3].startswith("isthmus-config-"))
    assert sockets == {
        *(
            line.split('"')[1]
            for name in ("agent", "dns")
            for line in config[f"{name}.toml"].splitlines()
            if "ket =" in line
        ),
        "/run/isthmus/dns-second.sock",
    }
