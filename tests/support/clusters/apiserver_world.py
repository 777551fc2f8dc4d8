"""A real server over a real etcd, a client that hides nothing, and a stand-in for the node."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import pytest
import yaml
from peers.etcd_server import EtcdServer, free_ports, running

from isthmus.clusterset import certificates
from isthmus.config import KubernetesSection
from isthmus.etcd import binary

TOKEN = "a-token-for-tests"
POD_NETWORK = ipaddress.ip_network("10.99.0.0/16")
COUNTER = itertools.count(1)
TIMEOUT = 60.0
Object = dict[str, Any]


class ApiServer:
    """The program, on a port of loopback."""

    def __init__(self, etcd: EtcdServer, folder: Path) -> None:
        self.etcd = etcd
        self.folder = folder
        self.port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

        self.authority = certificates.authority("tests")
        self.folder.mkdir(parents=True)
        served = certificates.issue(self.authority, "kube-apiserver", hosts=["127.0.0.1"])
        for name, content in (
            ("ca.crt", self.authority.certificate),
            ("tls.crt", served.certificate),
            ("tls.key", served.key),
            ("token", TOKEN.encode()),
        ):
            (self.folder / name).write_bytes(content)
        self.trust = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        ca = {"certificate-authority": str(self.folder / "ca.crt")}
        self.kubeconfig = write_kubeconfig(self.folder / "kubeconfig", self.url, token=TOKEN, **ca)
        self.section = KubernetesSection(kubeconfig=str(self.kubeconfig))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self, *flags: str, pass_fds: Sequence[int] = ()) -> None:
        command = [sys.executable, "-m", "isthmus_lab.apiserver", "--etcd-servers", self.etcd.endpoint]
        command += ["--listen", f"127.0.0.1:{self.port}", "--token-file", str(self.folder / "token"), *flags]
        command += [
            "--tls-cert-file",
            str(self.folder / "tls.crt"),
            "--tls-private-key-file",
            str(self.folder / "tls.key"),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, pass_fds=pass_fds)

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(TIMEOUT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5, context=self.trust) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def log(self) -> str:
        return (self.folder / "log").read_text()


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[ApiServer]:
    """An etcd and a server over it, ready."""
    with running(binary.find(), folder / "etcd") as etcd:
        server = ApiServer(etcd, folder / "apiserver")
        server.start(*flags)
        try:
            until(server.ready)
            yield server
        finally:
            server.kill()
            print(server.log())


def write_kubeconfig(path: Path, url: str, *, token: str, **cluster: Any) -> Path:
    """A kubeconfig of one user; ``cluster``: how the server is trusted."""
    body = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "test", "user": {"token": token}}],
    }
    text = yaml.safe_dump(body)
    if not path.exists() or path.read_text() != text:  # another thread may run kubectl with it
        path.write_text(text)
    return path


def until(true: Callable[[], bool]) -> None:
    """Wait for a condition outside of any loop."""
    end, pause = time.monotonic() + TIMEOUT, threading.Event()
    while not true():
        assert time.monotonic() < end, "what was waited for did not come"
        pause.wait(0.02)


class Reply:
    """What came back."""

    def __init__(self, status: int, body: Any) -> None:
        self.status = status
        self.body = body

    def __repr__(self) -> str:
        return f"{self.status} {json.dumps(self.body)}"

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def revision(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])


class Client:
    """HTTP as it is. Paths begin at the namespace: ``services/a`` is /api/v1/namespaces/<ns>/services/a."""

    GROUPS = {  # noqa: RUF012
        "deployments": "apis/apps/v1",
        "replicasets": "apis/apps/v1",
        "statefulsets": "apis/apps/v1",
        "daemonsets": "apis/apps/v1",
        "jobs": "apis/batch/v1",
        "endpointslices": "apis/discovery.k8s.io/v1",
        "leases": "apis/coordination.k8s.io/v1",
        "serviceexports": "apis/multicluster.x-k8s.io/v1beta1",
        "serviceimports": "apis/multicluster.x-k8s.io/v1beta1",
    }
    CLUSTER = ("namespaces", "nodes")

    def __init__(self, session: aiohttp.ClientSession, server: ApiServer, namespace: str) -> None:
        self._session = session
        self.server = server
        self.namespace = namespace

    def url(self, path: str) -> str:
        if path.startswith("/"):
            return self.server.url + path
        resource = path.split("/")[0].split("?")[0]
        root = self.GROUPS.get(resource, "api/v1")
        space = "" if resource in self.CLUSTER else f"namespaces/{self.namespace}/"
        return f"{self.server.url}/{root}/{space}{path}"

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        type: str = "application/json",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Reply:
        data = None if body is None else json.dumps(body)
        headers = {**headers, **({"Content-Type": type} if data else {})}
        async with self._session.request(method, self.url(path), data=data, headers=headers) as answer:
            text = answer.content_type == "text/plain"
            return Reply(answer.status, await answer.text() if text else json.loads(await answer.read()))

    async def get(self, path: str) -> Reply:
        return await self.call("GET", path)

    async def create(self, resource: str, body: Object) -> Reply:
        return await self.call("POST", resource, body)

    async def made(self, resource: str, body: Object) -> Object:
        """Created, or the test fails."""
        reply = await self.create(resource, body)
        assert reply.status == 201, reply
        return dict(reply.body)

    async def patch(self, path: str, body: Any, *, kind: str = "merge-patch+json") -> Reply:
        return await self.call("PATCH", path, body, type=f"application/{kind}")

    async def apply(self, path: str, body: Object, *, manager: str, force: bool = False) -> Reply:
        query = f"?fieldManager={manager}&force={str(force).lower()}"
        return await self.call("PATCH", path + query, body, type="application/apply-patch+yaml")

    async def delete(self, path: str, options: Object | None = None) -> Reply:
        return await self.call("DELETE", path, options)

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator[Watcher]:
        joint = "&" if "?" in path else "?"
        async with self._session.get(self.url(f"{path}{joint}watch=1")) as answer:
            try:
                yield Watcher(answer)
            finally:
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()  # a TLS goodbye would outlive the test's loop

    async def until(self, path: str, true: Callable[[Any], Any]) -> Any:
        """What is at a path as soon as it is as wanted; asks, rather than watches."""
        reply = None
        try:
            async with asyncio.timeout(TIMEOUT):
                while True:
                    reply = await self.get(path)
                    if true(reply.body):
                        return reply.body
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"{path} did not become as wanted: {reply}")


class Watcher:
    """Events of a watch, one at a time."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self) -> tuple[str, Object]:
        """The next event: its type and object."""
        async with asyncio.timeout(TIMEOUT):
            line = await self.answer.content.readline()
        assert line, "the watch has ended"
        event = json.loads(line)
        return event["type"], event["object"]

    async def ended(self) -> bool:
        async with asyncio.timeout(TIMEOUT):
            return await self.answer.content.readline() == b""


