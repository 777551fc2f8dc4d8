"""Status of rescues: the interfaces on which connects to a dead backend are moved to another, and the others."""

from __future__ import annotations

from typing import Final

from isthmus.datapath.core.tc import PodLinksStats
from isthmus.model import tables
from isthmus.statedb import Snapshot

NAMED: Final = 5
"""Pods, or links, that a sentence names; the rest is a number."""


def sentence(setting: str, interfaces: PodLinksStats, snapshot: Snapshot, *, node: str) -> str:
    """``setting``: ``datapath.rescue``; ``node``: the name of the own one."""
    if setting == "off":
        return "off (datapath.rescue)"
    parts = [f"on {interfaces.interfaces} interfaces of pods ({interfaces.kind})"]
    parts += [f"not on {name}: {why}" for name, why in sorted(interfaces.failed.items())]
    if outside := in_nodes_network(snapshot, node):
        more = f" and {len(outside) - NAMED} more" if len(outside) > NAMED else ""
        parts.append(f"not for pods of the node's own network: {', '.join(outside[:NAMED])}{more}")
    return "; ".join(parts)


def without_programs(interfaces: PodLinksStats) -> str:
    """Name the links of pods without the programs, and why; empty if there are none."""
    failed = sorted(interfaces.failed.items())
    more = f" and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
    return ", ".join(f"{name} ({why})" for name, why in failed[:NAMED]) + more


def in_nodes_network(snapshot: Snapshot, node: str) -> list[str]:
    """Running pods of the node that have one of its addresses; of one that has ended it may be another's by now."""
    own = {address for row in snapshot.all(tables.NODES) if row.name == node for address in row.addresses}
    return sorted(
        pod.name for pod in snapshot.all(tables.PODS) if pod.phase == "Running" and own.intersection(pod.addresses)
    )
