"""Delay, jitter and rate of links by the kernel, where it has netem: each machine's cable has a class for each link.

Which packets belong to a link is decided by the fabric's nftables, as for the relay, and said by their mark.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from functools import cache

from isthmus_lab import kernel, things
from isthmus_lab.layout import Lab
from isthmus_lab.network import namespaces
from isthmus_lab.network.weather import FIRST_MARK, Link, Weather

LIMIT = 1000
"""Packets that a link holds; what comes beyond is lost."""


@cache
def there() -> bool:
    """Whether this kernel has all it takes: tried, in a network namespace that goes at once."""
    tried = [*_emptied("lo"), *_class("lo", 0, Link(things.Thing(""), things.Thing(""), delay=1.0, rate=1000))]
    return not _tc(tried, lambda: kernel.unshare(kernel.CLONE_NEWNET))


def write(lab: Lab, weather: Weather) -> None:
    """Put the links in force, and undo those before; OSError where tc refuses."""
    with namespaces.path(lab.fabric).open() as fabric:
        if said := _tc(commands(lab, weather), lambda: kernel.setns(fabric.fileno(), kernel.CLONE_NEWNET)):
            raise OSError(0, f"tc: {said}")


def commands(lab: Lab, weather: Weather) -> list[str]:
    """What tc is told: no cable is slow, then those that a link leads to are."""
    told = [line for cluster in lab.clusters for wire in cluster.wires for line in _emptied(wire)]
    for number, link in enumerate(weather.links):
        if link.held:
            ends = things.wires(lab, link.a), things.wires(lab, link.b)
            for way, wires in enumerate((ends[1] - ends[0] or ends[1], ends[0] - ends[1] or ends[0])):
                told += [line for wire in sorted(wires) for line in _class(wire, 2 * number + way, link)]
    return told


def _emptied(wire: str) -> list[str]:
    """Another root takes all of the one before with it, and a root without classes holds nothing."""
    return [f"qdisc replace dev {wire} root handle {handle}: htb" for handle in (2, 1)]


def _class(wire: str, number: int, link: Link) -> list[str]:
    says = f"delay {link.delay:g}ms {link.jitter:g}ms" if link.delay or link.jitter else ""
    says += f" rate {link.rate}bit" if link.rate else ""
    return [
        f"class add dev {wire} parent 1: classid 1:{number + 1:x} htb rate 100gbit quantum 60000",
        f"qdisc add dev {wire} parent 1:{number + 1:x} netem limit {LIMIT} {says.strip()}",
        f"filter add dev {wire} parent 1: protocol all handle {FIRST_MARK + number:#x} fw classid 1:{number + 1:x}",
    ]


def _tc(lines: Iterable[str], enter: Callable[[], None]) -> str:
    """What tc has against it; nothing if all is done."""
    try:
        done = subprocess.run(
            ["tc", "-batch", "-"], input="".join(f"{line}\n" for line in lines).encode(), capture_output=True,
            check=False, preexec_fn=enter,
        )  # fmt: skip
    except FileNotFoundError:
        return "not installed"
    return done.stderr.decode(errors="replace").strip() or f"ended with {done.returncode}" if done.returncode else ""
