"""EndpointSlices: how endpoints are cut into them and how one is written down.

A change of one endpoint rewrites one slice, whatever its place among the others: which part an endpoint belongs to is a
function of its address. A part that grows beyond a hundred splits in two, and one half keeps the name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from isthmus.desired import Draft
from isthmus.desired.drafts import without_empty
from isthmus.mcs import words
from isthmus.model.hosts import family
from isthmus.model.names import ClusterName, ServiceName, service_name, split
from isthmus.model.services import Condition, Endpoint, Family, Port

SLICE_SIZE: Final = 100
NAME_LIMIT: Final = 253
DEPTH: Final = 64
"""Bits after which no part is split again: so many addresses cannot agree in."""

CONDITIONS: Final = {
    Condition.READY: {"ready": True, "serving": True, "terminating": False},
    Condition.TERMINATING: {"ready": False, "serving": True, "terminating": True},
    Condition.NOT_READY: {"ready": False, "serving": False, "terminating": False},
    Condition.GONE: {"ready": False, "serving": False, "terminating": True},
}


class Behind(NamedTuple):
    """The Service that slices stand behind."""

    service: ServiceName
    uid: str
    """Empty while it is not written."""
    labels: dict[str, str]
    headless: bool


class Part(NamedTuple):
    """Endpoints of one cluster that stand in one slice, and its name."""

    name: str
    cluster: ClusterName
    endpoints: list[Endpoint]
    annotations: dict[str, str] | None = None


def group(endpoints: Collection[Endpoint]) -> dict[tuple[Family, tuple[Port, ...]], list[Endpoint]]:
    """Endpoints that can stand in one slice: of one family, on the same ports; by address."""
    groups: dict[tuple[Family, tuple[Port, ...]], list[Endpoint]] = {}
    for endpoint in sorted(endpoints, key=lambda each: each.address):
        groups.setdefault((family(endpoint.address), endpoint.ports), []).append(endpoint)
    return groups


def parts(endpoints: list[Endpoint], *, bits: str = "") -> Iterator[tuple[str, list[Endpoint]]]:
    """Endpoints cut into parts of a hundred at most, each with what distinguishes it from its siblings.

    Parts are the leaves of a tree over the bits of a hash of the address. A leaf is named by its bits without the
    zeros at the end, so the first half of what splits is called as the whole was: at first by nothing.
    """
    if len(endpoints) <= SLICE_SIZE or len(bits) == DEPTH:
        if endpoints:
            yield bits.rstrip("0"), endpoints
        return
    halves: tuple[list[Endpoint], list[Endpoint]] = ([], [])
    for endpoint in endpoints:
        halves[_bit(endpoint.address, len(bits))].append(endpoint)
    yield from parts(halves[0], bits=f"{bits}0")
    yield from parts(halves[1], bits=f"{bits}1")


def _bit(address: str, position: int) -> int:
    digest = hashlib.sha256(address.encode()).digest()
    return digest[position // 8] >> (position % 8) & 1


def named(*words: str) -> str:
    """A slice's name from its words, within the limit."""
    name = "-".join(word for word in words if word).rstrip("-.")
    if len(name) <= NAME_LIMIT:
        return name
    return f"{name[: NAME_LIMIT - 11].rstrip('-.')}-{digest(name)}"


def digest(text: str) -> str:
    """Ten characters of a hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def endpoint_slice(behind: Behind, part: Part) -> Draft:
    """The slice of a part behind a Service."""
    namespace, service = split(behind.service)
    labels = {
        **behind.labels,
        **({words.HEADLESS: ""} if behind.headless else {}),
        words.SLICE_SERVICE: service,
        words.SOURCE_CLUSTER: part.cluster,
        words.SLICE_MANAGED_BY: words.SLICE_MANAGER,
    }
    content = {
        "addressType": family(part.endpoints[0].address),
        "endpoints": [_endpoint(endpoint) for endpoint in part.endpoints],
        "ports": [_port(port) for port in part.endpoints[0].ports],
    }
    return Draft(
        "EndpointSlice",
        service_name(namespace, part.name),
        content=content,
        labels=labels,
        annotations=part.annotations,
        owner=("Service", behind.service, behind.uid),
    )


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    namespace, _, pod = endpoint.pod.partition("/")
    optional = {
        "hostname": endpoint.hostname,
        "nodeName": endpoint.node,
        "zone": endpoint.zone,
        "hints": {"forZones": [{"name": zone} for zone in endpoint.for_zones]} if endpoint.for_zones else None,
        "targetRef": {"kind": "Pod", "namespace": namespace, "name": pod} if pod else None,
    }
    return {
        "addresses": [endpoint.address],
        "conditions": CONDITIONS[endpoint.condition],
        **without_empty(optional),
    }


def _port(port: Port) -> dict[str, Any]:
    """A port of a slice. An unnamed one has the empty name: it is matched with the Service's port by name."""
    fields = {"name": port.name, "port": port.port, "protocol": port.protocol}
    return {**fields, **without_empty({"appProtocol": port.app_protocol})}
