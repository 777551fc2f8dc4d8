"""EndpointSlices of a derived Service: the own cluster's endpoints of the exported Service, mirrored slice by slice.

A changed endpoint rewrites one slice. Only ports that the clusterset agrees on are offered: a call to the import's
port 80 must not reach what this cluster alone calls so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from msgspec import structs

from isthmus.mcs import derived_services, wire
from isthmus.mcs.imports import family
from isthmus.mcs.view import View
from isthmus.model.exports import agreed_ports
from isthmus.model.mcs import Merged, Object
from isthmus.model.names import service_name, split
from isthmus.model.services import Condition, Endpoint, EndpointSet, Family, Port

MOST_ENDPOINTS: Final = 100
MOST_NAME: Final = 253


def mirrored(view: View, merged: Merged) -> Iterator[Object]:
    """The slices wanted for the endpoints of the own cluster, where it exports the Service."""
    if view.own is None:
        return
    agreed = agreed_ports(view.own, merged)
    taken: set[str] = set()
    for each in view.sets:
        endpoints = [
            kept for e in each.endpoints if (kept := _agreeing(e, agreed)) and family(e.address) in view.families
        ]
        for number, part in enumerate(_parts(endpoints)):
            name = mirror_name(view, each.part, number)
            if name in taken:
                name = _hashed(name, each.part)
            taken.add(name)
            yield _slice(view, merged, part, source=each, name=name)


def _agreeing(endpoint: Endpoint, agreed: frozenset[str]) -> Endpoint | None:
    """The endpoint with the ports that agree; None where it has ports and none does."""
    ports = tuple(port for port in endpoint.ports if port.name in agreed)
    return structs.replace(endpoint, ports=ports) if ports or not endpoint.ports else None


def _parts(endpoints: Iterable[Endpoint]) -> Iterator[list[Endpoint]]:
    """Endpoints that can stand in one slice: of one family, on the same ports, a hundred at most."""
    groups: dict[tuple[Family, tuple[Port, ...]], list[Endpoint]] = {}
    for endpoint in endpoints:
        groups.setdefault((family(endpoint.address), endpoint.ports), []).append(endpoint)
    for group in groups.values():
        rest = iter(group)
        while part := list(islice(rest, MOST_ENDPOINTS)):
            yield part


def _slice(view: View, merged: Merged, endpoints: list[Endpoint], *, source: EndpointSet, name: str) -> Object:
    content = {
        "addressType": family(endpoints[0].address),
        "endpoints": [_endpoint(endpoint) for endpoint in endpoints],
        "ports": [_port(port) for port in endpoints[0].ports],
    }
    return wire.wanted(
        "EndpointSlice",
        service_name(view.namespace.name, name),
        service=view.name,
        content=content,
        labels=_labels(view, merged),
        annotations={wire.SOURCE_SLICE: source.part},
        owner=("Service", view.derived, view.derived_service.uid if view.derived_service is not None else ""),
        seen=_seen(view.mirrored.get(name), endpoints),
    )


def _labels(view: View, merged: Merged) -> dict[str, str]:
    headless = {wire.HEADLESS: ""} if merged.type == "Headless" else {}
    return {
        **derived_services.labels(view, merged),
        **headless,
        wire.SLICE_SERVICE: split(view.derived)[1],
        wire.SOURCE_CLUSTER: view.settings.cluster,
        wire.SLICE_MANAGED_BY: wire.SLICE_MANAGER,
    }


def mirror_name(view: View, source: str, number: int = 0) -> str:
    """What the mirror of a slice is called: the derived Service's name, then what told the source from its siblings."""
    rest = source.removeprefix(split(view.name)[1]).lstrip("-.") + (f"-{number}" if number else "")
    name = f"{split(view.derived)[1]}-{rest}".rstrip("-.")
    return name if len(name) <= MOST_NAME else _hashed(name, name)


def _hashed(name: str, source: str) -> str:
    """A name told apart by a digest, within the limit."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:10]
    return f"{name[: MOST_NAME - 11].rstrip('-.')}-{digest}"


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
        **wire.without_empty(optional),
    }


CONDITIONS: Final = {
    Condition.READY: {"ready": True, "serving": True, "terminating": False},
    Condition.TERMINATING: {"ready": False, "serving": True, "terminating": True},
    Condition.NOT_READY: {"ready": False, "serving": False, "terminating": False},
    Condition.GONE: {"ready": False, "serving": False, "terminating": True},
}


def _port(port: Port) -> dict[str, Any]:
    """A port of a slice. An unnamed one says so: it is matched with the Service's port by name."""
    return {"name": port.name, "port": port.port, "protocol": port.protocol} | wire.without_empty(
        {"appProtocol": port.app_protocol}
    )


def _seen(found: EndpointSet | None, endpoints: list[Endpoint]) -> str:
    return "" if found is None else wire.seen(found, endpoints=tuple(endpoints))