@asynccontextmanager
async def connected(server: ApiServer, namespace: str) -> AsyncIterator[Client]:
    """A client of a server, with a namespace of its own."""
    headers = {"Authorization": f"Bearer {TOKEN}", "User-Agent": "tests/1"}
    connector = aiohttp.TCPConnector(ssl=server.trust, limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        client = Client(session, server, namespace)
        await client.made("namespaces", {"metadata": {"name": namespace}})
        try:
            yield client
        finally:
            await connector.close(abort_ssl=True)


class Node:
    """A node in name only: its pods run at once, and stop when their deletion asks for it."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._addresses = itertools.count(1)
        self.holding: set[str] = set()
        """Names of pods that do not become ready, or do not stop."""

    async def register(self) -> None:
        await self.client.made("nodes", {"metadata": {"name": self.name}})
        condition = {"type": "Ready", "status": "True"}
        await self.client.patch(f"nodes/{self.name}/status", {"status": {"conditions": [condition]}})

    async def run(self) -> None:
        path = f"/api/v1/pods?fieldSelector=spec.nodeName={self.name}"
        async with self.client.watch(path) as events:
            while True:
                kind, pod = await events.next()
                if kind != "DELETED":
                    await self.serve(pod)

    async def serve(self, pod: Object) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if meta["name"] in self.holding:
            return
        if "deletionTimestamp" in meta:
            await self.client.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}})
        elif pod["status"].get("phase") == "Pending":
            ip = str(POD_NETWORK[next(self._addresses)])
            await self.client.patch(f"{path}/status", {"status": running_status(ip)})

    async def leave(self) -> None:
        await self.client.delete(f"nodes/{self.name}")


def running_status(ip: str, *, ready: bool = True) -> Object:
    """The status of a pod that runs."""
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2020-01-01T00:00:00Z"}
    return {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [condition]}


class Kubectl:
    """The real kubectl against a server, in one namespace."""

    def __init__(self, program: str, server: ApiServer, namespace: str, folder: Path) -> None:
        self._base = [program, "--server", server.url, "--token", TOKEN, "--namespace", namespace]
        self._base += ["--certificate-authority", str(server.folder / "ca.crt"), "--cache-dir", str(folder / "cache")]
        self._environment = {**os.environ, "KUBECONFIG": "/dev/null", "HOME": str(folder)}

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start it, with pipes."""
        pipe = asyncio.subprocess.PIPE
        command = [*self._base, *arguments]
        return await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=self._environment
        )

    async def __call__(self, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        """Its output; with ``fails`` it must fail, and its errors then."""
        process = await self.start(*arguments)
        async with asyncio.timeout(240):
            out, err = await process.communicate(stdin.encode())
        assert (process.returncode != 0) is fails, out.decode() + err.decode()
        return (err if fails else out).decode()
