"""CiliumLocalRedirectPolicy objects as rows. What such a policy may say is checked here, once and by field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, cast

from isthmus.kube.objects import cilium
from isthmus.model.names import ServiceName, service_name
from isthmus.model.redirects import LocalRedirect, Requirement
from isthmus.model.services import Port, Protocol
from isthmus.sources.normal import PROTOCOLS, address, name_of, port_number
from isthmus.sources.sink import Malformed

OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
PREFIXES: Final = ("k8s:", "any:")
"""What Cilium's selectors may write before a label: where it comes from. All labels here are those of pods."""

FRONTEND: Final = "spec.redirectFrontend"
BACKEND: Final = "spec.redirectBackend"


def local_redirect(wire: cilium.LocalRedirectPolicy) -> LocalRedirect:
    """The row of a policy."""
    name = name_of(wire.metadata)
    frontend, backend = wire.spec.redirect_frontend, wire.spec.redirect_backend
    of_service, of_address = frontend.service_matcher, frontend.address_matcher
    if (of_service is None) == (of_address is None):
        raise Malformed(f"{FRONTEND}: want exactly one of addressMatcher and serviceMatcher")
    service, called = ServiceName(""), ""
    ports: tuple[Port, ...] = ()
    if of_service is not None:
        service = _service(of_service, namespace=wire.metadata.namespace)
        ports = _ports(of_service.to_ports, field=f"{FRONTEND}.serviceMatcher.toPorts")
    if of_address is not None:
        called = address(of_address.ip, field=f"{FRONTEND}.addressMatcher.ip")
        ports = _ports(of_address.to_ports, field=f"{FRONTEND}.addressMatcher.toPorts")
        if not ports:
            raise Malformed(f"{FRONTEND}.addressMatcher.toPorts: want at least one port")
    backend_ports = _ports(backend.to_ports, field=f"{BACKEND}.toPorts")
    _check(ports, backend_ports)
    return LocalRedirect(
        name=name,
        service=service,
        address=called,
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
        raise Malformed(f"{field}.namespace: '{wire.namespace}' is not the policy's own, '{namespace}'")
    return service_name(namespace, wire.service_name)


def _ports(wire: Iterable[cilium.PortInfo] | None, *, field: str) -> tuple[Port, ...]:
    found = tuple(_port(each, field=f"{field}[{position}]") for position, each in enumerate(wire or ()))
    if len(found) > 1 and not all(port.name for port in found):
        raise Malformed(f"{field}: several ports, so each wants a name")
    return found


def _port(wire: cilium.PortInfo, *, field: str) -> Port:
    if not wire.port.isdecimal():
        raise Malformed(f"{field}.port: '{wire.port}' is no port")
    protocol = (wire.protocol or "TCP").upper()
    if protocol not in PROTOCOLS:
        raise Malformed(f"{field}.protocol: '{wire.protocol}' is none of {', '.join(sorted(PROTOCOLS))}")
    return Port(
        (wire.name or "").lower(), port_number(int(wire.port), field=f"{field}.port"), cast("Protocol", protocol)
    )


def _check(ports: tuple[Port, ...], backend_ports: tuple[Port, ...]) -> None:
    """What the ports of both sides have to be to each other."""
    if not backend_ports:
        raise Malformed(f"{BACKEND}.toPorts: want at least one port")
    if len(ports) == len(backend_ports) == 1 and ports[0].protocol != backend_ports[0].protocol:
        raise Malformed(f"{BACKEND}.toPorts[0].protocol: the port that is called has {ports[0].protocol}")


def _selector(wire: cilium.LabelSelector) -> tuple[Requirement, ...]:
    labels = [Requirement(_label(key), "In", (value,)) for key, value in (wire.match_labels or {}).items()]
    return tuple(sorted([*labels, *(_requirement(each) for each in wire.match_expressions or ())]))


def _requirement(wire: cilium.SelectorRequirement) -> Requirement:
    field = f"{BACKEND}.localEndpointSelector.matchExpressions"
    if wire.operator not in OPERATORS:
        raise Malformed(f"{field}: operator '{wire.operator}' is none of {', '.join(sorted(OPERATORS))}")
    operator = cast("Literal['In', 'NotIn', 'Exists', 'DoesNotExist']", wire.operator)
    return Requirement(_label(wire.key), operator, tuple(sorted(wire.values or ())))


def _label(key: str) -> str:
    for prefix in PREFIXES:
        key = key.removeprefix(prefix)
    return key
