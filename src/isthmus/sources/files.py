"""Services and endpoints from a directory of YAML files, for machines without an API server.

The files hold Kubernetes manifests: Service and EndpointSlice, several to a file. A changed file is read again once two
scans in a row find it unchanged, so that a file which is being written is not read in part. A file that is not YAML
keeps its last rows, and an object that cannot be read its last row; both are rows of ``faults``. If two files contain
the same object, the first file by name wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from isthmus import logs
from isthmus.kube.objects.core import Service
from isthmus.kube.objects.discovery import EndpointSlice
from isthmus.model.names import LOCAL
from isthmus.model.sources import FILES
from isthmus.model.tables import ENDPOINT_SETS, FAULTS, SERVICES
from isthmus.sources.services import service
from isthmus.sources.sink import MALFORMED, Malformed
from isthmus.sources.slices import endpoint_set
from isthmus.statedb import Database, Faults, Table

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
    convert: Callable[[Any], Any]


_READINGS: Final = {
    "Service": _Reading(Service, service),
    "EndpointSlice": _Reading(EndpointSlice, endpoint_set(LOCAL)),
}
_TABLES: Final[Mapping[type[Any], Table[Any, Any]]] = {SERVICES.row: SERVICES, ENDPOINT_SETS.row: ENDPOINT_SETS}

REFUSED: Final = (*MALFORMED, msgspec.ValidationError, RecursionError)
"""Exceptions that an invalid object causes; any other is a bug."""


class Files:
    """The source 'files' of services and endpoint sets; both tables await it from now on."""

    def __init__(self, db: Database, folder: Path, *, interval: float = 0.5) -> None:
        self._db = db
        self._folder = folder
        self._interval = interval
        self._initializers = [db.initializer(table, FILES) for table in (SERVICES, ENDPOINT_SETS)]
        self._seen: dict[Path, _Signature] = {}
        self._read: dict[Path, _Signature] = {}
        self._rows: dict[Path, dict[str, Any]] = {}
        """Rows by file and name of the object."""
        self._faults = Faults(db, FAULTS, f"{SERVICES.name}, {ENDPOINT_SETS.name}", kind=FILES)
        self._failing: dict[Path, set[str]] = {}
        """Names in the faults of a file: its own, or those of objects in it."""
        self._written: dict[Key, Any] = {}
        self._trouble = ""
        self._listed = False

    def __repr__(self) -> str:
        return f"<Files of {self._folder}: {len(self._rows)} files, {len(self._written)} rows>"

    async def run(self) -> None:
        """Scan the directory periodically, for ever."""
        while True:
            self.step()
            await asyncio.sleep(self._interval)

    def step(self) -> bool:
        """Scan once; return True if a file was read or removed. The first scan reads every file at once."""
        first = not self._listed
        try:
            current = {path: _signature(path) for path in sorted(self._folder.iterdir()) if path.suffix in SUFFIXES}
        except OSError as error:
            self._report(f"cannot be read: {error.strerror}")
            return False
        self._listed, self._trouble = True, ""
        settled = {path for path, mark in current.items() if first or self._seen.get(path) == mark}
        changed = [path for path in settled if self._read.get(path) != current[path]]
        removed = self._read.keys() - current.keys()
        self._seen = current
        for path in removed:
            self._rows.pop(path, None)
            del self._read[path]
            self._record(path, {})
        for path in changed:
            self._read[path] = current[path]
            self._load(path)
        if changed or removed or first:
            self._write()
        return bool(changed or removed)

    def _load(self, path: Path) -> None:
        try:
            documents = list(_flat(yaml.load_all(path.read_text(), Loader=_Loader)))
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: a number, a date, no UTF-8
            reason = " ".join(str(error).split())
            log.warning("file ignored", file=str(path), why=reason)
            self._record(path, {path.name: Malformed(reason)})
            return
        before = self._rows.get(path, {})
        rows: dict[str, Any] = {}
        failures: dict[str, Exception] = {}
        for number, document in enumerate(documents, start=1):
            name = f"{path.name}: {_name(document) or number}"
            try:
                rows[name] = _row(document)
            except MemoryError:
                raise
            except Exception as error:
                log.warning("object ignored", file=str(path), number=number, name=_name(document), why=str(error))
                failures[name] = error
                if name in before:
                    rows[name] = before[name]
        self._rows[path] = rows
        self._record(path, failures)

    def _record(self, path: Path, failures: Mapping[str, Exception]) -> None:
        """Replace the faults of a file and of its objects by these."""
        for name in self._failing.pop(path, set()) - failures.keys():
            self._faults.succeeded(name)
        for name, error in failures.items():
            message = str(error) if isinstance(error, REFUSED) else ""
            self._faults.failed(name, error, cause="malformed" if message else "bug", message=message)
        if failures:
            self._failing[path] = {*failures}

    def _write(self) -> None:
        rows: dict[Key, Any] = {}
        for path in sorted(self._rows):
            for row in self._rows[path].values():
                table = _TABLES[type(row)]
                key = table.name, table.key(row)
                if rows.setdefault(key, row) is not row:
                    log.warning("object ignored", file=str(path), name=str(key[1][0]), why="another file has it too")
        with self._db.write() as txn:
            for name, key in self._written.keys() - rows.keys():
                txn.delete(self._db.tables[name], key)
            for (name, _), row in rows.items():
                txn.put(self._db.tables[name], row)
            self._faults.write(txn)
            for initializer in self._initializers:
                initializer.complete(txn)
        self._written = rows

    def _report(self, reason: str) -> None:
        if reason != self._trouble:
            log.warning("directory ignored", directory=str(self._folder), why=reason)
        self._trouble = reason


def _flat(documents: Iterable[Any]) -> Iterator[Any]:
    """Yield the objects of the documents, unpacking Lists and skipping empty documents."""
    for document in documents:
        items = document.get("items") or [] if isinstance(document, dict) and document.get("kind") == "List" else None
        if isinstance(items, list):
            yield from items
        elif document is not None:
            yield document


def _row(document: Any) -> Any:
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
    return msgspec.structs.replace(row, source=FILES)


def _name(document: Any) -> str:
    """Kind, namespace and name of an object; empty if it has no name."""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(metadata, dict) or not metadata.get("name"):
        return ""
    return f"{document.get('kind')} {metadata.get('namespace') or 'default'}/{metadata['name']}"


def _signature(path: Path) -> _Signature:
    stat = path.stat()
    return _Signature(stat.st_ino, stat.st_size, stat.st_mtime_ns)
