"""Applies the objects of an installation by server-side apply, waits for them, and finds what they lack."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterable
from typing import Any, Final, Generic, Literal, TypeVar

import click
from msgspec import Struct

from isthmus import kube
from isthmus.cli import proxied
from isthmus.cli.surveying import CONFIG_MAPS, PODS, SERVICES, WORKLOADS
from isthmus.installation import SYSTEM, progress
from isthmus.installation.facts import ApiObject
from isthmus.installation.progress import Lack
from isthmus.installation.rendering import PART_OF
from isthmus.kube.objects.meta import Meta, Wire

MANAGER: Final = "isthmus-install"
"""Field manager of everything that ``isthmus install`` applies."""
OWN: Final = f"{PART_OF}=isthmus"
"""Selector of the objects that are ours."""
REPLACEABLE: Final = frozenset({"StatefulSet", "Deployment", "DaemonSet", "RoleBinding", "ClusterRoleBinding"})
"""Kinds that lose nothing when they are made anew: what they keep is in other objects, or, as the etcd's, rebuilt."""
REPLACING: Final = 60.0
"""Seconds that an object has to be gone."""
LOOK: Final = 1.0
"""Seconds between two looks at the workloads."""
EVENTS_SHOWN: Final = 500

K = TypeVar("K", bound=ApiObject)
Object = dict[str, Any]
Outcome = Literal["created", "configured", "unchanged", "replaced"]


class InvolvedObject(Wire, frozen=True):
    """Object that an Event concerns."""

    name: str = ""


class WarningEvent(Wire, frozen=True):
    """An Event."""

    metadata: Meta
    involved_object: InvolvedObject = InvolvedObject()
    type: str = ""
    reason: str = ""
    message: str | None = None


EVENTS: Final = kube.Kind("", "v1", "events", "Event", WarningEvent)


class Comparable(ApiObject, frozen=True):
    """An object with every field that manifests of ours set."""

    rules: Any = None
    role_ref: Any = None
    subjects: Any = None
    value: Any = None
    global_default: Any = None
    description: Any = None
    preemption_policy: Any = None
    automount_service_account_token: Any = None

    def content(self) -> tuple[Any, ...]:
        """Everything but what a server writes by itself."""
        fields = (getattr(self, name) for name in self.__struct_fields__ if name not in ("metadata", "status"))
        return (self.metadata.labels, self.metadata.annotations, *fields)


class _Compared(Struct, Generic[K], frozen=True):
    """A manifest, and the object that it is about as it is."""

    kind: kube.Kind[K]
    namespace: str
    name: str
    body: Object
    before: K | None

    @property
    def replaceable(self) -> bool:
        """True of an object that exists and may be deleted and made anew."""
        return self.before is not None and self.kind.kind in REPLACEABLE

    async def apply(self, client: kube.Client, *, dry_run: bool = False) -> K:
        """Apply the manifest; returns the object as the server has it then."""
        return await client.apply(
            self.kind, self.namespace, self.name, self.body, field_manager=MANAGER, dry_run=dry_run
        )


class Applied(Struct, frozen=True):
    """Outcome of one object."""

    kind: str
    name: str
    outcome: Outcome

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name} {self.outcome}"


async def apply(client: kube.Client, objects: Iterable[Object], report: Callable[[Applied], None]) -> list[Applied]:
    """Apply objects in their order; ``report`` is called after each. An object that is as it should be stays so."""
    applied = []
    async for each in _compared(client, objects, ApiObject):
        applied.append(Applied(each.kind.kind, each.name, await _applied(client, each)))
        report(applied[-1])
    return applied


async def preview(client: kube.Client, objects: Iterable[Object]) -> list[Applied]:
    """Return the outcomes that :func:`apply` would have, by dry runs of the server: nothing changes."""
    compared = _compared(client, objects, Comparable)
    return [Applied(each.kind.kind, each.name, await _previewed(client, each)) async for each in compared]


