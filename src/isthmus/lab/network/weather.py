"""What is wrong with the network on purpose: cuts, dead machines, lossy and slow links. Pure, and one write of nft.

All of it is decided in the fabric, before routing, by the cable a packet came in on and the one it is to go out on. So
traffic between pods of one node is never touched. The file beside the lab's others says what is in force.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from isthmus.lab import things
from isthmus.lab.layout import Lab
from isthmus.lab.network.filters import nft
from isthmus.lab.things import Thing

FILE: Final = "network.json"
MILLION: Final = 1_000_000
FIRST_MARK: Final = 0x6C00


class Cut(Struct, frozen=True):
    """Nothing goes from a to b, nor back unless one_way. Silent, or refused by the network."""

    a: Thing
    b: Thing
    one_way: bool = False
    loud: bool = False

    def __str__(self) -> str:
        arrow = "→" if self.one_way else "↔"
        return f"cut {self.a} {arrow} {self.b}" + (" (loud)" if self.loud else "")


class Link(Struct, frozen=True):
    """How the way between a and b is, in both directions."""

    a: Thing
    b: Thing
    delay: float = 0.0
    """Milliseconds, each way."""
    jitter: float = 0.0
    loss: float = 0.0
    """0 to 1."""
    rate: int = 0
    """Bits per second; 0: no limit."""

    @property
    def relayed(self) -> bool:
        """Whether its packets pass a relay; loss alone does not need one."""
        return bool(self.delay or self.jitter or self.rate)

    def __str__(self) -> str:
        says = [f"{self.delay:g} ms ± {self.jitter:g}"] if self.delay or self.jitter else []
        says += [f"{self.loss:.4%} loss"] if self.loss else []
        says += [f"{self.rate / MILLION:g} Mbit/s"] if self.rate else []
        return f"link {self.a} ↔ {self.b}: {', '.join(says) or 'as new'}"


class Weather(Struct, frozen=True):
    """All that is in force."""

    cuts: tuple[Cut, ...] = ()
    links: tuple[Link, ...] = ()
    down: tuple[str, ...] = ()
    """Cables of machines that are dead."""


def read(lab: Lab) -> Weather:
    """What is in force."""
    try:
        return msgspec.json.decode((lab.directory / FILE).read_bytes(), type=Weather)
    except FileNotFoundError:
        return Weather()


def write(lab: Lab, weather: Weather) -> None:
    """Put it in force; OSError where nft refuses."""
    nft(lab.fabric, ruleset(lab, weather))
    draft = lab.directory / f".{FILE}"
    draft.write_bytes(msgspec.json.encode(weather))
    draft.rename(lab.directory / FILE)


def ruleset(lab: Lab, weather: Weather) -> str:
    """The fabric's table; dead machines first, since nobody answers for them."""
    rules = []
    if weather.down:
        wires = _set(weather.down)
        rules += [f"iifname {wires} drop", f"fib daddr oifname {wires} drop"]
    for cut in weather.cuts:
        rules += _cut(lab, cut.a, cut.b, loud=cut.loud)
        rules += [] if cut.one_way else _cut(lab, cut.b, cut.a, loud=cut.loud)
    for number, link in enumerate(weather.links):
        for direction, ways in enumerate((_ways(lab, link.a, link.b), _ways(lab, link.b, link.a))):
            if link.loss:
                dice = f"numgen random mod {MILLION} < {round(link.loss * MILLION)}"
                rules += [f"{way} {dice} drop" for way in ways]
            if link.relayed:
                rules += [f"{way} meta mark set {FIRST_MARK + 2 * number + direction}" for way in ways]
    body = "".join(f"    {rule}\n" for rule in rules)
    hook = "    type filter hook prerouting priority mangle; policy accept;\n"
    return (
        f"add table ip weather\ndelete table ip weather\ntable ip weather {{\n  chain arrive {{\n{hook}{body}  }}\n}}\n"
    )


def relays(weather: Weather) -> dict[str, tuple[str, ...]]:
    """The relays that are to run, by name of their device, with what they are told."""
    return {
        f"link{number}": (
            f"--device=link{number}w",
            f"--mark={FIRST_MARK + 2 * number}",
            f"--delay={link.delay}",
            f"--jitter={link.jitter}",
            f"--rate={link.rate}",
        )
        for number, link in enumerate(weather.links)
        if link.relayed
    }


def _cut(lab: Lab, source: Thing, target: Thing, *, loud: bool) -> list[str]:
    verdicts = ["meta l4proto tcp reject with tcp reset", "reject with icmp port-unreachable"] if loud else ["drop"]
    return [f"{way} {verdict}" for way in _ways(lab, source, target) for verdict in verdicts]


def _ways(lab: Lab, source: Thing, target: Thing) -> list[str]:
    """What matches packets from one thing to another. A cluster and a part of it: the rest of it and that part."""
    here, there = things.wires(lab, source), things.wires(lab, target)
    here, there = (here - there or here), (there - here or there)
    way = f"iifname {_set(here)} fib daddr oifname {_set(there)}"
    if port := things.port(target):
        way += f" th dport {port}"
    if port := things.port(source):
        way += f" th sport {port}"
    nets = sorted(net for net, wire in _own_pods(lab, target) if wire in there)
    if lab.network == "flat" or source.cluster != target.cluster or not nets:
        return [way]
    # Where an island's pods are is in the island's own table, in which fib does not look.
    return [way, f"iifname {_set(here)} ip daddr {{ {', '.join(nets)} }}"]


def _own_pods(lab: Lab, thing: Thing) -> list[tuple[str, str]]:
    cluster = lab.cluster(thing.cluster)
    return [(net, node.wire) for node in cluster.nodes for net in node.pod_cidrs] if cluster is not None else []


def _set(names: Iterable[str]) -> str:
    return "{ " + ", ".join(f'"{name}"' for name in sorted(names)) + " }"
