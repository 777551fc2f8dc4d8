"""Programmed state of a cluster's first node: BPF maps, nftables without BPF, Envoy on loopback addresses."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from contextlib import closing
from http.client import HTTPConnection
from typing import Any, Protocol

import msgspec

from isthmus import datapath
from isthmus.datapath import view
from isthmus.model.balancing import Plan
from isthmus.model.hosts import joined
from isthmus_lab import privileges
from isthmus_lab.families import SCHEMES
from isthmus_lab.layout import Cluster
from isthmus_lab.network import filters
from isthmus_lab.node import calls, planned
from isthmus_lab.node.ruleset import spread


class Programmed(Protocol):
    """One way of programming calls."""

    word: str
    """Word for an entry."""
    ours_only: bool
    """True if plain Services have no entries in it."""
    rescues: bool
    """True if a connect to a backend that has just ended is moved to another one, and so never fails."""

    def frontend(self, cluster: Cluster, address: str) -> bool:
        """True if calls of an address are translated."""
        ...

    def backends(self, cluster: Cluster, addresses: Iterable[str]) -> bool:
        """True if calls may reach all of these addresses."""
        ...

    def plan(self, cluster: Cluster, plan: Plan) -> bool:
        """True if calls are spread by the plan's tiers and weights."""
        ...

    def counted(self, cluster: Cluster) -> int | None:
        """Calls of the import that were sent to a backend; None where they are not counted."""
        ...


class Maps:
    """BPF."""

    word = "map"
    ours_only = True
    rescues = True

    def frontend(self, cluster: Cluster, address: str) -> bool:
        """See :class:`Programmed`."""
        return any(row["frontend"].startswith(joined(address, "")) for row in maps(cluster)["frontends"])

    def backends(self, cluster: Cluster, addresses: Iterable[str]) -> bool:
        """See :class:`Programmed`."""
        backends = [row["backend"] for row in maps(cluster)["backends"]]
        return all(any(each.startswith(joined(address, "")) for each in backends) for address in addresses)

    def plan(self, cluster: Cluster, plan: Plan) -> bool:
        """See :class:`Programmed`."""
        rows = [row["groups"] for row in maps(cluster)["plans"] if row["plan"] == str(plan.key)]
        expected = sorted((group.tier, group.weight, len(group.targets)) for group in plan.groups)
        return expected in [sorted((each["tier"], each["weight"], each["count"]) for each in row) for row in rows]

    def counted(self, cluster: Cluster) -> int:
        """See :class:`Programmed`."""
        rows = maps(cluster)["counters"]
        return sum(row["calls"] for row in rows if "derived-" in row["service"] and row["verdict"] == "called")


class Rules:
    """nftables."""

    word = "rule"
    ours_only = False
    rescues = False

    def frontend(self, cluster: Cluster, address: str) -> bool:
        """See :class:`Programmed`."""
        return f" {address} . tcp . " in _elements(cluster)

    def backends(self, cluster: Cluster, addresses: Iterable[str]) -> bool:
        """See :class:`Programmed`."""
        rules = _elements(cluster)
        return all(f": {address} . " in rules for address in addresses)

    def plan(self, cluster: Cluster, plan: Plan) -> bool:
        """See :class:`Programmed`."""
        rules = _elements(cluster)
        vips = planned.over([], [plan], SCHEMES["IPv6" if plan.key.family == "IPv6" else "IPv4"])
        return bool(vips) and all(f"{{ {spread(vip)} }}" in rules for vip in vips)

    def counted(self, cluster: Cluster) -> None:
        """Rules count nothing."""


class Listeners:
    """An Envoy, asked for what it has."""

    word = "listener"
    ours_only = False
    rescues = True

    def frontend(self, cluster: Cluster, address: str) -> bool:
        """See :class:`Programmed`."""
        listeners = _asked(cluster, "listeners")["listener_statuses"]
        return any(each["local_address"]["socket_address"]["address"] == address for each in listeners)

    def backends(self, cluster: Cluster, addresses: Iterable[str]) -> bool:
        """See :class:`Programmed`."""
        return set(addresses) <= {address for hosts in _hosts(cluster) for address, _ in hosts}

    def plan(self, cluster: Cluster, plan: Plan) -> bool:
        """See :class:`Programmed`."""
        vips = planned.over([], [plan], cluster.schemes[0])
        expected = [{(address, weight) for (address, _), weight in calls.weighted(vip)} for vip in vips]
        actual = _hosts(cluster)
        return bool(vips) and all(each in actual for each in expected)

    def counted(self, cluster: Cluster) -> None:
        """Calls of the import alone are not counted."""


def programmed() -> Programmed:
    """The datapath of labs of this process."""
    if privileges.on_loopback():
        return Listeners()
    return Rules() if privileges.CONFINED else Maps()


def _hosts(cluster: Cluster) -> list[set[tuple[str, int]]]:
    """Addresses and weights of each Envoy cluster."""
    return [
        {(host["address"]["socket_address"]["address"], host["weight"]) for host in each.get("host_statuses", ())}
        for each in _asked(cluster, "clusters")["cluster_statuses"]
    ]


def _asked(cluster: Cluster, what: str) -> dict[str, Any]:
    with closing(HTTPConnection("envoy")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(5.0)
        connection.sock.connect(str(calls.admin_of(cluster.nodes[0])))
        connection.request("GET", f"/{what}?format=json")
        return dict(msgspec.json.decode(connection.getresponse().read()))


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
