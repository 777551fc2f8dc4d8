"""Services in nftables: what the rules are. Pure.

One table for a family, changed atomically. A VIP is one look-up in a map; its chain spreads calls at random or by the
client's address, or sends a client where it was, which sets of clients say: those outlive a change as long as their
endpoint does. What is still addressed to a Service when the packet filter sees it has nowhere to go, and is
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2s
from itertools import accumulate, pairwise
from typing import Final

from isthmus.model.hosts import joined
from isthmus_lab.families import Scheme
from isthmus_lab.node.services import Destination, Vip

OUTSIDE: Final = 0x4000
"""Mark of calls from outside the cluster."""

SEED: Final = 0x1575
"""Seed of the client hash; must be equal on all nodes."""

BASE: Final = """\
  chain prerouting {{ type nat hook prerouting priority dstnat; policy accept; jump dispatch; }}
  chain output {{ type nat hook output priority -100; policy accept; jump dispatch; }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ct status dnat {ip} saddr . {ip} daddr @hairpin masquerade
    meta mark {mark} masquerade
  }}
  chain refuse {{
    {ip} daddr {{ {ours} }} meta l4proto tcp reject with tcp reset
    {ip} daddr {{ {ours} }} reject
  }}
  chain forward {{ type filter hook forward priority filter; policy accept; jump refuse; }}
  chain local {{ type filter hook output priority filter; policy accept; jump refuse; }}
"""


def ruleset(vips: Sequence[Vip], scheme: Scheme, before: Sequence[Vip] | None = None, *, balancers: str = "") -> str:
    """Input for ``nft -f``, in one transaction. ``before`` is the state in force; ``None`` replaces everything.

    ``balancers`` is a range that is the cluster's own, beside that of its Services.
    """
    ip, kind = scheme.nft, scheme.nft_address
    chains, elements, ports = [], [], []
    for number, vip in enumerate(vips):
        chains.append(f"  chain s{number} {{ {_spread(vip, scheme)} }}\n")
        if vip.address:
            elements.append(f"{vip.address} . {vip.protocol} . {vip.port} : goto s{number}")
        else:
            ports.append(f"{vip.protocol} . {vip.port} : goto s{number}")
    backends = sorted({address for vip in vips for address, _ in vip.targets})
    stays = _stays(vips)
    ranges = ", ".join(each for each in (scheme.service_cidr, balancers) if each)
    return "".join(
        [
            _cleared(vips, before, scheme),
            f"table {ip} services {{\n",
            *(f"  set {name} {{ type {kind}; flags dynamic, timeout; }}\n" for name in stays),
            *(f"  chain {name} {{ {_stay(name, *rule, scheme)} }}\n" for name, rule in stays.items()),
            *chains,
            f"  map vips {{ type {kind} . inet_proto . inet_service : verdict; ",
            _elements(elements),
            " }\n  map ports { type inet_proto . inet_service : verdict; ",
            _elements(ports),
            f" }}\n  set hairpin {{ type {kind} . {kind}; ",
            _elements([f"{address} . {address}" for address in backends]),
            f" }}\n  chain dispatch {{\n    {ip} daddr . meta l4proto . th dport vmap @vips\n",
            f"    {ip} daddr != {scheme.node_local} fib daddr type local meta l4proto . th dport vmap @ports\n  }}\n",
            BASE.format(ip=ip, ours=ranges, mark=OUTSIDE),
            "}\n",
        ]
    )


def _cleared(vips: Sequence[Vip], before: Sequence[Vip] | None, scheme: Scheme) -> str:
    """All that is to go: everything, or all but the clients of endpoints that stay."""
    table = f"{scheme.nft} services"
    if before is None:
        return f"add table {table}\ndelete table {table}\n"
    removed = sorted(_stays(before).keys() - _stays(vips).keys())
    lines = [
        f"flush table {table}",
        *(f"flush map {table} {name}" for name in ("vips", "ports")),
        f"flush set {table} hairpin",
        *(f"delete chain {table} s{number}" for number in range(len(vips), len(before))),
        *(f"delete {what} {table} {name}" for what in ("chain", "set") for name in removed),
    ]
    return "".join(f"{line}\n" for line in lines)


def _spread(vip: Vip, scheme: Scheme) -> str:
    """The rules of a VIP's chain."""
    ip = scheme.nft
    chosen, parts = _number(vip, ip), _parts(vip)
    mark = ""
    if vip.outside:  # a load balancer's address is called from within as well, and then answers find their way
        mark = f"{'iifname eth0 ' if vip.address else ''}meta mark set {OUTSIDE}; "
    if not vip.sticky:
        return f"{mark}meta l4proto {vip.protocol} dnat {ip} to {chosen} map {{ {spread(vip)} }};"
    names = [_name(vip, target) for target in vip.targets]
    lookups = "; ".join(f"{ip} saddr @{name} goto {name}" for name in names)
    chains = ", ".join(f"{n} : goto {name}" for n, name in zip(parts, names, strict=True))
    return f"{mark}{lookups}; {chosen} vmap {{ {chains} }};"


def spread(vip: Vip) -> str:
    """Map from number to target for calls without affinity, in nft's own notation."""
    return ", ".join(f"{n} : {host} . {port}" for n, (host, port) in zip(_parts(vip), vip.targets, strict=True))


def _number(vip: Vip, ip: str) -> str:
    """Expression that selects a target."""
    count = sum(_weights(vip))
    return f"jhash {ip} saddr mod {count} seed {SEED:#x}" if vip.hashed else f"numgen random mod {count}"


def _parts(vip: Vip) -> list[str]:
    """The numbers of each target: one, or a range as large as its weight."""
    ends = accumulate(_weights(vip), initial=0)
    return [str(low) if high - low == 1 else f"{low}-{high - 1}" for low, high in pairwise(ends)]


def _weights(vip: Vip) -> Sequence[int]:
    return vip.weights or (1,) * len(vip.targets)


def _stays(vips: Iterable[Vip]) -> dict[str, tuple[Vip, Destination]]:
    """Endpoints with session affinity, by chain name."""
    return {_name(vip, target): (vip, target) for vip in vips if vip.sticky for target in vip.targets}


def _stay(name: str, vip: Vip, target: Destination, scheme: Scheme) -> str:
    """The rules of an endpoint's chain: the client is remembered anew, and served."""
    translation = f"meta l4proto {vip.protocol} dnat {scheme.nft} to {joined(*target)}"
    return f"update @{name} {{ {scheme.nft} saddr timeout {vip.sticky}s }}; {translation};"


def _name(vip: Vip, target: Destination) -> str:
    rule = f"{vip.owner} {vip.protocol} {target}"
    return "c" + blake2s(rule.encode(), digest_size=6).hexdigest()


def _elements(entries: list[str]) -> str:
    return f"elements = {{ {', '.join(entries)} }};" if entries else ""
