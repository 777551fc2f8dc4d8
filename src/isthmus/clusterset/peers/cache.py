"""The last known state of each peer on disk, so that a process that restarts while a peer is away loses nothing.

One file per kind of record and peer, replaced whole. Its modification time is when the peer was last read: while the
peer is connected the file is touched now and then, and the cache lifetime counts from there. A file that cannot be
used is set aside and reported, and is as good as none.
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

from isthmus import logs, statefile
from isthmus.clusterset.peers.timings import FollowerTimings
from isthmus.clusterset.records import decoding, identity
from isthmus.clusterset.records.forms import Forms
from isthmus.clusterset.records.identity import ClusterConfig, Description
from isthmus.model import chunked
from isthmus.model.identities import CallerAddress, Identity
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.model.services import EndpointSet, Export
from isthmus.statedb import Database

log = logs.get("cache")

VERSION: Final = 2
"""Version of the file format; raised when values of an older version may no longer be valid."""


class _Exports(Struct, frozen=True):
    cluster: ClusterName
    config: ClusterConfig
    rows: tuple[Export, ...]
    description: Description = Description()


class _Services(Struct, frozen=True):
    cluster: ClusterName
    config: ClusterConfig
    rows: tuple[EndpointSet, ...]
    description: Description = Description()


class _Identities(Struct, frozen=True):
    cluster: ClusterName
    config: ClusterConfig
    rows: tuple[Identity, ...]
    description: Description = Description()


class _Addresses(Struct, frozen=True):
    cluster: ClusterName
    config: ClusterConfig
    rows: tuple[CallerAddress, ...]
    description: Description = Description()


_files: Final[dict[RecordKind, Any]] = {
    "serviceexports": _Exports,
    "services": _Services,
    "identities": _Identities,
    "ip": _Addresses,
}
_decoders: Final = {kind: msgspec.json.Decoder(file) for kind, file in _files.items()}
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
        self._problems: dict[Path, str] = {}

    def __repr__(self) -> str:
        return f"<Cache in {self._folder or 'nowhere'}>"

    def problems(self) -> tuple[str, ...]:
        """One sentence per file that cannot be read or written; each disappears after the next successful write."""
        return tuple(problem for _, problem in sorted(self._problems.items()))

    def load(self, kind: RecordKind, cluster: ClusterName) -> Known | None:
        """Return the last known state of a peer, or None."""
        if self._folder is None:
            return None
        path = self._path(kind, cluster)
        try:
            body = statefile.read(path, version=VERSION)
            if body is None:
                return None
            age = max(0.0, time.time() - path.stat().st_mtime)
            return _decode(body, kind, cluster, age)
        except (statefile.Unusable, OSError) as error:
            self.set_aside(kind, cluster, str(error))
            return None

    def set_aside(self, kind: RecordKind, cluster: ClusterName, reason: str) -> None:
        """Report that a peer's file is unusable and move it away, so that it is not read again."""
        if self._folder is not None:
            path = self._path(kind, cluster)
            place = statefile.set_aside(path)
            where = f"it is {place.name} now" if place is not None else "and cannot be moved away"
            self._report(path, f"the last known state of cluster {cluster}, {path}, is not used: {reason}; {where}")

    def save(
        self,
        kind: RecordKind,
        cluster: ClusterName,
        config: ClusterConfig,
        rows: Sequence[Any],
        description: Description = Description(),  # noqa: B008 immutable
    ) -> bool:
        """Write a peer's current state. A failing disk disables the cache and nothing else.

        False if the write failed; the previous file is unchanged.
        """
        if self._folder is None:
            return True
        path = self._path(kind, cluster)
        content = _encoder.encode(_files[kind](cluster, config, tuple(rows), description))
        try:
            statefile.write(path, content, version=VERSION)
        except OSError as error:
            reason = f"{path}: {error.strerror}"
            self._report(path, f"the last known state of cluster {cluster} cannot be kept: {reason}")
            return False
        self._problems.pop(path, None)
        return True

    def _report(self, path: Path, problem: str) -> None:
        if self._problems.get(path) != problem:
            log.warning(problem)
        self._problems[path] = problem

    def touch(self, kind: RecordKind, cluster: ClusterName) -> None:
        """Confirm a peer's file as current by its modification time."""
        if self._folder is not None:
            with suppress(OSError):
                os.utime(self._path(kind, cluster))

    def forget(self, kind: RecordKind, cluster: ClusterName) -> None:
        """Delete the file of a peer that has left, or is refused or distrusted."""
        if self._folder is not None:
            path = self._path(kind, cluster)
            self._problems.pop(path, None)
            for file in (path, *statefile.aside(path)):
                with suppress(OSError):
                    file.unlink(missing_ok=True)

    def _path(self, kind: RecordKind, cluster: ClusterName) -> Path:
        assert self._folder is not None
        return self._folder / kind / f"{cluster}.json"


