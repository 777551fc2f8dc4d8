"""Members and their keys → the Works that each of them gets. Pure.

A Work in ``karmada-es-<member>`` makes Karmada write its manifests into that member, whatever is between us and it, and
take them away with the Work. What they carry for that: the manifest the label ``karmada.io/managed``, without which
Karmada neither changes nor deletes what it made, and the Work the finalizer by which Karmada sees its deletion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from isthmus.clusterset import peers, remote_user
from isthmus.karmada.keyring import Keys
from isthmus.karmada.members import SYSTEM, Member
from isthmus.kube.objects.core import encoded_files
from isthmus.model.names import ClusterName

PART: Final = "isthmus.io/karmada"
"""Label of our Works; its value is what they are for."""
DIGEST: Final = "isthmus.io/digest"
"""Annotation: of what we wrote. Karmada's webhook adds to manifests, so they are never compared with what we want."""
FINALIZER: Final = "karmada.io/execution-controller"
EXECUTION: Final = "karmada-es-"

SERVER: Final = ("ca.crt", "server.crt", "server.key")
ACCESS: Final = ("ca.crt", "admin.crt", "admin.key", "peer.crt", "peer.key")
OF_MEMBER: Final = "isthmus-member"
"""The Work that has a member's own keys."""
PROCESSES: Final = ("operator", "mirror")
USERS: Final = ("root", "operator", "mirror", "local")


class Work(Struct, frozen=True):
    """A Work as it is wanted."""

    member: ClusterName
    name: str
    part: str
    manifests: tuple[dict[str, Any], ...]
    preserved: bool = False
    """Whether what it made stays in the member when the Work goes."""

    @property
    def namespace(self) -> str:
        """That of the member."""
        return EXECUTION + self.member

    @property
    def digest(self) -> str:
        """Of its manifests; it gives nothing of them away that is secret enough to be a secret."""
        return hashlib.sha256(msgspec.json.encode((self.manifests, self.preserved), order="deterministic")).hexdigest()

    def body(self) -> dict[str, Any]:
        """The object, to be applied."""
        metadata = {
            "labels": {PART: self.part, "app.kubernetes.io/part-of": "isthmus"},
            "annotations": {DIGEST: self.digest},
            "finalizers": [FINALIZER],
        }
        preserved = {"preserveResourcesOnDeletion": True} if self.preserved else {}
        return {"metadata": metadata, "spec": {"workload": {"manifests": list(self.manifests)}, **preserved}}


def wanted(
    members: Iterable[Member], keys: Mapping[ClusterName, Keys], *, definitions: Iterable[dict[str, Any]] = ()
) -> list[Work]:
    """For each member what it is called and its own keys, how it reaches the others, and the definitions.

    Definitions stay in a member that leaves: with them would go every object of their kinds.
    """
    defined = tuple(_managed(each) for each in definitions)
    joined = [each for each in members if each.joins and each.name in keys]
    works = []
    for member in joined:
        others = [each for each in joined if each.name != member.name and each.endpoints]
        works.append(Work(member.name, OF_MEMBER, "member", tuple(_of_itself(member, keys[member.name]))))
        works.append(Work(member.name, "isthmus-peers", "peers", (_of_peers(member, others, keys),)))
        if defined:
            works.append(Work(member.name, "isthmus-definitions", "definitions", defined, preserved=True))
    return works


def _of_itself(member: Member, keys: Keys) -> Iterable[dict[str, Any]]:
    settings = {
        "ISTHMUS_CLUSTER_NAME": member.name,
        "ISTHMUS_CLUSTER_ID": str(member.id),
        "ISTHMUS_CLUSTER_REGION": member.region,
        "ISTHMUS_CLUSTER_ZONE": member.zones[0] if len(member.zones) == 1 else "",
        "ISTHMUS_CLUSTER_LABELS": ",".join(member.labels),
        "ISTHMUS_CLUSTER_POD_RANGES": ",".join(member.pod_ranges),
    }
    yield manifest("v1", "ConfigMap", "isthmus-member", {"data": {k: v for k, v in settings.items() if v}})
    yield _secret("isthmus-etcd-server", keys.some(*SERVER))
    for process in PROCESSES:
        files = keys.some("ca.crt", f"{process}.crt", f"{process}.key", f"{process}.password")
        yield _secret(f"isthmus-etcd-{process}", files)
    remote = [name for name in keys.files if name.startswith(remote_user(ClusterName("")))]
    yield _secret("isthmus-etcd-access", keys.some(*ACCESS, *(f"{user}.password" for user in USERS), *remote))


def _of_peers(member: Member, others: Iterable[Member], keys: Mapping[ClusterName, Keys]) -> dict[str, Any]:
    """The directory of its peers' files."""
    contents: dict[str, bytes] = {}
    user = remote_user(member.name)
    for other in others:
        credentials = keys[other.name]
        peer = peers.Peer(
            name=other.name,
            endpoints=other.endpoints,
            username=user,
            password=credentials.password(user),
            id=other.id,
            pod_ranges=other.pod_ranges,
        )
        ca, certificate, key = (credentials.files[name] for name in ("ca.crt", "peer.crt", "peer.key"))
        contents |= peers.files(peer, ca=ca, certificate=certificate, key=key)
    return _secret("isthmus-peers", contents)


def _secret(name: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    return manifest("v1", "Secret", name, {"type": "Opaque", "data": encoded_files(files)})


def manifest(
    api_version: str, kind: str, name: str, content: Mapping[str, Any], *, namespace: str = SYSTEM
) -> dict[str, Any]:
    """An object for a member."""
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "isthmus"}}
    return _managed({"apiVersion": api_version, "kind": kind, "metadata": metadata, **content})


def _managed(body: dict[str, Any]) -> dict[str, Any]:
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), "karmada.io/managed": "true"}}}
