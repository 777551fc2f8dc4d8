"""Derived tables over rows that a test puts and deletes; each change is followed by passes until all is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.processes.start import tables_of
from isthmus.statedb import Database, Derivation, Derivations, Table


class DerivedWorld:
    """A database of some derived tables and what they read. ``tables``: those of rows, by type."""

    def __init__(self, declared: Sequence[Derivation], tables: Mapping[type, Table[Any, Any]], *rows: Any) -> None:
        self._tables = tables
        self.db = Database(*tables_of(declared))
        self.derivations = Derivations(self.db, *declared)
        self.put(*rows)

    def put(self, *rows: Any) -> None:
        with self.db.write() as txn:
            for row in rows:
                txn.put(self._tables[type(row)], row)
        self._derive()

    def delete(self, table: Any, key: Any) -> None:
        with self.db.write() as txn:
            txn.delete(table, key)
        self._derive()

    def _derive(self) -> None:
        while self.derivations.step():
            pass
