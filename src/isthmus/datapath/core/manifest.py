"""One row per map and per program. What attach loads, sizes and carries over, audits and views follow from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from isthmus.datapath.core.shapes import ID, Shape

LAYOUT = 8
"""ISTHMUS_LAYOUT of bpf/maps.h: another number for another shape of any struct there."""
Entry = tuple[bytes, bytes]
Row = dict[str, Any]


class Names(Protocol):
    """Names for the numbers in the maps; a number that stands for nothing is shown as it is."""

    def service(self, number: int) -> str:
        """The service of a number."""
        ...

    def service_of(self, plan: int) -> str:
        """The service of a plan's number."""
        ...

    def cluster(self, number: int) -> str:
        """The cluster of a number; 0 is none."""
        ...

    def backend(self, number: int) -> str:
        """Address, port and protocol of a backend's number."""
        ...


Show = Callable[[Names, Sequence[Entry]], list[Row]]
"""The rows that people see of a map's entries."""


class Map(Struct, frozen=True, kw_only=True):
    """A map of bpf/maps.h. A feature's rows stand in the order in which its target writes; it deletes in reverse."""

    name: str
    key: Shape = ID
    value: Shape = ID
    parts: tuple[Shape, ...] = ()
    """Structs within the value, checked as it is."""
    entries: Callable[[int], int] | None = None
    """How many entries it has room for, from ``datapath.max_entries``; None: as bpf/maps.h has it."""
    writer: Literal["plans", "agent", "kernel", "dns"]
    """Who writes and prunes it. ``plans``: the reconciler of plans, from a mirror that is compared with the kernel."""
    carried: bool = False
    """Maps of another layout may stand in for it: nothing in it refers to a number of another map."""
    numbered: bool = False
    """An array by number: an entry of zeros is none, and is what deleting leaves."""
    opaque: bool = False
    """User space does not read it: storage of sockets, sockets."""
    show: Show | None = None
    """None: it is not for people."""


class Program(Struct, frozen=True):
    """A program of the object, by name. ``cgroup``: attached to the pods' cgroup by a link, whatever its hook is.

    ``ingress``, ``egress``: attached to the node's ends of the pods' links (``tc.py``).
    """

    name: str
    kind: Literal["cgroup", "ingress", "egress"]


def times(factor: int) -> Callable[[int], int]:
    """Room in multiples of ``datapath.max_entries``."""
    return lambda entries: factor * entries


def ids(entries: int) -> int:
    """Room for the ids 1 to ``datapath.max_entries``, in an array by number."""
    return entries + 1


def each(show: Callable[[Names, bytes, bytes], Row]) -> Show:
    """One row for each entry."""
    return lambda names, entries: [show(names, key, value) for key, value in entries]
