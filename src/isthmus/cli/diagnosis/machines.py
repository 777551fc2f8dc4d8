"""Faults of the machines that processes run on, and differences between them: clocks, versions. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from isthmus.admin.machine import Machine, Table
from isthmus.bounds import Syntax, count
from isthmus.cli.diagnosis.facts import Facts, Process
from isthmus.cli.diagnosis.hops import Hop
from isthmus.cli.diagnosis.reasons import FREE_SPACE, TIME_SERVICE
from isthmus.model import tables
from isthmus.model.names import ServiceName

DESCRIPTORS: Final = 0.8
"""Part of a process's descriptors in use from which it is short of them: each call through a proxy wants two."""
CONNTRACK: Final = 0.95
"""Part of conntrack's entries in use from which new connections are soon dropped."""
PORTS: Final = 0.9
"""Part of the local ports to one destination in use from which the kernel finds none at random."""
MIN_FREE: Final = 1 << 20
"""Free bytes of a file system, but no more than MIN_FREE_PART of it, below which a state file may not fit."""
MIN_FREE_PART: Final = 0.05
MAX_SKEW: Final = 30.0
"""Seconds between the clocks of two processes. Each answers within a second, or within a few through kubectl."""
VERSION: Final = Syntax(r"(\d{1,4})\.(\d{1,4})(?:\.|$)", most=64, meaning="a version")
MAX_VERSIONS: Final = 1
"""Minor versions that the parts of a clusterset may be apart (docs/upgrade.md)."""


class Measured(NamedTuple):
    """A process and its machine."""

    process: Process
    machine: Machine


def machines(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Every process has descriptors, disks, conntrack entries and ports left, and the clocks and versions agree."""
    measured = [*_measured(facts)]
    for each in measured:
        yield from _shortages(facts, each)
    yield from _clocks(measured)
    yield from _versions(facts)


def _measured(facts: Facts) -> Iterator[Measured]:
    """Processes that report their machine; those of an earlier version do not."""
    for process in facts.processes:
        with suppress(msgspec.ValidationError):  # of a later version
            yield Measured(process, msgspec.convert(process.status.get("machine"), Machine))


def _shortages(facts: Facts, measured: Measured) -> Iterator[Hop]:
    process, machine = measured
    where = f"machine of {process}"
    if (table := machine.descriptors) is not None and _full(table, DESCRIPTORS):
        text = f"{table.used} of {table.limit} file descriptors are open: soon it accepts no connection"
        cure = f"raise its limit (LimitNOFILE of the container runtime's unit), then {facts.start(process)}"
        yield Hop("machine", f"descriptors of {process}", text, "fault", cure, "descriptors-low")
    for disk in machine.disks:
        if disk.free_bytes < min(MIN_FREE, MIN_FREE_PART * disk.size_bytes) or disk.free_files == 0:
            what = f"{disk.free_bytes} bytes" if disk.free_files else "no inode"
            text = f"its file system has {what} left: state is not kept, and sockets cannot be made"
            yield Hop("machine", f"{disk.path} of {process}", text, "fault", FREE_SPACE, "disk-full")
    if (
        process.name.rpartition("/")[2] != "agent"
    ):  # the others may have a network namespace of their own, in which no pod's call passes
        return
    if (table := machine.conntrack) is not None and _full(table, CONNTRACK):
        text = f"conntrack has {table.used} of {table.limit} entries: packets of new connections are dropped"
        cure = f"there: sysctl -w net.netfilter.nf_conntrack_max={2 * table.limit}; conntrack -L names the busiest"
        yield Hop("machine", where, text, "fault", cure, "conntrack-full")
    if (table := machine.local_ports) is not None and _full(table, PORTS):
        text = f"{table.used} of {table.limit} local ports are taken by connections to {machine.port_destination}"
        cure = "there: sysctl -w net.ipv4.ip_local_port_range='1024 65000'; ss -tan names who keeps them"
        yield Hop("machine", where, text, "fault", cure, "ports-exhausted")


def _full(table: Table, part: float) -> bool:
    return table.used >= part * table.limit


def _clocks(measured: list[Measured]) -> Iterator[Hop]:
    """Clocks that differ from the one in the middle, by the time at which each process answered."""
    ahead = sorted(((machine.time - process.asked, str(process)) for process, machine in measured if process.asked))
    if not ahead:
        return
    middle, reference = ahead[(len(ahead) - 1) // 2]
    for seconds, process in ahead:
        if abs(difference := seconds - middle) > MAX_SKEW:
            how = "ahead of" if difference > 0 else "behind"
            text = f"it is {abs(difference):.0f} s {how} that of {reference}"
            yield Hop("machine", f"clock of {process}", text, "fault", TIME_SERVICE, "clocks-apart")


def _versions(facts: Facts) -> Iterator[Hop]:
    """Parts that are more than MAX_VERSIONS minor versions older than the newest."""
    named = {str(each): str(each.status.get("version", "")) for each in facts.processes}
    for process in (facts.agent, facts.operator):
        named |= {f"cluster {row.name}": row.version for row in process.rows.all(tables.CLUSTERS) if not row.own}
    minors = {name: minor for name, version in named.items() if (minor := _minor(version)) is not None}
    newest = max(minors.values(), default=(0, 0))
    for name, minor in sorted(minors.items()):
        if (newest[0], newest[1] - MAX_VERSIONS) > minor:
            text = f"it is of {minor[0]}.{minor[1]}, others of {newest[0]}.{newest[1]}: one minor version is supported"
            cluster = name.removeprefix("cluster ").partition("/")[0]
            cure = f"isthmus upgrade --context {cluster}"
            yield Hop("machine", f"version of {name}", text, "fault", cure, "versions-apart")


def _minor(version: str) -> tuple[int, int] | None:
    match = VERSION.search(version)
    return (count(match[1], most=9_999), count(match[2], most=9_999)) if match is not None else None
