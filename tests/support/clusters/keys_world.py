"""A cluster whose keys are kept in it: the rights of ``deploy/keys`` on a real API server, and a kubelet's mounts."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from clusters.apiserver_world import TIMEOUT
from clusters.kube_apiserver import KubeApiServer
from clusters.operator_process import OperatorProcess
from clusters.rights import KINDS, user
from msgspec import structs
from peers.etcd_server import EtcdServer, free_ports

from isthmus import kube
from isthmus.clusterset import pki
from isthmus.clusterset.joining import OwnCluster
from isthmus.clusterset.keeping.keeper import Keeper, KeeperTimings
from isthmus.clusterset.pki import Folder
from isthmus.config import (
    AdminSection,
    ClusterSection,
    ClustersetSection,
    Config,
    EtcdSection,
    KeysSection,
    MonitorSection,
    to_toml,
)
from isthmus.etcd import binary
from isthmus.kube.objects.core import NAMESPACE, SECRET
from isthmus.kube.objects.meta import Meta, Wire

CRDS: Final = Path(__file__).resolve().parents[3] / "deploy" / "crds"
RBAC: Final = Path(__file__).resolve().parents[3] / "deploy" / "keys" / "rbac.yaml"
QUICK: Final = KeeperTimings(keys_every=0.2, etcd_every=0.2)


class Definition(Wire, frozen=True):
    """A CustomResourceDefinition."""

    metadata: Meta


CRD: Final = kube.Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", Definition, namespaced=False
)


class KeptCluster:
    """One namespace of an API server as the system namespace of one cluster, and the cluster's etcd."""

    def __init__(
        self, server: KubeApiServer, admin: kube.Client, client: kube.Client, name: str, folder: Path, etcds: int = 1
    ) -> None:
        self.server = server
        self.admin = admin
        self.client = client
        """A client with the deployed rights of the process."""
        self.namespace = name
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.mounts = folder / "mounts"
        mount = self.mounts / "isthmus-etcd-server"
        tls = [f"--cert-file={mount}/server.crt", f"--key-file={mount}/server.key"]
        trusted = [f"--trusted-ca-file={mount}/ca.crt", "--client-cert-auth"]
        self.etcds = [
            EtcdServer(binary.find(), folder / name, *tls, *trusted, f"--initial-cluster-token={name}", scheme="https")
            for name in ("etcd", *(f"etcd-{number}" for number in range(1, etcds)))
        ]
        self.etcd = self.etcds[0]

    def etcd_section(self, **more: str) -> EtcdSection:
        """Access to the etcds, as deploy/ or deploy/replicated has it."""
        endpoints = tuple(each.endpoint for each in self.etcds)
        return EtcdSection(endpoints=endpoints, replicas=endpoints if len(endpoints) > 1 else (), **more)

    def home(self, name: str = "c1") -> OwnCluster:
        """The cluster as the process sees it, its folder of keys empty; each name has a folder of its own."""
        return OwnCluster(
            cluster=ClusterSection(name="c1", id=1),
            clusterset=ClustersetSection(),
            etcd=self.etcd_section(),
            folder=Folder(self.folder / f"keys-of-{name}"),
            domain="clusterset.local",
        )

    def keeper(self, name: str = "c1", **section: Any) -> Keeper:
        """A keeper with the deployed rights."""
        keys = KeysSection(**section)
        return Keeper(self.client, self.home(name), keys, namespace=self.namespace, timings=QUICK)

    @asynccontextmanager
    async def running(self, keeper: Keeper) -> AsyncIterator[Keeper]:
        """A keeper at work, ended at the end."""
        task = asyncio.create_task(keeper.run())
        try:
            yield keeper
        finally:
            task.cancel()
            await asyncio.wait([task])

    def start(self, process: str, *, python: str = sys.executable, **keys: Any) -> OperatorProcess:
        """``isthmus operator`` or ``isthmus keys`` as a pod runs it, with the keys that are mounted for it.

        ``python``: interpreter of the release that runs.
        """
        name, mount = self.folder / process, self.mounts / f"isthmus-etcd-{process}"
        own = mount if process != "keys" else self.folder / "run"
        certificate = {"cert_file": str(mount / f"{process}.crt"), "key_file": str(mount / f"{process}.key")}
        user = {"username": process, "password_file": str(mount / f"{process}.password")}
        access = self.server.section("keys" if process == "keys" else "admin")
        config = Config(
            cluster=ClusterSection(name="c1", id=1),
            kubernetes=structs.replace(access, namespace=self.namespace),
            etcd=self.etcd_section(
                ca_file=str(own / "ca.crt"), **({} if process == "keys" else {**certificate, **user})
            ),
            keys=KeysSection(**keys),
            admin=AdminSection(socket=f"{name}.sock"),
            monitor=MonitorSection(listen=f"127.0.0.1:{free_ports(1)[0]}"),
        )
        file = name.with_suffix(".toml")
        file.write_text(to_toml(config))
        with name.with_suffix(".log").open("ab") as log:
            command = [python, "-m", "isthmus", process, "--config", str(file)]
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        return OperatorProcess(self.processes[-1], config, name.with_suffix(".log"))

    def stop(self) -> None:
        """End the processes and the etcds."""
        for process in self.processes:
            process.kill()
            process.wait()
        for etcd in self.etcds:
            etcd.stop()

    async def define(self) -> None:
        """Our kinds, which an operator needs."""
        for path in sorted(CRDS.glob("*.yaml")):
            body: dict[str, Any] = yaml.safe_load(path.read_text())
            await self.admin.apply(CRD, "", body["metadata"]["name"], body, field_manager="test")

    async def secret(self, name: str) -> dict[str, bytes] | None:
        """Content of a Secret; ``None`` if there is none."""
        try:
            data = (await self.admin.get(SECRET, name, self.namespace)).data or {}
        except kube.NotFound:
            return None
        return {file: base64.b64decode(text) for file, text in data.items()}

    async def mount(self, *names: str) -> None:
        """Write Secrets into folders, as a kubelet does for pods that mount them."""
        for name in names:
            content = await until(lambda name=name: self.secret(name), f"Secret {name}")  # type: ignore[misc]
            folder = self.mounts / name
            folder.mkdir(parents=True, exist_ok=True)
            for file, value in content.items():
                if not (folder / file).exists() or (folder / file).read_bytes() != value:
                    pki.save(folder / file, value)


