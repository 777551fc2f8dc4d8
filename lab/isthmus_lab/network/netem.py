"""Delay, jitter and rate of links by the kernel, where it has netem: each machine's cable has a class for each link.

Which packets belong to a link is decided by the fabric's nftables, as for the relay, and marked on them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from functools import cache

from isthmus_lab import fault_targets, kernel
from isthmus_lab.layout import Lab
from isthmus_lab.network import namespaces
from isthmus_lab.network.impairments import FIRST_MARK, Impairments, Link

LIMIT = 1000
"""Packets that a link holds; further ones are dropped."""


@cache
def supported() -> bool:
    """True if this kernel supports netem, tried in a temporary network namespace."""
    tried = [
        *_emptied("lo"),
        *_class("lo", 0, Link(fault_targets.FaultTarget(""), fault_targets.FaultTarget(""), delay=1.0, rate=1000)),
    ]
    return not _tc(tried, lambda: kernel.unshare(kernel.CLONE_NEWNET))


def write(lab: Lab, impairments: Impairments) -> None:
    """Put the links in force, and undo those before; OSError where tc refuses."""
    with namespaces.path(lab.fabric).open() as fabric:
        if error := _tc(commands(lab, impairments), lambda: kernel.setns(fabric.fileno(), kernel.CLONE_NEWNET)):
            raise OSError(0, f"tc: {error}")


def commands(lab: Lab, impairments: Impairments) -> list[str]:
    """The commands for tc: first no cable is slow, then those that a link leads to are."""
    lines = [line for cluster in lab.clusters for wire in cluster.wires for line in _emptied(wire)]
    for number, link in enumerate(impairments.links):
        if link.delayed:
            ends = fault_targets.wires(lab, link.a), fault_targets.wires(lab, link.b)
            for way, wires in enumerate((ends[1] - ends[0] or ends[1], ends[0] - ends[1] or ends[0])):
                lines += [line for wire in sorted(wires) for line in _class(wire, 2 * number + way, link)]
    return lines


def _emptied(wire: str) -> list[str]:
    """Another root takes all of the one before with it, and a root without classes holds nothing."""
    return [f"qdisc replace dev {wire} root handle {handle}: htb" for handle in (2, 1)]


def _class(wire: str, number: int, link: Link) -> list[str]:
    options = f"delay {link.delay:g}ms {link.jitter:g}ms" if link.delay or link.jitter else ""
    options += f" rate {link.rate}bit" if link.rate else ""
    return [
        f"class add dev {wire} parent 1: classid 1:{number + 1:x} htb rate 100gbit quantum 60000",
        f"qdisc add dev {wire} parent 1:{number + 1:x} netem limit {LIMIT} {options.strip()}",
        f"filter add dev {wire} parent 1: protocol all handle {FIRST_MARK + number:#x} fw classid 1:{number + 1:x}",
    ]


def _tc(lines: Iterable[str], enter: Callable[[], None]) -> str:
    """Run tc commands; returns its error output, empty on success."""
    try:
        done = subprocess.run(
            ["tc", "-batch", "-"], input="".join(f"{line}\n" for line in lines).encode(), capture_output=True,
            check=False, preexec_fn=enter,
        )  # fmt: skip
    except FileNotFoundError:
        return "not installed"
    return done.stderr.decode(errors="replace").strip() or f"ended with {done.returncode}" if done.returncode else ""
