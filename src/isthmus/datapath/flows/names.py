"""Names for what flow records refer to, also of services and pods that have gone.

A record is read up to 50 ms after it was written, and that of a connection's end may come hours after its service went.
So whatever was once programmed, or was a pod of this node, keeps its name here: the newest of each kind, as many as
fit. A number is not given out again before all others were, and a pod's address that another pod gets is its own from
then on.
"""

from __future__ import annotations

import time
from typing import Final, Generic, TypeVar

from isthmus.datapath.core import libbpf
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.core.shapes import ID, text
from isthmus.datapath.services import codecs
from isthmus.datapath.services.callers import Callers
from isthmus.datapath.services.installed import State
from isthmus.model.hosts import joined
from isthmus.model.names import ClusterName
from isthmus.model.tables import GATEWAY_CHECKS, ISLAND_LISTENERS, NODES, PLANS, PODS
from isthmus.statedb import Database

KEPT: Final = 20_000
"""Names of each kind: a few MB, and more than are retired between a connection's begin and end on all but few nodes."""
CALLERS_INTERVAL: Final = 10.0
"""Seconds between looks for the network namespaces of pods, which read /proc and hold up the loop: 0.3 ms a pod."""
AGAIN: Final = 0.2
"""Seconds between two looks at least, when a record is of a namespace that was not seen yet."""

K = TypeVar("K")
V = TypeVar("V")


class Newest(Generic[K, V]):
    """A dict that forgets what was put first when it is full."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._items: dict[K, V] = {}

    def __repr__(self) -> str:
        return f"<Newest: {len(self._items)} of {self._most}>"

    def __len__(self) -> int:
        return len(self._items)

    def put(self, key: K, value: V) -> None:
        """Keep a value; the one put first goes where there is no room."""
        self._items.pop(key, None)
        if len(self._items) >= self._most:
            del self._items[next(iter(self._items))]
        self._items[key] = value

    def get(self, key: K) -> V | None:
        """The value that was put last; None where there is none any more."""
        return self._items.get(key)

    def take(self, key: K) -> V | None:
        """The same, and forget it."""
        return self._items.pop(key, None)


class FlowNames:
    """One per reader of records. ``renew`` before each batch of records. ``node``: the one this is."""

    def __init__(self, db: Database, maps: KernelMaps, state: State, callers: Callers, *, node: str) -> None:
        self._db = db
        self._plans = db.changes(PLANS)
        self._pods = db.changes(PODS)
        self._listeners = db.changes(ISLAND_LISTENERS)
        self._maps = maps
        self._state = state
        self._callers = callers
        self._node = node
        self._services: Newest[int, str] = Newest()
        """Names of plans in the maps."""
        self._imports: Newest[str, str] = Newest()
        """Imports by the name of the derived Service."""
        self._islands: Newest[str, ClusterName] = Newest()
        """Islands by the listener, as address:port, by which this node's Envoy calls them."""
        self._clusters: Newest[int, str] = Newest()
        self._names: Newest[str, str] = Newest()
        """Pods by address."""
        self._addresses: Newest[int, str] = Newest()
        """Addresses of pods by the cookie of their network namespace."""
        self._looked = 0.0

    def __repr__(self) -> str:
        return f"<FlowNames: {len(self._services)} services, {len(self._names)} pods>"

    def close(self) -> None:
        """Follow the tables no more."""
        self._plans.close()
        self._pods.close()
        self._listeners.close()

    def renew(self) -> None:
        """Read what has changed since the last time."""
        for _, plan in self._plans.pairs():
            if plan is not None and plan.import_of:
                self._imports.put(plan.key.service, plan.import_of)
        for _, pod in self._pods.pairs():
            if pod is not None:
                for address in pod.addresses:
                    self._names.put(address, pod.name)
        for _, listener in self._listeners.pairs():
            if listener is not None:
                for address in listener.addresses:
                    self._islands.put(joined(address, listener.listen_port), listener.cluster)
        for number, name in self._state.retired_services:
            self._services.put(number, str(name))
        self._state.retired_services.clear()
        for name, cluster in self._state.clusters.items():
            self._clusters.put(cluster.id, name)
        if time.monotonic() - self._looked >= CALLERS_INTERVAL:
            self._look()

    def service(self, number: int) -> str:
        """namespace/name:port; the number where an earlier process has not left a name either."""
        found = self._services.get(number) or self._programmed(number)
        if not found:
            return f"service {number}" if number else ""
        self._services.put(number, found)
        namespace, _, rest = found.partition("/")
        name, _, port = rest.partition("/")[0].rpartition(":")
        service = f"{namespace}/{name}"
        return f"{self._imports.get(service) or service}:{port}"

    def cluster(self, number: int) -> str:
        """The cluster of a number; empty for 0."""
        return (self._clusters.get(number) or f"cluster {number}") if number else ""

    def gateways(self, at: str) -> tuple[str, ...]:
        """Those of the island that a listener of this node's Envoy calls, by its address:port: the ones that answer, or
        all where none does. None for any other backend."""
        island = self._islands.get(at)
        checks = self._db.snapshot().by(GATEWAY_CHECKS, "cluster", island) if island is not None else []
        return tuple(sorted(row.address for row in [each for each in checks if each.healthy] or checks))

    def pod(self, address: str) -> str:
        """namespace/name of the pod of an address; empty where this node has had none, and for its own address, which
        several pods can have."""
        node = self._db.snapshot().get(NODES, self._node)
        return "" if node is not None and address in node.addresses else self._names.get(address) or ""

    def address(self, caller: int) -> str:
        """The pod's address of a network namespace's cookie; empty where that has no process and was not seen."""
        found = self._addresses.get(caller)
        if found is None and time.monotonic() - self._looked >= AGAIN:
            self._look()
            found = self._addresses.get(caller)
        return found or ""

    def _look(self) -> None:
        self._looked = time.monotonic()
        present = {address for pod in self._db.snapshot().all(PODS) for address in pod.addresses}
        for caller, address in self._callers.known(present).items():
            self._addresses.put(caller, address)

    def _programmed(self, number: int) -> str:
        try:
            return text(libbpf.lookup(self._maps.fd("services"), ID.pack(number), codecs.SERVICE.size))
        except OSError:
            return ""
