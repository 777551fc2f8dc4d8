"""Transactional in-memory tables that any part of a process can read and follow without locks.

What belongs here: tables, write transactions over several of them, snapshots, secondary indexes, change readers that
include deletions, initializers, derived tables and the reconciler that drives a target from a table. What never does:
anything of Kubernetes, of networks or of Isthmus' own rows; this package is useful on its own.

    SERVICES = Table("services", Service, key=lambda s: s.name, indexes={"address": lambda s: s.addresses})
    db = Database(SERVICES)
    with db.write() as txn:
        txn.put(SERVICES, Service("ns/echo", addresses=("10.96.0.9",)))
    [row] = db.snapshot().by(SERVICES, "address", "10.96.0.9")

The contract:

- **One process, one event loop, one transaction at a time.** A transaction runs without ``await``, so writers need no
  lock. It is committed whole when its block ends and rolled back whole when the block raises.
- **Rows and indexes are plain dicts, changed in place.** A transaction remembers of each key that it touches the row
  before. That is the rollback, what readers of changes are given, and the undo of snapshots that are held.
- **A snapshot never changes under its reader**: it reads what was committed when it was taken, in every table, by key
  and by index, across any number of ``await`` and of later transactions; one that is taken while a transaction is open
  has nothing of that transaction. It costs a microsecond to take. While it is held each transaction adds what it
  touches to the snapshot's undo, so hold one while working on it and not while waiting. One that is dropped costs
  nothing: the database knows snapshots by weak references.
- **A transaction reads what it has written**, and what it gave out does not follow later writes: a list or iterator is
  of the moment of its call. The transaction is valid inside its block; a later use raises StateError.
- **Rows are immutable**, true (``bool``), and compare by value. A put of a row equal to the present one is no change.
"""

from isthmus.statedb.affected import on_change, through, unit_of
from isthmus.statedb.changes import Change, Changes
from isthmus.statedb.containment import part
from isthmus.statedb.database import Database, Initializer, TableStats
from isthmus.statedb.derive import Derivations, DerivationsStats
from isthmus.statedb.derived import (
    Affected,
    AffectedBatch,
    Derivation,
    Derived,
    DerivedTogether,
    Dirty,
    Pairs,
    PendingWrites,
    pending,
    per_row,
    rewrite,
)
from isthmus.statedb.errors import Overrun, StateError
from isthmus.statedb.faults import Cause, Fault, FaultKey, Faults, FaultTable, describe_bug, raised_at
from isthmus.statedb.index import Rows, first_of, rows_of
from isthmus.statedb.reading import Reader, Snapshot
from isthmus.statedb.reconciler import Backoff, NotPruned, Operations, Reconciler, ReconcilerStats, Status
from isthmus.statedb.retry import Retry
from isthmus.statedb.table import AnyTable, Attribute, Table
from isthmus.statedb.transaction import WriteTxn

__all__ = [
    "Affected",
    "AffectedBatch",
    "AnyTable",
    "Attribute",
    "Backoff",
    "Cause",
    "Change",
    "Changes",
    "Database",
    "Derivation",
    "Derivations",
    "DerivationsStats",
    "Derived",
    "DerivedTogether",
    "Dirty",
    "Fault",
    "FaultKey",
    "FaultTable",
    "Faults",
    "Initializer",
    "NotPruned",
    "Operations",
    "Overrun",
    "Pairs",
    "PendingWrites",
    "Reader",
    "Reconciler",
    "ReconcilerStats",
    "Retry",
    "Rows",
    "Snapshot",
    "StateError",
    "Status",
    "Table",
    "TableStats",
    "WriteTxn",
    "describe_bug",
    "first_of",
    "on_change",
    "part",
    "pending",
    "per_row",
    "raised_at",
    "rewrite",
    "rows_of",
    "through",
    "unit_of",
]
