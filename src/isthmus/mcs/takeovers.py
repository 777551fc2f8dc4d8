"""Takeovers: a cluster whose export is dated earlier decides now what another cluster's decided before.

"The oldest export wins" is the API's rule (KEP-1645, conflict resolution), and all clusters have to come to the same,
so it is followed; but the date is what a cluster writes, and nothing proves it. So it is an Event and a metric.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from isthmus.model.mcs import Merged
from isthmus.model.names import ClusterName
from isthmus.model.services import Port

FIELDS: Final[dict[str, Callable[[Merged], Any]]] = {
    "type": lambda merged: merged.type,
    "sessionAffinity": lambda merged: merged.affinity,
    "sessionAffinityConfig.clientIP.timeoutSeconds": lambda merged: merged.affinity_timeout,
    "internalTrafficPolicy": lambda merged: merged.internal_policy,
    "trafficDistribution": lambda merged: merged.distribution,
    "exportedLabels": lambda merged: merged.labels,
    "exportedAnnotations": lambda merged: merged.annotations,
}
"""What the oldest export decides alone."""


def takeover(old: Merged | None, new: Merged | None) -> tuple[ClusterName, str] | None:
    """The cluster that decides now, and a sentence on what changed; None where nothing was taken over.

    Not one: the oldest withdrew; nothing changes; an import stood in for clusters that had not been received.
    """
    if old is None or new is None or not (old.created and new.created):
        return None
    loser, winner = old.clusters[0], new.clusters[0]
    if loser == winner or loser not in new.clusters:
        return None
    changed = [
        f"{name} is {_text(value(new))} (was {_text(value(old))})"
        for name, value in FIELDS.items()
        if value(new) != value(old)
    ]
    changed += _ports(old, new)
    if not changed:
        return None
    why = f"the export of cluster {winner}, dated {new.created}, is older than that of {loser} and decides now"
    return winner, f"{why}: {'; '.join(changed)}"


def _ports(old: Merged, new: Merged) -> list[str]:
    """Ports that mean something else now; one that is only added takes nothing over."""
    if {*old.ports} <= {*new.ports}:
        return []
    return [f"ports are {_listed(new.ports)} (were {_listed(old.ports)})"]


def _listed(ports: tuple[Port, ...]) -> str:
    return ", ".join(f"{port.name or '(unnamed)'} {port.port}/{port.protocol}" for port in ports) or "none"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(f"{key}={text[:64]}" for key, text in value[:5]) + "}"
    return "none" if value is None else str(value)
