"""Cilium's own programs of a clustermesh (1.20.2, built by `make cilium-reader`), run beside ours."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from machine import programs
from peers.etcd_server import free_ports

PATIENCE = 60


class Operator:
    """The operator's side of a clustermesh, that prints what it has received, on a line of input."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def report(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer

    async def until(self, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        report: dict[str, Any] = {}
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition(report := await self.report()):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pytest.fail(f"not reached; Cilium's operator reports {report}")
        return report

    async def ready(self, name: str) -> dict[str, Any]:
        """What it has received once it calls a cluster ready."""
        return await self.until(
            lambda report: any(each["name"] == name and each.get("ready") for each in report["clusters"])
        )


@asynccontextmanager
async def program(folder: Path, command: str, *flags: str, cwd: Path | None = None) -> AsyncIterator[Any]:
    """A command of Cilium's, with its log in ``folder``, ended at the end."""
    pipe = subprocess.PIPE
    with (folder / f"{command}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            programs.path("cilium-reader"), command, *flags, stdin=pipe, stdout=pipe, stderr=log, cwd=cwd
        )
    try:
        yield process
    finally:
        process.kill()
        await process.communicate()


@asynccontextmanager
async def operator(folder: Path, peers: Path, *, mode: str = "prefer-legacy") -> AsyncIterator[Operator]:
    """As cluster ``reader``, of the peers in a configuration directory."""
    flags = ["--cluster-name=reader", "--cluster-id=200", f"--clustermesh-config={peers}"]
    flags += ["--clustermesh-enable-mcs-api", "--clustermesh-enable-endpoint-sync", f"--clustermesh-service-v2={mode}"]
    async with program(folder, "operator", *flags, cwd=peers) as process:
        yield Operator(process)


def _served(folder: Path, endpoint: str, *, name: str, number: int) -> list[str]:
    """Flags of a command of clustermesh-apiserver: who it is, its own etcd, ports of its own."""
    (folder / "etcd.yaml").write_text(f"endpoints: ['{endpoint}']\n")
    flags = [f"--cluster-name={name}", f"--cluster-id={number}", f"--kvstore-opt=etcd.config={folder}/etcd.yaml"]
    flags += [f"--health-port={free_ports(1)[0]}", f"--shell-sock-path={folder}/shell.sock", "--enable-gops=false"]
    return flags


@asynccontextmanager
async def kvstoremesh(folder: Path, peers: Path, endpoint: str) -> AsyncIterator[Callable[[], Any]]:
    """Cilium's mirror, as cluster ``reader``, into an etcd; gives what asks it how each peer does."""
    [port] = free_ports(1)
    flags = [f"--clustermesh-config={peers}", f"--api-serve-addr=127.0.0.1:{port}"]
    flags += _served(folder, endpoint, name="reader", number=200)

    def ask() -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/cluster", timeout=5) as answer:
                return json.loads(answer.read())
        except OSError:
            return []

    async with program(folder, "kvstoremesh", *flags, cwd=peers):
        yield ask


@asynccontextmanager
async def apiserver(
    folder: Path, endpoint: str, kubeconfig: str, *, name: str, number: int, mode: str = "prefer-legacy"
) -> AsyncIterator[None]:
    """Cilium's writer: what a Kubernetes API server holds, as a cluster's records in an etcd."""
    flags = [*_served(folder, endpoint, name=name, number=number), f"--k8s-kubeconfig-path={kubeconfig}"]
    flags += [f"--clustermesh-service-v2={mode}"]
    async with program(folder, "clustermesh", *flags, "--clustermesh-enable-mcs-api", "--cluster-users-enabled=false"):
        yield
