"""The configuration directory: one file per peer, called as the cluster is, in Cilium's format.

    endpoints: ["https://c2.mesh.example:2379"]
    trusted-ca-file: /etc/isthmus/c2/ca.crt
    cert-file: /etc/isthmus/c2/client.crt
    key-file: /etc/isthmus/c2/client.key

and with what Isthmus has beside that, which Cilium's readers skip:

    cluster-id: 2                        the id with which it joined; another one is refused
    namespaces: [demo, "team-*"]         where it may publish, in place of everywhere but reserved namespaces
    pod-ranges: [10.2.0.0/16]             its endpoints are in these ranges, or refused
    server-name: etcd.c2.clusterset.local the name in its certificate, and the SNI: endpoints are its gateways

A path that is not absolute is one beside the file.
The directory is looked at every half second, through symlinks, so that a Secret's atomic swap is seen as one change.
A certificate that is renewed in place changes the peer's digest as a changed file does. A file that cannot be used
costs its own cluster only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct, structs

from isthmus import logs, statefile
from isthmus.clusterset import pki
from isthmus.clusterset.certificates import Expiry, expiry
from isthmus.clusterset.errors import PeerFileError
from isthmus.clusterset.peers.timings import TIMINGS
from isthmus.etcd import Credentials, Session, SessionTimings, Tls
from isthmus.model.addresses import is_range
from isthmus.model.names import ClusterName, valid_cluster

log = logs.get("peers")

MARK: Final = b"endpoints:"
ID: Final = "cluster-id"
NAMESPACES: Final = "namespaces"
POD_RANGES: Final = "pod-ranges"
SERVER_NAME: Final = "server-name"
MOST_ID: Final = 511
"""The largest cluster id, where maxConnectedClusters is 511."""
LIMIT: Final = 64 * 1024


class Peer(Struct, frozen=True, gc=False, kw_only=True):
    """Access to the etcd of another cluster. ``problem`` is the reason if its file is unusable, otherwise empty."""

    name: ClusterName
    endpoints: tuple[str, ...] = ()
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    username: str = ""
    password: str = ""
    id: int = 0
    """The cluster id with which it joined; 0 if its file pins none."""
    namespaces: tuple[str, ...] = ()
    """Patterns of namespaces that it may publish in; empty allows all that are not reserved."""
    pod_ranges: tuple[str, ...] = ()
    """Pod ranges that it declared when it joined; empty if it declared none."""
    server_name: str = ""
    """Name in its etcd's certificate, also the SNI; empty uses the endpoint's host."""
    expiry: Expiry | None = None
    """Earliest expiry of the certificates for its connection; ``None`` if there are none or they are unreadable."""
    digest: str = ""
    problem: str = ""

    def session(self, timings: SessionTimings = TIMINGS.session) -> Session:
        """A session with it, to be entered; EtcdError names a certificate that cannot be read."""
        secured = self.ca_file or self.cert_file
        tls = Tls(self.ca_file, self.cert_file, self.key_file, self.server_name) if secured else None
        credentials = Credentials(self.username, self.password) if self.username else None
        return Session(self.endpoints, tls=tls, credentials=credentials, timings=timings)


class Directory:
    """Reads the directory; :meth:`read` is cheap while nothing has changed."""

    def __init__(self, path: str, *, own: ClusterName) -> None:
        self._path = Path(path) if path else None
        self._own = own
        self._seen: object = None
        self._peers: dict[ClusterName, Peer] = {}
        self._broken: dict[ClusterName, str] = {}

    def __repr__(self) -> str:
        return f"<Directory {self._path or 'none'}: {', '.join(self._peers) or 'no peers'}>"

    def read(self) -> Mapping[ClusterName, Peer]:
        """Return the peers that the files define. The own cluster's file is ignored."""
        if self._path is None:
            return {}
        if (seen := self._signature(self._path)) != self._seen or self._broken:
            self._peers = self._parse(self._path)
            self._seen = seen
        return self._peers

    def problem(self, name: ClusterName) -> str:
        """Reason why the current version of a peer's file is unusable; empty if it is usable."""
        return self._broken.get(name, "")

    def _signature(self, folder: Path) -> object:
        """Value that changes with any file of the directory or any file that a peer refers to."""
        files = {str(path) for path in _files(folder)}
        for peer in self._peers.values():
            files |= {path for path in (peer.ca_file, peer.cert_file, peer.key_file) if path}
        return tuple(sorted((path, statefile.stamp(path)) for path in files))

    def _parse(self, folder: Path) -> dict[ClusterName, Peer]:
        peers, broken = {}, {}
        for path in _files(folder):
            name = ClusterName(path.name)
            try:
                content = _content(path)
                if MARK in content and name != self._own:
                    peers[name] = parse(content, name=name, path=path)
            except PeerFileError as error:
                broken[name] = str(error)
                if self._broken.get(name) != str(error):
                    log.warning("file cannot be used", why=str(error))
                before = self._peers.get(name)  # the last valid version stays in use until the file is repaired
                peers[name] = before if before and not before.problem else Peer(name=name, problem=str(error))
        self._broken = broken
        return peers


def parse(content: bytes, *, name: ClusterName, path: Path) -> Peer:
    """A peer from its file and those that it refers to; PeerFileError names file and field."""
    return _with_contents(fields_of(content, name=name, path=path), content)