async def until(check: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Wait until a check returns something true, and return it; ``what`` is for whoever reads the test."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            if result := await check():
                return result
            await asyncio.sleep(0.05)


@asynccontextmanager
async def kept(server: KubeApiServer, folder: Path, *, etcds: int = 1) -> AsyncIterator[KeptCluster]:
    """A cluster in a namespace of its own, with nothing running."""
    await server.ready()
    async with await kube.connect(server.section()) as admin, await kube.connect(server.section("keys")) as client:
        made = await admin.create(NAMESPACE, "", {"metadata": {"generateName": "isthmus-test-keys-"}})
        namespace = made.metadata.name
        for body in yaml.safe_load_all(RBAC.read_text()):
            kind, name = body["kind"], body["metadata"]["name"]
            if kind in ("Role", "RoleBinding"):
                subjects = {"subjects": [user("keys")]} if kind == "RoleBinding" else {}
                metadata = {"name": name, "namespace": namespace}
                await admin.apply(
                    KINDS[kind], namespace, name, {**body, "metadata": metadata, **subjects}, field_manager="test"
                )
        cluster = KeptCluster(server, admin, client, namespace, folder, etcds)
        await until(lambda: _allowed(client, namespace), "the rights in force")
        try:
            yield cluster
        finally:
            cluster.stop()
            await admin.delete(NAMESPACE, "", namespace)


async def _allowed(client: kube.Client, namespace: str) -> bool:
    try:
        await client.get(SECRET, "isthmus-keys", namespace)
    except kube.Forbidden:
        return False
    except kube.NotFound:
        pass
    return True
