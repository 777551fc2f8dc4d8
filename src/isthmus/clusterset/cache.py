"""The last known state of each peer on disk, so that a process that restarts while a peer is away loses nothing.

One file per kind of record and peer, replaced whole. Its modification time is when the peer was last read: while the
peer is connected the file is touched now and then, and the cache lifetime counts from there. A file that cannot be
used is as good as none.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, structs

from isthmus import logs
from isthmus.clusterset import sinks
from isthmus.clusterset.identity import ClusterConfig, Description
from isthmus.clusterset.timings import FollowerTimings
from isthmus.model import chunked
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.model.services import EndpointSet, Export
from isthmus.statedb import Database

log = logs.get("cache")

VERSION: Final = 1


class _Exports(Struct, frozen=True):
    version: int
    cluster: ClusterName
    config: ClusterConfig
    rows: tuple[Export, ...]
    description: Description = Description()


class _Services(Struct, frozen=True):
    version: int
    cluster: ClusterName
    config: ClusterConfig
    rows: tuple[EndpointSet, ...]
    description: Description = Description()


_decoders: Final[dict[RecordKind, msgspec.json.Decoder[Any]]] = {
    "serviceexports": msgspec.json.Decoder(_Exports),
    "services": msgspec.json.Decoder(_Services),
}
_encoder = msgspec.json.Encoder(enc_hook=chunked.plain)


class Known(NamedTuple):
    """Last known records of a kind, what the peer published of itself, and their age in seconds."""

    config: ClusterConfig
    rows: Sequence[Any]
    age: float
    description: Description


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
        return Known(saved.config, saved.rows, age, saved.description)

    def save(
        self,
        kind: RecordKind,
        cluster: ClusterName,
        config: ClusterConfig,
        rows: Sequence[Any],
        description: Description = Description(),  # noqa: B008 immutable
    ) -> None:
        """Keep this as what is known of a peer as of now. A disk that fails costs the cache and nothing else."""
        if self._folder is None:
            return
        path = self._path(kind, cluster)
        made = _Exports if kind == "serviceexports" else _Services
        content = _encoder.encode(made(VERSION, cluster, config, tuple(rows), description))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}.{os.getpid()}")
            new.touch(mode=0o600)
            new.write_bytes(content)
            new.replace(path)
        except OSError as why:
            log.warning("last known state cannot be kept", file=str(path), why=str(why))

    def touch(self, kind: RecordKind, cluster: ClusterName) -> None:
        """What is kept of the peer is confirmed as of now."""
        if self._folder is not None:
            with suppress(OSError):
                os.utime(self._path(kind, cluster))

    def forget(self, kind: RecordKind, cluster: ClusterName) -> None:
        """The peer has left, is refused or distrusted."""
        if self._folder is not None:
            with suppress(OSError):
                self._path(kind, cluster).unlink(missing_ok=True)

    def _path(self, kind: RecordKind, cluster: ClusterName) -> Path:
        assert self._folder is not None
        return self._folder / kind / f"{cluster}.json"


class Memory:
    """One peer in the cache: saved soon after a change and at our end, touched while the peer is there."""

    def __init__(
        self, db: Database, cache: Cache, cluster: ClusterName, *, forms: sinks.Forms, timings: FollowerTimings
    ) -> None:
        self._db = db
        self._cache = cache
        self._cluster = cluster
        self._forms = forms
        self._timings = timings
        self._unsaved: dict[RecordKind, tuple[ClusterConfig, Description]] = {}
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Memory of {self._cluster}, {len(self._unsaved)} kinds unsaved>"

    def load(self) -> dict[RecordKind, Known]:
        """What an earlier process kept, by kind."""
        loaded = {kind: self._cache.load(kind, self._cluster) for kind in self._forms}
        return {kind: known for kind, known in loaded.items() if known is not None}

    def note(self, config: ClusterConfig, kind: RecordKind, description: Description | None) -> None:
        """The rows of a kind changed, or the description, under this configuration of the peer."""
        # Whether a mirror reaches the peer is not remembered: it is seen anew.
        kept = structs.replace(description or Description(), away="", silent="")
        self._unsaved[kind] = config, kept
        self._news.set()

    def forget(self) -> None:
        """The peer has left, is refused or distrusted."""
        self._unsaved.clear()
        for kind in self._forms:
            self._cache.forget(kind, self._cluster)

    async def run(self, *, fresh: Callable[[], bool]) -> None:
        """Keep the files as the rows are, for ever; ``fresh``: whether the peer is connected."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self._timings.touch_every):
                        await self._news.wait()
                except TimeoutError:
                    for kind in self._forms if fresh() else ():
                        self._cache.touch(kind, self._cluster)
                    continue
                await asyncio.sleep(self._timings.save_after)
                self._save()
        finally:
            self._save()

    def _save(self) -> None:
        self._news.clear()
        snapshot = self._db.snapshot()
        for kind, (config, description) in self._unsaved.items():
            rows = self._forms[kind].rows(snapshot, self._cluster)
            self._cache.save(kind, self._cluster, config, rows, description)
        self._unsaved.clear()
