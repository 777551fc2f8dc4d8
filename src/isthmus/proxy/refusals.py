"""Reports routes without effect on this node, in its object RefusedRoutes.

Either the node's Envoy refused them, or it has no port left for them. Envoy accepts or refuses all routes of a
Service's port together, and its message need not name one. The report lists the routes that differ from the version
accepted last, or all if that is unknown. The report has its own kind, so that an agent needs no rights on Nodes, routes
or ConfigMaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from isthmus import kube
from isthmus.fair import Shares, grant
from isthmus.kube.objects.refusals import REFUSED_ROUTES
from isthmus.model.names import ServiceName, split
from isthmus.model.routes import (
    MAX_REFUSAL,
    MAX_REFUSALS,
    NodeRefusals,
    RefusalReason,
    RouteKey,
    RouteKind,
    RouteRefusal,
)
from isthmus.model.tables import ATTACHMENTS, NODES, PROXY_LISTENERS, ROUTE_PARTS, ROUTES, XDS, XDS_REFUSED
from isthmus.model.xds import RefusedResource
from isthmus.proxy.attachment import SHOWN_PORTS
from isthmus.proxy.derived import port_of
from isthmus.reflector import Expired
from isthmus.statedb import NotPruned, Reader

RefusalKey = tuple[RouteKind, ServiceName, ServiceName]
"""A route, and the Service that it applies to."""

MANAGER: Final = "isthmus-agent"
"""The field manager of server-side apply."""


def compute(reader: Reader, node: str) -> NodeRefusals | None:
    """Return the report of a node; ``None`` if there is nothing to report. It has one refusal for each route."""
    refusals: dict[RefusalKey, RouteRefusal] = {}
    for row in sorted(reader.all(XDS_REFUSED), key=XDS_REFUSED.key):
        if len(refusals) >= MAX_REFUSALS:  # bounds the work when thousands are refused for one reason
            break
        message = f"{row.type} {row.name}: {row.error}"
        for route, service in refused_routes(reader, row):
            _add(refusals, route, service, message, "RefusedByEnvoy")
    for route, service, reason, message in (*_problems(reader), *_left_out(reader)):
        _add(refusals, route, service, message, reason)
    if not refusals:
        return None
    node_row = reader.get(NODES, node)
    return NodeRefusals(
        name=node, uid=node_row.uid if node_row is not None else "", routes=tuple(sorted(_shared(refusals)))
    )


def _add(
    refusals: dict[RefusalKey, RouteRefusal], route: RouteKey, service: ServiceName, message: str, reason: RefusalReason
) -> None:
    key = (*route, service)
    refusals.setdefault(key, RouteRefusal(*key, _cut(message), reason))


def _shared(refusals: Mapping[RefusalKey, RouteRefusal]) -> list[RouteRefusal]:
    """Limit the refusals to the size of a report, with a fair share for each namespace."""
    if len(refusals) <= MAX_REFUSALS:
        return list(refusals.values())
    shares = Shares(MAX_REFUSALS, reserve=False)
    return grant(refusals.values(), shares, holders=lambda row: ((split(row.name)[0],),), order=lambda row: row)


def _problems(reader: Reader) -> Iterator[tuple[RouteKey, ServiceName, RefusalReason, str]]:
    """Yield routes that break a rule of Envoy's API and are not sent."""
    for row in reader.all(ROUTE_PARTS):
        route = reader.get(ROUTES, row.route) if row.problem else None
        for service in {parent.service for parent in route.parents} if route is not None else ():
            yield row.route, service, "RefusedByEnvoy", row.problem


