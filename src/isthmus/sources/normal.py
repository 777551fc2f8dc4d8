"""Helpers of all conversions: canonical addresses, sorted labels, words of a closed set."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, TypeVar, cast, get_args

from isthmus import bounds
from isthmus.bounds import packed_ipv4
from isthmus.kube.objects.core import ServicePort, SessionAffinityConfig
from isthmus.kube.objects.discovery import EndpointPort
from isthmus.kube.objects.meta import Meta
from isthmus.model.hosts import family
from isthmus.model.names import LABEL, QUALIFIED, ServiceName, service_name
from isthmus.model.services import Affinity, Family, ImportType, Labels, Port, Protocol
from isthmus.sources.sink import Malformed

H = TypeVar("H", bound=Hashable)

NOISE: Final = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        "endpoints.kubernetes.io/last-change-trigger-time",
        "control-plane.alpha.kubernetes.io/leader",
    }
)
"""Annotations that change often or are large, and that Isthmus does not read."""

MAX_AFFINITY: Final = 86_400
"""Seconds: the API's own bound of a Service's session affinity."""
PROTOCOLS: Final[frozenset[str]] = frozenset(get_args(Protocol))
FAMILIES: Final[frozenset[str]] = frozenset(get_args(Family))
MAX_CACHED: Final = 16
"""Ports of an object up to which they are cached. More would stay in memory after their object is gone."""
Policy = Literal["Cluster", "Local"]
# Words of closed sets: ``get`` with a default, since one that is missing or unknown must cost the field and no more.
AFFINITIES: Final[Mapping[str | None, Affinity]] = {word: word for word in get_args(Affinity)}
IMPORT_TYPES: Final[Mapping[str | None, ImportType]] = {word: word for word in get_args(ImportType)}
POLICIES: Final[Mapping[str | None, Policy]] = {word: word for word in get_args(Policy)}


def name_of(meta: Meta) -> ServiceName:
    """Return the name of an object's row. Raises Malformed if name or namespace is missing."""
    if not meta.namespace or not meta.name:
        raise Malformed("metadata: name or namespace is missing")
    return service_name(meta.namespace, meta.name)


def pairs(labels: Mapping[str, str] | None) -> Labels:
    """Labels, or annotations without noise, as sorted pairs."""
    if not labels:
        return ()
    if len(labels) == 1:
        [pair] = labels.items()
        return () if pair[0] in NOISE else (pair,)
    return tuple(sorted([pair for pair in labels.items() if pair[0] not in NOISE]))


def addresses(texts: Sequence[str] | None, *, field: str) -> tuple[str, ...]:
    """Return canonical addresses in their order, each once, without 'None' and empty ones."""
    if not texts:
        return ()
    if len(texts) == 1:  # nearly all, and some are headless
        text = texts[0]
        if not text or text == "None":
            return ()
        try:
            packed_ipv4(text)
        except (OSError, ValueError):
            return (bounds.address(text, field=field),)
        return (text,)
    canonical = bounds.addresses([text for text in texts if text and text != "None"], field=f"{field}[{{}}]")
    return tuple(canonical if len(canonical) < 2 else dict.fromkeys(canonical))


def families(values: Iterable[str] | None, hosts: Iterable[str]) -> tuple[Family, ...]:
    """Return the listed families in their order; those of the addresses if none is listed."""
    return (_listed(tuple(values)) if values else ()) or _listed(tuple(map(family, hosts)))


@lru_cache(64)
def _listed(values: tuple[str, ...]) -> tuple[Family, ...]:
    return cast("tuple[Family, ...]", tuple(dict.fromkeys([value for value in values if value in FAMILIES])))


def ports(wire: Sequence[ServicePort] | None) -> tuple[Port, ...]:  # hot:
    """Return the ports of a Service or an import in their order, without those of an unknown protocol."""
    field = "spec.ports"
    if wire is not None and len(wire) == 1:  # nearly all
        entry = wire[0]
        protocol = entry.protocol or "TCP"
        if protocol not in PROTOCOLS:
            return ()
        return _single(
            entry.name or "", entry.port or 0, protocol, entry.app_protocol or "", entry.node_port or 0, field
        )
    listed = [
        _port(
            entry.name or "",
            entry.port or 0,
            entry.protocol or "TCP",
            entry.app_protocol or "",
            entry.node_port or 0,
            field,
        )
        for entry in wire or ()
        if (entry.protocol or "TCP") in PROTOCOLS
    ]
    return shared(tuple(listed))


def ports_of_endpoints(wire: Sequence[EndpointPort] | None) -> tuple[Port, ...]:  # hot:
    """Return the sorted ports of a slice. A port without a number, which means all ports, is left out."""
    field = "ports"
    usable = [entry for entry in wire or () if entry.port is not None and (entry.protocol or "TCP") in PROTOCOLS]
    if len(usable) == 1:  # nearly all
        entry = usable[0]
        return _single(entry.name or "", entry.port or 0, entry.protocol or "TCP", entry.app_protocol or "", 0, field)
    listed = [
        _port(entry.name or "", entry.port or 0, entry.protocol or "TCP", entry.app_protocol or "", 0, field)
        for entry in usable
    ]
    return shared(tuple(sorted(listed, key=lambda port: (port.name, port.port, port.protocol))))


@lru_cache(4096)
def _port(name: str, port: int, protocol: str, app_protocol: str, node_port: int, field: str) -> Port:
    """Return the port, one object for equal ports: many services have the same few, so this saves time and memory."""
    return Port(
        LABEL.text(name, field=f"{field}.name") if name else "",
        bounds.port(port, field=field),
        cast("Protocol", protocol),
        QUALIFIED.text(app_protocol, field=f"{field}.appProtocol") if app_protocol else "",
        bounds.port(node_port, field=f"{field}.nodePort") if node_port else 0,
    )


def shared(values: tuple[H, ...]) -> tuple[H, ...]:
    """Return one tuple object for equal tuples of a few values, to save memory."""
    return _cached(values) if len(values) <= MAX_CACHED else values


@lru_cache(4096)
def _cached(values: tuple[H, ...]) -> tuple[H, ...]:
    return values


@lru_cache(4096)
def _single(name: str, port: int, protocol: str, app_protocol: str, node_port: int, field: str) -> tuple[Port, ...]:
    """Return a tuple of one port, one object for equal ports."""
    return (_port(name, port, protocol, app_protocol, node_port, field),)


def affinity_seconds(config: SessionAffinityConfig | None) -> int | None:
    """Return the session affinity timeout in seconds; ``None`` if it is absent (or 0, which the API forbids)."""
    client = config.client_ip if config else None
    return _affinity_seconds(client.timeout_seconds) if client and client.timeout_seconds else None


@lru_cache(256)
def _affinity_seconds(value: int) -> int:
    return bounds.count(value, least=1, most=MAX_AFFINITY, field="spec.sessionAffinityConfig.clientIP.timeoutSeconds")
