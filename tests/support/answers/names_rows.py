"""Names of every kind, as rows and as the server's zone, and the addresses that questions for them go between."""

from __future__ import annotations

from answers.names_world import CLUSTER_DNS, CLUSTER_DNS6, POD, POD6, SERVER, SERVER6

from isthmus.model.dns import Name
from isthmus.zone import Zone

ZONE = "clusterset.local"
NATIVE = "web.demo.svc.cluster.local"
ECHO, MANY, HUGE, BOTH, EMPTY = (f"{each}.demo.svc.{ZONE}" for each in ("echo", "many", "huge", "both", "empty"))
LONG = ".".join(["h" * 60, "c2", "s" * 60, "n" * 20, "svc", ZONE])
ROWS = (
    Name(ECHO, "A", ("10.96.0.7",)),
    Name(ECHO, "AAAA", ("fd00::7",)),
    Name(ECHO, "SRV", (f"0 100 80 {ECHO}.",)),
    Name(f"_http._tcp.{ECHO}", "SRV", (f"0 100 80 {ECHO}.",)),
    Name("7.0.96.10.in-addr.arpa", "PTR", (f"{ECHO}.",)),
    Name(f"dns-version.{ZONE}", "TXT", ('"1.1.0"',), ttl=28800),
    Name(f"ns.dns.{ZONE}", "A", (CLUSTER_DNS,)),
    Name(MANY, "A", tuple(f"10.1.0.{n}" for n in range(28))),
    Name(MANY, "AAAA", ("fd00:1::1", "fd00:1::2")),
    Name(BOTH, "A", tuple(f"10.1.0.{n}" for n in range(10))),
    Name(BOTH, "AAAA", tuple(f"fd00:1::{n}" for n in range(1, 10))),
    Name(HUGE, "A", tuple(f"10.1.{n // 250}.{n % 250}" for n in range(300))),
    Name(f"web-0.c2.{MANY}", "A", ("10.1.0.1",)),
    Name(LONG, "A", ("10.1.0.1",)),
    Name(NATIVE, "A", ("10.96.0.9",)),
    Name(f"_http._tcp.{NATIVE}", "SRV", (f"0 100 80 {NATIVE}.",)),
    Name(f"c2.{ECHO}", "A", ("10.2.1.2",)),
    Name(EMPTY, "A", ()),
    Name(f"_http._tcp.{EMPTY}", "SRV", ()),
)


def zone(rows: tuple[Name, ...] = ROWS, *, complete: bool = True) -> Zone:
    made = Zone(ZONE, cluster_domain="cluster.local")
    for row in rows:
        made.replace(None, row)
    made.complete = complete
    return made


SERVED = zone()
PATHS = [(POD, CLUSTER_DNS), (POD6, CLUSTER_DNS6), (POD, SERVER), (POD6, SERVER6)]
"""(who asks, who is asked)."""
