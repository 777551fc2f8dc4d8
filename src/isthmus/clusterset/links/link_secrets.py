"""The Secrets of links.

``isthmus-links`` has the private key of each link, what the peer signed for it, and the peer's authorities.
``isthmus-peers`` has the files by which every process of the cluster reads its peers, and ``isthmus-mirrored`` those by
which agents read a mirror's copies instead (``clusterset.through_mirror``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from isthmus import kube
from isthmus.clusterset.keeping import shares
from isthmus.clusterset.links.plan import Kept
from isthmus.kube.objects.core import SECRET, encoded_files
from isthmus.model.names import ClusterName

LINKS: Final = "isthmus-links"
PEERS: Final = "isthmus-peers"
MIRRORED: Final = "isthmus-mirrored"
MANAGER: Final = "isthmus-links"
PART: Final = {"app.kubernetes.io/part-of": "isthmus"}
KEY, CERTIFICATE, AUTHORITIES, ADOPTED = ".key", ".crt", ".ca.crt", ".adopted"


class Files(Struct, frozen=True, gc=False):
    """A Secret as it was read; one that does not exist has no version."""

    version: str = ""
    files: dict[str, bytes] = {}


async def read(client: kube.Client, namespace: str, name: str) -> Files:
    """A Secret's files; PkiError if its content cannot be used."""
    try:
        secret = await client.get(SECRET, name, namespace)
    except kube.NotFound:
        return Files()
    return Files(secret.metadata.resource_version, shares.decoded(secret.data))


async def write(
    client: kube.Client, namespace: str, name: str, before: Files, *, put: Mapping[str, bytes], drop: Iterable[str] = ()
) -> None:
    """Put files into a Secret and drop others; Conflict if it has changed since it was read. Nothing if all is so."""
    changed = {file: content for file, content in put.items() if before.files.get(file) != content}
    dropped = sorted({*drop} & before.files.keys() - put.keys())
    if not before.version and not put:
        return
    if not before.version:
        # An apply names the object that it creates, so that the right to create can be restricted to the name.
        body = {"metadata": {"labels": PART}, "type": "Opaque", "data": encoded_files(put)}
        await client.apply(SECRET, namespace, name, body, field_manager=MANAGER)
    elif changed or dropped:
        data: dict[str, str | None] = {**dict.fromkeys(dropped), **encoded_files(changed)}
        body = {"metadata": {"resourceVersion": before.version}, "data": data}
        await client.patch(SECRET, namespace, name, body, field_manager=MANAGER)


def kept(files: Mapping[str, bytes]) -> dict[ClusterName, Kept]:
    """Return the kept state of each link that has a key."""
    return {
        ClusterName(name): Kept(
            key=content,
            certificate=files.get(name + CERTIFICATE, b""),
            authorities=files.get(name + AUTHORITIES, b""),
            adopted=files.get(name + ADOPTED, b"").decode("ascii", "replace"),
        )
        for file, content in files.items()
        if file.endswith(KEY) and (name := file.removesuffix(KEY))
    }


def kept_files(links: Mapping[ClusterName, Kept]) -> dict[str, bytes]:
    """Return the files that keep the state of links."""
    files = {}
    for name, content in links.items():
        files[name + KEY] = content.key
        files[name + CERTIFICATE] = content.certificate
        files[name + AUTHORITIES] = content.authorities
        files[name + ADOPTED] = content.adopted.encode()
    return files


def names_of_kept(name: ClusterName) -> tuple[str, ...]:
    """Names of the files that a link may have."""
    return (name + KEY, name + CERTIFICATE, name + AUTHORITIES, name + ADOPTED)
