"""Proven identities of callers on a node: rows and keys in, entries of the kernel's maps out.

Without ``identity.enabled`` it only removes the entries of an earlier process, so that no call is refused by a policy
that is not followed any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs

from isthmus import kube, logs
from isthmus.config import Config
from isthmus.datapath import Datapath, identities
from isthmus.datapath.identity.target import SHIFT, SHIFT_511, IdentityTarget
from isthmus.identity import addresses, callers, guards
from isthmus.identity import permits as permitted
from isthmus.identity.epoch_keys import KeySet
from isthmus.identity.keys import EPOCH_SECONDS, number_of
from isthmus.model import tables
from isthmus.model.addresses import range_of
from isthmus.model.hosts import family
from isthmus.model.identities import cluster_of
from isthmus.model.names import ClusterName
from isthmus.model.services import ENDED
from isthmus.model.signing import Guard, Refusal
from isthmus.processes.cutting import Cutting
from isthmus.processes.pair_keys import NodeKeys
from isthmus.processes.path_probes import PathProbes
from isthmus.running import Tasks
from isthmus.statedb import (
    AnyTable,
    Backoff,
    Database,
    Derivation,
    Reader,
    Reconciler,
    ReconcilerStats,
    Snapshot,
    rewrite,
)

KUBERNETES: Final = ("identities", "export_policies", "export_marks")
TABLES: Final[tuple[AnyTable, ...]] = (
    tables.IDENTITIES,
    tables.CALLER_ADDRESSES,
    tables.EXPORT_POLICIES,
    tables.EXPORT_MARKS,
    tables.CALLER_REFUSALS,
    tables.PATHS,
)
BACKOFF: Final = Backoff(0.2, 10.0)
"""Pauses between attempts to write an entry, which fail until the pod has its interface."""
NO_RANGES: Final = (
    "the ranges of this cluster's pods are unknown, or none of this node's pods is in them: no port is guarded by an "
    "agent that starts now, since the cluster's own calls would be refused (cluster.pod_ranges)"
)
LOOK: Final = 2.0
"""Seconds between two looks at the refusals that the kernel counts."""

log = logs.get("identity")


def sources(config: Config) -> tuple[str, ...]:
    """Tables that are read from the API server; none unless identities are enabled."""
    return KUBERNETES if config.identity.enabled else ()


def tables_of(config: Config) -> tuple[AnyTable, ...]:
    """Tables that no derived one brings; none unless identities are enabled."""
    return TABLES if config.identity.enabled else ()


def derived(config: Config) -> list[Derivation]:
    """Declare the tables of signed calls and guarded ports; none unless identities are enabled."""
    if not config.identity.enabled:
        return []
    cluster = ClusterName(config.cluster.name)
    return [
        *callers.derived(cluster, config.node.name),
        guards.derived(cluster),
        *addresses.derived(),
        *permitted.derived(cluster),
    ]


class ProvingStatus(Struct, frozen=True):
    """State of the maps of signed calls and guarded ports."""

    sources: ReconcilerStats
    host_sources: ReconcilerStats
    signed_to: ReconcilerStats
    permits: ReconcilerStats
    addresses: ReconcilerStats
    guards: ReconcilerStats


class Parts(NamedTuple):
    """The reconcilers of the maps, and their target."""

    target: IdentityTarget
    sources: Reconciler[Any, Any]
    host_sources: Reconciler[Any, Any]
    signed_to: Reconciler[Any, Any]
    permits: Reconciler[Any, Any]
    addresses: Reconciler[Any, Any]
    guards: Reconciler[Any, Any]


class PermitsFirst:
    """The target of guards, which writes what a policy allows, and addresses of callers, before a port is guarded."""

    def __init__(self, db: Database, target: IdentityTarget) -> None:
        self._db = db
        self._target = target

    async def update(self, rows: Sequence[Guard]) -> Mapping[Any, str]:
        """Write the permits of the rows' policies, before the first that needs them the addresses, then the rows."""
        snapshot = self._db.snapshot()
        policies = dict.fromkeys(row.policy for row in rows)
        await self._target.permits.update(
            [each for name in policies for each in snapshot.by(tables.PERMITS, "policy", name)]
        )
        if not self._target.addresses.rows and any(row.by_address for row in rows):
            await self._target.addresses.update(list(snapshot.all(tables.ADDRESS_IDENTITIES)))
        return await self._target.guards.update(rows)

    async def delete(self, rows: Sequence[Guard]) -> Mapping[Any, str]:
        """Remove the rows' entries."""
        return await self._target.guards.delete(rows)

    async def prune(self, rows: Iterable[Guard]) -> str:
        """Remove the entries of all other rows."""
        return await self._target.guards.prune(rows)


