"""The loop over a Karmada control plane: reads, decides, writes, and again when something changed.

Every round computes everything from what is listed then. A round whose lists are not whole writes nothing. Members'
failures are their own: a namespace that is missing costs one member its Works and no other.

Order: keys before the Works that hold them, and what is new before what goes, so no member is sent a password that its
peer will never have. A member that leaves loses its Works, and its peers theirs of it, also while either is down:
Karmada carries out what it could not when the member is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from isthmus import bounds, kube, logs
from isthmus.bounds import OutOfBounds
from isthmus.karmada import evictions, keyring, works
from isthmus.karmada.evictions import Eviction
from isthmus.karmada.keyring import MEMBER, Keys
from isthmus.karmada.members import MOST_ID, Member, is_etcds, members
from isthmus.karmada.works import DIGEST, PART, Work
from isthmus.kube.objects.core import SECRET, SERVICE, Secret, Service, decoded_files, encoded_files
from isthmus.kube.objects.karmada import CLUSTER, RESOURCE_BINDING, WORK, Cluster, ResourceBinding, Workload
from isthmus.kube.objects.karmada import Work as Existing
from isthmus.model.names import ClusterName
from isthmus.reflector import Event, Expired, Reflector, Transient
from isthmus.running import Tasks
from isthmus.statedb import Backoff, describe_bug

T = TypeVar("T")

log = logs.get("karmada")

FIELD_MANAGER: Final = "isthmus-karmada"
NUMBER: Final = "isthmus.io/cluster-id"
"""Annotation of a member's Secret: its number in the clusterset."""
EVERY: Final = 600.0
"""Seconds after which a round is made though nothing was seen to change: certificates end, and drains."""
BACKOFF: Final = Backoff(0.5, 30.0)
UNWRITTEN: Final = "not written as it is now to be: is isthmus karmada join running?"
SETTLE: Final = 0.2
"""Seconds in which changes are gathered before a round."""


class Delivery(Struct, frozen=True):
    """A Work of ours as the control plane has it."""

    member: str
    name: str
    applied: bool
    message: str


class Report(Struct, frozen=True):
    """What a round found, and did."""

    members: tuple[Member, ...]
    deliveries: tuple[Delivery, ...]
    drained: tuple[str, ...]
    """``<member>: <namespace>/<Service>`` of what Karmada moves away."""
    written: int = 0
    problems: tuple[str, ...] = ()


class Seen(Struct, frozen=True):
    """The control plane as a round lists it."""

    members: list[Member]
    keys: dict[ClusterName, Keys]
    bindings: list[ResourceBinding]
    existing: dict[tuple[str, str], Existing]


