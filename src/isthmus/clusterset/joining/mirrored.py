"""The files by which agents read a mirror's copies: those of the peers, with the own etcd in place of the peer's.

They follow from the peers' files and the folder of keys alone, so whoever changes one of them writes all. A peer's file
names the own etcd and its user ``local``, whose pair all of them share. The authorities of a peer stay in
``<peer>.ca.crt``: nodes judge the gateways of islands by them. A peer's limits (id, namespaces, pod ranges) are kept:
agents apply them to the copies, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct, structs

from isthmus.clusterset import peers, pki
from isthmus.clusterset.certificates import Pair
from isthmus.clusterset.errors import JoinError, PeerFileError
from isthmus.clusterset.joining import rights
from isthmus.clusterset.peers import peer_files
from isthmus.clusterset.pki import Folder
from isthmus.config import ClustersetSection, EtcdSection
from isthmus.model.names import ClusterName

ETCD_CA: Final = "etcd.crt"
CERTIFICATE: Final = "local.crt"
KEY: Final = "local.key"
"""Shared files. None can be a peer's: of a peer there are ``<peer>`` and ``<peer>.ca.crt`` alone."""
CA: Final = ".ca.crt"


class LocalAccess(Struct, frozen=True, kw_only=True):
    """Access of the agents to the own etcd."""

    endpoints: tuple[str, ...]
    authorities: bytes
    pair: Pair
    password: str


def local_access(folder: Folder, endpoints: tuple[str, ...]) -> LocalAccess:
    """Access by the keys of a folder; PkiError if it lacks them."""
    return LocalAccess(
        endpoints=endpoints,
        authorities=folder.bundle,
        pair=folder.pair(rights.LOCAL),
        password=folder.password(rights.LOCAL),
    )


def copies(
    own: ClusterName, published: Mapping[str, bytes], access: LocalAccess, before: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return the files for agents, of the peers whose files are ``published``.

    ``before``: the files as they are. A peer whose own file is unusable keeps what it has there.
    """
    files = {ETCD_CA: access.authorities, CERTIFICATE: access.pair.certificate, KEY: access.pair.key}
    names = [ClusterName(name) for name, content in published.items() if peer_files.MARK in content and "." not in name]
    for name in names:
        ca = f"{name}{CA}"
        if name != own and (content := _copy(name, published[name], access) or before.get(name, b"")):
            files |= {ca: published.get(ca) or before.get(ca, b""), name: content}
    return files


def _copy(name: ClusterName, content: bytes, access: LocalAccess) -> bytes:
    """A peer's file with the own etcd in place of the peer's; empty if it is unusable."""
    try:
        peer = peer_files.fields_of(content, name=name, path=Path(name))
    except PeerFileError:
        return b""
    return peer_files.peer_file(
        structs.replace(
            peer,
            endpoints=access.endpoints,
            username=rights.LOCAL,
            password=access.password,
            server_name="",
            ca_file=ETCD_CA,
            cert_file=CERTIFICATE,
            key_file=KEY,
        )
    )


def write(own: ClusterName, clusterset: ClustersetSection, etcd: EtcdSection, folder: Folder) -> None:
    """Write the files of all peers in ``clusterset.mirrored``, and remove those of clusters that left.

    Nothing if the option is empty.
    """
    if not clusterset.mirrored:
        return
    directory = Path(clusterset.mirrored)
    endpoints = clusterset.mirror_endpoints or etcd.endpoints
    if bad := [each for each in endpoints if urlsplit(each).scheme != "https"]:
        raise JoinError(f"clusterset.mirror_endpoints: {bad[0]}: want https://…")
    before = _contents(directory)
    files = copies(own, _contents(Path(clusterset.directory)), local_access(folder, endpoints), before)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in peers.Directory(str(directory), own=own).read().keys() - files.keys():
        peers.forget(directory, name)
    for file, content in files.items():
        pki.save(directory / file, content)


def _contents(directory: Path) -> dict[str, bytes]:
    """Files of a directory of peers by name; none if it does not exist."""
    if not directory.is_dir():
        return {}
    paths = (path for path in sorted(directory.iterdir()) if path.is_file() and not path.name.startswith("."))
    return {path.name: path.read_bytes() for path in paths}
