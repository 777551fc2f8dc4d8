"""Callers that an exporter's node refuses by an ExportPolicy: why, as that node counts it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final, NamedTuple

from isthmus.cli.diagnosis.facts import Facts
from isthmus.model import tables
from isthmus.model.balancing import Denial
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.signing import Refusal, RefusalReason

SIGNED_BY: Final = "isthmus get sources -n {namespace}; isthmus status: the node of the caller has to sign"
PATHS: Final = "isthmus get paths: the caller's node signs, and its own probe says so"
CLOCKS: Final = "isthmus get clusters: clocks and keys of both clusters"
WORDS: Final[Mapping[RefusalReason, tuple[str, str]]] = {
    "not-allowed": ("it does not allow this caller", ""),
    "not-allowed-by-address": (
        "it does not allow this caller, by address, which is not verified",
        SIGNED_BY,
    ),
    "unsigned": ("the call does not prove who makes it", SIGNED_BY),
    "bad-mac": ("the proof of the caller is of another key, or was changed on the way (NAT)", CLOCKS),
    "unknown-key": ("the key of the caller's cluster is not known there", CLOCKS),
    "unreadable": ("it cannot read the packet (options or fragments of IP)", ""),
}
"""What a reason means, and what to look at beside the policy."""

OF_ONE: Final = frozenset[RefusalReason]({"not-allowed", "not-allowed-by-address"})
"""Reasons that are about the caller's identity."""


class Refused(NamedTuple):
    """A refusal in words, and its cure."""

    text: str
    cure: str


def refused(facts: Facts, denial: Denial) -> Refused | None:
    """Return why the backend's cluster refuses a caller; ``None`` if none of its agents says so.

    An agent counts by the number of the caller, which is 0 or the cluster's alone where it is not proven.
    """
    cluster, namespace = denial.key.cluster, split(denial.key.service)[0]
    source = facts.agent.rows.get(tables.SOURCES, denial.pod)
    for row in _counted(facts, cluster, namespace):
        if row.reason not in WORDS or (row.reason in OF_ONE and (not source or source.identity != row.identity)):
            continue
        words, look = WORDS[row.reason]
        path = facts.agent.rows.get(tables.PATHS, cluster) if row.reason in ("unsigned", "bad-mac") else None
        if path and path.state != "ok":
            words, look = f"{words}: {path.reason}", PATHS
        cure = f"{facts.kubectl(cluster, namespace)} describe exportpolicy {split(row.policy)[1]}"
        more = f"; {look.format(namespace=split(ServiceName(denial.pod))[0])}" if look else ""
        return Refused(f"refused by {cluster}, ExportPolicy {row.policy}: {words}", cure + more)
    return None


def _counted(facts: Facts, cluster: ClusterName, namespace: str) -> Iterable[Refusal]:
    """Refusals by policies of a namespace that agents of a cluster count, the most recent first."""
    agents = (each for each in facts.others if each.name == "agent" and each.cluster == cluster)
    rows = (row for each in agents for row in each.rows.by(tables.CALLER_REFUSALS, "namespace", namespace))
    return sorted(rows, key=attrgetter("last"), reverse=True)
