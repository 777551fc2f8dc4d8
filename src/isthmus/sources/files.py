"""Services and endpoints from a directory of YAML files, for machines without an API server.

The files hold Kubernetes objects as everybody writes them: Service and EndpointSlice, several to a file. A file is read
again when it has changed and then stood still for one look, so one that is being written is not read half. A file that
is not YAML keeps its last rows; an object that cannot be read costs itself alone. Where two files have one object, the
file first by name wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from isthmus import logs
from isthmus.kube.objects.core import Service
from isthmus.kube.objects.discovery import EndpointSlice
from isthmus.model.names import LOCAL
from isthmus.model.sources import FILES
from isthmus.model.tables import ENDPOINT_SETS, SERVICES
from isthmus.sources.services import service
from isthmus.sources.sink import Malformed
from isthmus.sources.slices import endpoint_set
from isthmus.statedb import Database, Table

SUFFIXES: Final = frozenset({".yaml", ".yml"})

Key = tuple[str, Any]
"""Table name and primary key."""

log = logs.get("sources")


class _Loader(yaml.SafeLoader):
    """Reads dates as text, as the API does."""


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Signature(NamedTuple):
    inode: int
    size: int
    changed: int


class _Reading(NamedTuple):
    kind: type[Any]
    table: Table[Any, Any]
    convert: Callable[[Any], Any]


_READINGS: Final = {
    "Service": _Reading(Service, SERVICES, service),
    "EndpointSlice": _Reading(EndpointSlice, ENDPOINT_SETS, endpoint_set(LOCAL)),
}


class Files:
    """The source 'files' of services and endpoint sets; both tables await it from now on."""

    def __init__(self, db: Database, folder: Path, *, interval: float = 0.5) -> None:
        self._db = db
        self._folder = folder
        self._interval = interval
        self._initializers = [db.initializer(table, FILES) for table in (SERVICES, ENDPOINT_SETS)]
        self._seen: dict[Path, _Signature] = {}
        self._read: dict[Path, _Signature] = {}
        self._rows: dict[Path, dict[Key, Any]] = {}
        self._written: dict[Key, Any] = {}
        self._trouble = ""
        self._listed = False

    def __repr__(self) -> str:
        return f"<Files of {self._folder}: {len(self._rows)} files, {len(self._written)} rows>"

    async def run(self) -> None:
        """Look at the directory again and again, for ever."""
        while True:
            self.step()
            await asyncio.sleep(self._interval)

    def step(self) -> bool:
        """Look once; whether anything was read or is gone. The first look waits for no file to stand still."""
        first = not self._listed
        try:
            now = {path: _signature(path) for path in sorted(self._folder.iterdir()) if path.suffix in SUFFIXES}
        except OSError as error:
            self._report(f"cannot be read: {error.strerror}")
            return False
        self._listed, self._trouble = True, ""
        settled = {path for path, mark in now.items() if first or self._seen.get(path) == mark}
        changed = [path for path in settled if self._read.get(path) != now[path]]
        gone = self._rows.keys() - now.keys()
        self._seen = now
        for path in gone:
            del self._rows[path]
            self._read.pop(path, None)
        for path in changed:
            self._read[path] = now[path]
            self._load(path)
        if changed or gone or first:
            self._write()
        return bool(changed or gone)

    def _load(self, path: Path) -> None:
        try:
            documents = list(yaml.load_all(path.read_text(), Loader=_Loader))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            log.warning("file ignored", file=str(path), why=" ".join(str(error).split()))
            return
        rows: dict[Key, Any] = {}
        for number, document in enumerate(_flat(documents), start=1):
            try:
                table, row = _row(document)
            except (Malformed, msgspec.ValidationError) as why:
                log.warning("object ignored", file=str(path), number=number, name=_name(document), why=str(why))
            else:
                rows[table.name, table.key(row)] = row
        self._rows[path] = rows

    def _write(self) -> None:
        wanted: dict[Key, Any] = {}
        for path in sorted(self._rows):
            for key, row in self._rows[path].items():
                if wanted.setdefault(key, row) is not row:
                    log.warning("object ignored", file=str(path), name=str(key[1][0]), why="another file has it too")
        with self._db.write() as txn:
            for table, key in self._written.keys() - wanted.keys():
                txn.delete(self._db.tables[table], key)
            for (table, _), row in wanted.items():
                txn.put(self._db.tables[table], row)
            for initializer in self._initializers:
                initializer.complete(txn)
        self._written = wanted

    def _report(self, why: str) -> None:
        if why != self._trouble:
            log.warning("directory ignored", directory=str(self._folder), why=why)
        self._trouble = why


def _flat(documents: list[Any]) -> Iterator[Any]:
    """The objects, those of Lists one by one; empty documents are none."""
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == "List":
            yield from document.get("items") or ()
        elif document is not None:
            yield document


def _row(document: Any) -> tuple[Table[Any, Any], Any]:
    kind = document.get("kind") if isinstance(document, dict) else None
    reading = _READINGS.get(str(kind))
    if reading is None:
        raise Malformed(f"kind: '{kind}' is none of {', '.join(_READINGS)}")
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and not metadata.get("namespace"):
        document = {**document, "metadata": {**metadata, "namespace": "default"}}
    row = reading.convert(msgspec.convert(document, reading.kind))
    if row is None:
        raise Malformed("metadata.labels: it belongs to no service, or to another cluster")
    return reading.table, msgspec.structs.replace(row, source=FILES)


def _name(document: Any) -> str:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return str(metadata.get("name")) if isinstance(metadata, dict) else ""


def _signature(path: Path) -> _Signature:
    stat = path.stat()
    return _Signature(stat.st_ino, stat.st_size, stat.st_mtime_ns)