class Proving:
    """Drives the maps of signed calls and guarded ports from tables and keys, once :meth:`start` was called."""

    def __init__(self, db: Database, config: Config) -> None:
        self._db = db
        self._config = config
        self._keys = NodeKeys(config) if config.identity.enabled else None
        self._parts: Parts | None = None
        self._keyed = asyncio.Event()
        """Set once keys are in the maps."""
        self._signed_by_key: Collection[int] = ()
        """Ids of the clusters for which there are keys to sign by."""
        self._unwritten: dict[str, str] = {}
        """Reason why keys or ranges are not in the maps, by which of the two."""

    def follow(self, client: kube.Client, tasks: Tasks) -> None:
        """Follow the Secret of keys, if identities are enabled."""
        if self._keys is not None:
            self._keys.follow(client, tasks)

    def stats(self) -> ProvingStatus | None:
        """State of the maps; ``None`` unless identities are enabled and the datapath is open."""
        if self._parts is None:
            return None
        return ProvingStatus(
            sources=self._parts.sources.stats(),
            host_sources=self._parts.host_sources.stats(),
            signed_to=self._parts.signed_to.stats(),
            permits=self._parts.permits.stats(),
            addresses=self._parts.addresses.stats(),
            guards=self._parts.guards.stats(),
        )

    def warnings(self) -> list[str]:
        """Reasons why calls are not signed or verified as they should be, a sentence each."""
        if self._keys is None:
            return []
        snapshot = self._db.snapshot()
        unknown = snapshot.count(tables.GUARDS) and not knows_own_ranges(snapshot)
        paths = [
            f"calls of this node do not prove their callers to {row.cluster}: {row.reason} (isthmus get paths)"
            for row in snapshot.all(tables.PATHS)
            if row.state != "ok"
        ]
        return [*self._keys.problems(), *self._unwritten.values(), *([NO_RANGES] if unknown else ()), *paths]

    async def start(self, datapath: Datapath, tasks: Tasks) -> None:
        """Start the reconcilers; without identities, remove what an earlier process left in the maps."""
        shift = SHIFT_511 if self._config.clusterset.max_connected_clusters == 511 else SHIFT
        target = datapath.identity(shift=shift, owners=lambda: identities(self._db.snapshot().all(tables.PODS), ()))
        if self._keys is None:
            await target.clear()
            return
        db = self._db
        self._parts = parts = Parts(
            target,
            *(
                Reconciler(db, table, writes, backoff=BACKOFF)
                for table, writes in (
                    (tables.SOURCES, target.sources),
                    (tables.HOST_SOURCES, target.host_sources),
                    (tables.SIGNED_TO, target.signed_to),
                    (tables.PERMITS, target.permits),
                    (tables.ADDRESS_IDENTITIES, target.addresses),
                    (tables.GUARDS, PermitsFirst(db, target)),
                )
            ),
        )
        tasks.start("keys of signatures", partial(self._keys.run, self._put_keys, partial(peer_ids, db)))
        tasks.start("sources", parts.sources.run)
        tasks.start("sources in the node's network", parts.host_sources.run)
        tasks.start("signed addresses", parts.signed_to.run)
        tasks.start("permits", parts.permits.run)
        tasks.start("addresses of callers", parts.addresses.run)
        tasks.start("guards", partial(self._guard, parts))
        tasks.start("interfaces of sources", target.keep)
        tasks.start("cut connections", Cutting(db, datapath, ClusterName(self._config.cluster.name)).run)
        tasks.start("refused callers", partial(self._note_refusals, target))
        tasks.start("paths of signatures", partial(self._probe_paths, datapath, target))

    def stop(self) -> None:
        """Forget the maps, which go on without this process."""
        self._parts = None

    def _put_keys(self, keys: KeySet) -> None:
        assert self._parts is not None
        number, passed = number_of(keys.epoch), time.time() - keys.epoch * EPOCH_SECONDS
        failures = self._parts.target.put_keys(keys.sign, keys.verify, number=number, passed=passed)
        self._note("keys of signatures are not written", failures)
        self._signed_by_key = {cluster for cluster, _ in keys.sign}
        self._keyed.set()

    async def _probe_paths(self, datapath: Datapath, target: IdentityTarget) -> None:
        """Probe the paths to clusters that verify, once this process's own calls to them are signed."""
        await self._keyed.wait()
        uid = await asyncio.to_thread(datapath.own_uid)

        def signed() -> Collection[int]:
            own = any(row.uid == uid for row in target.host_sources.rows.values())
            return self._signed_by_key if own else ()

        await PathProbes(self._db, signed).run()

    async def _guard(self, parts: Parts) -> None:
        """Guard ports once keys are in the maps, and the ranges of the own cluster, whose calls no guard looks at.

        Without ranges, guards would refuse the node's own probes.
        """
        await self._keyed.wait()
        await self._db.until(knows_own_ranges)
        async with Tasks() as tasks:
            with contextlib.closing(self._db.changes(tables.OWN_RANGES)) as changes:
                self._put_ranges(parts, changes.next()[0])
                tasks.start("guarded ports", parts.guards.run)
                while True:
                    await changes.wait()
                    self._put_ranges(parts, changes.next()[0])

    def _put_ranges(self, parts: Parts, now: Snapshot) -> None:
        rows = list(now.all(tables.OWN_RANGES))
        machines = {f"{each}/{32 if family(each) == 'IPv4' else 128}" for row in rows for each in row.addresses}
        ranges = {each for row in rows for each in row.ranges} | machines
        self._note("ranges of the own cluster are not written", parts.target.put_own_ranges(ranges))

    async def _note_refusals(self, target: IdentityTarget) -> None:
        """Keep the table of refusals as the kernel counts them, for ever."""
        table = tables.CALLER_REFUSALS
        while True:
            with self._db.write() as txn:
                rewrite(txn, table, list(txn.all(table)), list(self._named(txn, target.refusals())))
            await asyncio.sleep(LOOK)

    def _named(self, now: Reader, refusals: Iterable[Refusal]) -> Iterator[Refusal]:
        """Yield refusals with cluster and account of their identities, of one that is not proven the cluster alone."""
        clusters = cluster_names(now)
        for row in refusals:
            yield structs.replace(
                row, caller=caller_name(now, clusters, row.identity, self._config.clusterset.max_connected_clusters)
            )

    def _note(self, what: str, failures: Sequence[str]) -> None:
        if failures:
            self._unwritten[what] = f"{what}: {failures[0]}"
            log.warning(what, why=failures[0], failures=len(failures))
        else:
            self._unwritten.pop(what, None)


