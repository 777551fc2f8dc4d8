"""Clusters of an inventory as contexts of a kubeconfig."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.cli import inventory
from isthmus.cli.inventory import Kubeconfig, Member
from isthmus.kube.objects.inventory import ClusterProfile

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "hub",
    "clusters": [
        {"name": "one", "cluster": {"server": "https://One.example:443/", "certificate-authority-data": "x"}},
        {"name": "two", "cluster": {"server": "https://192.0.2.2:6443"}},
        {"name": "odd", "cluster": {}},
    ],
    "contexts": [
        {"name": "admin@one", "context": {"cluster": "one", "user": "admin", "namespace": "demo"}},
        {"name": "c1", "context": {"cluster": "one", "user": "me"}},
        {"name": "admin@two", "context": {"cluster": "two"}},
        {"name": "c4", "context": {"cluster": "odd"}},
        {"name": "dangling", "context": {"cluster": "none"}},
    ],
    "users": [{"name": "me", "user": {"exec": {"command": "aws"}}}],
}


def profile(name: str, *servers: str, field: str = "accessProviders", **properties: str) -> ClusterProfile:
    """A profile as a cluster manager writes it."""
    status: dict[str, Any] = {
        "conditions": [{"type": "ControlPlaneHealthy", "status": "True"}],
        "version": {"kubernetes": "1.34.0"},
        "properties": [{"name": key.replace("_", "."), "value": value} for key, value in properties.items()],
        field: [{"name": "kubeconfig", "cluster": {"server": server}} for server in servers],
    }
    meta = {"name": name, "namespace": "fleet", "resourceVersion": "1"}
    spec = {"displayName": name, "clusterManager": {"name": "fleet"}}
    body = {"kind": "ClusterProfile", "metadata": meta, "spec": spec, "status": status}
    return msgspec.json.decode(json.dumps(body), type=ClusterProfile)


def found(*profiles: ClusterProfile, config: dict[str, Any] = KUBECONFIG) -> list[Member]:
    return inventory.members(profiles, msgspec.convert(config, Kubeconfig))


@pytest.mark.parametrize(
    ("given", "context"),
    [
        (profile("c1", "https://one.example"), "c1"),
        (profile("other", "https://one.example"), "admin@one"),
        (profile("c2", "https://192.0.2.2:6443/"), "admin@two"),
        (profile("c2", "https://192.0.2.2:6443", field="credentialProviders"), "admin@two"),
        (profile("c2", "https://192.0.2.9", "https://192.0.2.2:6443"), "admin@two"),
        (profile("c4"), "c4"),
    ],
)
def test_a_profile_is_the_context_that_has_its_server_or_its_name_if_it_has_none(
    given: ClusterProfile, context: str
) -> None:
    assert found(given) == [Member(given.metadata.name, context, "")]


def test_a_profile_without_a_context_has_the_reason() -> None:
    away, nameless = found(profile("c1", "https://192.0.2.77"), profile("c9"))
    assert (away.context, nameless.context) == ("", "")
    assert away.reason == "ClusterProfile c1: no context of the kubeconfig has its server https://192.0.2.77"
    assert nameless.reason == "ClusterProfile c9: no context of the kubeconfig is called so, and it has no server"
    assert found(profile("c9"), config={"clusters": None, "contexts": None})[0].context == ""


def test_a_profile_has_the_name_in_the_clusterset_that_its_cluster_shows() -> None:
    given = profile("c1", "https://one.example", cluster_clusterset_k8s_io="west", region="eu")
    assert found(given)[0].cluster == "west"
