"""The delta xDS protocol as pure state: the resources that an Envoy has, and its next response.

:class:`Resources` holds the resources in force, shared by the streams of all Envoys: the rows without refused versions.
:class:`Stream` is one Envoy's connection. Rules, beside those of the xDS protocol (Envoy docs, "xDS REST and gRPC
protocol"):

- One response of a type is in flight at a time. Listeners and routes wait until Envoy has accepted clusters and
  endpoints; removals wait for all additions and are sent in reverse order. So a reference never points to nothing.
- After a cluster is sent, its endpoints are sent again: Envoy warms an updated cluster until they arrive, and
  acknowledges clusters only when they are warm.
- A refused response (NACK) is halved until the refused resource is alone. It is not sent again before it changes (a
  listener: after a while, since its port was in use). The version accepted last stays in force, also for an Envoy that
  starts later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, get_args

from isthmus.model.routes import RULE
from isthmus.model.xds import RefusedResource, Resource, ResourceKey, ResourceType
from isthmus.proxy.messages import ANY_PREFIX, message
from isthmus.proxy.rules import problem
from isthmus.statedb import describe_bug

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
"""Types that listeners and routes refer to, and wait for."""
WILDCARD: Final = "*"
BATCH: Final = 500
"""Resources in a response: large enough for a fast start, small enough that none blocks Envoy for long."""


class Resources:
    """Resources in force by type and name, and refused ones with the reason.

    Invariant: ``refused`` has a key exactly if the row last put under it was refused; ``_rejected`` has the row if an
    Envoy refused it. Under a refused key an earlier version, or none, is in force.
    """

    def __init__(self) -> None:
        self._in_force: dict[ResourceType, dict[str, Resource]] = {type_: {} for type_ in TYPES}
        self._accepted: dict[ResourceKey, Resource] = {}
        self._rejected: dict[ResourceKey, Resource] = {}
        """Rows refused by an Envoy, not by the rules of its API."""
        self.refused: dict[ResourceKey, RefusedResource] = {}

    def __repr__(self) -> str:
        counts = ", ".join(f"{type_}={len(rows)}" for type_, rows in self._in_force.items())
        return f"<Resources {counts}, refused={len(self.refused)}>"

    def get(self, key: ResourceKey) -> Resource | None:
        """Return the resource in force under a key."""
        return self._in_force[key[0]].get(key[1])

    def is_removed(self, key: ResourceKey) -> bool:
        """True if no row has this key. An Envoy keeps its version of a refused resource."""
        return self.get(key) is None and key not in self.refused

    def all_keys(self) -> list[ResourceKey]:
        """Return the keys of all resources in force or refused."""
        return [*((type_, name) for type_, rows in self._in_force.items() for name in rows), *self.refused]

    def names(self, type_: ResourceType) -> Iterable[str]:
        """Return the names of a type that are in force."""
        return self._in_force[type_].keys()

    def put(self, row: Resource) -> bool:
        """Put a row into force, or refuse it if Envoy would. Returns True if it is in force."""
        key = (row.type, row.name)
        self.refused.pop(key, None)
        self._rejected.pop(key, None)
        if not row.checked and (wrong := _problem(row)):
            self._refuse(row, wrong)
            return False
        self._in_force[row.type][row.name] = row
        return True

    def delete(self, key: ResourceKey) -> None:
        """Delete a row."""
        self.refused.pop(key, None)
        self._rejected.pop(key, None)
        self._accepted.pop(key, None)
        self._in_force[key[0]].pop(key[1], None)

    def accept(self, row: Resource) -> None:
        """Record that an Envoy accepted a row."""
        key = (row.type, row.name)
        if self.get(key) is row:
            self._accepted[key] = row

    def reject(self, row: Resource, error: str) -> None:
        """Refuse a row that an Envoy rejected on its own, and restore the version accepted before."""
        key = (row.type, row.name)
        if self.get(key) is not row:
            return  # a newer version is in force already
        before = self._accepted.get(key)
        if before is None or before.version == row.version:
            self._in_force[row.type].pop(row.name)
        else:
            self._in_force[row.type][row.name] = before
        self._rejected[key] = row
        self._refuse(row, error)

    def retry(self) -> list[ResourceKey]:
        """Put listeners that an Envoy refused into force again: their ports may be free now. Returns their keys."""
        rows = [row for row in self._rejected.values() if row.type == "listener"]
        return [(row.type, row.name) for row in rows if self.put(row)]

    def _refuse(self, row: Resource, error: str) -> None:
        key = (row.type, row.name)
        changed = _changed_owners(self._accepted.get(key), row)
        self.refused[key] = RefusedResource(
            type=row.type,
            name=row.name,
            version=row.version,
            owner=changed[0] if changed else row.owner,
            error=error,
            changed=changed,
        )


def _problem(row: Resource) -> str:
    """Return the reason why Envoy would refuse a row, or why the check failed; empty if it can be sent."""
    try:
        row.name.encode()
        return problem(MESSAGES[row.type], row.body)
    except MemoryError:
        raise
    except Exception as error:
        return describe_bug(error)


def _changed_owners(accepted: Resource | None, row: Resource) -> tuple[str, ...]:
    """Return :func:`changed_owners`, empty if a body cannot be parsed."""
    try:
        return changed_owners(accepted, row)
    except MemoryError:
        raise
    except Exception:
        return ()


def changed_owners(accepted: Resource | None, row: Resource) -> tuple[str, ...]:
    """Route objects whose rules differ from the last accepted version, in the order of the rules.

    One of them caused the rejection, since rules that were accepted before do not. Empty if no version was accepted.
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
    """The fields of a ``DeltaDiscoveryRequest`` that the server reads."""

    type: ResourceType
    subscribe: Sequence[str] = ()
    unsubscribe: Sequence[str] = ()
    initial: Mapping[str, str] = {}
    """Versions that a reconnecting Envoy has, in its first request of the type."""
    nonce: str = ""
    error: str = ""


