"""A real kube-apiserver over a real etcd on loopback, for tests marked ``kube``: start, kill, start again.

The program comes from ``make kube-tools`` or $KUBEBUILDER_ASSETS.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from clusters.apiserver_world import write_kubeconfig
from machine import programs
from peers.etcd_server import EtcdServer, free_ports
from peers.etcd_server import running as running_etcd

from isthmus.config import KubernetesSection
from isthmus.etcd import Session, binary

TOKENS: Final = {"admin": "system:masters", "agent": "", "karmada": "", "keys": "", "operator": "", "nobody": ""}
"""Users, whose names are their tokens, and the group they are in. The server is shared by all tests of a run: each test
file that binds roles has a user of its own, and none binds any to ``nobody``.
"""


RANGES: Final = "10.96.0.0/16,fd00:10:96::/112"
"""Services can have both families; one that names none gets IPv4."""


class KubeApiServer:
    """One kube-apiserver process."""

    def __init__(self, path: Path, folder: Path, etcd: EtcdServer, *flags: str) -> None:
        [port] = free_ports(1)
        self.url = f"https://127.0.0.1:{port}"
        self._folder = folder
        self._etcd = etcd
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [str(path), f"--secure-port={port}", *self._flags(), *flags]

    def _flags(self) -> list[str]:
        self._folder.mkdir(parents=True, exist_ok=True)
        key, tokens = self._folder / "sa.key", self._folder / "tokens.csv"
        subprocess.run([programs.path("openssl"), "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        tokens.write_text("".join(f'{who},{who},{who},"{group}"\n' for who, group in TOKENS.items()))
        return [
            f"--etcd-servers={self._etcd.endpoint}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self._folder / 'certs'}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://isthmus.test",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            f"--service-cluster-ip-range={RANGES}",
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
            "--shutdown-delay-duration=0",
        ]

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def section(self, user: str = "admin") -> KubernetesSection:
        """The configuration of a client that is this user."""
        trust = {"insecure-skip-tls-verify": True}
        path = write_kubeconfig(self._folder / f"kubeconfig-{user}", self.url, token=user, **trust)
        return KubernetesSection(kubeconfig=str(path))

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a Pod's environment that name the server."""
        host, _, port = self.url.removeprefix("https://").partition(":")
        return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

    def give_pod(self, folder: Path, token: str) -> None:
        """Mount a service account: the CA, which here is the server's own certificate, and a token."""
        (folder / "ca.crt").write_bytes((self._folder / "certs" / "apiserver.crt").read_bytes())
        (folder / "token").write_text(token)

    async def lose(self, key: str) -> None:
        """Take a key out of the store, and all memory of it, while the server is away."""
        async with Session([self._etcd.endpoint]) as session:
            await session.delete(key)
            await session.compact((await session.list("/registry/namespaces/")).revision)

    def _ready(self) -> bool:
        trusting = ssl._create_unverified_context()
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": "Bearer admin"})
        try:
            with urllib.request.urlopen(request, context=trusting, timeout=2) as answer:
                return bool(answer.read() == b"ok")
        except OSError:
            return False

    async def ready(self) -> None:
        """Wait until it serves."""
        async with asyncio.timeout(180):
            while not await asyncio.to_thread(self._ready):
                assert self._process is None or self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
                await asyncio.sleep(0.1)


@pytest.fixture(scope="session")
def kube_apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiServer]:
    """One kube-apiserver for the whole run: use a namespace of your own. Tests wait for ``ready()`` themselves."""
    path = Path(programs.path("kube-apiserver"))
    with running_etcd(binary.find(), tmp_path_factory.mktemp("kube-etcd")) as etcd:
        server = KubeApiServer(path, tmp_path_factory.mktemp("kube-apiserver"), etcd)
        server.start()
        try:
            yield server
        finally:
            server.kill()
