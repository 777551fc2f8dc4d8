"""Records that a release writes, and rows that it reads in records: run by the interpreter of each release.

record_samples.py write    print each record of the samples: {"key": …, "value": …}
record_samples.py read     read such a list on stdin, and print {"key": …, "row": …} for each

It uses names of the room ``clusterset.records`` alone: where one of them changes, so does this file, for both releases.
"""

from __future__ import annotations

import base64
import inspect
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from isthmus.clusterset.records import endpoints, exports, identity, keys, refusals
from isthmus.config import ClusterSection
from isthmus.model.drains import Drain
from isthmus.model.mcs import RefusedRecord
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, Export, Port

C1, C2, ECHO = ClusterName("c1"), ClusterName("c2"), ServiceName("demo/echo")
NUMBER: Final = 7
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
CREATED: Final = "2026-01-01T00:00:00Z"
PORTS: Final = (Port("web", 80, "TCP", "http"), Port("dns", 53, "UDP"))


def written() -> Iterator[tuple[str, bytes]]:
    """Each record with every field that it can have, by its key."""
    section = ClusterSection(
        name="c1",
        id=NUMBER,
        network="island",
        region="europe",
        zone="a",
        gateways=("203.0.113.7:15443",),
        labels=("tier=gold",),
    )
    drain = Drain(
        kind="node", target="n1", reason="Drain a/b", started=CREATED, ramp=30, deadline=60, ends=CREATED, end_ramp=5
    )
    yield keys.config(C1), identity.encode(identity.own_config(section, most=255))
    described = msgspec.json.decode(identity.encode(identity.own_description(section, version="0.1.0", drains=[drain])))
    if "signing" in inspect.signature(identity.own_description).parameters:  # 0.1.0rc1 has no such argument
        described["signing"] = {"key": base64.b64encode(bytes(range(32))).decode(), "verifies": True}
    yield keys.description(C1), msgspec.json.encode(described)
    export = Export(
        cluster=C1,
        name=ECHO,
        created=CREATED,
        type="ClusterSetIP",
        ports=PORTS,
        affinity="ClientIP",
        affinity_timeout=600,
        families=("IPv4", "IPv6"),
        internal_policy="Cluster",
        distribution="PreferClose",
        labels=(("app", "echo"),),
        annotations=(("note", "x"),),
    )
    yield keys.record("serviceexports", C1, ECHO), exports.encode(export)
    shared_address = (Port("web", 8080), Port("web", 8081))
    pods = [
        Endpoint("10.1.0.1", (Port("web", 8080),), hostname="echo-0", node="n1", zone="a", for_zones=("a",)),
        Endpoint("10.1.0.2", shared_address),
        Endpoint("fd00::1", (Port("web", 8080),)),
    ]
    service = endpoints.encode(
        ECHO,
        cluster=C1,
        cluster_id=NUMBER,
        endpoints=pods,
        frontends={"10.96.0.7": (Port("web", 80),)},
        labels=(("app", "echo"),),
        selector=(("app", "echo"),),
    )
    yield keys.record("services", C1, ECHO), service
    claimed = endpoints.encode(ECHO, cluster=C1, cluster_id=NUMBER, endpoints=pods, frontends={}, shared=False)
    yield keys.record("services", C1, ServiceName("demo/claimed")), claimed.replace(b'"echo"', b'"claimed"', 1)
    refused = RefusedRecord(cluster=C1, kind="services", name=ECHO, reason="Invalid", message="no address")
    yield keys.refusals(C1, C2), refusals.encode([refused])


def read(key: str, value: bytes) -> Any:
    """Return the row in a record."""
    name = ServiceName("/".join(key.split("/")[-2:]))
    if key.startswith("cilium/cluster-config/"):
        return identity.decode_config(value)
    if key.startswith(keys.DESCRIPTIONS):
        return identity.decode_description(value, now=NOW)
    if key.startswith("isthmus/refusals/"):
        return refusals.decode(value, cluster=C1)
    if "/serviceexports/" in key:
        return exports.decode(value, cluster=C1, name=name)
    return endpoints.decode(value, cluster=C1, cluster_id=NUMBER, name=name)


def rows(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of records, as JSON has them."""
    for each in records:
        row = read(each["key"], json.dumps(each["value"]).encode())
        yield {"key": each["key"], "row": json.loads(msgspec.json.encode(row))}


def samples() -> list[dict[str, Any]]:
    """The records of this release."""
    return [{"key": key, "value": json.loads(value)} for key, value in written()]


if __name__ == "__main__":
    found = samples() if sys.argv[1:] == ["write"] else list(rows(json.load(sys.stdin)))
    print(json.dumps(found, indent=1))
