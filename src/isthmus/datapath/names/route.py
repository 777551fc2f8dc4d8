"""Explains which server answers a pod's question, from the kernel's entry for the name. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from isthmus.datapath.names import entries
from isthmus.datapath.names.codecs import BIG_A, BIG_AAAA, NAME, OTHERS, PTR_ALONE
from isthmus.model.dns import Name
from isthmus.zone import Zone, codec

Answerer = Literal["kernel", "server", "cluster DNS"]
SCHEMA_LABEL = "dns-version."
IN_ENTRY = {codec.A: BIG_A, codec.AAAA: BIG_AAAA}
AT_SERVER = (codec.SRV_TYPE, codec.TXT, codec.PTR, codec.SOA, codec.NS)


class Route(Struct, frozen=True):
    """The answerer and the reason, with the response code and records of a complete zone."""

    name: str
    type: str
    answerer: Answerer
    why: str
    rcode: str = ""
    answers: tuple[str, ...] = ()


def zone_of(rows: Iterable[Name], *, cluster_domain: str, complete: bool) -> Zone | None:
    """Build a zone from rows of ``names``, or return ``None`` if these lack the zone's own name."""
    listed = list(rows)
    own = [row.name.removeprefix(SCHEMA_LABEL) for row in listed if row.type == "TXT" and not row.service]
    if not own:
        return None
    zone = Zone(own[0], cluster_domain=cluster_domain)
    zone.complete = complete
    for row in listed:
        zone.replace(None, row)
    return zone


def route(zone: Zone, rows: Iterable[Name], name: str, type_: str, number: int, *, mode: str) -> Route:
    """Route of a pod's question NAME TYPE (with the code ``number``) in a ``dns.mode``."""
    wire = codec.wire_name(name)
    if mode == "off":
        return Route(name, type_, "cluster DNS", "dns.mode is off")
    if not zone.ours(wire, number):
        if zone.is_expansion(wire):
            reason = "a name of ours with a search domain of the cluster behind it cannot exist"
            return Route(name, type_, _first(mode), reason, "NXDOMAIN")
        where = "passes untouched" if mode == "kernel" else "is forwarded by the node's server"
        return Route(name, type_, "cluster DNS", f"not below {zone.name}: {where}")
    answers = tuple(each for row in rows if (row.name, row.type) == (name, type_) for each in row.answers)
    rcode = "NOERROR" if zone.exists(wire) else "NXDOMAIN" if zone.complete else "SERVFAIL"
    answerer, reason = _answerer(zone, wire, number, mode)
    return Route(name, type_, answerer, reason, rcode, answers)


def _answerer(zone: Zone, wire: bytes, number: int, mode: str) -> tuple[Answerer, str]:
    if mode != "kernel":
        return "server", f"dns.mode is {mode}"
    if entries.key(wire) is None:
        return "server", "the name is longer than the kernel looks up"
    value = entries.value(zone, wire)
    if value is None:
        return ("kernel", "no such name") if zone.complete else ("server", "the names are not complete yet")
    flags = NAME.named(value)["flags"]
    if flags & IN_ENTRY.get(number, 0):
        return "server", "too many addresses for an entry of the kernel"
    if number in IN_ENTRY and zone.records(wire, number)[0]:
        return "kernel", "the addresses are in an entry of the kernel"
    if number in AT_SERVER and flags & (OTHERS | PTR_ALONE):
        return "server", "the kernel has addresses only"
    return "kernel", "the name has no records of this type"


def _first(mode: str) -> Answerer:
    return "kernel" if mode == "kernel" else "server"
