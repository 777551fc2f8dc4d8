"""Statuses of policies and drains, as the operator of a cluster writes them."""

from __future__ import annotations

from typing import Any, Final

from rows.balancing_world import INPUTS, TABLES

from isthmus.identity import statuses as export_policies
from isthmus.loadbalancer import checks, drain_objects, gateways, own_ranges, policy_objects
from isthmus.model import tables
from isthmus.model.export_policies import ExportPolicy
from isthmus.model.names import ClusterName
from isthmus.model.objects import Object
from isthmus.processes.start import tables_of
from isthmus.statedb import Database, Derivations, Faults

OWN: Final = ClusterName("c1")
BY_TYPE: Final = TABLES | {ExportPolicy: tables.EXPORT_POLICIES}


def statuses(*rows: Any) -> list[Object]:
    """Return the statuses of policies and drains that the operator of c1 wants, given rows of its tables."""
    derived = (
        own_ranges.derived(OWN),
        gateways.derived(),
        checks.of_policies(OWN),
        policy_objects.derived(OWN),
        export_policies.derived(OWN),
    )
    db = Database(*tables_of(derived, *INPUTS, tables.OBSERVED, tables.DRAINS, tables.FAULTS))
    derivations = Derivations(db, *derived)
    with db.write() as txn:
        for row in rows:
            txn.put(BY_TYPE.get(type(row), tables.DRAINS), row)
    while derivations.step():
        pass
    faults = Faults(db, tables.FAULTS, tables.DRAIN_OBJECTS.name)
    snapshot = db.snapshot()
    written = (*snapshot.all(tables.POLICY_OBJECTS), *snapshot.all(tables.EXPORT_POLICY_OBJECTS))
    return [*written, *drain_objects.compute(snapshot, cluster=OWN, faults=faults)]