async def _compared(client: kube.Client, objects: Iterable[Object], form: type[K]) -> AsyncIterator[_Compared[K]]:
    """Yield manifests in their order, each with the object as it is when its turn comes."""
    kinds: dict[tuple[str, str], kube.Kind[K]] = {}
    for item in objects:
        version, metadata = (item["apiVersion"], item["kind"]), item["metadata"]
        if version not in kinds:
            kinds[version] = await client.kind(*version, form)
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        body = {field: value for field, value in item.items() if field not in ("apiVersion", "kind")}
        before = await current(client, kinds[version], name, namespace)
        yield _Compared(kinds[version], namespace, name, body, before)


async def _previewed(client: kube.Client, item: _Compared[Comparable]) -> Outcome:
    before = item.before
    try:
        after = await item.apply(client, dry_run=True)
    except kube.Invalid:
        if not item.replaceable:
            raise
        return "replaced"
    if before is None:
        return "created"
    return "unchanged" if before.content() == after.content() else "configured"


async def _applied(client: kube.Client, item: _Compared[ApiObject]) -> Outcome:
    """Apply one object. One whose immutable fields differ is made anew; a Service is not: it would lose its address."""
    before = item.before
    try:
        after = await item.apply(client)
    except kube.Invalid:
        if before is None or not item.replaceable:
            raise
        await _delete(client, item.kind, item.name, item.namespace, uid=before.metadata.uid)
        await item.apply(client)
        return "replaced"
    if before is None:
        return "created"
    return "unchanged" if before.metadata.resource_version == after.metadata.resource_version else "configured"


async def _delete(client: kube.Client, kind: kube.Kind[ApiObject], name: str, namespace: str, *, uid: str) -> None:
    """Delete an object and wait until it is gone."""
    await client.delete(kind, namespace, name, uid=uid)
    if await proxied.until(lambda: current(client, kind, name, namespace), seconds=REPLACING, every=LOOK) is not None:
        raise click.ClickException(
            f"{kind.kind} {name}: deleted, to be made anew, and still there after {REPLACING:.0f} s"
        )


async def current(client: kube.Client, kind: kube.Kind[K], name: str, namespace: str) -> K | None:
    """An object; ``None`` if there is none."""
    try:
        return await client.get(kind, name, namespace)
    except kube.NotFound:
        return None


async def obsolete(client: kube.Client, objects: Iterable[Object]) -> list[tuple[kube.Kind[ApiObject], ApiObject]]:
    """Objects in our namespace that an earlier installation applied, and that this one does not have.

    These are workloads and Services of components that were taken out, and ConfigMaps of earlier contents.
    """
    desired = {(each["kind"], each["metadata"]["name"]) for each in objects}
    leftovers = []
    for kind in (*WORKLOADS, SERVICES, CONFIG_MAPS):
        for item in await client.list(kind, SYSTEM, label_selector=OWN):
            managers = {each.manager for each in item.metadata.managed_fields or ()}
            if (kind.kind, item.metadata.name) not in desired and MANAGER in managers:
                leftovers.append((kind, item))
    return leftovers


async def workloads(client: kube.Client, names: Container[str] | None = None) -> list[ApiObject]:
    """Our Deployments, DaemonSets and StatefulSets: all, or those of some names."""
    lists = await asyncio.gather(*(client.list(kind, SYSTEM, label_selector=OWN) for kind in WORKLOADS))
    return [each for items in lists for each in items if names is None or each.metadata.name in names]


async def wait(
    client: kube.Client, *, seconds: float, report: Callable[[str], None], names: Container[str] | None = None
) -> bool:
    """Wait until all workloads, or those of some names, are ready, for ``seconds`` at most.

    ``report`` gets a line for each change.
    """
    last = ""

    async def unready() -> str:
        nonlocal last
        before, last = last, ", ".join(progress.waiting(await workloads(client, names)))
        if last not in ("", before):
            report(f"waiting for {last}")
        return last

    return not await proxied.until(unready, seconds=seconds, every=LOOK)


async def lacks(client: kube.Client) -> list[Lack]:
    """List what is not ready, with reasons."""
    pods = await client.list(PODS, SYSTEM)
    events = await client.list(EVENTS, SYSTEM, field_selector="type=Warning")
    events.sort(key=lambda event: event.metadata.creation_timestamp or "")
    warnings = [
        progress.Event(each.involved_object.name, each.reason, each.message or "")
        for each in events[-EVENTS_SHOWN:]
        if each.type == "Warning"
    ]
    return progress.lacks(await workloads(client), pods, warnings)
