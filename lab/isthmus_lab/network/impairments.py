"""Injected network faults: cuts, dead machines, lossy and slow links. Pure, and one write of nft.

All of it is decided in the fabric, before routing, by the cable a packet came in on and the one it is to go out on. So
traffic between pods of one node is never touched. A file in the lab's directory has the faults in force.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from isthmus_lab import fault_targets
from isthmus_lab.families import Scheme
from isthmus_lab.fault_targets import FaultTarget
from isthmus_lab.layout import Cluster, Lab
from isthmus_lab.network.filters import nft
from isthmus_lab.network.islands import table

FILE: Final = "network.json"
MILLION: Final = 1_000_000
FIRST_MARK: Final = 0x6C00


class Cut(Struct, frozen=True):
    """Block packets from a to b, and back unless one_way: dropped, or refused by the network."""

    a: FaultTarget
    b: FaultTarget
    one_way: bool = False
    loud: bool = False

    def __str__(self) -> str:
        arrow = "→" if self.one_way else "↔"
        return f"cut {self.a} {arrow} {self.b}" + (" (loud)" if self.loud else "")


class Link(Struct, frozen=True):
    """Quality of the path between a and b, in both directions."""

    a: FaultTarget
    b: FaultTarget
    delay: float = 0.0
    """Milliseconds, each way."""
    jitter: float = 0.0
    loss: float = 0.0
    """0 to 1."""
    rate: int = 0
    """Bits per second; 0 disables the limit."""

    @property
    def delayed(self) -> bool:
        """True if netem or a relay must hold its packets; loss alone does not need that."""
        return bool(self.delay or self.jitter or self.rate)

    def __str__(self) -> str:
        options = [f"{self.delay:g} ms ± {self.jitter:g}"] if self.delay or self.jitter else []
        options += [f"{self.loss:.4%} loss"] if self.loss else []
        options += [f"{self.rate / MILLION:g} Mbit/s"] if self.rate else []
        return f"link {self.a} ↔ {self.b}: {', '.join(options) or 'as new'}"


class Impairments(Struct, frozen=True):
    """All that is in force."""

    cuts: tuple[Cut, ...] = ()
    links: tuple[Link, ...] = ()
    down: tuple[str, ...] = ()
    """Cables of machines that are dead."""


def read(lab: Lab) -> Impairments:
    """Read the faults in force."""
    try:
        return msgspec.json.decode((lab.directory / FILE).read_bytes(), type=Impairments)
    except FileNotFoundError:
        return Impairments()


def write(lab: Lab, state: Impairments) -> None:
    """Put it in force; OSError where nft refuses."""
    nft(lab.fabric, ruleset(lab, state))
    draft = lab.directory / f".{FILE}"
    draft.write_bytes(msgspec.json.encode(state))
    draft.rename(lab.directory / FILE)


def ruleset(lab: Lab, state: Impairments) -> str:
    """The fabric's table; dead machines first, since they answer nothing."""
    rules = []
    if state.down:
        wires = _set(state.down)
        rules += [f"iifname {wires} drop", f"fib daddr oifname {wires} drop"]
    for cut in state.cuts:
        rules += _cut(lab, cut.a, cut.b, loud=cut.loud)
        rules += [] if cut.one_way else _cut(lab, cut.b, cut.a, loud=cut.loud)
    for number, link in enumerate(state.links):
        for direction, ways in enumerate((_ways(lab, link.a, link.b), _ways(lab, link.b, link.a))):
            if link.loss:
                dice = f"numgen random mod {MILLION} < {round(link.loss * MILLION)}"
                rules += [f"{way} {dice} drop" for way in ways]
            if link.delayed:
                rules += [f"{way} meta mark set {FIRST_MARK + 2 * number + direction}" for way in ways]
    body = "".join(f"    {rule}\n" for rule in rules)
    hook = "    type filter hook prerouting priority mangle; policy accept;\n"
    return (
        f"add table inet state\ndelete table inet state\ntable inet state {{\n  chain arrive {{\n{hook}{body}  }}\n}}\n"
    )


