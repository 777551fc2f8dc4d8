"""Records that one cluster published and another one refuses, by the reports of either side. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from isthmus.cli.diagnosis.facts import Facts
from isthmus.cli.diagnosis.hops import Hop
from isthmus.model import tables
from isthmus.model.mcs import RefusalOfRecord
from isthmus.model.names import ServiceName, derived

CURES: Final[dict[RefusalOfRecord, str]] = {
    "NamespaceNotAllowed": "in {refusing}: add the namespace to `namespaces` in the file of {publishing}",
    "AddressNotAllowed": "in {refusing}: correct `pod-ranges` in the file of {publishing}; ranges may not overlap",
    "QuotaExceeded": "in {refusing}: raise clusterset.max_imports, max_endpoints or max_derived_services",
    "Invalid": "upgrade {publishing}: its record cannot be read in {refusing}",
}


def refusals(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """No cluster refuses a record of the service."""
    names = {service, derived(service)}
    for process in (facts.agent, *facts.operators):
        for row in process.rows.all(tables.REFUSED_RECORDS):
            if row.name in names:
                yield _refused(service, row.cluster, process.cluster, row.reason, row.message)
        for reported in process.rows.all(tables.PEER_REFUSALS):
            if reported.name in names:
                yield _refused(service, process.cluster, reported.cluster, reported.reason, reported.message)


def refused_here(facts: Facts, service: ServiceName, cluster: str) -> bool:
    """True if the calling cluster refuses a record of the service that a cluster published."""
    names = {service, derived(service)}
    return any(
        (row.cluster, row.name in names) == (cluster, True) for row in facts.agent.rows.all(tables.REFUSED_RECORDS)
    )


def _refused(service: ServiceName, publishing: str, refusing: str, reason: RefusalOfRecord, message: str) -> Hop:
    """One hop for both reports of a refusal: they have the same object."""
    subject = f"record of {service} of {publishing} in {refusing}"
    cure = CURES[reason].format(publishing=publishing, refusing=refusing)
    return Hop("export", subject, f"refused ({reason}): {message}", "fault", cure, "record-refused")