def _left_out(reader: Reader) -> Iterator[tuple[RouteKey, ServiceName, RefusalReason, str]]:
    """Yield routes of ports that got no listener of this node's Envoy."""
    for row in reader.all(PROXY_LISTENERS):
        attachment = reader.get(ATTACHMENTS, row.service) if row.left_out else None
        if attachment is None:
            continue
        for left_out in row.left_out:
            without = frozenset(left_out.ports)
            ports = ", ".join(map(str, left_out.ports[:SHOWN_PORTS])) + (
                ", …" if len(left_out.ports) > SHOWN_PORTS else ""
            )
            message = f"port {ports}: {left_out.why}"
            mine = (e for e in attachment.ports if e.callers == row.callers and e.port in without)
            for route in dict.fromkeys(route for e in mine for route in e.routes):
                yield route, row.service, "NoPortLeft", message


def refused_routes(reader: Reader, row: RefusedResource) -> Iterator[tuple[RouteKey, ServiceName]]:
    """Yield the routes that a refused resource is made from or used by, each with the Service that it applies to."""
    sent = reader.get(XDS, (row.type, row.name))
    if sent is None:
        return
    if row.type not in ("listener", "routes"):  # clusters and endpoints: routes that refer to them
        service = ServiceName(sent.unit)
        users = {each.key: each for each in reader.by(ROUTES, "target", service)}
        users |= {each.key: each for each in reader.by(ROUTES, "parent", service) if each.clusters()}
        for route in users.values():
            yield from ((route.key, each) for each in sorted({parent.service for parent in route.parents}))
        return
    port_key = port_of(sent.unit)
    attachment = reader.get(ATTACHMENTS, port_key[0]) if port_key is not None else None
    port_routes_row = attachment.port_routes(port_key[1:]) if attachment is not None and port_key is not None else None
    if port_routes_row is not None and port_key is not None:
        cause = [key for key in port_routes_row.routes if f"{key[0]} {key[1]}" in row.changed]
        yield from ((key, port_key[0]) for key in cause or port_routes_row.routes)


def _cut(message: str) -> str:
    """Return a message on one line (Envoy's end with a line feed) and of bounded length."""
    message = " ".join(message.split())
    return message if len(message) <= MAX_REFUSAL else f"{message[: MAX_REFUSAL - 1]}…"


class ReportTarget:
    """Reconciler operations on the node's own report."""

    def __init__(self, client: kube.Client, node: str) -> None:
        self._client = client
        self._node = node

    def __repr__(self) -> str:
        return f"<ReportTarget of {self._node}>"

    async def update(self, rows: Sequence[NodeRefusals]) -> Mapping[str, str]:
        """Write the report."""
        failures = {}
        for row in rows:
            try:
                await self._client.apply(REFUSED_ROUTES, "", row.name, body(row), field_manager=MANAGER)
            except (kube.KubeError, Expired) as error:
                failures[row.name] = str(error)
        return failures

    async def delete(self, rows: Sequence[NodeRefusals]) -> Mapping[str, str]:
        """Delete the report, since nothing is refused any more."""
        failures = {}
        for row in rows:
            try:
                await self._client.delete(REFUSED_ROUTES, "", row.name)
            except (kube.KubeError, Expired) as error:
                failures[row.name] = str(error)
        return failures

    async def prune(self, rows: Iterable[NodeRefusals]) -> str:
        """Delete the report of an earlier agent of the node."""
        if list(rows):
            return "0 pruned"
        try:
            return "1 pruned" if await self._client.delete(REFUSED_ROUTES, "", self._node) else "0 pruned"
        except (kube.KubeError, Expired) as error:
            raise NotPruned(str(error)) from None


def body(row: NodeRefusals) -> dict[str, Any]:
    """Return the object to apply. The API server's garbage collection deletes it with its Node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": row.name, "uid": row.uid}
    return {
        "apiVersion": REFUSED_ROUTES.api_version,
        "kind": REFUSED_ROUTES.kind,
        "metadata": {
            "labels": {"app.kubernetes.io/part-of": "isthmus"},
            **({"ownerReferences": [owner]} if row.uid else {}),
        },
        "routes": [
            {
                "kind": each.kind,
                "namespace": split(each.name)[0],
                "name": split(each.name)[1],
                "service": each.service,
                "message": each.message,
                "reason": each.reason,
            }
            for each in row.routes
        ],
    }