def relays(lab: Lab, state: Impairments) -> dict[str, tuple[str, ...]]:
    """The relays that are to run, by name of their device, with their options."""
    return {
        f"link{number}": (
            f"--device=link{number}w",
            f"--mark={FIRST_MARK + 2 * number}",
            f"--delay={link.delay}",
            f"--jitter={link.jitter}",
            f"--rate={link.rate}",
            f"--table={_back(lab, link)}",
        )
        for number, link in enumerate(state.links)
        if link.delayed
    }


def _back(lab: Lab, link: Link) -> int:
    """Routing table for packets after a relay: an island's pods are in the island's own table."""
    own = lab.cluster(link.a.cluster) if link.a.cluster == link.b.cluster else None
    return table(own) if own is not None and own.island else 0


def _cut(lab: Lab, source: FaultTarget, target: FaultTarget, *, loud: bool) -> list[str]:
    verdicts = ["meta l4proto tcp reject with tcp reset", "reject with icmpx port-unreachable"] if loud else ["drop"]
    return [f"{way} {verdict}" for way in _ways(lab, source, target) for verdict in verdicts]


def _ways(lab: Lab, source: FaultTarget, target: FaultTarget) -> list[str]:
    """Matches for packets from one target to another. For a cluster and a part of it: the rest and that part."""
    source, target = _reached(lab, source, source=target), _reached(lab, target, source=source)
    here, target_wires = fault_targets.wires(lab, source), fault_targets.wires(lab, target)
    here, target_wires = (here - target_wires or here), (target_wires - here or target_wires)
    way = f"fib daddr oifname {_set(target_wires)}"
    if port := fault_targets.port(target):
        way += f" th dport {port}"
    if port := fault_targets.port(source):
        way += f" th sport {port}"
    arrived, own = f"iifname {_set(here)}", lab.cluster(source.cluster)
    if own is None or not own.island:
        return [f"{arrived} {way}"]
    # Where an island's pods are is in the island's own table, in which fib does not look.
    if source.cluster == target.cluster:
        return [
            f"{arrived} {way}",
            *(f"{arrived} {family} daddr {nets}" for family, nets in _pods(lab, target, target_wires)),
        ]
    # The main table may have those addresses too, as those of the pods of a cluster that is flat.
    return [f"{arrived} {scheme.nft} daddr != {_own_pods(own, scheme)} {way}" for scheme in lab.schemes]


def _own_pods(cluster: Cluster, scheme: Scheme) -> str:
    """The addresses of a cluster's pods of a family; an unused address if it has none."""
    return dict(zip(cluster.schemes, cluster.pod_cidrs, strict=True)).get(scheme, scheme.nowhere)


def _reached(lab: Lab, target: FaultTarget, *, source: FaultTarget) -> FaultTarget:
    """The target as reached from ``source``: another network's etcd is reached through its gateways."""
    target_cluster, here = lab.cluster(target.cluster), lab.cluster(source.cluster)
    if (
        target.process == "etcd"
        and target_cluster is not None
        and here is not None
        and target_cluster.network != here.network
    ):
        return FaultTarget(target.cluster, process="gateway")
    return target


def _pods(lab: Lab, target: FaultTarget, wires: frozenset[str]) -> list[tuple[str, str]]:
    """Addresses of the target's pods behind some wires, by family."""
    cluster = lab.cluster(target.cluster)
    assert cluster is not None, "parse() has looked"
    nets = [node.pod_cidrs for node in cluster.nodes if node.wire in wires]
    return [
        (scheme.nft, "{ " + ", ".join(sorted(own)) + " }")
        for scheme, own in zip(cluster.schemes, zip(*nets, strict=True), strict=False)
    ]


def _set(names: Iterable[str]) -> str:
    return "{ " + ", ".join(f'"{name}"' for name in sorted(names)) + " }"
