"""What all conversions share: canonical addresses, sorted labels, words of a closed set."""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from socket import AF_INET, inet_pton
from typing import Final, Literal, TypeVar, cast, get_args

from isthmus.kube.objects.core import ServicePort, SessionAffinityConfig
from isthmus.kube.objects.discovery import EndpointPort
from isthmus.kube.objects.meta import Meta
from isthmus.model.hosts import family
from isthmus.model.names import ServiceName, service_name
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
"""Annotations that change often or are large, and that nothing here reads."""

PROTOCOLS: Final[frozenset[str]] = frozenset(get_args(Protocol))
FAMILIES: Final[frozenset[str]] = frozenset(get_args(Family))
Policy = Literal["Cluster", "Local"]
# Words of closed sets: ``get`` with a default, since one that is missing or unknown must cost the field and no more.
AFFINITIES: Final[Mapping[str | None, Affinity]] = {word: word for word in get_args(Affinity)}
IMPORT_TYPES: Final[Mapping[str | None, ImportType]] = {word: word for word in get_args(ImportType)}
POLICIES: Final[Mapping[str | None, Policy]] = {word: word for word in get_args(Policy)}


def name_of(meta: Meta) -> ServiceName:
    """An object's name as rows have it."""
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


def address(text: str, field: str) -> str:  # hot:
    """An address in canonical form: '2001:DB8:0::1' is '2001:db8::1'. An IPv4-mapped IPv6 address is the IPv4 one."""
    try:  # nearly all of them, and a hundred times as fast: inet_pton takes only canonical IPv4 (no leading zeros)
        inet_pton(AF_INET, text)
    except (OSError, ValueError):
        pass
    else:
        return text
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        raise Malformed(f"{field}: '{text}' is no IP address") from None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def addresses(texts: Sequence[str] | None, *, field: str) -> tuple[str, ...]:
    """Canonical addresses in their order, each once; 'None' and empty ones are no addresses."""
    if not texts:
        return ()
    if len(texts) == 1:  # nearly all, and some are headless
        text = texts[0]
        return (address(text, field),) if text and text != "None" else ()
    found = [address(text, field) for text in texts if text and text != "None"]
    return tuple(found if len(found) < 2 else dict.fromkeys(found))


def families(values: Iterable[str] | None, known: Iterable[str]) -> tuple[Family, ...]:
    """The families listed, in their order; without any, those of the addresses."""
    return (_listed(tuple(values)) if values else ()) or _listed(tuple(map(family, known)))


@lru_cache(64)
def _listed(values: tuple[str, ...]) -> tuple[Family, ...]:
    return cast("tuple[Family, ...]", tuple(dict.fromkeys([value for value in values if value in FAMILIES])))


def ports(wire: Sequence[ServicePort] | None) -> tuple[Port, ...]:  # hot:
    """Ports of a Service or an import, in their order. One of an unknown protocol is left out."""
    field = "spec.ports"
    if wire is not None and len(wire) == 1:  # nearly all
        each = wire[0]
        protocol = each.protocol or "TCP"
        if protocol not in PROTOCOLS:
            return ()
        return _alone(each.name or "", each.port or 0, protocol, each.app_protocol or "", each.node_port or 0, field)
    found = [
        _port(
            each.name or "", each.port or 0, each.protocol or "TCP", each.app_protocol or "", each.node_port or 0, field
        )
        for each in wire or ()
        if (each.protocol or "TCP") in PROTOCOLS
    ]
    return shared(tuple(found))


def ports_of_endpoints(wire: Sequence[EndpointPort] | None) -> tuple[Port, ...]:  # hot:
    """Sorted; a port without a number means all ports, which no Service can refer to."""
    field = "ports"
    known = [each for each in wire or () if each.port is not None and (each.protocol or "TCP") in PROTOCOLS]
    if len(known) == 1:  # nearly all
        each = known[0]
        return _alone(each.name or "", each.port or 0, each.protocol or "TCP", each.app_protocol or "", 0, field)
    found = [
        _port(each.name or "", each.port or 0, each.protocol or "TCP", each.app_protocol or "", 0, field)
        for each in known
    ]
    return shared(tuple(sorted(found, key=lambda port: (port.name, port.port, port.protocol))))


@lru_cache(4096)
def _port(name: str, port: int, protocol: str, app_protocol: str, node_port: int, field: str) -> Port:
    """Services have few different ports, and share them: it takes less time, and less room."""
    return Port(name, port_number(port, field=field), cast("Protocol", protocol), app_protocol, node_port)


@lru_cache(4096)
def shared(values: tuple[H, ...]) -> tuple[H, ...]:
    """The same values, as the tuple that others have too."""
    return values


@lru_cache(4096)
def _alone(name: str, port: int, protocol: str, app_protocol: str, node_port: int, field: str) -> tuple[Port, ...]:
    """One port, as the tuple that others have too."""
    return (_port(name, port, protocol, app_protocol, node_port, field),)


def port_number(value: int, *, field: str) -> int:
    """A port, if it can be one."""
    if not 0 < value < 65536:
        raise Malformed(f"{field}: {value} is no port")
    return value


def affinity_seconds(config: SessionAffinityConfig | None) -> int | None:
    """How long a client stays with its backend; None where it is absent (or 0, which the API forbids)."""
    client = config.client_ip if config else None
    return (client.timeout_seconds or None) if client else None
