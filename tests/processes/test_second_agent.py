"""A second ``isthmus agent`` that is started on a node by mistake."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clusters.fake_apiserver import FakeApiServer, running

from isthmus.admin.query import QueryError, Socket
from isthmus.config import (
    AdminSection,
    ClusterSection,
    ClustersetSection,
    Config,
    DatapathSection,
    KubernetesSection,
    NodeSection,
    to_toml,
)
from isthmus.datapath import cgroup_root, remove
from isthmus.datapath.core import attach, libbpf

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("own_host")]


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    """Of agents on a node with a cgroup, a BPF file system and a network of its own."""
    root, bpffs = cgroup_root(), tmp_path / "bpf"
    assert root is not None
    cgroup = root / f"isthmus-second-{os.getpid()}"
    cgroup.mkdir()
    bpffs.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", str(bpffs)], check=True)
    pin = str(bpffs / "pin")
    try:
        yield Config(
            cluster=ClusterSection(name="c1", id=1),
            node=NodeSection(name="n1"),
            kubernetes=KubernetesSection(kubeconfig=str(tmp_path / "kubeconfig")),
            clusterset=ClustersetSection(state=str(tmp_path / "state")),
            datapath=DatapathSection(cgroup=str(cgroup), pin=pin, max_entries=1024),
            admin=AdminSection(socket=str(tmp_path / "agent.sock")),
        )
    finally:
        remove(pin)
        subprocess.run(["umount", str(bpffs)], check=True)
        cgroup.rmdir()


def start(config: Config, log: Path) -> subprocess.Popen[bytes]:
    file = log.with_suffix(".toml")
    file.write_text(to_toml(config))
    with log.open("wb") as stream:
        return subprocess.Popen([sys.executable, "-m", "isthmus", "agent", "--config", str(file)], stderr=stream)


def serve(server: FakeApiServer, config: Config) -> None:
    """What an agent asks for, and a kubeconfig of the server."""
    server.served["/apis/multicluster.x-k8s.io/v1beta1"] = ["serviceimports"]
    server.served["/apis/discovery.k8s.io/v1"] = ["endpointslices"]
    Path(config.kubernetes.kubeconfig).write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: c}}]\n"
        f"clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}]\n"
    )


def programs(config: Config) -> dict[str, int]:
    """The kernel's ids of the programs in the pinned links, by name."""
    found = {}
    for path in attach.links(config.datapath.pin).iterdir():
        fd = libbpf.open_pinned(path)
        found[path.name] = libbpf.link_info(fd)[1]
        os.close(fd)
    return found


async def status(config: Config) -> dict[str, Any]:
    with suppress(QueryError):
        return await asyncio.to_thread(Socket(Path(config.admin.socket)).status)
    return {}


async def test_a_second_agent_ends_and_leaves_the_hooks_of_the_first_as_they_are(
    config: Config, tmp_path: Path
) -> None:
    async with running() as server:
        serve(server, config)
        first = start(config, tmp_path / "first.log")
        try:
            async with asyncio.timeout(60):
                while not (await status(config)).get("ready"):
                    assert first.poll() is None, (tmp_path / "first.log").read_text()
                    await asyncio.sleep(0.1)
            before = programs(config)
            assert before
            second = start(config, tmp_path / "second.log")
            assert await asyncio.to_thread(second.wait, 60) == 1
            assert "another process serves there" in (tmp_path / "second.log").read_text().splitlines()[-1]
            assert programs(config) == before
            found = await status(config)
            assert (found["ready"], found["problems"]) == (True, [])
        finally:
            first.kill()
            first.wait()
