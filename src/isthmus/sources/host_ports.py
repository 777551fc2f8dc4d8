"""Host ports of this node's pods, each a service of its own with that pod as its endpoint.

One store of pods fills three tables, so that each pod is watched once. A pod that has ended frees its ports at once;
one that is terminating keeps them until it has ended. A pod on the host network needs no
frontend, and a port on the node's loopback gets none because no pod can call that loopback.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, cast

from isthmus import bounds
from isthmus.kube.objects import core
from isthmus.model.names import LOCAL, ClusterName, ServiceName
from isthmus.model.services import ENDED, Endpoint, EndpointSet, Port, Protocol, Service
from isthmus.model.sources import PODS
from isthmus.model.tables import ENDPOINT_SETS, FAULTS, SERVICES
from isthmus.reflector import Event, Sink, Unreadable
from isthmus.sources.normal import PROTOCOLS, addresses, name_of
from isthmus.sources.sink import MALFORMED, TableSink
from isthmus.statedb import Cause, Database, Faults

KIND: Final = "host ports of pods"
"""Kind of the faults of pods whose host ports cannot be read."""


class HostPort(NamedTuple):
    """A host port of a pod, on one address of the node or on all of them."""

    service: Service
    endpoints: EndpointSet


class PodSink:
    """A reflector's sink that writes pods, and a service and an endpoint set for each of their host ports."""

    def __init__(self, db: Database, pods: Sink[core.Pod], *, cluster: ClusterName = LOCAL) -> None:
        self._cluster = cluster
        self._pods = pods
        self._services = TableSink[HostPort, Service](db, SERVICES, PODS, lambda port: port.service)
        self._endpoints = TableSink[HostPort, EndpointSet](db, ENDPOINT_SETS, PODS, lambda port: port.endpoints)
        self._of: dict[str, Mapping[str, HostPort]] = {}
        self._faults = Faults(db, FAULTS, SERVICES.name, kind=KIND)

    def __repr__(self) -> str:
        return f"<PodSink {self._pods!r}, {sum(map(len, self._of.values()))} host ports>"

    async def replace(self, items: Mapping[str, core.Pod], *, partial: bool) -> None:
        """Replace the pods and the rows of their host ports."""
        await self._pods.replace(items, partial=partial)
        listed = {key: self._by_name(key, item) for key, item in items.items()}
        if not partial:
            self._faults.retain(items.keys())
        self._of = {key: ports for key, ports in ((self._of | listed) if partial else listed).items() if ports}
        every = {name: port for ports in self._of.values() for name, port in ports.items()}
        await self._services.replace(every, partial=partial)
        await self._endpoints.replace(every, partial=partial)
        self._faults.publish()

    def apply(self, events: Sequence[Event[core.Pod]]) -> None:
        """Apply changes of pods to all three tables."""
        self._pods.apply(events)
        changes = [change for key, item in events for change in self._changed(key, item)]
        if changes:
            self._services.apply(changes)
            self._endpoints.apply(changes)
        self._faults.publish()

    def _changed(self, key: str, item: core.Pod | None) -> list[Event[HostPort]]:
        before = self._of.get(key, {})
        after = self._by_name(key, item) if item is not None else {}
        if item is None:
            self._faults.succeeded(key)
        self._of.pop(key, None)
        if after:
            self._of[key] = after
        removed: list[Event[HostPort]] = [Event(name, None) for name in before if name not in after]
        return removed + [Event(name, port) for name, port in after.items() if before.get(name) != port]

    def _by_name(self, key: str, item: core.Pod | Unreadable) -> Mapping[str, HostPort]:
        """Return the host ports of a pod by service name; the last ones if they cannot be read.

        A pod that cannot be decoded is a fault of the sink of pods.
        """
        if isinstance(item, Unreadable):
            return self._of.get(key, {})
        try:
            ports: dict[str, HostPort] = {port.service.name: port for port in host_ports(item, cluster=self._cluster)}
        except MemoryError:
            raise
        except Exception as error:
            cause: Cause = "malformed" if isinstance(error, MALFORMED) else "bug"
            message = str(error) if cause == "malformed" else ""
            self._faults.failed(key, error, cause=cause, message=message, uid=item.metadata.uid)
            return self._of.get(key, {})
        self._faults.succeeded(key)
        return ports


def host_ports(wire: core.Pod, *, cluster: ClusterName = LOCAL) -> Iterator[HostPort]:
    """Yield a service for each host port of a pod. Raises Malformed or OutOfBounds if a field cannot be read."""
    listed = [each.ip for each in wire.status.pod_ips or ()] or [wire.status.pod_ip or ""]
    pod_ips = addresses(listed, field="status.podIPs")
    if wire.status.phase in ENDED or wire.spec.host_network or not pod_ips:
        return
    for (number, address), ports in _grouped(wire.spec).items():
        name = ServiceName(f"{name_of(wire.metadata)}:host-port:{number}" + (f":{address}" if address else ""))
        yield HostPort(
            Service(
                name=name,
                source=PODS,
                type="HostPort",
                ports=tuple(Port("", number, protocol, node_port=number) for protocol in ports),
                external_ips=(address,) if address else (),
                created=wire.metadata.creation_timestamp or "",
                uid=wire.metadata.uid,
            ),
            EndpointSet(
                service=name,
                cluster=cluster,
                source=PODS,
                part=wire.metadata.uid,
                endpoints=tuple(_endpoint(wire, each, ports) for each in pod_ips),
            ),
        )


def _grouped(spec: core.PodSpec) -> dict[tuple[int, str], dict[Protocol, int]]:
    """Map host port and node address ("" is all of them) to the container port of each protocol."""
    grouped: dict[tuple[int, str], dict[Protocol, int]] = {}
    for container in spec.containers or ():
        for port in container.ports or ():
            address = _host_address(port.host_ip)
            if port.host_port and address is not None and (port.protocol or "TCP") in PROTOCOLS:
                number = bounds.port(port.host_port, field="spec.containers.ports.hostPort")
                target = bounds.port(port.container_port, field="spec.containers.ports.containerPort")
                grouped.setdefault((number, address), {})[cast("Protocol", port.protocol or "TCP")] = target
    return grouped


def _host_address(host_ip: str | None) -> str | None:
    """Canonical address of the node; "" is all of its addresses, ``None`` its loopback."""
    if not host_ip:
        return ""
    parsed = bounds.ip(host_ip, field="spec.containers.ports.hostIP")
    if parsed.is_loopback:
        return None
    return "" if parsed.is_unspecified else str(parsed)


def _endpoint(wire: core.Pod, address: str, ports: Mapping[Protocol, int]) -> Endpoint:
    return Endpoint(
        address=address,
        ports=tuple(Port("", number, protocol) for protocol, number in ports.items()),
        node=wire.spec.node_name or "",
        pod=name_of(wire.metadata),
    )
