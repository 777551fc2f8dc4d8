"""CiliumLocalRedirectPolicy objects as rows, each field checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast, get_args

from isthmus import bounds
from isthmus.kube.objects import cilium
from isthmus.model.names import ServiceName, service_name
from isthmus.model.redirects import LocalRedirect, Operator, Requirement
from isthmus.model.services import Port, Protocol
from isthmus.sources.normal import PROTOCOLS, name_of
from isthmus.sources.sink import Malformed

OPERATORS: Final[tuple[Operator, ...]] = get_args(Operator)
PREFIXES: Final = ("k8s:", "any:")
"""Sources of labels that Cilium's selectors may name before a key. All labels here are those of pods."""

MAX_PORTS: Final = 40
"""Ports of either side, as in Cilium's schema."""
MAX_LABELS: Final = 64
"""Requirements of a selector, and values of one."""
MAX_LABEL: Final = 63
"""Characters of a label's value, and of a port's name."""
MAX_NAME: Final = 253
"""Characters of an object's name. A label's key has a prefix of as many, and a name of 63."""

FRONTEND: Final = "spec.redirectFrontend"
BACKEND: Final = "spec.redirectBackend"
SELECTOR: Final = f"{BACKEND}.localEndpointSelector"


def local_redirect(wire: cilium.LocalRedirectPolicy) -> LocalRedirect:
    """Return the row of a policy. Raises Malformed or OutOfBounds for an invalid field."""
    name = name_of(wire.metadata)
    frontend, backend = wire.spec.redirect_frontend, wire.spec.redirect_backend
    of_service, of_address = frontend.service_matcher, frontend.address_matcher
    if (of_service is None) == (of_address is None):
        raise Malformed(f"{FRONTEND}: want exactly one of addressMatcher and serviceMatcher")
    service, address = ServiceName(""), ""
    ports: tuple[Port, ...] = ()
    if of_service is not None:
        service = _service(of_service, namespace=wire.metadata.namespace)
        ports = _ports(of_service.to_ports, field=f"{FRONTEND}.serviceMatcher.toPorts")
    if of_address is not None:
        address = bounds.address(of_address.ip, field=f"{FRONTEND}.addressMatcher.ip")
        ports = _ports(of_address.to_ports, field=f"{FRONTEND}.addressMatcher.toPorts")
        if not ports:
            raise Malformed(f"{FRONTEND}.addressMatcher.toPorts: want at least one port")
    backend_ports = _ports(backend.to_ports, field=f"{BACKEND}.toPorts")
    _check(ports, backend_ports)
    return LocalRedirect(
        name=name,
        service=service,
        address=address,
        ports=ports,
        selector=_selector(backend.local_endpoint_selector),
        backend_ports=backend_ports,
        skip_from_backend=wire.spec.skip_redirect_from_backend,
        created=wire.metadata.creation_timestamp or "",
        uid=wire.metadata.uid,
    )


def _service(wire: cilium.ServiceMatcher, *, namespace: str) -> ServiceName:
    field = f"{FRONTEND}.serviceMatcher"
    if not wire.service_name:
        raise Malformed(f"{field}.serviceName: empty")
    if wire.namespace != namespace:
        raise Malformed(f"{field}.namespace: {bounds.shown(wire.namespace)} is not the policy's own, '{namespace}'")
    return service_name(namespace, bounds.text(wire.service_name, most=MAX_NAME, field=f"{field}.serviceName"))


def _ports(wire: Iterable[cilium.PortInfo] | None, *, field: str) -> tuple[Port, ...]:
    listed = bounds.size([*(wire or ())], most=MAX_PORTS, field=field)
    ports = tuple(_port(each, field=f"{field}[{position}]") for position, each in enumerate(listed))
    if len(ports) > 1 and not all(port.name for port in ports):
        raise Malformed(f"{field}: several ports, so each wants a name")
    return ports


def _port(wire: cilium.PortInfo, *, field: str) -> Port:
    number = bounds.port(wire.port, field=f"{field}.port")
    protocol = bounds.choice((wire.protocol or "TCP").upper(), sorted(PROTOCOLS), field=f"{field}.protocol")
    name = bounds.text(wire.name or "", most=MAX_LABEL, field=f"{field}.name")
    return Port(name.lower(), number, cast("Protocol", protocol))


def _check(ports: tuple[Port, ...], backend_ports: tuple[Port, ...]) -> None:
    """Check that the backend has a port and that two single ports have one protocol."""
    if not backend_ports:
        raise Malformed(f"{BACKEND}.toPorts: want at least one port")
    if len(ports) == len(backend_ports) == 1 and ports[0].protocol != backend_ports[0].protocol:
        raise Malformed(f"{BACKEND}.toPorts[0].protocol: the port that is called has {ports[0].protocol}")


def _selector(wire: cilium.LabelSelector) -> tuple[Requirement, ...]:
    pairs = bounds.size(wire.match_labels or {}, most=MAX_LABELS, field=f"{SELECTOR}.matchLabels")
    listed = bounds.size(wire.match_expressions or [], most=MAX_LABELS, field=f"{SELECTOR}.matchExpressions")
    labels = [Requirement(_label(key), "In", (_value(value),)) for key, value in pairs.items()]
    return tuple(sorted([*labels, *map(_requirement, listed)]))


def _requirement(wire: cilium.SelectorRequirement) -> Requirement:
    field = f"{SELECTOR}.matchExpressions"
    values = bounds.size(wire.values or [], most=MAX_LABELS, field=f"{field}.values")
    operator = bounds.choice(wire.operator, OPERATORS, field=f"{field}.operator")
    return Requirement(_label(wire.key), operator, tuple(sorted(map(_value, values))))


def _value(value: str) -> str:
    return bounds.text(value, most=MAX_LABEL, field=SELECTOR)


def _label(key: str) -> str:
    bounds.text(key, most=MAX_NAME + len("/") + MAX_LABEL, field=SELECTOR)
    for prefix in PREFIXES:
        key = key.removeprefix(prefix)
    return key