class Control:
    """One control plane. ``namespace``: where keys are kept; Karmada propagates nothing of ``karmada-system``.

    ``definitions``: CustomResourceDefinitions for members that must not be on Karmada's own API server.
    """

    def __init__(
        self,
        client: kube.Client,
        *,
        namespace: str = "karmada-system",
        definitions: Iterable[dict[str, Any]] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._definitions = tuple(definitions)
        self._now = now
        self._changed = asyncio.Event()
        self._problems: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Control of {self._client!r}>"

    async def run(self) -> None:
        """Rounds for ever, one whenever something that decides has changed."""
        clusters, bindings = Kept(self._changed, cluster_facts), Kept(self._changed, placement_facts)
        followed = (
            Reflector(self._client.store(CLUSTER), clusters, name="karmada/clusters"),
            Reflector(self._client.store(RESOURCE_BINDING), bindings, name="karmada/resourcebindings"),
        )

        async def rounds() -> None:
            failures = 0
            while True:
                await self._wait(BACKOFF.delay(failures) if failures else EVERY)
                if not all(reflector.state.synced for reflector in followed):
                    continue
                problems = await self._try(clusters.objects, bindings.objects)
                failures = failures + 1 if problems else 0

        async with Tasks() as tasks:
            for reflector in followed:
                tasks.start(reflector.name, reflector.run)
            tasks.start("rounds", rounds)

    async def _try(self, clusters: Mapping[str, Cluster], bindings: Mapping[str, ResourceBinding]) -> Sequence[str]:
        """A round; what is wrong is logged once while it stays so."""
        try:
            seen = await self._look([*clusters.values()], [*bindings.values()])
            problems = (await self._carry_out(seen)).problems
        except (kube.KubeError, Transient, Expired) as why:
            problems = (str(why),)
        except MemoryError:
            raise
        except Exception as error:  # a bug costs a round, which is tried again
            problems = (describe_bug(error),)
        for problem in problems:
            if problem not in self._problems:
                log.warning("not done", why=problem)
        self._problems = problems
        return problems

    async def round(self) -> Report:
        """Write what differs from what is wanted, once."""
        return await self._carry_out(await self._list())

    async def _carry_out(self, seen: Seen) -> Report:
        problems: list[str] = []
        written = 0
        keys: dict[ClusterName, Keys] = {}
        joined = [each for each in seen.members if each.joins]
        for member in joined:  # all of them or none: a member without keys would be taken out of the others' peers
            keys[member.name], changed = await self._keys(member, joined, seen.keys.get(member.name))
            written += changed
        leaving = self._evictions(seen)
        wanted = [*works.wanted(joined, keys, definitions=self._definitions), *await self._drains(leaving)]
        for work in wanted:
            before = seen.existing.get((work.namespace, work.name))
            try:
                written += await self._write(work, before)
            except kube.KubeError as why:
                problems.append(f"{work.member}: {why}")
            except MemoryError:
                raise
            except Exception as error:
                problems.append(f"{work.member}: {describe_bug(error)}")
        written += await self._remove(seen, wanted, joined, problems)
        return Report(
            members=tuple(seen.members),
            deliveries=(),
            drained=tuple(_sentence(each) for each in leaving),
            written=written,
            problems=tuple(problems),
        )

    async def status(self) -> Report:
        """What there is, without writing or making anything: keys are compared as they are kept."""
        seen = await self._list()
        joined = [each for each in seen.members if each.joins]
        keys = {each.name: kept for each in joined if (kept := _complete(each, joined, seen.keys.get(each.name)))}
        deliveries = {key: _delivery(each) for key, each in seen.existing.items()}
        wanted = {(each.namespace, each.name): each.digest for each in works.wanted(joined, keys)}
        wanted |= {(works.EXECUTION + each.name, works.OF_MEMBER): "" for each in joined if each.name not in keys}
        for (namespace, name), digest in wanted.items():
            if not digest or _digest(seen.existing.get((namespace, name))) != digest:
                member = ClusterName(namespace.removeprefix(works.EXECUTION))
                deliveries[namespace, name] = Delivery(member, name, applied=False, message=UNWRITTEN)
        return Report(
            members=tuple(seen.members),
            deliveries=tuple(each for _, each in sorted(deliveries.items())),
            drained=tuple(_sentence(each) for each in self._evictions(seen)),
        )

    async def _list(self) -> Seen:
        return await self._look(await self._client.list(CLUSTER), await self._client.list(RESOURCE_BINDING))

    async def _look(self, clusters: list[Cluster], bindings: list[ResourceBinding]) -> Seen:
        secrets = await self._client.list(SECRET, self._namespace, label_selector=MEMBER)
        existing = await self._client.list(WORK, label_selector=PART)
        keys = {each.member: each for each in map(_keys_of, secrets)}
        return Seen(
            members=members(clusters, bindings, ids={name: each.id for name, each in keys.items()}),
            keys=keys,
            bindings=bindings,
            existing={(each.metadata.namespace, each.metadata.name): each for each in existing},
        )

    async def _keys(self, member: Member, joined: Sequence[Member], before: Keys | None) -> tuple[Keys, bool]:
        """The keys of a member, kept; whether they were written."""
        keys = _wanted_keys(member, joined, before)
        if keys == before:
            return keys, False
        body = {
            "metadata": {
                "labels": {MEMBER: member.name, "app.kubernetes.io/part-of": "isthmus"},
                "annotations": {NUMBER: str(member.id)},
            },
            "type": "Opaque",
            "data": encoded_files(keys.files),
        }
        await self._client.apply(SECRET, self._namespace, _secret(member.name), body, field_manager=FIELD_MANAGER)
        return keys, True

    def _evictions(self, seen: Seen) -> list[Eviction]:
        return evictions.evictions(seen.bindings, seen.members, now=self._now())

    async def _drains(self, leaving: Sequence[Eviction]) -> list[Work]:
        """Drains of the Services whose pods are moved; only where there are any are Services and workloads read."""
        services: dict[str, Iterable[Service]] = {}
        workloads: dict[tuple[str, str, str], Workload] = {}
        for eviction in leaving:
            resource = eviction.resource
            try:
                if resource.namespace not in services:
                    services[resource.namespace] = await self._client.list(SERVICE, resource.namespace)
                kind = await self._client.kind(resource.api_version, resource.kind, Workload)
                current = await self._client.get(kind, resource.name, resource.namespace)
            except (kube.NotFound, kube.NotServed, kube.Forbidden) as error:
                log.warning("not drained", eviction=_sentence(eviction), why=str(error))
                continue
            workloads[resource.kind, resource.namespace, resource.name] = current
        return evictions.drains(leaving, services=services, workloads=workloads)

    async def _write(self, work: Work, before: Existing | None) -> bool:
        """Whether a Work had to be written."""
        if before is not None and _ends(before):
            raise kube.Conflict(f"Karmada is still removing the last Work {work.namespace}/{work.name}")
        if before is not None and _digest(before) == work.digest:
            return False
        await self._client.apply(WORK, work.namespace, work.name, work.body(), field_manager=FIELD_MANAGER)
        log.info("written", work=f"{work.namespace}/{work.name}")
        return True

    async def _remove(self, seen: Seen, wanted: Sequence[Work], joined: Sequence[Member], problems: list[str]) -> int:
        """Delete Works that are no longer wanted, then the keys of members that left."""
        names = {(each.namespace, each.name) for each in wanted}
        stay = {each.name for each in joined}
        unwanted: list[tuple[kube.Kind[Any], str, str]]
        unwanted = [(WORK, *key) for key, each in seen.existing.items() if key not in names and not _ends(each)]
        unwanted += [(SECRET, self._namespace, _secret(name)) for name in seen.keys if name not in stay]
        removed = 0
        for kind, namespace, name in unwanted:
            try:
                removed += await self._client.delete(kind, namespace, name)
                log.info("removed", kind=kind.kind, name=f"{namespace}/{name}")
            except kube.KubeError as error:
                problems.append(f"{namespace}/{name}: {error}")
        return removed

    async def _wait(self, seconds: float) -> None:
        """Until something has changed, and a moment for what changes with it; or for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(SETTLE)
        self._changed.clear()


class Kept(Generic[T]):
    """A sink that keeps the objects that decide something, and reports only changes of what decides.

    Karmada writes the status of every placement and every Cluster again and again; none of that may cost a round.
    """

    def __init__(self, changed: asyncio.Event, facts: Callable[[T], Any]) -> None:
        self._changed = changed
        self._facts = facts
        self.objects: dict[str, T] = {}

    def __repr__(self) -> str:
        return f"<Kept: {len(self.objects)}>"

    async def replace(self, items: Mapping[str, T], *, partial: bool) -> None:
        """All of them."""
        deleted = [] if partial else [Event[T](key, None) for key in self.objects if key not in items]
        self.apply([*deleted, *(Event(key, each) for key, each in items.items())])
        self._changed.set()

    def apply(self, events: Sequence[Event[T]]) -> None:
        """Changes, in order."""
        for key, each in events:
            before, facts = self.objects.pop(key, None), self._facts(each) if each is not None else None
            if each is not None and facts is not None:
                self.objects[key] = each
            if facts != (self._facts(before) if before is not None else None):
                self._changed.set()


def placement_facts(binding: ResourceBinding) -> Any:
    """What decides of a placement: everything of that of our etcd, the evictions of any other; None: nothing."""
    if is_etcds(binding):
        return binding.spec, binding.status
    tasks = binding.spec.graceful_eviction_tasks
    return (binding.spec.resource, tasks) if tasks else None


def cluster_facts(cluster: Cluster) -> Any:
    """What decides of a Cluster: all but its status, which is only shown."""
    meta = cluster.metadata
    return cluster.spec, meta.labels, meta.annotations, bool(meta.deletion_timestamp)


def _wanted_keys(member: Member, joined: Sequence[Member], before: Keys | None) -> Keys:
    """The keys that a member is to have, which are those that it has where nothing is missing."""
    files = before.files if before is not None else {}
    return keyring.ensure(member.name, files, id=member.id, hosts=_hosts(member), readers=_readers(member, joined))


def _complete(member: Member, joined: Sequence[Member], before: Keys | None) -> Keys | None:
    """The keys that a member has; None where any is missing."""
    if before is None or not keyring.complete(before.files, hosts=_hosts(member), readers=_readers(member, joined)):
        return None
    return before


def _hosts(member: Member) -> list[str]:
    """What its etcd is called by."""
    return [urlsplit(each).hostname or "" for each in member.endpoints]


def _readers(member: Member, joined: Sequence[Member]) -> list[ClusterName]:
    """Its peers."""
    return [each.name for each in joined if each.name != member.name]


def _secret(member: ClusterName) -> str:
    """Name of the Secret that has a member's keys."""
    return f"isthmus-member-{member}"


def _keys_of(secret: Secret) -> Keys:
    meta = secret.metadata
    try:
        number = bounds.count((meta.annotations or {}).get(NUMBER, ""), most=MOST_ID)
    except OutOfBounds:
        number = 0
    member = ClusterName((meta.labels or {})[MEMBER])
    return Keys(member, number, decoded_files(secret.data))


def _digest(work: Existing | None) -> str:
    """Of what we wrote into a Work; empty where there is none."""
    return (work.metadata.annotations or {}).get(DIGEST, "") if work is not None else ""


def _ends(work: Existing) -> bool:
    return bool(work.metadata.deletion_timestamp)


def _delivery(work: Existing) -> Delivery:
    conditions = (work.status.conditions or ()) if work.status is not None else ()
    applied = next((each for each in conditions if each.type == "Applied"), None)
    member = work.metadata.namespace.removeprefix(works.EXECUTION)
    if applied is None:
        return Delivery(member, work.metadata.name, applied=False, message="Karmada has not looked at it yet")
    return Delivery(member, work.metadata.name, applied=applied.status == "True", message=applied.message)


def _sentence(eviction: Eviction) -> str:
    resource = eviction.resource
    return f"{eviction.member}: {resource.kind} {resource.namespace}/{resource.name}"