def _decode(body: bytes, kind: RecordKind, cluster: ClusterName, age: float) -> Known:
    """Decode a peer's file; Unusable if a value has another type or belongs to another cluster."""
    try:
        saved = _decoders[kind].decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise statefile.Unusable(str(error)) from None
    if saved.cluster != cluster or any(row.cluster != cluster for row in saved.rows):
        raise statefile.Unusable("it is another cluster's")
    return Known(saved.config, saved.rows, age, identity.bounded(saved.description, now=decoding.wall_clock()))


class Memory:
    """One peer in the cache: saved soon after a change and at shutdown, touched while the peer is connected."""

    def __init__(
        self, db: Database, cache: Cache, cluster: ClusterName, *, forms: Forms, timings: FollowerTimings
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
        """Return the state that an earlier process saved, by kind."""
        loaded = {kind: self._cache.load(kind, self._cluster) for kind in self._forms}
        return {kind: state for kind, state in loaded.items() if state is not None}

    def set_aside(self, reason: str) -> None:
        """Discard the state that an earlier process saved."""
        for kind in self._forms:
            self._cache.set_aside(kind, self._cluster, reason)

    def note(self, config: ClusterConfig, kind: RecordKind, description: Description | None) -> None:
        """Schedule a save after a change of a kind's rows or of the peer's description."""
        # Not saved: the mirror's view of the peer, which is read again on the first contact.
        kept = structs.replace(description or Description(), away="", silent="")
        self._unsaved[kind] = config, kept
        if kind != "ip":  # a row for each pod: saved with the other kinds, or after touch_every
            self._news.set()

    def forget(self) -> None:
        """Delete the saved state: the peer has left, or is refused or distrusted."""
        self._unsaved.clear()
        for kind in self._forms:
            self._cache.forget(kind, self._cluster)

    async def run(self, *, fresh: Callable[[], bool]) -> None:
        """Save changed rows until cancelled; ``fresh`` returns True while the peer is connected."""
        touched = asyncio.get_running_loop().time()
        try:
            while True:
                try:
                    async with asyncio.timeout_at(touched + self._timings.touch_every):
                        await self._news.wait()
                        await asyncio.sleep(self._timings.save_after)
                except TimeoutError:
                    touched = asyncio.get_running_loop().time()
                    self._save()  # retry failed writes
                    for kind in self._forms.keys() - self._unsaved.keys() if fresh() else ():
                        self._cache.touch(kind, self._cluster)
                else:
                    self._save()
        finally:
            self._save()

    def _save(self) -> None:
        """Save what has changed. What cannot be saved stays unsaved: its file must not pass for a newer state."""
        self._news.clear()
        snapshot = self._db.snapshot()
        for kind, (config, description) in [*self._unsaved.items()]:
            rows = self._forms[kind].rows(snapshot, self._cluster)
            if self._cache.save(kind, self._cluster, config, rows, description):
                del self._unsaved[kind]
