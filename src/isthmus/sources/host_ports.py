"""Host ports of this node's pods, each a service of its own with that pod as its endpoint.

One store of pods fills three tables, so that each pod is watched once. A pod that has ended frees its ports at once;
one that is being terminated keeps them until it has ended. A pod on the node's own network needs
no frontend, and a port of the node's loopback is called on that loopback, where no pod is.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from isthmus.kube.objects import core
from isthmus.model.names import LOCAL, ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Port, Protocol, Service
from isthmus.model.sources import PODS
from isthmus.model.tables import ENDPOINT_SETS, SERVICES
from isthmus.reflector import Event, Sink
from isthmus.sources.normal import PROTOCOLS, address, addresses, name_of, port_number
from isthmus.sources.sink import Malformed, TableSink
from isthmus.statedb import Database

ENDED: Final = frozenset({"Succeeded", "Failed"})


class HostPort(NamedTuple):
    """A port number of the node that a pod has, at one address of the node or at all."""

    service: Service
    endpoints: EndpointSet


class PodSink:
    """A reflector's sink of pods: themselves, and what their host ports come to."""

    def __init__(self, db: Database, pods: Sink[core.Pod], *, cluster: ClusterName = LOCAL) -> None:
        self._cluster = cluster
        self._pods = pods
        self._services = TableSink[HostPort, Service](db, SERVICES, PODS, lambda each: each.service)
        self._endpoints = TableSink[HostPort, EndpointSet](db, ENDPOINT_SETS, PODS, lambda each: each.endpoints)
        self._of: dict[str, Mapping[str, HostPort]] = {}

    def __repr__(self) -> str:
        return f"<PodSink {self._pods!r}, {sum(map(len, self._of.values()))} host ports>"

    async def replace(self, items: Mapping[str, core.Pod], *, partial: bool) -> None:
        """These are all pods."""
        await self._pods.replace(items, partial=partial)
        found = {key: _by_name(item, self._cluster) for key, item in items.items()}
        self._of = {key: ports for key, ports in ((self._of | found) if partial else found).items() if ports}
        every = {name: port for ports in self._of.values() for name, port in ports.items()}
        await self._services.replace(every, partial=partial)
        await self._endpoints.replace(every, partial=partial)

    def apply(self, events: Sequence[Event[core.Pod]]) -> None:
        """These changed."""
        self._pods.apply(events)
        changes = [change for key, item in events for change in self._changed(key, item)]
        if changes:
            self._services.apply(changes)
            self._endpoints.apply(changes)

    def _changed(self, key: str, item: core.Pod | None) -> list[Event[HostPort]]:
        before = self._of.pop(key, {})
        now = _by_name(item, self._cluster) if item is not None else {}
        if now:
            self._of[key] = now
        gone: list[Event[HostPort]] = [Event(name, None) for name in before if name not in now]
        return gone + [Event(name, port) for name, port in now.items() if before.get(name) != port]


def host_ports(wire: core.Pod, *, cluster: ClusterName = LOCAL) -> Iterator[HostPort]:
    """What the host ports of a pod come to; Malformed where a field cannot be read."""
    listed = [each.ip for each in wire.status.pod_ips or ()] or [wire.status.pod_ip or ""]
    found = addresses(listed, field="status.podIPs")
    if wire.status.phase in ENDED or wire.spec.host_network or not found:
        return
    for (number, at), ports in _grouped(wire.spec).items():
        name = ServiceName(f"{name_of(wire.metadata)}:host-port:{number}" + (f":{at}" if at else ""))
        yield HostPort(
            Service(
                name=name,
                source=PODS,
                type="HostPort",
                ports=tuple(Port("", number, protocol, node_port=number) for protocol in ports),
                external_ips=(at,) if at else (),
                created=wire.metadata.creation_timestamp or "",
                uid=wire.metadata.uid,
            ),
            EndpointSet(
                service=name,
                cluster=cluster,
                source=PODS,
                part=wire.metadata.uid,
                endpoints=tuple(_endpoint(wire, each, ports) for each in found),
            ),
        )


def _by_name(wire: core.Pod, cluster: ClusterName) -> dict[str, HostPort]:
    try:
        return {port.service.name: port for port in host_ports(wire, cluster=cluster)}
    except Malformed:
        return {}  # the sink of pods logs it


def _grouped(spec: core.PodSpec) -> dict[tuple[int, str], dict[Protocol, int]]:
    """By number and address of the node (none: all): the pod's own port for each protocol."""
    found: dict[tuple[int, str], dict[Protocol, int]] = {}
    for container in spec.containers or ():
        for port in container.ports or ():
            at = _at(port.host_ip)
            if port.host_port and at is not None and (port.protocol or "TCP") in PROTOCOLS:
                number = port_number(port.host_port, field="spec.containers.ports.hostPort")
                found.setdefault((number, at), {})[cast("Protocol", port.protocol or "TCP")] = port.container_port
    return found


def _at(host_ip: str | None) -> str | None:
    """The one address of the node that is meant; '' for all of them, None for its loopback."""
    if not host_ip:
        return ""
    parsed: Any = ipaddress.ip_address(address(host_ip, field="spec.containers.ports.hostIP"))
    if parsed.is_loopback:
        return None
    return "" if parsed.is_unspecified else str(parsed)


def _endpoint(wire: core.Pod, at: str, ports: Mapping[Protocol, int]) -> Endpoint:
    return Endpoint(
        address=at,
        ports=tuple(Port("", number, protocol) for protocol, number in ports.items()),
        node=wire.spec.node_name or "",
        pod=name_of(wire.metadata),
    )
