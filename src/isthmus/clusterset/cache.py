"""The last known state of each peer on disk, so that a process that restarts while a peer is away loses nothing.

One file per kind of record and peer, replaced whole. Its modification time is when the peer was last heard: while the
peer is connected the file is touched now and then, and the cache lifetime counts from there. A file that cannot be
used is as good as none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from isthmus import logs
from isthmus.clusterset.identity import ClusterConfig
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.model.services import EndpointSet, Export

log = logs.get("cache")

VERSION: Final = 1


class _Exports(Struct, frozen=True):
    version: int
    cluster: ClusterName
    config: ClusterConfig
    rows: tuple[Export, ...]


class _Services(Struct, frozen=True):
    version: int
    cluster: ClusterName
    config: ClusterConfig
    rows: tuple[EndpointSet, ...]


_decoders: Final[dict[RecordKind, msgspec.json.Decoder[Any]]] = {
    "serviceexports": msgspec.json.Decoder(_Exports),
    "services": msgspec.json.Decoder(_Services),
}


class Known(NamedTuple):
    """What a peer last said of a kind, and how many seconds ago it was last heard."""

    config: ClusterConfig
    rows: Sequence[Any]
    age: float


class Cache:
    """A directory of last known states; without one nothing is kept."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None

    def __repr__(self) -> str:
        return f"<Cache in {self._folder or 'nowhere'}>"

    def load(self, kind: RecordKind, cluster: ClusterName) -> Known | None:
        """What is known of a peer, or None."""
        if self._folder is None:
            return None
        path = self._path(kind, cluster)
        try:
            age = max(0.0, time.time() - path.stat().st_mtime)
            saved = _decoders[kind].decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as why:
            log.warning("last known state cannot be used", file=str(path), why=str(why))
            return None
        if saved.version != VERSION or saved.cluster != cluster or any(row.cluster != cluster for row in saved.rows):
            log.warning("last known state is another's", file=str(path))
            return None
        return Known(saved.config, saved.rows, age)

    def save(self, kind: RecordKind, cluster: ClusterName, config: ClusterConfig, rows: Sequence[Any]) -> None:
        """Keep this as what is known of a peer, heard now. A disk that fails costs the cache and nothing else."""
        if self._folder is None:
            return
        path = self._path(kind, cluster)
        made = _Exports if kind == "serviceexports" else _Services
        content = msgspec.json.encode(made(VERSION, cluster, config, tuple(rows)))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}.{os.getpid()}")
            new.touch(mode=0o600)
            new.write_bytes(content)
            new.replace(path)
        except OSError as why:
            log.warning("last known state cannot be kept", file=str(path), why=str(why))

    def touch(self, kind: RecordKind, cluster: ClusterName) -> None:
        """The peer was heard now and says what is kept."""
        if self._folder is not None:
            with suppress(OSError):
                os.utime(self._path(kind, cluster))

    def forget(self, kind: RecordKind, cluster: ClusterName) -> None:
        """The peer has left, or is not to be believed."""
        if self._folder is not None:
            with suppress(OSError):
                self._path(kind, cluster).unlink(missing_ok=True)

    def _path(self, kind: RecordKind, cluster: ClusterName) -> Path:
        assert self._folder is not None
        return self._folder / kind / f"{cluster}.json"
