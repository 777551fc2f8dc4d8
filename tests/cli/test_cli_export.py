"""``isthmus services export``: ServiceExports for Services of a namespace, on an API server of the lab."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from clusters import chaos_clusters
from clusters.apiserver_world import serving

from isthmus import kube
from isthmus.cli import root
from isthmus.cli.exporting import left_out
from isthmus.config import KubernetesSection
from isthmus.kube.objects.core import SERVICE, Service, ServiceSpec
from isthmus.kube.objects.mcs import SERVICE_EXPORT
from isthmus.kube.objects.meta import ManagedMeta
from isthmus.mcs.words import SERVICE_NAME

SERVICES: dict[str, dict[str, Any]] = {
    "web": {"labels": {"app": "web"}},
    "web-admin": {"labels": {"app": "web"}},
    "db": {"labels": {"app": "db"}},
    "out": {"labels": {"app": "web"}, "type": "ExternalName"},
    "derived-x": {"labels": {SERVICE_NAME: "echo"}},
}


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    with serving(tmp_path / "kubernetes") as server:
        asyncio.run(filled(server.kubeconfig))
        yield server.kubeconfig


async def filled(kubeconfig: Path) -> None:
    async with await kube.connect(KubernetesSection(kubeconfig=str(kubeconfig))) as client:
        await chaos_clusters.defined(client)
        for name, fields in SERVICES.items():
            spec = {"ports": [{"port": 80}], "type": fields.get("type", "ClusterIP")}
            spec |= {"externalName": "example.org"} if "type" in fields else {}
            body = {"metadata": {"name": name, "namespace": "default", "labels": fields["labels"]}, "spec": spec}
            await client.create(SERVICE, "default", body)


def exported(kubeconfig: Path) -> set[str]:
    async def names() -> set[str]:
        async with await kube.connect(KubernetesSection(kubeconfig=str(kubeconfig))) as client:
            return {each.metadata.name for each in await client.list(SERVICE_EXPORT, "default")}

    return asyncio.run(names())


def command(kubeconfig: Path, *words: str) -> Result:
    return CliRunner().invoke(root, ["services", "export", *words, "--kubeconfig", str(kubeconfig)])


@pytest.mark.slow
def test_services_of_a_namespace_are_exported_by_label_or_all_and_twice_changes_nothing(kubeconfig: Path) -> None:
    said = command(kubeconfig, "default", "-l", "app=web", "--dry-run")
    assert (said.exit_code, exported(kubeconfig)) == (0, set())
    assert "serviceexport/web would be created" in said.output
    said = command(kubeconfig, "default", "-l", "app=web")
    assert said.output.splitlines() == [
        "service/out left out: of type ExternalName, which cannot be exported",
        "serviceexport/web created",
        "serviceexport/web-admin created",
    ]
    assert exported(kubeconfig) == {"web", "web-admin"}
    said = command(kubeconfig, "default")
    assert "serviceexport/web unchanged" in said.output
    assert "service/derived-x left out: it stands for the import echo" in said.output
    assert exported(kubeconfig) == {"web", "web-admin", "db"}

    said = command(kubeconfig, "default", "-l", "app=none")
    assert said.exit_code == 1
    assert "there is no service with app=none in namespace default" in said.output


@pytest.mark.parametrize(
    ("name", "labels", "type", "why"),
    [
        ("default/kubernetes", {}, "ClusterIP", "the API server of each cluster is its own"),
        ("demo/kubernetes", {}, "ClusterIP", ""),
        ("demo/derived-x", {SERVICE_NAME: "echo"}, "ClusterIP", "it stands for the import echo"),
        ("demo/out", {}, "ExternalName", "of type ExternalName, which cannot be exported"),
        ("demo/echo", {"app": "echo"}, "LoadBalancer", ""),
    ],
)
def test_what_cannot_be_exported_is_left_out_with_the_reason(
    name: str, labels: dict[str, str], type: str, why: str
) -> None:
    namespace, _, short = name.partition("/")
    meta = ManagedMeta(name=short, namespace=namespace, labels=labels)
    assert left_out(Service(metadata=meta, spec=ServiceSpec(type=type))) == why