def cluster_names(now: Reader) -> dict[int, ClusterName]:
    """Names of clusters by their ids."""
    return {row.id: row.name for row in now.all(tables.CLUSTERS) if row.id}


def caller_name(now: Reader, clusters: Mapping[int, ClusterName], identity: int, most: int) -> str:
    """Cluster and account of an identity, of one that is not proven the cluster alone. ``most``: largest cluster id."""
    cluster = clusters.get(cluster_of(identity, most))
    found = now.get(tables.IDENTITIES, (cluster, identity)) if cluster is not None else None
    account = f" {found.namespace}/{found.service_account}" if found is not None else ""
    return f"{cluster or ''}{account}"


def account_of(db: Database, most: int, identity: int) -> str:
    """The same, by what is known now."""
    now = db.snapshot()
    return caller_name(now, cluster_names(now), identity, most)


def knows_own_ranges(now: Snapshot) -> bool:
    """True if ranges of the own cluster's pods are known, and this node's pods do not contradict them.

    Where only ``service_ranges`` are configured, or the network gives no addresses of the nodes' podCIDRs, every pod is
    outside: guards would refuse the cluster's own calls. One pod outside says nothing, since a tenant can have one.
    """
    if not now.initialized(tables.OWN_RANGES, tables.PODS):
        return False
    ranges = tuple(each for row in now.all(tables.OWN_RANGES) for each in row.ranges)
    pods = (pod for pod in now.all(tables.PODS) if not pod.host_network and pod.phase not in ENDED)
    addresses = [each for pod in pods for each in pod.addresses]
    return bool(ranges) and (not addresses or any(range_of(each, ranges) for each in addresses))


def peer_ids(db: Database) -> Mapping[ClusterName, int]:
    """Ids of the peers whose keys are used: of none that is refused or not trusted, whose rows have no id."""
    return {row.name: row.id for row in db.snapshot().all(tables.CLUSTERS) if row.id and not row.own}
