"""Names for the numbers and addresses in flow records, also of deleted services and pods.

A record is read up to 50 ms after it was written, and a connection may end hours after its service was deleted. So the
names of all programmed services and of this node's pods are kept here, the newest of each kind. A number is reused only
after all others were, and an address that moves to another pod has the new pod's name from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from isthmus.datapath.core import libbpf
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.core.shapes import ID, text
from isthmus.datapath.identity.codecs import POLICY
from isthmus.datapath.services import codecs
from isthmus.datapath.services.callers import Callers
from isthmus.datapath.services.installed import State
from isthmus.model.hosts import joined
from isthmus.model.names import ClusterName
from isthmus.model.tables import GATEWAY_CHECKS, ISLAND_LISTENERS, NODES, PLANS, PODS
from isthmus.statedb import Database

KEPT: Final = 20_000
"""Names of each kind: a few MB, and more than most nodes retire between a connection's begin and end."""
CALLERS_INTERVAL: Final = 10.0
"""Seconds between scans for the pods' network namespaces, which read /proc and block the loop for 0.3 ms a pod."""
AGAIN: Final = 0.2
"""Least seconds between two scans when a record has an unknown namespace."""

K = TypeVar("K")
V = TypeVar("V")


class Newest(Generic[K, V]):
    """A bounded dict that drops its oldest entry when it is full."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._items: dict[K, V] = {}

    def __repr__(self) -> str:
        return f"<Newest: {len(self._items)} of {self._most}>"

    def __len__(self) -> int:
        return len(self._items)

    def put(self, key: K, value: V) -> None:
        """Put a value as the newest; drop the oldest if the dict is full."""
        self._items.pop(key, None)
        if len(self._items) >= self._most:
            del self._items[next(iter(self._items))]
        self._items[key] = value

    def get(self, key: K) -> V | None:
        """The value of a key, or ``None`` if it was dropped or never put."""
        return self._items.get(key)

    def take(self, key: K) -> V | None:
        """Remove and return the value of a key, or ``None``."""
        return self._items.pop(key, None)


class FlowNames:
    """Names for one reader of records, which calls ``renew`` before each batch. ``node`` is this node.

    ``account`` names the cluster and the account of an identity.
    """

    def __init__(
        self,
        db: Database,
        maps: KernelMaps,
        state: State,
        callers: Callers,
        *,
        node: str,
        account: Callable[[int], str] = lambda identity: "",
    ) -> None:
        self.account = account
        self._db = db
        self._plans = db.changes(PLANS)
        self._pods = db.changes(PODS)
        self._listeners = db.changes(ISLAND_LISTENERS)
        self._maps = maps
        self._state = state
        self._callers = callers
        self._node = node
        self._services: Newest[int, str] = Newest()
        """Names of plans in the maps, by service number."""
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
        """Stop following the tables."""
        self._plans.close()
        self._pods.close()
        self._listeners.close()

    def renew(self) -> None:
        """Read the changes since the last call."""
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
        """namespace/name:port of a service number, or the number if its name is unknown even to the maps."""
        stored = self._services.get(number) or self._programmed(number)
        if not stored:
            return f"service {number}" if number else ""
        self._services.put(number, stored)
        namespace, _, rest = stored.partition("/")
        name, _, port = rest.partition("/")[0].rpartition(":")
        service = f"{namespace}/{name}"
        return f"{self._imports.get(service) or service}:{port}"

    def cluster(self, number: int) -> str:
        """The cluster of a number; empty for 0."""
        return (self._clusters.get(number) or f"cluster {number}") if number else ""

    def gateways(self, address: str) -> tuple[str, ...]:
        """Gateways of the island behind a listener (address:port) of this node's Envoy: the healthy ones, or all if
        none is. Empty for any other backend."""
        island = self._islands.get(address)
        checks = self._db.snapshot().by(GATEWAY_CHECKS, "cluster", island) if island is not None else []
        return tuple(sorted(row.address for row in [each for each in checks if each.healthy] or checks))

    def pod(self, address: str) -> str:
        """namespace/name of the pod with an address; empty if unknown, and for the node's own address, which several
        pods may share."""
        node = self._db.snapshot().get(NODES, self._node)
        return "" if node is not None and address in node.addresses else self._names.get(address) or ""

    def address(self, caller: int) -> str:
        """The pod's address by the cookie of its network namespace; empty if that ended before it was seen."""
        address = self._addresses.get(caller)
        if address is None and time.monotonic() - self._looked >= AGAIN:
            self._look()
            address = self._addresses.get(caller)
        return address or ""

    def _look(self) -> None:
        self._looked = time.monotonic()
        pod_addresses = {address for pod in self._db.snapshot().all(PODS) for address in pod.addresses}
        for caller, address in self._callers.addresses_by_cookie(pod_addresses).items():
            self._addresses.put(caller, address)

    def policy(self, number: int) -> str:
        """namespace/name of an ExportPolicy by its number; empty once it is gone."""
        return self._programmed(number, "policies", POLICY.size)

    def _programmed(self, number: int, name: str = "services", size: int = codecs.SERVICE.size) -> str:
        try:
            return text(libbpf.lookup(self._maps.fd(name), ID.pack(number), size))
        except OSError:
            return ""
