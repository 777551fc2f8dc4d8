"""The Secrets of a cluster's keys in its API server.

Writes of ``isthmus-keys`` are conditional: the first fails if the Secret exists, each later one if it has changed since
it was read. So there is one authority even if two processes run for a moment, and whoever loses reads what the other
wrote. Secrets of roles follow from it and are applied without conditions.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from isthmus import kube
from isthmus.clusterset.errors import PkiError
from isthmus.clusterset.keeping import hosts, shares
from isthmus.kube.objects.core import SECRET, SERVICE, Service, encoded_files
from isthmus.kube.objects.meta import ManagedMeta

NAME: Final = "isthmus-keys"
"""Secret of all keys, and field manager of what is written."""
AUTHORITY: Final = frozenset({"ca.crt", "ca.key"})
"""Files of the authority, which only a new cluster may lack."""
ISSUERS: Final = frozenset({"ca.crt"})
"""Files of the authority where an issuer has its key."""
PART: Final = {"app.kubernetes.io/part-of": "isthmus"}


class Stored(Struct, frozen=True, gc=False):
    """The Secret as it was read."""

    version: str
    files: dict[str, bytes]
    annotations: dict[str, str]


class Vault:
    """Reads and writes the Secrets of one namespace."""

    def __init__(self, client: kube.Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def __repr__(self) -> str:
        return f"<Vault in {self._namespace}>"

    async def read(self) -> Stored | None:
        """The Secret of all keys; ``None`` if there is none. PkiError if its content cannot be used."""
        try:
            secret = await self._client.get(SECRET, NAME, self._namespace)
        except kube.NotFound:
            return None
        return Stored(secret.metadata.resource_version, shares.decoded(secret.data), secret.metadata.annotations or {})

    async def create(self, files: Mapping[str, bytes]) -> None:
        """Create the Secret; Conflict if it exists.

        The write is a server-side apply by a field manager of a random name. Unlike a POST, RBAC can allow it for this
        name alone, and it conflicts with an existing Secret, whose fields are another manager's.
        """
        body = {"metadata": {"labels": PART}, "type": "Opaque", "data": encoded_files(files)}
        manager = f"{NAME}-{secrets.token_hex(8)}"
        await self._client.apply(SECRET, self._namespace, NAME, body, field_manager=manager, force=False)

    async def update(
        self, stored: Stored, files: Mapping[str, bytes], *, annotations: Mapping[str, str | None] | None = None
    ) -> None:
        """Make it hold these files and no others; Conflict if it has changed since it was read.

        ``annotations``: those to set, ``None`` removes one.
        """
        data: dict[str, str | None] = dict.fromkeys(stored.files.keys() - files.keys())
        data |= encoded_files({name: content for name, content in files.items() if stored.files.get(name) != content})
        metadata = {"resourceVersion": stored.version, "annotations": annotations or {}}
        body = {"metadata": metadata, "data": data}
        await self._client.patch(SECRET, self._namespace, NAME, body, field_manager=NAME)

    async def shared(self) -> set[str]:
        """Names of the roles whose Secrets exist."""
        return {name for name in shares.SHARES if await self._data(name) is not None}

    async def share(self, files: Mapping[str, bytes]) -> list[str]:
        """Apply the Secrets of roles that differ from what these files give; returns their names."""
        written = []
        for name in shares.SHARES:
            data = encoded_files(shares.share(files, name))
            if await self._data(name) != data:
                body = {"metadata": {"labels": PART}, "type": "Opaque", "data": data}
                await self._client.apply(SECRET, self._namespace, name, body, field_manager=NAME)
                written.append(name)
        return written

    async def hosts(self, more: Collection[str]) -> list[str]:
        """Hosts of the own etcd's certificate. A Service that does not exist counts by its name alone."""
        services = [await self._service(name) for name in hosts.SERVICES]
        return hosts.hosts([*services, *map(self._named, hosts.REPLICAS)], more)

    async def _service(self, name: str) -> Service:
        try:
            return await self._client.get(SERVICE, name, self._namespace)
        except kube.NotFound:
            return self._named(name)

    def _named(self, name: str) -> Service:
        return Service(metadata=ManagedMeta(name=name, namespace=self._namespace))

    async def _data(self, name: str) -> dict[str, str] | None:
        try:
            return (await self._client.get(SECRET, name, self._namespace)).data or {}
        except kube.NotFound:
            return None


def refusal(existing: Collection[str], *, lacks: bool = False) -> PkiError:
    """Error that refuses a new authority: Secrets of roles exist, which were issued by an earlier one.

    ``lacks``: the Secret exists, and lacks the authority or its key.
    """
    names = ", ".join(sorted(existing))
    verb = "exist" if lacks else "do"
    state, first = ("lacks ca.crt or ca.key", "delete it, then ") if lacks else ("does not exist", "")
    issuers = "If an issuer signed them, set keys.issuer again. " if lacks else ""
    return PkiError(
        f"Secret {NAME} {state}, but {names} {verb}: no second authority is made. {issuers}If the keys were "
        f"made by hand, give the folder: {first}kubectl create secret generic {NAME} --from-file=FOLDER/etcd/. To "
        f"begin with new keys, delete these Secrets; peers then have to join again"
    )
