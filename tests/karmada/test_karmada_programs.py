"""``isthmus karmada join`` and the examples beside Karmada's own controllers, scheduler and webhooks."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.karmada_control import until
from clusters.karmada_programs import karmada, member_servers

from isthmus import kube
from isthmus.kube.objects.core import SECRET, SERVICE
from isthmus.kube.objects.meta import Meta, Wire
from isthmus_lab.karmada.plane import Karmada

pytestmark = pytest.mark.karmada_programs

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "karmada"
CRDS = [ROOT / "deploy" / "crds" / name for name in ("serviceexports.yaml", "serviceimports.yaml")]
SYSTEM = "isthmus-system"
MEMBERS = ("c1", "c2", "c3")


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Karmada]:
    """Three members in which Karmada has placed Isthmus; `isthmus karmada join` runs."""
    folder = tmp_path_factory.mktemp("karmada")
    with member_servers(folder, *MEMBERS) as members, karmada(folder, members) as made:
        for number, name in enumerate(MEMBERS, 1):
            made.register(name, region="eu" if number < 3 else "us", zones=[f"zone-{number}"], provider="acme")
        asyncio.run(until(made.ready))
        made.kubectl("apply", "--server-side", "-k", str(EXAMPLES / "install"))
        definitions = [word for path in CRDS for word in ("--definitions", str(path))]
        command = [sys.executable, "-m", "isthmus", "karmada", "join", "--karmada-kubeconfig", made.kubeconfig]
        join = subprocess.Popen([*command, *definitions])
        try:
            asyncio.run(until(partial(everywhere, made, "Secret", "isthmus-etcd-server", MEMBERS)))
            yield made
        finally:
            join.terminate()
            join.wait()


def status(made: Karmada) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "isthmus", "karmada", "status", "--karmada-kubeconfig", made.kubeconfig]
    done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, timeout=120, check=False)
    return {each["name"]: each for each in json.loads(done.stdout)["members"]}


async def everywhere(made: Karmada, kind: str, name: str, members: tuple[str, ...]) -> bool:
    """Whether just these members have an object of ours."""
    return {each for each in MEMBERS if await has(made, each, kind, name)} == set(members)


async def has(made: Karmada, member: str, kind: str, name: str, namespace: str = SYSTEM, version: str = "v1") -> bool:
    async with made.member(member) as client:
        try:
            await client.get(await client.kind(version, kind, Named), name, namespace)
        except (kube.NotFound, kube.NotServed):
            return False
    return True


class Named(Wire, frozen=True):
    """Any object."""

    metadata: Meta


async def peers(made: Karmada, member: str) -> dict[str, dict[str, Any]]:
    """The peers' files of a member, as Karmada brought them."""
    async with made.member(member) as client:
        found = (await client.get(SECRET, "isthmus-peers", SYSTEM)).data or {}
    files = {name: base64.b64decode(text) for name, text in found.items() if "." not in name}
    return {name: yaml.safe_load(content) for name, content in files.items()}


async def test_the_installation_reaches_the_members_as_its_policies_have_it(placed: Karmada) -> None:
    for kind, name, version in (
        ("StatefulSet", "isthmus-etcd", "apps/v1"),
        ("DaemonSet", "isthmus-agent", "apps/v1"),
        ("Service", "isthmus-etcd-peers", "v1"),
        ("ConfigMap", "isthmus-member", "v1"),
    ):
        for member in MEMBERS:
            await until(partial(has, placed, member, kind, name, version=version))


async def _served_by_all(placed: Karmada, kind: str) -> bool:
    """Whether Karmada has seen the kind in every member: it looks now and then, and places nothing where it is not."""
    return all(
        any(kind == each["kind"] for group in cluster["status"]["apiEnablements"] for each in group["resources"])
        for cluster in placed.get("clusters")["items"]
    )


async def test_the_address_of_a_members_etcd_reaches_the_others_from_the_status_that_karmada_collects(
    placed: Karmada,
) -> None:
    for number, member in enumerate(MEMBERS, 1):
        async with placed.member(member) as client:
            body = {"status": {"loadBalancer": {"ingress": [{"ip": f"192.0.2.{number}"}]}}}
            await client.patch(SERVICE, SYSTEM, "isthmus-etcd-peers", body, subresource="status")

    async def known() -> bool:
        return {name: each["endpoints"] for name, each in (await peers(placed, "c1")).items()} == {
            "c2": ["https://192.0.2.2:2379"],
            "c3": ["https://192.0.2.3:2379"],
        }

    await until(known)

    async def joined() -> bool:
        return {each["state"] for each in status(placed).values()} == {"joined"}

    await until(joined)
    found = status(placed)
    assert (found["c3"]["region"], found["c3"]["zones"]) == ("us", ["zone-3"])
    assert {each["id"] for each in found.values()} == {1, 2, 3}


async def test_a_change_reaches_members_that_have_the_object_already(placed: Karmada) -> None:
    placed.kubectl("annotate", "cluster", "c2", "isthmus.io/pod-ranges=10.2.0.0/16")

    async def changed() -> bool:
        return (await peers(placed, "c1")).get("c2", {}).get("pod-ranges") == ["10.2.0.0/16"]

    await until(changed)


async def test_an_app_its_exports_and_its_policy_reach_the_members_that_they_are_for(placed: Karmada) -> None:
    await until(partial(_served_by_all, placed, "TrafficPolicy"))
    placed.kubectl("apply", "-f", str(EXAMPLES / "app"))
    exports = "multicluster.x-k8s.io/v1beta1"
    for member in ("c1", "c2"):
        await until(partial(has, placed, member, "ServiceExport", "web", "shop", exports))
        await until(partial(has, placed, member, "Deployment", "web", "shop", "apps/v1"))
    for member in MEMBERS:
        await until(partial(has, placed, member, "TrafficPolicy", "web", "shop", "isthmus.io/v1alpha1"))
    assert not await has(placed, "c3", "Deployment", "web", "shop", "apps/v1")
    assert not await has(placed, "c3", "ServiceExport", "web", "shop", exports)


async def test_a_member_that_isthmus_is_no_longer_placed_in_loses_its_keys_and_its_peers_its_access(
    placed: Karmada,
) -> None:
    affinity = {"clusterAffinity": {"clusterNames": ["c1", "c2"]}}
    patch = json.dumps({"spec": {"placement": affinity}})
    placed.kubectl("-n", SYSTEM, "patch", "propagationpolicy", "isthmus", "--type=merge", "-p", patch)
    await until(partial(everywhere, placed, "Secret", "isthmus-etcd-server", ("c1", "c2")))

    async def forgotten() -> bool:
        return set(await peers(placed, "c1")) == {"c2"}

    await until(forgotten)
    assert await has(
        placed,
        "c3",
        "CustomResourceDefinition",
        "serviceexports.multicluster.x-k8s.io",
        "",
        "apiextensions.k8s.io/v1",
    )
