"""What this node's Envoy refused of routes, as the node's report of it (the object RefusedRoutes) and its writer.

An Envoy takes or refuses all routes of a Service's port together, and its message need not name one of them: those that
differ from what it took last are in the report, and where that is not known, all. The report is an object of a kind of
its own: an agent needs no right on Nodes, routes or ConfigMaps for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from isthmus import kube
from isthmus.kube.objects.refusals import REFUSED_ROUTES
from isthmus.loadbalancer.services import resolve
from isthmus.model.names import ServiceName, split
from isthmus.model.routes import MAX_REFUSAL, MAX_REFUSALS, NodeRefusals, Route, RouteKind, RouteRefusal
from isthmus.model.tables import NODES, ROUTES, XDS, XDS_REFUSED
from isthmus.model.xds import RefusedResource
from isthmus.proxy.attachment import attached, by_callers, of_port
from isthmus.reflector import Expired
from isthmus.statedb import NotPruned, Reader

MANAGER: Final = "isthmus-agent"
"""The field manager of server-side apply."""


def compute(reader: Reader, node: str) -> NodeRefusals | None:
    """The report of a node; None where nothing of a route is refused. Of several refusals of a route one is named."""
    found: dict[tuple[RouteKind, ServiceName, ServiceName], RouteRefusal] = {}
    for row in sorted(reader.all(XDS_REFUSED), key=XDS_REFUSED.key):
        if len(found) >= MAX_REFUSALS:  # of thousands that are refused for one reason, few are looked at
            break
        message = _cut(f"{row.type} {row.name}: {row.error}")
        for route, service in refused_routes(reader, row):
            key = (route.kind, route.name, service)
            found.setdefault(key, RouteRefusal(*key, message))
    if not found:
        return None
    known = reader.get(NODES, node)
    return NodeRefusals(
        name=node, uid=known.uid if known is not None else "", routes=tuple(sorted(found.values())[:MAX_REFUSALS])
    )


def refused_routes(reader: Reader, row: RefusedResource) -> Iterator[tuple[Route, ServiceName]]:
    """The routes that a refused resource is made of or used by, each with the Service that it is for."""
    sent = reader.get(XDS, (row.type, row.name))
    if sent is None:
        return
    service = ServiceName(sent.unit)
    if row.type not in ("listener", "routes"):  # what calls go to: those of routes that lead there
        users = {each.owner: each for each in reader.by(ROUTES, "target", service)}
        users |= {each.owner: each for each in reader.by(ROUTES, "parent", service) if each.clusters()}
        for route in users.values():
            yield from ((route, each) for each in sorted({parent.service for parent in route.parents}))
        return
    subject = resolve(reader, service, which="all")
    number, _, namespace = row.name.removeprefix(f"{service}:").partition("/")
    for port in subject.ports if subject is not None else ():
        if str(port.port) == number:
            routes = of_port(attached(reader, service)[0], service, port)
            here = routes if row.type == "listener" else by_callers(routes, service).get(namespace, [])
            cause = [route for route in here if route.owner in row.changed]
            yield from ((route, service) for route in cause or here)


def _cut(message: str) -> str:
    """A message in one line (Envoy's end with a line feed), of bounded length."""
    message = " ".join(message.split())
    return message if len(message) <= MAX_REFUSAL else f"{message[: MAX_REFUSAL - 1]}…"


class ReportTarget:
    """Operations of statedb on the node's own report."""

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
            except (kube.KubeError, Expired) as why:
                failures[row.name] = str(why)
        return failures

    async def delete(self, rows: Sequence[NodeRefusals]) -> Mapping[str, str]:
        """Remove it: nothing is refused any more."""
        failures = {}
        for row in rows:
            try:
                await self._client.delete(REFUSED_ROUTES, "", row.name)
            except (kube.KubeError, Expired) as why:
                failures[row.name] = str(why)
        return failures

    async def prune(self, rows: Iterable[NodeRefusals]) -> str:
        """Remove what an earlier agent of the node left."""
        if list(rows):
            return "0 pruned"
        try:
            return f"{int(await self._client.delete(REFUSED_ROUTES, '', self._node))} pruned"
        except (kube.KubeError, Expired) as why:
            raise NotPruned(str(why)) from None


def body(row: NodeRefusals) -> dict[str, Any]:
    """The object, to be applied. It goes with its Node, by the API server's garbage collection."""
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
            }
            for each in row.routes
        ],
    }
