"""What Karmada's own controllers do to EndpointSlices of members, over a lab, and what calls make of it.

The app of examples/karmada is placed in c1 and c2, exported there, and claimed by a MultiClusterService. Each test
follows on what the one before left. Members that die, scale and are left are in the story.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import Running, lab_name, until

from isthmus_lab import cgroups, pod_exec, removal
from isthmus_lab.karmada import plane
from isthmus_lab.karmada.plane import Karmada
from isthmus_lab.layout import Lab
from isthmus_lab.own_programs import IN_CONTAINER

pytestmark = [pytest.mark.lab, pytest.mark.karmada_programs, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "karmada"
POLICIES = ROOT / "deploy" / "crds" / "trafficpolicies.yaml"
PLACES = (("east", "east-1"), ("west", "west-1"), ("east", "east-2"))
EXPORTED = "web.shop.svc.clusterset.local"
NATIVE = "web.shop.svc.cluster.local"
DISPATCHER = "endpointslice-dispatch-controller.karmada.io"
FIXED = "web-fixed"
Backends = dict[str, str]
"""Address to cluster."""


class Members(Running):
    """A lab whose clusters are members of a Karmada control plane."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self.karmada: Karmada

    def start_karmada(self) -> Karmada:
        servers = {each.name: plane.of_context(self.lab.kubeconfig, each.name) for each in self.lab.clusters}
        group = cgroups.make(cgroups.root() / self.lab.prefix / "karmada")
        self.karmada = Karmada(self.lab.directory / "karmada", servers, definitions=[POLICIES], cgroup=group)
        self.karmada.start()
        for each, (region, zone) in zip(self.lab.clusters, PLACES, strict=True):
            self.karmada.register(each.name, region=region, zones=[zone], provider="lab")
        until(lambda: asyncio.run(self.karmada.ready()), what="Karmada finds all members ready")
        return self.karmada

    def slices(self, cluster: str) -> dict[str, dict[str, Any]]:
        """The EndpointSlices of the Service itself, by name."""
        options = ("-l", "kubernetes.io/service-name=web", "--show-managed-fields", "-o", "json")
        text = self.kubectl("-n", "shop", "get", "endpointslices", *options, cluster=cluster)
        return {each["metadata"]["name"]: each for each in json.loads(text)["items"]}

    def own_slices(self, cluster: str) -> dict[str, str]:
        """Uid by name of those that the member's own controller made."""
        return {
            name: each["metadata"]["uid"]
            for name, each in self.slices(cluster).items()
            if manager(each) == "endpointslice-controller.k8s.io"
        }

    def ghosts(self, cluster: str) -> set[str]:
        """Names of those that Karmada brought."""
        return {name for name, each in self.slices(cluster).items() if manager(each) == DISPATCHER}

    def planned(self, cluster: str) -> tuple[Backends, Backends]:
        """Where calls of the exported and of the native name go."""
        rows = json.loads(self.isthmus("get", "plans", "-n", "shop", "-o", "json", cluster=cluster))["rows"]
        found: tuple[Backends, Backends] = ({}, {})
        for row in rows:
            of = found[0] if row["import_of"] == "shop/web" else found[1]
            targets = [target for group in row["groups"] for target in group["targets"]]
            of.update({target["address"]: target["cluster"] for target in targets})
            assert len(of) == len(targets), f"an address under two clusters: {targets}"
        return found

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        """Calls from c3 while the block runs; none may fail."""
        [*_, consumer] = self.lab.clusters
        argv = IN_CONTAINER.command("tcp_load.py", name, "80", "--rate", "50", "--until-eof")
        pod, pipe = pod_exec.find(consumer, "shop/deploy/client"), subprocess.PIPE
        child = pod_exec.run(pod, argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() in (b"answered by c1\n", b"answered by c2\n")
            yield
            [*_, last] = child.communicate()[0].splitlines()
            found = json.loads(last)
            assert (found["connects_failed"], found["answers_failed"]) == (0, 0), found
            assert found["calls"] > 20
        finally:
            child.kill()
            child.wait()


def manager(found: dict[str, Any]) -> str:
    return str(found["metadata"]["labels"].get("endpointslice.kubernetes.io/managed-by", ""))


def clusters(of: Backends) -> list[str]:
    return sorted(of.values())


@pytest.fixture(scope="module")
def members() -> Iterator[Members]:
    made = Members(Lab(lab_name("y"), 3, 1, places=PLACES))
    with ExitStack() as stack:
        stack.callback(removal.remove, made.lab)
        places = [f"--place=c{n}={region}/{zone}" for n, (region, zone) in enumerate(PLACES, 1)]
        made.cli("up", "--clusters", "3", *places)
        stack.callback(made.start_karmada().stop)
        kubectl = made.karmada.kubectl
        kubectl("apply", "-f", str(EXAMPLES / "app"))
        kubectl("apply", "-f", str(EXAMPLES / "native"))
        until(partial(made.kubectl, "apply", "-f", str(EXAMPLES / "client"), cluster="c3"), what="Karmada's namespace")
        until(lambda: made.exec("shop/deploy/client", "echo there", cluster="c3"), what="the client runs")
        yield made


def placed(members: Members, cluster: str) -> tuple[Backends, Backends]:
    """Both plans, as soon as they have the three pods of the app each."""

    def whole() -> tuple[Backends, Backends] | None:
        found = members.planned(cluster)
        return found if all(clusters(each) == ["c1", "c1", "c2"] for each in found) else None

    both: tuple[Backends, Backends] = until(whole, what=f"both plans of {cluster}")
    return both


def test_a_multiclusterservice_is_made_and_every_member_calls_all_pods_each_under_its_provider(
    members: Members,
) -> None:
    """Of c1 and c2, too, which are providers themselves."""
    for cluster in ("c1", "c2", "c3"):
        exported, native = placed(members, cluster)
        assert exported == native
        assert {address.split(".")[1]: name for address, name in native.items()} == {"1": "c1", "2": "c2"}
    assert all(name.startswith(("c1-web", "c2-web")) for name in members.ghosts("c3"))


def test_no_slice_of_karmadas_is_written_by_us(members: Members) -> None:
    for cluster in ("c1", "c2", "c3"):
        found = members.slices(cluster)
        assert {manager(each) for each in found.values()} >= {DISPATCHER}
        for each in found.values():
            writers = {entry["manager"] for entry in each["metadata"]["managedFields"]}
            assert not any("isthmus" in writer for writer in writers), each


def test_a_provider_is_taken_out_and_its_own_slice_deleted_and_remade_while_the_export_goes_on(
    members: Members,
) -> None:
    """Karmada deletes the own slice of a member that is no provider any more; its controller makes another."""
    exported, _ = placed(members, "c3")
    before = members.own_slices("c3")
    with members.calling(EXPORTED):
        patch = '{"spec": {"providerClusters": [{"name": "c2"}]}}'
        members.karmada.kubectl("-n", "shop", "patch", "multiclusterservice", "web", "--type=merge", "-p", patch)
        until(lambda: clusters(members.planned("c3")[1]) == ["c2"], what="the native name has c2 alone")
        until(lambda: len(after := members.own_slices("c3")) == 1 and after != before, what="c3's slice is another")
        assert members.planned("c3")[0] == exported
        patch = '{"spec": {"providerClusters": null}}'
        members.karmada.kubectl("-n", "shop", "patch", "multiclusterservice", "web", "--type=merge", "-p", patch)
        assert placed(members, "c3")[0] == exported


def test_of_two_slices_of_one_name_karmada_brings_one_and_both_names_have_both(members: Members) -> None:
    """By the providers' records. These also hide what is left of one in the other provider when both have gone."""
    addresses = {"c1": "10.1.1.77", "c2": "10.2.1.77"}
    for cluster, address in addresses.items():
        labels = {"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "by-hand"}
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": FIXED, "namespace": "shop", "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        }
        members.kubectl("apply", "-f", "-", stdin=json.dumps(body), cluster=cluster)
        until(lambda: members.ghosts("c3") & {f"c1-{FIXED}"}, what="Karmada has brought c1's")
    wanted = {address: cluster for cluster, address in addresses.items()}

    def by_hand(of: Backends) -> Backends:
        return {address: cluster for address, cluster in of.items() if address in wanted}

    def has(cluster: str, what: Backends) -> bool:
        return [by_hand(each) for each in members.planned(cluster)] == [what, what]

    for cluster in ("c1", "c2", "c3"):
        until(partial(has, cluster, wanted), what=f"both names have both in {cluster}")
    assert f"c2-{FIXED}" not in members.ghosts("c3")
    for cluster in addresses:
        members.kubectl("-n", "shop", "delete", "endpointslice", FIXED, cluster=cluster)
    for cluster in ("c1", "c2", "c3"):
        until(partial(has, cluster, {}), what=f"neither name has either in {cluster}")


def test_the_export_is_withdrawn_and_back_while_calls_of_the_native_name_go_on(members: Members) -> None:
    _, native = placed(members, "c3")
    with members.calling(NATIVE):
        members.karmada.kubectl("-n", "shop", "delete", "serviceexport", "web")
        for cluster in ("c1", "c2", "c3"):
            until(lambda: members.planned(cluster)[0] == {}, what=f"{cluster} has no plan of the export")  # noqa: B023
        until(lambda: members.planned("c3")[1] == native, what="the native name has all pods")
        members.karmada.kubectl("apply", "-f", str(EXAMPLES / "app"))
        assert placed(members, "c3") == (native, native)


def test_the_multiclusterservice_is_deleted_and_slices_that_stay_change_nothing_for_the_export(
    members: Members,
) -> None:
    """Karmada's removal races its own copies: some stay, also where the Service has gone."""

    def exported(cluster: str) -> Backends:
        return {address: name for address, name in members.planned(cluster)[0].items() if not address.endswith(".77")}

    until(lambda: set(exported("c3").values()) == {"c1", "c2"}, what="the export has pods of both")
    before = exported("c3")
    with members.calling(EXPORTED):
        members.karmada.kubectl("-n", "shop", "delete", "multiclusterservice", "web")
        until(lambda: members.planned("c3")[1] == {}, what="c3 has no plan of the native name")
        until(lambda: not members.own_slices("c3"), what="its Service has gone")
    stayed = {cluster: sorted(members.ghosts(cluster)) for cluster in ("c1", "c2", "c3")}
    print(f"stayed: {stayed}")
    for cluster in ("c1", "c2", "c3"):
        assert exported(cluster) == before
