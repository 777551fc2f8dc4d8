"""The incremental protocol of xDS, as pure state: what an Envoy has, and the response that it gets next.

:class:`Resources` is what is to be in force, shared by the streams of all Envoys: the rows, less what was refused.
:class:`Stream` is one Envoy's connection. Rules, beside those of the xDS protocol (Envoy docs, "xDS REST and gRPC
protocol"):

- One response of a type is in flight at a time. Listeners and routes wait until Envoy has taken clusters and endpoints,
  and removals wait for everything and go the other way round: what refers to a resource always finds it.
- After a cluster was sent, its endpoints are sent again: Envoy warms an updated cluster until they arrive, and answers
  for clusters only when they are warm.
- A response that is refused (NACK) is halved until the culprit stands alone. The culprit is not sent again before it
  changes (a listener, after a while: its port was in use), and what was accepted last of it stays in force, for an
  Envoy that starts later too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, get_args

from isthmus.model.routes import RULE
from isthmus.model.xds import RefusedResource, Resource, ResourceKey, ResourceType
from isthmus.proxy.messages import ANY_PREFIX, message
from isthmus.proxy.rules import problem

MESSAGES: Final[Mapping[ResourceType, str]] = {
    "cluster": "envoy.config.cluster.v3.Cluster",
    "endpoints": "envoy.config.endpoint.v3.ClusterLoadAssignment",
    "listener": "envoy.config.listener.v3.Listener",
    "extension": "envoy.config.core.v3.TypedExtensionConfig",
    "routes": "envoy.config.route.v3.RouteConfiguration",
}
TYPES: Final[tuple[ResourceType, ...]] = get_args(ResourceType)
URLS: Final = {type_: ANY_PREFIX + name for type_, name in MESSAGES.items()}
BY_URL: Final = {url: type_ for type_, url in URLS.items()}
BEFORE_ALL: Final[frozenset[ResourceType]] = frozenset({"cluster", "endpoints"})
"""What listeners and routes refer to."""
WILDCARD: Final = "*"
BATCH: Final = 500
"""Resources in a response: large enough to start fast, small enough that no response holds Envoy up for long."""


class Resources:
    """What is to be in force, by type and name, and what of it is not, and why."""

    def __init__(self) -> None:
        self._in_force: dict[ResourceType, dict[str, Resource]] = {type_: {} for type_ in TYPES}
        self._accepted: dict[ResourceKey, Resource] = {}
        self._rejected: dict[ResourceKey, Resource] = {}
        """By an Envoy, not by the rules of its API."""
        self.refused: dict[ResourceKey, RefusedResource] = {}

    def __repr__(self) -> str:
        counts = ", ".join(f"{type_}={len(rows)}" for type_, rows in self._in_force.items())
        return f"<Resources {counts}, refused={len(self.refused)}>"

    def get(self, key: ResourceKey) -> Resource | None:
        """The resource that is to be in force under that name."""
        return self._in_force[key[0]].get(key[1])

    def gone(self, key: ResourceKey) -> bool:
        """Whether nothing is wanted under that name. Of what is refused, an Envoy keeps the version that it has."""
        return self.get(key) is None and key not in self.refused

    def names(self, type_: ResourceType) -> Iterable[str]:
        """The names that a type has."""
        return self._in_force[type_].keys()

    def put(self, row: Resource) -> bool:
        """Take a row into force, or refuse it as Envoy would; whether something else is in force now."""
        key = (row.type, row.name)
        self.refused.pop(key, None)
        self._rejected.pop(key, None)
        if wrong := problem(MESSAGES[row.type], row.body):
            self._refuse(row, wrong)
            return False
        self._in_force[row.type][row.name] = row
        return True

    def delete(self, key: ResourceKey) -> None:
        """Take a row out of force."""
        self.refused.pop(key, None)
        self._rejected.pop(key, None)
        self._accepted.pop(key, None)
        self._in_force[key[0]].pop(key[1], None)

    def accept(self, row: Resource) -> None:
        """An Envoy took a row."""
        key = (row.type, row.name)
        if self.get(key) is row:
            self._accepted[key] = row

    def reject(self, row: Resource, error: str) -> None:
        """An Envoy refused a row by itself: what was accepted before is in force again."""
        key = (row.type, row.name)
        if self.get(key) is not row:
            return  # it has changed since
        before = self._accepted.get(key)
        if before is None or before.version == row.version:
            self._in_force[row.type].pop(row.name)
        else:
            self._in_force[row.type][row.name] = before
        self._rejected[key] = row
        self._refuse(row, error)

    def retry(self) -> list[ResourceKey]:
        """Take the listeners that an Envoy refused into force again, since their ports may be free now; their names."""
        rows = [row for row in self._rejected.values() if row.type == "listener"]
        return [(row.type, row.name) for row in rows if self.put(row)]

    def _refuse(self, row: Resource, error: str) -> None:
        key = (row.type, row.name)
        changed = changed_owners(self._accepted.get(key), row)
        self.refused[key] = RefusedResource(
            type=row.type,
            name=row.name,
            version=row.version,
            owner=changed[0] if changed else row.owner,
            error=error,
            changed=changed,
        )


def changed_owners(accepted: Resource | None, row: Resource) -> tuple[str, ...]:
    """Of a row of routes, the objects with a rule that the accepted version has not got, in the order of the rules.

    What an Envoy accepted once it does not refuse beside others: the cause is among these. Empty where it is not known.
    """
    if row.type != "routes" or accepted is None:
        return ()
    before = {encoded for _, encoded in _routes(accepted)}
    names = [name for name, encoded in _routes(row) if encoded not in before]
    return tuple(dict.fromkeys(owner for name in names if (owner := name.rpartition(RULE)[0])))


def _routes(row: Resource) -> Iterator[tuple[str, bytes]]:
    for host in message(MESSAGES[row.type]).FromString(row.body).virtual_hosts:
        for route in host.routes:
            yield route.name, route.SerializeToString(deterministic=True)


class Request(NamedTuple):
    """What the server reads of a ``DeltaDiscoveryRequest``."""

    type: ResourceType
    subscribe: Sequence[str] = ()
    unsubscribe: Sequence[str] = ()
    initial: Mapping[str, str] = {}
    """Versions that a reconnecting Envoy has; in its first request of the type only."""
    nonce: str = ""
    error: str = ""


class Response(NamedTuple):
    """What a ``DeltaDiscoveryResponse`` is made of."""

    type: ResourceType
    nonce: str
    rows: Sequence[Resource]
    removed: Sequence[str]


class Subscription:
    """What an Envoy wants and has of one type."""

    def __init__(self) -> None:
        self.wildcard = False
        self.unanswered = True
        """Whether there was no response yet: of a wildcard Envoy awaits one, also where there is nothing."""
        self.names: set[str] = set()
        self.versions: dict[str, str] = {}
        """What it has, by name."""
        self.changed: dict[str, None] = {}
        """Names to be compared with what it has, or sent again; ordered."""
        self.again: set[str] = set()
        """Names to be sent whatever it has."""
        self.doubtful: deque[Sequence[Resource]] = deque()
        """Parts of a refused response, to be sent each by itself."""

    def wants(self, name: str) -> bool:
        """Whether it is subscribed to a name."""
        return self.wildcard or name in self.names


class Stream:
    """One Envoy's stream. Feed it :meth:`received` and :meth:`changed`, and send what :meth:`next` gives."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._of: dict[ResourceType, Subscription] = {}
        self._unanswered: dict[str, Response] = {}
        """Responses that were neither accepted nor refused, by nonce."""
        self._in_flight: dict[ResourceType, str] = {}
        """The nonce that a type waits for before more of it is sent."""
        self._expected: set[str] = set()
        """Endpoints of clusters that were sent, which Envoy has not asked for yet."""
        self._nonces = 0

    def __repr__(self) -> str:
        has = ", ".join(f"{type_}={len(sub.versions)}" for type_, sub in self._of.items())
        return f"<Stream {has or 'empty'}, {len(self._unanswered)} unanswered>"

    @property
    def waiting(self) -> bool:
        """Whether something is held back until Envoy answers."""
        return bool(self._in_flight or self._expected)

    def overdue(self) -> None:
        """Envoy has taken too long to answer: go on. It answers late where a cluster cannot be warmed."""
        self._in_flight.clear()
        self._expected.clear()

    def serves(self) -> Iterator[str]:
        """Listeners that this Envoy has accepted, with the routes of that name where there are some."""
        routes = self._of["routes"].versions if "routes" in self._of else {}
        for name in self._of["listener"].versions if "listener" in self._of else ():
            if name in routes or self._resources.get(("routes", name)) is None:
                yield name

    def changed(self, keys: Iterable[ResourceKey]) -> None:
        """What is in force under these names is something else now."""
        for type_, name in keys:
            subscription = self._of.get(type_)
            if subscription is not None and subscription.wants(name):
                subscription.changed[name] = None

    def received(self, request: Request) -> None:
        """Take a request: subscriptions, and whether the response in flight was accepted."""
        first = request.type not in self._of
        subscription = self._of.setdefault(request.type, Subscription())
        if first:
            subscription.versions.update(request.initial)
            subscription.wildcard = not request.subscribe
        if WILDCARD in request.subscribe:
            subscription.wildcard = True
        if first and subscription.wildcard:
            subscription.changed.update(dict.fromkeys([*self._resources.names(request.type), *request.initial]))
        self._subscribe(request, subscription)
        answered = self._unanswered.pop(request.nonce, None)
        if answered is not None:
            if self._in_flight.get(answered.type) == request.nonce:
                del self._in_flight[answered.type]
            if request.error:
                self._refused(answered, request.error)
            else:
                self._accepted(answered)

    def _subscribe(self, request: Request, subscription: Subscription) -> None:
        for name in request.subscribe:
            if name == WILDCARD:
                continue
            subscription.names.add(name)
            subscription.changed[name] = None
            if name not in request.initial:
                subscription.again.add(name)
            if request.type == "endpoints":
                self._expected.discard(name)
        for name in request.unsubscribe:
            subscription.names.discard(name)
            if name == WILDCARD:
                subscription.wildcard = False
            if not subscription.wants(name):
                subscription.versions.pop(name, None)
                subscription.changed.pop(name, None)
                subscription.again.discard(name)

    def next(self) -> Response | None:
        """The response to send now; None while nothing is to be sent, or all of it has to wait for an answer."""
        for type_, subscription in self._in_order(TYPES):
            if type_ not in BEFORE_ALL and (self._expected or BEFORE_ALL & self._in_flight.keys()):
                return None
            if type_ in self._in_flight:
                continue
            rows = self._rows(type_, subscription)
            if rows or (subscription.wildcard and subscription.unanswered):
                return self._send(type_, rows, ())
        if not self._in_flight:
            for type_, subscription in self._in_order(reversed(TYPES)):
                if removed := self._removals(type_, subscription):
                    return self._send(type_, (), removed)
        return None

    def _in_order(self, types: Iterable[ResourceType]) -> Iterator[tuple[ResourceType, Subscription]]:
        return ((type_, self._of[type_]) for type_ in types if type_ in self._of)

    def _rows(self, type_: ResourceType, subscription: Subscription) -> Sequence[Resource]:
        """Doubtful rows that still are in force first; then what differs, as many as a response holds."""
        while subscription.doubtful:
            rows = [row for row in subscription.doubtful.popleft() if self._resources.get((type_, row.name)) is row]
            if rows:
                return rows
        found: list[Resource] = []
        for name in list(subscription.changed):
            row = self._resources.get((type_, name))
            if self._is_removal(type_, name, subscription):
                continue  # it waits for all that is added
            del subscription.changed[name]
            if row is not None and (name in subscription.again or subscription.versions.get(name) != row.version):
                found.append(row)
            subscription.again.discard(name)
            if len(found) == BATCH:
                break
        return found

    def _removals(self, type_: ResourceType, subscription: Subscription) -> Sequence[str]:
        removed = [name for name in subscription.changed if self._is_removal(type_, name, subscription)][:BATCH]
        for name in removed:
            del subscription.changed[name]
            subscription.again.discard(name)
        return removed

    def _is_removal(self, type_: ResourceType, name: str, subscription: Subscription) -> bool:
        """Whether to send the name as removed: Envoy has the resource, which is gone, or waits for one never there."""
        if name in subscription.versions:
            return self._resources.gone((type_, name))
        return name in subscription.again and self._resources.get((type_, name)) is None

    def _send(self, type_: ResourceType, rows: Sequence[Resource], removed: Sequence[str]) -> Response:
        self._nonces += 1
        self._of[type_].unanswered = False
        response = Response(type_, str(self._nonces), rows, removed)
        self._unanswered[response.nonce] = response
        self._in_flight[type_] = response.nonce
        if type_ == "cluster":
            self._endpoints_follow(rows)
        return response

    def _accepted(self, response: Response) -> None:
        subscription = self._of[response.type]
        for row in response.rows:
            subscription.versions[row.name] = row.version
            self._resources.accept(row)
        for name in response.removed:
            subscription.versions.pop(name, None)

    def _endpoints_follow(self, clusters: Sequence[Resource]) -> None:
        endpoints = self._of.get("endpoints")
        for row in clusters:
            if self._resources.get(("endpoints", row.name)) is None:
                continue
            if endpoints is not None and endpoints.wants(row.name):
                endpoints.changed[row.name] = None
                endpoints.again.add(row.name)
            else:
                self._expected.add(row.name)

    def _refused(self, response: Response, error: str) -> None:
        rows = response.rows
        if response.type == "cluster":
            self._expected.difference_update(row.name for row in rows)
        if len(rows) == 1:
            self._resources.reject(rows[0], error)
            self._of[response.type].changed[rows[0].name] = None  # what is in force instead
        elif rows:
            half = len(rows) // 2
            self._of[response.type].doubtful.extendleft((rows[half:], rows[:half]))