class Response(NamedTuple):
    """The contents of a ``DeltaDiscoveryResponse``."""

    type: ResourceType
    nonce: str
    rows: Sequence[Resource]
    removed: Sequence[str]


class Subscription:
    """An Envoy's subscription to one type, and the versions that it has."""

    def __init__(self) -> None:
        self.wildcard = False
        self.awaits_first = True
        """No response was sent yet. For a wildcard Envoy waits for one, even if it is empty."""
        self.names: set[str] = set()
        self.versions: dict[str, str] = {}
        """Accepted version of each name."""
        self.changed: dict[str, None] = {}
        """Names to compare with ``versions``, or to resend, in order."""
        self.resend: set[str] = set()
        """Names in ``changed`` to send even if the version is unchanged."""
        self.doubtful: deque[Sequence[Resource]] = deque()
        """Parts of a refused response, each to be sent in its own response."""

    def wants(self, name: str) -> bool:
        """True if it is subscribed to a name."""
        return self.wildcard or name in self.names


class Stream:
    """One Envoy's stream. Call :meth:`received` and :meth:`changed`, and send what :meth:`next` returns."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._subscriptions: dict[ResourceType, Subscription] = {}
        self._unanswered: dict[str, Response] = {}
        """Responses neither accepted nor refused, by nonce. A late answer still counts after :meth:`overdue`."""
        self._in_flight: dict[ResourceType, str] = {}
        """Nonce of the response that blocks further ones of its type."""
        self._expected: set[str] = set()
        """Endpoints of clusters just sent, to which Envoy has not subscribed yet. They block listeners and routes."""
        self._nonces = 0

    def __repr__(self) -> str:
        has = ", ".join(f"{type_}={len(sub.versions)}" for type_, sub in self._subscriptions.items())
        return f"<Stream {has or 'empty'}, {len(self._unanswered)} unanswered>"

    @property
    def waiting(self) -> bool:
        """True if responses are held back until Envoy answers."""
        return bool(self._in_flight or self._expected)

    def overdue(self) -> None:
        """Stop waiting for answers. Envoy answers late if a cluster cannot be warmed."""
        self._in_flight.clear()
        self._expected.clear()

    def serves(self) -> Iterator[str]:
        """Yield the listeners that this Envoy has accepted together with their routes, if they have any."""
        routes = self._subscriptions["routes"].versions if "routes" in self._subscriptions else {}
        for name in self._subscriptions["listener"].versions if "listener" in self._subscriptions else ():
            if name in routes or self._resources.get(("routes", name)) is None:
                yield name

    def changed(self, keys: Iterable[ResourceKey]) -> None:
        """Take note that the resources in force under these keys have changed."""
        for type_, name in keys:
            subscription = self._subscriptions.get(type_)
            if subscription is not None and subscription.wants(name):
                subscription.changed[name] = None

    def received(self, request: Request) -> None:
        """Process a request: its subscriptions, and its ACK or NACK of a response."""
        first = request.type not in self._subscriptions
        subscription = self._subscriptions.setdefault(request.type, Subscription())
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
                subscription.resend.add(name)
            if request.type == "endpoints":
                self._expected.discard(name)
        for name in request.unsubscribe:
            subscription.names.discard(name)
            if name == WILDCARD:
                subscription.wildcard = False
            if not subscription.wants(name):
                subscription.versions.pop(name, None)
                subscription.changed.pop(name, None)
                subscription.resend.discard(name)

    def next(self) -> Response | None:
        """Return the next response; ``None`` if there is nothing to send, or all of it waits for an answer."""
        for type_, subscription in self._in_order(TYPES):
            if type_ not in BEFORE_ALL and (self._expected or BEFORE_ALL & self._in_flight.keys()):
                return None
            if type_ in self._in_flight:
                continue
            rows = self._rows(type_, subscription)
            if rows or (subscription.wildcard and subscription.awaits_first):
                return self._send(type_, rows, ())
        if not self._in_flight:
            for type_, subscription in self._in_order(reversed(TYPES)):
                if removed := self._removals(type_, subscription):
                    return self._send(type_, (), removed)
        return None

    def _in_order(self, types: Iterable[ResourceType]) -> Iterator[tuple[ResourceType, Subscription]]:
        return ((type_, self._subscriptions[type_]) for type_ in types if type_ in self._subscriptions)

    def _rows(self, type_: ResourceType, subscription: Subscription) -> Sequence[Resource]:
        """Return the next part of a refused response that is still in force, else changed rows, at most a batch."""
        while subscription.doubtful:
            rows = [row for row in subscription.doubtful.popleft() if self._resources.get((type_, row.name)) is row]
            if rows:
                return rows
        rows_to_send: list[Resource] = []
        for name in list(subscription.changed):
            row = self._resources.get((type_, name))
            if self._is_removal(type_, name, subscription):
                continue  # removals wait for all additions
            del subscription.changed[name]
            if row is not None and (name in subscription.resend or subscription.versions.get(name) != row.version):
                rows_to_send.append(row)
            subscription.resend.discard(name)
            if len(rows_to_send) == BATCH:
                break
        return rows_to_send

    def _removals(self, type_: ResourceType, subscription: Subscription) -> Sequence[str]:
        removed = [name for name in subscription.changed if self._is_removal(type_, name, subscription)][:BATCH]
        for name in removed:
            del subscription.changed[name]
            subscription.resend.discard(name)
        return removed

    def _is_removal(self, type_: ResourceType, name: str, subscription: Subscription) -> bool:
        """True if the name is sent as removed: Envoy has a deleted resource, or waits for one that never existed."""
        if name in subscription.versions:
            return self._resources.is_removed((type_, name))
        return name in subscription.resend and self._resources.get((type_, name)) is None

    def _send(self, type_: ResourceType, rows: Sequence[Resource], removed: Sequence[str]) -> Response:
        self._nonces += 1
        self._subscriptions[type_].awaits_first = False
        response = Response(type_, str(self._nonces), rows, removed)
        self._unanswered[response.nonce] = response
        self._in_flight[type_] = response.nonce
        if type_ == "cluster":
            self._endpoints_follow(rows)
        return response

    def _accepted(self, response: Response) -> None:
        subscription = self._subscriptions[response.type]
        for row in response.rows:
            subscription.versions[row.name] = row.version
            self._resources.accept(row)
        for name in response.removed:
            subscription.versions.pop(name, None)

    def _endpoints_follow(self, clusters: Sequence[Resource]) -> None:
        endpoints = self._subscriptions.get("endpoints")
        for row in clusters:
            if self._resources.get(("endpoints", row.name)) is None:
                continue
            if endpoints is not None and endpoints.wants(row.name):
                endpoints.changed[row.name] = None
                endpoints.resend.add(row.name)
            else:
                self._expected.add(row.name)

    def _refused(self, response: Response, error: str) -> None:
        rows = response.rows
        if response.type == "cluster":
            self._expected.difference_update(row.name for row in rows)
        if len(rows) == 1:
            self._resources.reject(rows[0], error)
            self._subscriptions[response.type].changed[rows[0].name] = None  # the version in force instead is sent
        elif rows:
            half = len(rows) // 2
            self._subscriptions[response.type].doubtful.extendleft((rows[half:], rows[:half]))
