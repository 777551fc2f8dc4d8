"""The table ``proxy_listeners``: ports of Services that the node's Envoy proxies, with their listeners.

Namespaces with routes share the node: each gets a fair part of the ports and a bounded amount of configuration. A
listener keeps its port as long as a route needs it, even if others request one; so the table also reads its own rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from isthmus.model.names import ServiceName
from isthmus.model.redirects import LeftOut, Listener, ProxyRedirect
from isthmus.model.routes import Attachment
from isthmus.model.tables import ATTACHMENTS, IMPORTS, PROXY_LISTENERS, ROUTES, SERVICES
from isthmus.proxy.ports import Range, share_ports
from isthmus.statedb import Derived, Reader, on_change, unit_of

MAX_SIZE: Final = 16 * 1024 * 1024
"""Approximate bytes of configuration for all routes of one namespace on a node: listeners beyond it get none. Envoy
needs several times as much memory."""


class Listening(NamedTuple):
    """Addresses (at most one of each family) and port range on which a node's Envoy listens for its pods."""

    addresses: tuple[str, ...]
    first_port: int = 15_100
    ports: int = 4_000
    health_port: int = 15_099
    """Port of the listener for the agent's probes (``probing.py``)."""


class ListenerKey(NamedTuple):
    """Key of a listener that routes need."""

    service: ServiceName
    port: int
    callers: str
    """Namespace of its callers; empty for every other."""


class ListenerRequest(NamedTuple):
    """Namespace, age, owner and size of the routes that need a listener."""

    namespace: str
    created: str
    owner: str
    size: int


def derived(listening: Listening) -> Derived[ProxyRedirect]:
    """Declare the table."""
    return Derived(
        PROXY_LISTENERS,
        compute=partial(compute, listening=listening),
        reads={ATTACHMENTS: on_change(("ports",), unit_of(lambda row: True))},
        unit="all",
        arrived=lambda reader, sources: (True,),
    )


def compute(reader: Reader, unit: bool, *, listening: Listening) -> Iterable[ProxyRedirect]:
    """Return a row for each Service with routes and its callers, with a listener for each port that gets one."""
    if _incomplete(reader):
        return reader.all(PROXY_LISTENERS)
    return _shared(reader, listening)


def _incomplete(reader: Reader) -> bool:
    """True until all routes and Services are listed: otherwise those listed first would take every port and keep it.

    Imports are not awaited longer than that: a cluster may not serve their kind.
    """
    if reader.pending(ROUTES) or reader.pending(SERVICES):
        return True
    return bool(reader.pending(ATTACHMENTS)) and not reader.pending(IMPORTS)


def _shared(reader: Reader, listening: Listening) -> Iterator[ProxyRedirect]:
    requests = dict(_requests(reader.all(ATTACHMENTS)))
    current_ports = _current_ports(reader.all(PROXY_LISTENERS))

    def order(key: ListenerKey) -> tuple[str, ListenerKey]:
        return requests[key].created, key

    fitting = _fitting(requests, current_ports)
    granted = share_ports(
        fitting,
        Range(listening.first_port, listening.ports),
        group=lambda key: requests[key].namespace,
        order=order,
        current=current_ports,
    )
    granted_by_namespace = Counter(requests[key].namespace for key in granted)
    for (service, callers), group in groupby(sorted(requests, key=_by_row), key=_by_row):
        keys = list(group)
        oldest = min((requests[key] for key in keys), key=lambda request: (request.created, request.owner))
        namespace, count = oldest.namespace, granted_by_namespace[oldest.namespace]
        left_out = (
            LeftOut(
                tuple(key.port for key in keys if key in fitting and key not in granted),
                f"namespace {namespace} has its share of the {listening.ports} ports of the node's Envoy, {count}",
            ),
            LeftOut(
                tuple(key.port for key in keys if key not in fitting),
                f"other routes of namespace {namespace} come to {MAX_SIZE >> 20} MiB of configuration, its share",
            ),
        )
        yield ProxyRedirect(
            service=service,
            owner=oldest.owner,
            listeners=tuple(
                Listener(address, granted[key], (key.port,))
                for key in keys
                if key in granted
                for address in listening.addresses
            ),
            created=oldest.created,
            callers=callers,
            left_out=tuple(each for each in left_out if each.ports),
        )


def _requests(rows: Iterable[Attachment]) -> Iterator[tuple[ListenerKey, ListenerRequest]]:
    for row in rows:
        for port in row.ports:
            namespace = port.callers or row.service.partition("/")[0]
            yield (
                ListenerKey(row.service, port.port, port.callers),
                ListenerRequest(namespace, port.created, port.owner, port.size),
            )


def _current_ports(rows: Iterable[ProxyRedirect]) -> dict[ListenerKey, int]:
    return {
        ListenerKey(row.service, number, row.callers): listener.port
        for row in rows
        for listener in row.listeners
        for number in listener.ports
    }


def _fitting(
    requests: Mapping[ListenerKey, ListenerRequest], current_ports: Mapping[ListenerKey, int]
) -> set[ListenerKey]:
    """Return the listeners whose configuration fits into their namespace's share; existing ones take precedence."""
    keys_by_namespace: defaultdict[str, list[ListenerKey]] = defaultdict(list)
    for key, request in requests.items():
        keys_by_namespace[request.namespace].append(key)
    fitting: set[ListenerKey] = set()
    for keys in keys_by_namespace.values():
        room = MAX_SIZE - sum(requests[key].size for key in keys)
        if room >= 0:  # the usual case
            fitting.update(keys)
            continue
        room = MAX_SIZE
        for key in sorted(keys, key=lambda each: (each not in current_ports, requests[each].created, each)):
            if requests[key].size <= room:
                room -= requests[key].size
                fitting.add(key)
    return fitting


def _by_row(key: ListenerKey) -> tuple[ServiceName, str]:
    return key.service, key.callers
