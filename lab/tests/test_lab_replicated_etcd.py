"""Calls and connections while any of a cluster's three etcds is killed or wiped, and while all lose their data.

c2 has three etcds, whose users ``isthmus keys`` makes, and its operator publishes to each. c1's client calls c2's and
c1's backends through the kernel's datapath 330 times a second and holds 1,000 connections meanwhile.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from labs.failover_lab import LABS, NAME, Calling, cluster_of, lab_of, settled
from labs.lab_running import Running, until
from msgspec import structs

from isthmus.admin.query import QueryError, Socket
from isthmus.clusterset import peers, pki
from isthmus.config import AdminSection, ClusterSection, Config, EtcdSection, KeysSection, KubernetesSection, to_toml
from isthmus.etcd import binary
from isthmus.model.names import ClusterName
from isthmus_lab.layout import Cluster
from isthmus_lab.supervisor import configs, etcd_access

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.failover]

SYSTEM: Final = "isthmus-system"
HELD: Final = 1_000
HOLD: Final = [sys.executable, "-I", "-S", str(LABS / "held_connections.py")]
PASSWORD: Final = "the password of c1's user"
FIRST_PORT: Final = 12_379


class Etcd:
    """One of the cluster's etcds, in the network of its control plane."""

    def __init__(self, cluster: Cluster, number: int, folder: Path, keys: Path) -> None:
        self.folder = folder / f"etcd-{number}"
        port = FIRST_PORT + 10 * number
        self.endpoint = f"https://{cluster.address}:{port}"
        peer = f"http://127.0.0.1:{port + 1}"
        self._command = [
            "ip", "netns", "exec", cluster.control_plane, str(binary.find()),
            "--name=isthmus", f"--data-dir={self.folder / 'data'}",
            f"--listen-client-urls={self.endpoint}", f"--advertise-client-urls={self.endpoint}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=isthmus={peer}",
            f"--cert-file={keys / 'server.crt'}", f"--key-file={keys / 'server.key'}",
            f"--trusted-ca-file={keys / 'ca.crt'}", "--client-cert-auth", "--enable-grpc-gateway=false",
            "--bcrypt-cost=4",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._pods = 0

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        token = f"--initial-cluster-token={self.folder.name}-{self._pods}"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*self._command, token], stdout=log, stderr=log)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wipe(self) -> None:
        """Forget everything, as a new pod does; only while stopped."""
        shutil.rmtree(self.folder / "data")
        self._pods += 1


class Replicated:
    """A lab whose c2 has three etcds and keeps its keys itself."""

    def __init__(self, lab: Running, folder: Path) -> None:
        self.lab = lab
        self.cluster = cluster_of(lab, "c2")
        self.keys = folder / "mounted"
        self.etcds = [Etcd(self.cluster, number, folder, self.keys) for number in range(3)]
        self._folder = folder
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def section(self) -> EtcdSection:
        """The etcds as processes of deploy/replicated have them."""
        endpoints = tuple(each.endpoint for each in self.etcds)
        return EtcdSection(endpoints=endpoints, replicas=endpoints)

    def begin(self) -> None:
        """Keys, etcds, the operator over them, and the file by which c1 reads them."""
        self.lab.kubectl("create", "namespace", SYSTEM, cluster="c2")
        self._keep_keys()
        self._mount("isthmus-etcd-server", "isthmus-etcd-operator")
        password = {"remote-c1.password": base64.b64encode(PASSWORD.encode()).decode()}
        patch = json.dumps({"data": password})
        self.lab.kubectl("-n", SYSTEM, "patch", "secret", "isthmus-keys", "--type=merge", "-p", patch, cluster="c2")
        for etcd in self.etcds:
            etcd.start()
        files = {name: str(self.keys / f"operator.{end}") for name, end in (("cert_file", "crt"), ("key_file", "key"))}
        password_file = str(self.keys / "operator.password")
        section = structs.replace(
            self.section, ca_file=str(self.keys / "ca.crt"), username="operator", password_file=password_file, **files
        )
        self.lab.cli("kill", "c2/operator")
        config = structs.replace(configs.operator(self.cluster), etcd=section)
        configs.config_of(self.cluster, "operator").write_text(to_toml(config))
        self.lab.cli("start", "c2/operator")
        until(self.complete, what="an operator that writes to all three")
        self._introduce()

    def end(self) -> None:
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.wait()
        for etcd in self.etcds:
            etcd.stop()

    def _keep_keys(self) -> None:
        kubeconfig = str(configs.kubeconfig_of(self.cluster))
        config = Config(
            cluster=ClusterSection(name="c2", id=2),
            kubernetes=KubernetesSection(kubeconfig=kubeconfig, namespace=SYSTEM),
            etcd=structs.replace(self.section, ca_file=str(self._folder / "run" / "keys" / "ca.crt")),
            keys=KeysSection(hosts=(self.cluster.address,)),
            admin=AdminSection(socket=str(self._folder / "keys.sock")),
        )
        file = self._folder / "keys.toml"
        file.write_text(to_toml(config))
        command = [sys.executable, "-m", "isthmus", "keys", "--config", str(file)]
        with (self._folder / "keys.log").open("ab") as log:
            inside = ["ip", "netns", "exec", self.cluster.control_plane]
            self._keeper = subprocess.Popen([*inside, *command], stdout=log, stderr=log)

    def _secret(self, name: str) -> dict[str, bytes]:
        words = ("-n", SYSTEM, "get", "secret", name, "--ignore-not-found", "-o", "json")
        body = json.loads(self.lab.kubectl(*words, cluster="c2") or "{}")
        return {file: base64.b64decode(text) for file, text in body.get("data", {}).items()}

    def _mount(self, *names: str) -> None:
        self.keys.mkdir(parents=True)
        for name in names:
            for file, content in until(partial(self._secret, name), what=f"Secret {name}").items():
                pki.save(self.keys / file, content)

    def _introduce(self) -> None:
        """Let c1 read the three etcds in place of the lab's own."""
        content = self._secret("isthmus-keys")
        peer = peers.Peer(
            name=ClusterName("c2"),
            endpoints=self.section.endpoints,
            username="remote-c1",
            password=PASSWORD,
            id=2,
        )
        folder = etcd_access.peers_of(cluster_of(self.lab, "c1"))
        peers.save(folder, peer, ca=content["ca.crt"], certificate=content["peer.crt"], key=content["peer.key"])

    def complete(self) -> bool:
        """True if keeper and operator have written everything to each etcd."""
        try:
            paths = (self._folder / "keys.sock", configs.socket_of(self.cluster, "operator"))
            reports = [Socket(path).status() for path in paths]
        except QueryError:
            return False
        return not any(report["problems"] or report["warnings"] for report in reports)

    def read(self) -> bool:
        """True if c1's operator and agent read c2 from there."""
        c1 = cluster_of(self.lab, "c1")
        try:
            sockets = [Socket(configs.socket_of(c1, process)) for process in ("operator", "agent")]
            tables = [each.table("clusters").rows for each in sockets]
        except QueryError:
            return False
        rows = [row for table in tables for row in table if row["name"] == "c2"]
        endpoints = [*self.section.endpoints]
        return len(rows) == 2 and all(row["state"] == "ready" and row["endpoints"] == endpoints for row in rows)


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    with ExitStack() as stack:
        lab = stack.enter_context(lab_of("r"))
        until(partial(settled, lab), what="three backends of both families")
        made = Replicated(lab, tmp_path_factory.mktemp("replicated"))
        stack.callback(made.end)
        made.begin()
        until(made.read, what="c1 follows the three etcds")
        until(partial(settled, lab), what="three backends of both families")
        yield made


