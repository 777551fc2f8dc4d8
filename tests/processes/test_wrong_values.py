"""An agent whose cgroup or cluster DNS exists and is the wrong one is not green: the node's pods contradict it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from clusters.fake_apiserver import FakeApiServer, running
from msgspec.structs import replace
from peers.etcd_server import free_ports

from isthmus.admin.query import QueryError, Socket
from isthmus.config import (
    AdminSection,
    ClusterSection,
    Config,
    DatapathSection,
    DnsSection,
    KubernetesSection,
    MonitorSection,
    NodeSection,
)
from isthmus.datapath import cgroup_root, remove
from isthmus.processes import agent, programming

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("own_host")]

ADDRESS = "192.0.2.77"
RESOLV = "search demo.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.11\n"


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The cgroup of a pod that runs with an address and a resolv.conf of its own, and an empty one."""
    root = cgroup_root()
    assert root is not None
    pods, empty = (root / f"isthmus-wrong-{os.getpid()}-{name}" for name in ("pods", "empty"))
    resolv = tmp_path / "resolv.conf"
    resolv.write_text(RESOLV)
    for each in (pods, empty):
        each.mkdir()

    def join() -> None:
        (pods / "cgroup.procs").write_text(str(os.getpid()))

    script = (
        f"ip link set lo up && ip address add {ADDRESS}/32 dev lo && mount --bind {resolv} /etc/resolv.conf && "
        "echo ready && exec sleep 300"
    )
    command = ["unshare", "--net", "--mount", "sh", "-ec", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=join) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield pods, empty
        finally:
            process.kill()
            process.wait()
            for each in (pods, empty):
                each.rmdir()


@pytest.fixture
def pin(tmp_path: Path) -> Iterator[Path]:
    """A place in a BPF file system."""
    bpffs = tmp_path / "bpf"
    bpffs.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", str(bpffs)], check=True)
    try:
        yield bpffs / "pin"
    finally:
        remove(str(bpffs / "pin"))
        subprocess.run(["umount", str(bpffs)], check=True)


@pytest.fixture
async def config(pin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Config]:
    monkeypatch.setattr(programming, "PLACEMENT_INTERVAL", 0.2)
    async with running() as server:
        yield Config(
            cluster=ClusterSection(name="c1", id=1),
            node=NodeSection(name="n1"),
            kubernetes=KubernetesSection(kubeconfig=str(served(server, tmp_path))),
            datapath=DatapathSection(pin=str(pin), max_entries=1024),
            dns=DnsSection(cluster_dns=("10.96.0.11",)),
            admin=AdminSection(socket=str(tmp_path / "agent.sock")),
            monitor=MonitorSection(listen=f"127.0.0.1:{free_ports(1)[0]}"),
        )


def served(server: FakeApiServer, folder: Path) -> Path:
    """A kubeconfig of a server that has the pod on node n1."""
    server.served["/apis/multicluster.x-k8s.io/v1beta1"] = ["serviceimports"]
    server.served["/apis/discovery.k8s.io/v1"] = ["endpointslices"]
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}], "conditions": [ready]}
    server.put("/api/v1/namespaces/demo/pods/client", spec={"nodeName": "n1"}, status=status)
    file = folder / "kubeconfig"
    file.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: c}}]\n"
        f"clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}]\n"
    )
    return file


@asynccontextmanager
async def running_agent(config: Config) -> AsyncIterator[None]:
    task = asyncio.ensure_future(agent.main(config))
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def status(config: Config) -> dict[str, Any]:
    try:
        return await asyncio.to_thread(Socket(Path(config.admin.socket)).status)
    except QueryError:
        return {}


async def until_problem(config: Config, text: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            found = await status(config)
            if any(text in each for each in found.get("problems", ())):
                return found
            await asyncio.sleep(0.1)


async def readyz(config: Config) -> tuple[int, str]:
    """Code and text of /readyz."""

    def ask() -> tuple[int, str]:
        try:
            with urlopen(f"http://{config.monitor.listen}/readyz", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(ask)


async def test_an_existing_cgroup_without_the_nodes_pods_is_a_problem_and_the_agent_is_not_ready(
    config: Config, groups: tuple[Path, Path]
) -> None:
    _, empty = groups
    async with running_agent(replace(config, datapath=replace(config.datapath, cgroup=str(empty)))):
        found = await until_problem(config, f"datapath.cgroup {empty} has none of this node's 1 pods")
        assert not found["ready"]
        assert found["unhooked"].startswith("datapath.cgroup ")
        code, shown = await readyz(config)
        assert (code, "none of this node's 1 pods" in shown) == (503, True), shown


async def test_a_cluster_dns_that_no_pod_asks_is_a_problem_and_the_agent_stays_ready(
    config: Config, groups: tuple[Path, Path]
) -> None:
    pods, _ = groups
    wrong = replace(
        config, datapath=replace(config.datapath, cgroup=str(pods)), dns=DnsSection(cluster_dns=("10.9.9.9",))
    )
    async with running_agent(wrong):
        text = "pods of this node ask 10.96.0.11 for names, and dns.cluster_dns has 10.9.9.9"
        await until_problem(config, text)
        code, shown = await readyz(config)
        assert (code, text in shown) == (200, True), shown


async def test_right_values_are_no_problem(config: Config, groups: tuple[Path, Path]) -> None:
    pods, _ = groups
    async with running_agent(replace(config, datapath=replace(config.datapath, cgroup=str(pods)))):
        async with asyncio.timeout(60):
            while not (await status(config)).get("ready"):  # noqa: ASYNC110 of a process
                await asyncio.sleep(0.1)
        await asyncio.sleep(1)  # several comparisons
        assert (await status(config))["problems"] == []
