"""``examples/karmada/install`` as kustomize renders it: what must not be on Karmada's API server is not in it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from machine import programs

from isthmus import config
from isthmus.karmada.keyring import SERVER_NAMES
from isthmus.kube.objects.policies import TRAFFIC_POLICY
from isthmus.sources.policies import traffic_policy

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "karmada"
pytestmark = pytest.mark.needs("kubectl")


@pytest.fixture(scope="module")
def rendered() -> list[dict[str, Any]]:
    command = [programs.path("kubectl"), "kustomize", str(EXAMPLES / "install")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def pods(rendered: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each["spec"]["template"]["spec"] for each in rendered if "template" in each.get("spec", {})]


def test_our_exports_and_imports_are_not_defined_on_karmadas_api_server(rendered: list[dict[str, Any]]) -> None:
    names = {each["metadata"]["name"] for each in rendered if each["kind"] == "CustomResourceDefinition"}
    ours = ("trafficpolicies", "drains", "refusedroutes", "clusterlinks", "exportpolicies", "calleridentities")
    assert names == {f"{each}.isthmus.io" for each in ours}


def test_the_app_can_be_applied_as_a_folder_whose_files_are_read_by_name() -> None:
    files = sorted((EXAMPLES / "app").glob("*.yaml"))
    objects = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    assert objects[0]["kind"] == "Namespace"
    assert {each["metadata"]["namespace"] for each in objects[1:]} == {objects[0]["metadata"]["name"]}


def selected(each: dict[str, Any], policies: list[dict[str, Any]]) -> bool:
    meta, kind = each["metadata"], (each["apiVersion"], each["kind"])
    selectors = [selector for policy in policies for selector in policy["spec"]["resourceSelectors"]]
    return any(
        (selector["apiVersion"], selector["kind"]) == kind
        and selector.get("name", meta["name"]) == meta["name"]
        and selector.get("labelSelector", {}).get("matchLabels", {}).items() <= meta.get("labels", {}).items()
        for selector in selectors
    )


@pytest.mark.parametrize("folder", ["app", "hpa"])
def test_every_object_of_an_app_is_selected_by_a_policy_beside_it(folder: str) -> None:
    objects = [each for file in (EXAMPLES / folder).glob("*.yaml") for each in yaml.safe_load_all(file.read_text())]
    policies = [each for each in objects if each["kind"] == "PropagationPolicy"]
    placed = [each for each in objects if each not in policies and each["kind"] != "Namespace"]
    assert placed
    assert [each["metadata"] for each in placed if not selected(each, policies)] == []


def test_the_policy_that_prefers_a_region_takes_the_place_of_the_apps() -> None:
    app = yaml.safe_load_all((EXAMPLES / "app" / "shop.yaml").read_text())
    [old] = [each for each in app if each["kind"] == "TrafficPolicy"]
    new = yaml.safe_load((EXAMPLES / "region" / "policy.yaml").read_text())
    assert new["metadata"] == old["metadata"]
    row = traffic_policy(msgspec.convert(new, TRAFFIC_POLICY.struct))
    assert (row.invalid, [each.shares[0].region for each in row.tiers]) == ("", ["west", ""])


def test_every_object_is_selected_by_a_policy(rendered: list[dict[str, Any]]) -> None:
    policies = [each for each in rendered if each["kind"] in ("PropagationPolicy", "ClusterPropagationPolicy")]
    for each in rendered:
        if "karmada.io" in each["apiVersion"] or each["kind"] == "Namespace":
            continue
        assert selected(each, policies), each["metadata"]


def test_each_process_has_the_name_and_number_that_join_gives_its_member(rendered: list[dict[str, Any]]) -> None:
    ours = [each for pod in pods(rendered) for each in pod["containers"] if each["image"].startswith("isthmus:")]
    assert {each["args"][0] for each in ours} == {"operator", "agent", "dns", "mirror", "karmada"}
    for container in ours:
        assert container["envFrom"][-1] == {"configMapRef": {"name": "isthmus-member"}}


def test_the_container_that_keeps_users_finds_its_keys_and_its_etcd(rendered: list[dict[str, Any]]) -> None:
    [pod] = [pod for pod in pods(rendered) if any(each["name"] == "access" for each in pod["containers"])]
    [container] = [each for each in pod["containers"] if each["name"] == "access"]
    assert container["args"][:2] == ["karmada", "access"]
    flags = [each.removeprefix("--set=") for each in container["args"][2:]]
    read = config.load(None, environment={"ISTHMUS_CLUSTER_NAME": "c1", "ISTHMUS_CLUSTER_ID": "1"}, flags=flags)
    assert read.etcd.endpoints == ("https://127.0.0.1:2379",)
    assert "127.0.0.1" in SERVER_NAMES
    [mount] = container["volumeMounts"]
    assert read.etcd.ca_file == f"{mount['mountPath']}/ca.crt"
    secrets = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    assert secrets[mount["name"]] == "isthmus-etcd-access"