def addresses(lab: Running) -> list[dict[str, Any]]:
    """Addresses of the import in both clusters."""
    words = ("-n", "demo", "get", "serviceimport", "echo", "-o", "json")
    return [json.loads(lab.kubectl(*words, cluster=each))["spec"]["ips"] for each in ("c1", "c2")]


def lose(etcds: Iterable[Etcd], *, wipe: bool) -> None:
    lost = [*etcds]
    for etcd in lost:
        etcd.stop()
    for etcd in lost:
        if wipe:
            etcd.wipe()
        etcd.start()


LOSSES: dict[str, Callable[[Replicated], None]] = {
    "any of three is killed": lambda it: each(it, wipe=False),
    "any of three loses its data": lambda it: each(it, wipe=True),
    "all three lose their data": lambda it: lose(it.etcds, wipe=True),
}


def each(replicated: Replicated, *, wipe: bool) -> None:
    for number, etcd in enumerate(replicated.etcds):
        began = time.monotonic()
        lose([etcd], wipe=wipe)
        lapse(replicated)
        print(f"  etcd {number}: complete again after {time.monotonic() - began:.1f} s")


def lapse(replicated: Replicated) -> None:
    """Wait until the loss was noticed, and everything is complete again."""
    time.sleep(0.5)
    until(replicated.complete, what="everything in each etcd")


class Holding:
    """Connections that the client holds from now on until ``end``."""

    def __init__(self, lab: Running) -> None:
        command = [sys.executable, "-m", "isthmus", "lab", "exec", "--lab", lab.lab.name, "c1", "demo/client", "--"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([*command, *HOLD, str(HELD), NAME, "80"], **pipes)  # type: ignore[call-overload]
        assert self._process.stdout.readline() == "holding\n"

    def end(self) -> dict[str, Any]:
        """End them and return what became of them."""
        output, _ = self._process.communicate(timeout=120)
        result: dict[str, Any] = json.loads(output)
        return result


@pytest.mark.parametrize("loss", LOSSES)
def test_no_call_fails_and_no_connection_ends_while(loss: str, replicated: Replicated) -> None:
    lab, before = replicated.lab, addresses(replicated.lab)
    holding, calling = Holding(lab), Calling(lab)
    time.sleep(1.0)
    began = time.monotonic()
    try:
        LOSSES[loss](replicated)
        lapse(replicated)
        took = time.monotonic() - began
        until(replicated.read, what="c1 reads c2")
        time.sleep(1.0)
    finally:
        calls, held = calling.end(), holding.end()
    print(
        f"{loss}: complete again after {took:.1f} s; {sum(calls['ended'].values())} calls, {calls['rate']}/s, failed"
        f" {len(calls['failed'])}; {held['open']} connections held, {held['exchanges']} exchanges"
    )
    assert calls["failed"] == []
    assert (held["open"], held["dropped"]) == (HELD, [])
    assert addresses(lab) == before