def fields_of(content: bytes, *, name: ClusterName, path: Path) -> Peer:
    """A peer from its file alone; PeerFileError names file and field."""
    if not valid_cluster(name):
        raise PeerFileError(f"{path}: '{name}' cannot be a cluster's name")
    try:
        fields = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PeerFileError(f"{path}: it is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise PeerFileError(f"{path}: want a mapping with 'endpoints'")
    endpoints = fields.get("endpoints")
    if not isinstance(endpoints, list) or not endpoints or not all(isinstance(each, str) for each in endpoints):
        raise PeerFileError(f"{path}: endpoints: want a list of URLs")
    return Peer(
        name=name,
        endpoints=tuple(endpoints),
        ca_file=_file(fields, "trusted-ca-file", path),
        cert_file=_file(fields, "cert-file", path),
        key_file=_file(fields, "key-file", path),
        username=_text(fields, "username", path),
        password=_text(fields, "password", path),
        id=_id(fields, path),
        namespaces=_list(fields, NAMESPACES, path, items="namespaces"),
        pod_ranges=_ranges(fields, path),
        server_name=_text(fields, SERVER_NAME, path),
    )


def save(folder: Path, peer: Peer, *, ca: bytes, certificate: bytes, key: bytes) -> Peer:
    """Write a peer's certificates, then its file: readers follow the peer as soon as the file exists."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in files(peer, ca=ca, certificate=certificate, key=key).items():
        pki.save(folder / name, content)
    return structs.replace(peer, **{field: str(folder / name) for field, name in _file_names(peer.name).items()})


def files(peer: Peer, *, ca: bytes, certificate: bytes, key: bytes) -> dict[str, bytes]:
    """Contents of a peer's files, by name; last the peer file itself, which refers to the others."""
    names = _file_names(peer.name)
    own = peer_file(structs.replace(peer, **names))
    return {**dict(zip(names.values(), (ca, certificate, key), strict=True)), peer.name: own}


def peer_file(peer: Peer) -> bytes:
    """Content of a peer's file, with the names of its certificates' files as the peer has them."""
    fields = {
        "endpoints": list(peer.endpoints),
        "trusted-ca-file": peer.ca_file,
        "cert-file": peer.cert_file,
        "key-file": peer.key_file,
    }
    options: dict[str, Any] = {"username": peer.username, "password": peer.password}
    options |= {ID: peer.id, NAMESPACES: list(peer.namespaces), POD_RANGES: list(peer.pod_ranges)}
    options |= {SERVER_NAME: peer.server_name}
    fields |= {option: value for option, value in options.items() if value}
    return yaml.safe_dump(fields, sort_keys=False).encode()


def _file_names(name: ClusterName) -> dict[str, str]:
    """Fields of a peer, and the files that they refer to."""
    return {"ca_file": f"{name}.ca.crt", "cert_file": f"{name}.crt", "key_file": f"{name}.key"}


def names_of_files(name: ClusterName) -> tuple[str, ...]:
    """Names of the files that a peer may have, the peer file first."""
    return (name, *_file_names(name).values())


def forget(folder: Path, name: ClusterName) -> bool:
    """Remove the files that :func:`save` wrote, the peer file first. True if it existed."""
    existed = (folder / name).exists()
    for file in names_of_files(name):
        (folder / file).unlink(missing_ok=True)
    return existed


def _with_contents(peer: Peer, content: bytes) -> Peer:
    """Complete a peer with the digest and the earliest expiry of its files."""
    digest = hashlib.sha256(content)
    contents = {file: _content(Path(file)) for file in (peer.ca_file, peer.cert_file, peer.key_file) if file}
    for data in contents.values():
        digest.update(hashlib.sha256(data).digest())
    certificate, authorities = ((file, contents[file]) if file else None for file in (peer.cert_file, peer.ca_file))
    return structs.replace(peer, digest=digest.hexdigest(), expiry=expiry(certificate, authorities))


def _file(fields: Mapping[Any, Any], field: str, path: Path) -> str:
    """A path in the file is relative to it, so that the directory can be taken elsewhere as a Secret."""
    named = _text(fields, field, path)
    return str(path.parent / named) if named else ""


def _text(fields: Mapping[Any, Any], field: str, path: Path) -> str:
    value = fields.get(field, "")
    if not isinstance(value, str) or not value.isprintable():  # never the value: it may be a password
        what = "control characters" if isinstance(value, str) else f"{type(value).__name__}: put it in quotes"
        raise PeerFileError(f"{path}: {field}: want text, got {what}")
    return value


def _list(fields: Mapping[Any, Any], field: str, path: Path, *, items: str) -> tuple[str, ...]:
    value = fields.get(field) or []
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise PeerFileError(f"{path}: {field}: want a list of {items}, got {value!r}")
    return tuple(value)


def _id(fields: Mapping[Any, Any], path: Path) -> int:
    value = fields.get(ID, 0)
    if type(value) is not int or not 0 <= value <= MOST_ID or (ID in fields and not value):
        raise PeerFileError(f"{path}: {ID}: want a number of 1 to {MOST_ID}, got {value!r}")
    return value


def _ranges(fields: Mapping[Any, Any], path: Path) -> tuple[str, ...]:
    ranges = _list(fields, POD_RANGES, path, items="address ranges")
    if bad := [each for each in ranges if not is_range(each)]:
        raise PeerFileError(f"{path}: {POD_RANGES}: '{bad[0]}' is no range of addresses")
    return ranges


def _files(folder: Path) -> list[Path]:
    """Regular files, links to such included; hidden ones are the machinery of mounted Secrets."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_file())
    except OSError:
        return []


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LIMIT + 1)
    except OSError as error:
        raise PeerFileError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > LIMIT:
        raise PeerFileError(f"{path}: larger than {LIMIT} bytes")
    return content
