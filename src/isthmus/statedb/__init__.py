"""Transactional in-memory tables that anybody in the process can observe without locks.

What belongs here: tables, write transactions over several of them, O(1) snapshots, secondary indexes, change
readers that include deletions, initializers, derived tables and the reconciler that drives a target from a table.
What never does: anything of Kubernetes, of networks or of Isthmus' own rows; this package is useful on its own.

One process, one event loop: a transaction runs without ``await``, so writers need no lock, and a reader that keeps a
snapshot across an ``await`` never sees a later write.

    SERVICES = Table("services", Service, key=lambda s: s.name, indexes={"address": lambda s: s.addresses})
    db = Database(SERVICES)
    with db.write() as txn:
        txn.put(SERVICES, Service("ns/echo", addresses=("10.96.0.9",)))
    [row] = db.snapshot().by(SERVICES, "address", "10.96.0.9")
"""

from isthmus.statedb.changes import Change, Changes
from isthmus.statedb.database import Database, Initializer
from isthmus.statedb.derive import Derivations, Derived
from isthmus.statedb.errors import Overrun, StateError
from isthmus.statedb.reading import Reader, Snapshot
from isthmus.statedb.reconciler import Backoff, NotPruned, Reconciler, Status, Target
from isthmus.statedb.table import Table
from isthmus.statedb.transaction import WriteTxn

__all__ = [
    "Backoff",
    "Change",
    "Changes",
    "Database",
    "Derivations",
    "Derived",
    "Initializer",
    "NotPruned",
    "Overrun",
    "Reader",
    "Reconciler",
    "Snapshot",
    "StateError",
    "Status",
    "Table",
    "Target",
    "WriteTxn",
]
