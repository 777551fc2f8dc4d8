"""discovery.k8s.io/v1: endpoint slices."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import ManagedMeta, Wire

MAX_TEXT: Final = 253
"""Characters of a name or zone. The API server does not validate zones, and peers refuse a record with a longer one."""
MAX_FOR_ZONES: Final = 8
Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class EndpointConditions(Wire, frozen=True):
    """KEP-1669: unknown (None) counts as ready, as serving where ready, as not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ForZone(Wire, frozen=True):
    """A zone that should use an endpoint."""

    name: Text


class EndpointHints(Wire, frozen=True):
    """Zones whose callers should use an endpoint."""

    for_zones: Annotated[list[ForZone], Meta(max_length=MAX_FOR_ZONES)] | None = None


class TargetRef(Wire, frozen=True):
    """Object behind an endpoint."""

    kind: str = ""
    namespace: str = ""
    name: str = ""


class Endpoint(Wire, frozen=True):
    """One endpoint; its addresses are fungible."""

    addresses: list[str] | None = None
    conditions: EndpointConditions | None = None
    hostname: Text | None = None
    node_name: Text | None = None
    zone: Text | None = None
    hints: EndpointHints | None = None
    target_ref: TargetRef | None = None


class EndpointPort(Wire, frozen=True):
    """A port of all endpoints of a slice."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None
    app_protocol: str | None = None


class EndpointSlice(Wire, frozen=True):
    """A part of a Service's endpoints."""

    metadata: ManagedMeta
    address_type: str = field(default_factory=lambda: "IPv4")  # never left out of JSON, as a default would be
    endpoints: list[Endpoint] | None = None
    ports: list[EndpointPort] | None = None


ENDPOINT_SLICE: Final = Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", EndpointSlice)
