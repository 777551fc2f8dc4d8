"""``isthmus install`` applies exactly what ``kubectl apply -k deploy/`` would."""

from __future__ import annotations

import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.manifests import assert_equal
from machine import programs

from isthmus.config import ProxySection
from isthmus.installation import rendering, shipped
from isthmus.installation.rendering import Options

DEPLOY = shipped.directory("deploy")
SETS = [
    ("keys", *chosen)
    for size in range(6)
    for chosen in combinations(("mirror", "routes", "islands", "monitoring", "replicated"), size)
    if "islands" not in chosen or "routes" in chosen
] + [(), ("mirror",), ("keys", "issuer")]


def kustomized(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [programs.path("kubectl"), "kustomize", str(folder)], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.needs("kubectl")
@pytest.mark.parametrize("chosen", SETS, ids="+".join)
def test_objects_equal_those_of_kubectl_kustomize_for_each_set_of_components(
    chosen: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "deploy"
    shutil.copytree(DEPLOY, folder)
    root = yaml.safe_load((folder / "kustomization.yaml").read_text())
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({**root, "components": list(chosen)}))
    assert_equal(rendering.render(DEPLOY, Options(components=chosen)), kustomized(folder))


@pytest.mark.needs("kubectl")
def test_variables_and_images_equal_those_of_an_edited_copy(tmp_path: Path) -> None:
    folder = tmp_path / "deploy"
    shutil.copytree(DEPLOY, folder)
    env = (folder / "cluster.env").read_text().replace("ISTHMUS_CLUSTER_NAME=c1", "ISTHMUS_CLUSTER_NAME=<ü & b>")
    (folder / "cluster.env").write_text(env)
    root = yaml.safe_load((folder / "kustomization.yaml").read_text())
    root["images"][0] |= {"newName": "registry.example:5000/isthmus", "newTag": "x"}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(root))
    options = Options(
        variables={"ISTHMUS_CLUSTER_NAME": "<ü & b>"}, images={"isthmus": "registry.example:5000/isthmus:x"}
    )
    assert_equal(rendering.render(DEPLOY, options), kustomized(folder))


def test_what_an_object_refers_to_precedes_it() -> None:
    kinds = [each["kind"] for each in rendering.render(DEPLOY)]
    assert kinds[0] == "Namespace"
    workloads = min(kinds.index(each) for each in ("DaemonSet", "Deployment", "StatefulSet"))
    assert {"CustomResourceDefinition", "ServiceAccount", "ConfigMap"}.isdisjoint(kinds[workloads:])


def test_a_field_of_a_kustomization_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "deploy"
    shutil.copytree(DEPLOY, folder)
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text() + "\nnamePrefix: x-\n")
    with pytest.raises(rendering.RenderingError, match="'namePrefix' is not supported"):
        rendering.render(folder)


def test_every_component_of_the_folder_is_found() -> None:
    assert {"keys", "mirror", "routes", "islands", "monitoring", "replicated", "issuer"} <= set(
        rendering.components(DEPLOY)
    )


def test_the_pod_of_an_envoy_that_was_replaced_may_stay_for_as_long_as_its_connections() -> None:
    objects = rendering.render(DEPLOY, Options(components=("routes",)))
    [envoy] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == ("DaemonSet", "isthmus-envoy")]
    pod = envoy["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > ProxySection().drain_limit


def test_no_pod_is_spread_by_a_label_that_nodes_may_lack() -> None:
    """Such a node is left out of all that the scheduler scores, and so would no longer count by its name either."""
    parts = ("keys", "mirror", "routes", "islands", "monitoring", "replicated")
    specs = [
        each.get("spec", {}).get("template", {}).get("spec", {})
        for each in rendering.render(DEPLOY, Options(components=parts))
    ]
    constraints = [each for spec in specs for each in spec.get("topologySpreadConstraints", ())]
    assert {each["topologyKey"] for each in constraints} == {"kubernetes.io/hostname"}
