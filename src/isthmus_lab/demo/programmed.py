"""What a cluster's first node translates, read from its kernel: BPF maps, or nftables in a lab without BPF."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, Protocol

from isthmus import datapath
from isthmus.datapath import view
from isthmus.model.balancing import Plan
from isthmus.model.hosts import joined
from isthmus_lab import privileges
from isthmus_lab.families import SCHEMES
from isthmus_lab.layout import Cluster
from isthmus_lab.network import filters
from isthmus_lab.node import planned
from isthmus_lab.node.ruleset import spread


class Programmed(Protocol):
    """One way of programming calls."""

    word: str
    """What an entry is called."""
    ours_only: bool
    """Whether plain Services have no entries in it."""

    def frontend(self, cluster: Cluster, address: str) -> bool:
        """Whether calls of an address are translated."""
        ...

    def backends(self, cluster: Cluster, addresses: Iterable[str]) -> bool:
        """Whether calls go to all of these."""
        ...

    def plan(self, cluster: Cluster, plan: Plan) -> bool:
        """Whether calls are spread as a plan has it."""
        ...

    def counted(self, cluster: Cluster) -> int | None:
        """Calls of the import that were sent to a backend; None where they are not counted."""
        ...


class Maps:
    """BPF."""

    word = "map"
    ours_only = True

    def frontend(self, cluster: Cluster, address: str) -> bool:
        """As Programmed has it."""
        return any(row["frontend"].startswith(joined(address, "")) for row in maps(cluster)["frontends"])

    def backends(self, cluster: Cluster, addresses: Iterable[str]) -> bool:
        """As Programmed has it."""
        found = [row["backend"] for row in maps(cluster)["backends"]]
        return all(any(each.startswith(joined(address, "")) for each in found) for address in addresses)

    def plan(self, cluster: Cluster, plan: Plan) -> bool:
        """As Programmed has it."""
        rows = [row["groups"] for row in maps(cluster)["plans"] if row["plan"] == str(plan.key)]
        wanted = sorted((group.tier, group.weight, len(group.targets)) for group in plan.groups)
        return wanted in [sorted((each["tier"], each["weight"], each["count"]) for each in row) for row in rows]

    def counted(self, cluster: Cluster) -> int:
        """As Programmed has it."""
        rows = maps(cluster)["counters"]
        return sum(row["calls"] for row in rows if "derived-" in row["service"] and row["verdict"] == "called")


class Rules:
    """nftables."""

    word = "rule"
    ours_only = False

    def frontend(self, cluster: Cluster, address: str) -> bool:
        """As Programmed has it."""
        return f" {address} . tcp . " in _elements(cluster)

    def backends(self, cluster: Cluster, addresses: Iterable[str]) -> bool:
        """As Programmed has it."""
        rules = _elements(cluster)
        return all(f": {address} . " in rules for address in addresses)

    def plan(self, cluster: Cluster, plan: Plan) -> bool:
        """As Programmed has it."""
        rules = _elements(cluster)
        vips = planned.over([], [plan], SCHEMES[plan.key.family])
        return bool(vips) and all(f"{{ {spread(vip)} }}" in rules for vip in vips)

    def counted(self, cluster: Cluster) -> None:
        """Rules count nothing."""


PROGRAMMED: Final[Programmed] = Rules() if privileges.CONFINED else Maps()


def maps(cluster: Cluster) -> dict[str, list[dict[str, Any]]]:
    """All BPF maps."""
    opened = datapath.open_maps(str(cluster.lab.bpffs / cluster.nodes[0].name))
    try:
        return view.dump(opened)
    finally:
        opened.close()


def _elements(cluster: Cluster) -> str:
    """All rules in one line."""
    return re.sub(r"\s+", " ", filters.listed(cluster.nodes[0].namespace))
