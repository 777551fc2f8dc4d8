"""One row per map and per program, from which loading, sizes, audits and views follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from isthmus.datapath.core.shapes import ID, Shape

LAYOUT = 10
"""ISTHMUS_LAYOUT of bpf/maps.h. It changes with the shape of any struct there."""
Entry = tuple[bytes, bytes]
Row = dict[str, Any]


class Names(Protocol):
    """Names for the numbers in the maps; an unknown number is shown as it is."""

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
"""Renders a map's entries as rows for people."""


class Map(Struct, frozen=True, kw_only=True):
    """A map of bpf/maps.h. A feature's target writes its maps in the order of their rows, and deletes in reverse."""

    name: str
    key: Shape = ID
    value: Shape = ID
    parts: tuple[Shape, ...] = ()
    """Structs within the value, which are checked against BTF too."""
    entries: Callable[[int], int] | None = None
    """Function from ``datapath.max_entries`` to the map's size; ``None`` if bpf/maps.h sets the size."""
    writer: Literal["plans", "agent", "kernel", "dns"]
    """Writer, which also prunes it. ``plans`` is the reconciler of plans, whose in-memory copy is audited."""
    carried: bool = False
    """True if a map of another layout may be reused: its entries refer to no number of another map."""
    numbered: bool = False
    """True for an array indexed by number, in which an all-zero value means an empty (deleted) entry."""
    opaque: bool = False
    """True if user space does not read it: storage of sockets, sockets."""
    show: Show | None = None
    """``None`` if the map is not shown to people."""


class Program(Struct, frozen=True):
    """A program of the object, by name. A ``cgroup`` program is attached to the pods' cgroup by a link, at any hook.

    An ``ingress`` or ``egress`` program is attached to the node's ends of the pods' links (``tc.py``).
    """

    name: str
    kind: Literal["cgroup", "ingress", "egress"]


def times(factor: int) -> Callable[[int], int]:
    """Size in multiples of ``datapath.max_entries``."""
    return lambda entries: factor * entries


def ids(entries: int) -> int:
    """Size of an array indexed by the ids 1 to ``datapath.max_entries``."""
    return entries + 1


def per_entry(show: Callable[[Names, bytes, bytes], Row]) -> Show:
    """Render one row for each entry."""
    return lambda names, entries: [show(names, key, value) for key, value in entries]
