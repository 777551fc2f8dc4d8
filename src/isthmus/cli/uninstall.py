"""``isthmus uninstall``: delete what is ours in a cluster and on its nodes, and show that nothing is left."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from isthmus.cli import output, proxied, sockets
from isthmus.installation import SYSTEM

if TYPE_CHECKING:
    from isthmus import kube
    from isthmus.installation.facts import ApiObject

TIMEOUT: Final = 120.0
LOOK: Final = 0.5
WORKLOADS: Final = ("Deployment", "StatefulSet", "DaemonSet")
DEFINITION: Final = "CustomResourceDefinition"
NAMESPACE: Final = "Namespace"

T = TypeVar("T", bound="kube.Object")


@click.command()
@proxied.options()
@click.option(
    "--crds", is_flag=True, help="Delete the definitions, too, and with them EVERY export, import and policy."
)
@click.option(
    "--keep-calls", is_flag=True, help="Leave the kernel's part and the imports: calls by name go on as they are."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--timeout", type=click.FloatRange(1), default=TIMEOUT, show_default=True, help="Seconds for each step.")
def uninstall(
    context: str | None, kubeconfig: Path | None, crds: bool, keep_calls: bool, yes: bool, timeout: float
) -> None:
    """Remove Isthmus from a cluster: its objects, its Secrets, and on each node programs, addresses and files.

    It asks first. The definitions stay, with your exports, unless --crds is given, and the namespace if others have put
    objects into it. Exits with 1 if something is left: run it again to continue. Other clusters keep this one's
    endpoints for 10 minutes: disconnect them first.

    Example: isthmus uninstall --context c1 --crds
    """
    if crds and keep_calls:
        raise click.UsageError("--keep-calls leaves the imports, which --crds deletes")
    name = context or sockets.context()

    async def act() -> int:
        async with proxied.client(name, kubeconfig) as client:
            removal = _Removal(client, crds=crds, keep_calls=keep_calls, seconds=timeout)
            return await removal.run(ask=None if yes else _confirm)

    sys.exit(proxied.run(act))


def _confirm(what: str) -> None:
    click.confirm(f"Delete {what}?", abort=True, err=True)


Objects = list[tuple["kube.Kind[ApiObject]", "ApiObject"]]


class _Removal:
    """One run of the command."""

    def __init__(self, client: kube.Client, *, crds: bool, keep_calls: bool, seconds: float) -> None:
        from isthmus.installation import removal, shipped

        self._client = client
        self._folder = shipped.directory("deploy")
        self._manifests = removal.manifests(self._folder)
        self._definitions = [each for each in self._manifests if each["kind"] == DEFINITION]
        self._crds = crds
        self._keep_calls = keep_calls
        self._seconds = seconds
        self._foreign: Objects = []
        """Objects in our namespace that are not ours: it stays with them."""

    async def run(self, *, ask: Callable[[str], None] | None) -> int:
        """Ask, delete step by step, and report what is left. Returns the exit code."""
        objects = await self._own_objects()
        if not objects:
            output.line("nothing of Isthmus is here")
            return 0
        for kind, item in objects:
            output.line(f"  {_title(kind, item)}")
        if self._foreign:
            output.line(f"namespace {SYSTEM} stays, since these objects in it are not ours:")
        for kind, item in self._foreign:
            output.line(f"  {_title(kind, item)}")
        custom = await self._custom_kinds() if self._crds else []
        users = sum([len(await self._list(kind)) for kind in custom])
        if ask is not None:
            ask(
                f"these {len(objects)} objects"
                + (f" and {users} exports, imports, policies and drains" if users else "")
            )
        image = self._image(objects)
        await self._withdraw(custom)
        await self._delete(objects, WORKLOADS)
        await self._until("our pods have ended", self._no_pods)
        if not self._keep_calls:
            await self._delete_derived()
            await self._clean_nodes(image)
        await self._delete(objects, (DEFINITION,) if self._crds else ())
        kinds = {kind.kind for kind, _ in objects} - {*WORKLOADS, DEFINITION, NAMESPACE}
        await self._delete(objects, tuple(kinds))
        if any(kind.kind == NAMESPACE for kind, _ in await self._own_objects()):  # others may have used it meanwhile
            await self._delete(objects, (NAMESPACE,))
        await self._until("everything is gone", self._all_gone)
        rest = f" but namespace {SYSTEM}, with objects that are not ours" if self._foreign else ""
        output.line(f"✓ nothing is left{rest}" + ("; the kernel's part stays on the nodes" if self._keep_calls else ""))
        return 0

    async def _own_objects(self) -> Objects:
        """Objects of ours: of the kinds that deploy/ has, Secrets, and volumes of the etcd.

        Definitions only if they are to be deleted, and the namespace only without foreign objects.
        """
        from isthmus.cli.applying import OWN
        from isthmus.installation import removal

        definitions = {each["metadata"]["name"] for each in self._definitions}
        objects, self._foreign = await self._in_namespace()
        for kind in await self._served((each["apiVersion"], each["kind"]) for each in self._manifests):
            objects += [
                (kind, item)
                for item in await self._list(kind, label_selector=OWN)
                if removal.is_part(kind.kind, item.metadata.namespace, item.metadata.name, definitions)
                and (kind.kind != DEFINITION or self._crds)
                and (kind.kind != NAMESPACE or not self._foreign)
            ]
        return objects

    async def _in_namespace(self) -> tuple[Objects, Objects]:
        """Secrets and volumes of ours, and everything that is not ours, in our namespace."""
        from isthmus.cli import surveying
        from isthmus.installation import removal

        stored = (surveying.SECRETS, surveying.CLAIMS)
        own: Objects = []
        foreign: Objects = []
        for kind in (*surveying.WORKLOADS, surveying.SERVICES, surveying.CONFIG_MAPS, *stored, surveying.PODS):
            items = await self._list(kind, SYSTEM)
            foreign += [(kind, item) for item in items if removal.is_foreign(kind.kind, item)]
            if kind in stored:
                own += [(kind, item) for item in items if removal.is_own(kind.kind, item)]
        return own, foreign

    def _image(self, objects: Objects) -> str:
        from isthmus.installation import reading, rendering

        for kind, item in objects:
            if kind.kind == "DaemonSet" and item.metadata.name == "isthmus-agent":
                for container in reading.containers(item):
                    if container.get("name") == "agent":
                        return str(container["image"])
        return rendering.images(self._folder)["isthmus"]

    async def _custom_kinds(self) -> list[kube.Kind[ApiObject]]:
        """Kinds that our definitions define."""
        names = []
        for spec in (each["spec"] for each in self._definitions):
            version = next(each["name"] for each in spec["versions"] if each["storage"])
            names.append((f"{spec['group']}/{version}", spec["names"]["kind"]))
        return await self._served(names)

    async def _served(self, names: Iterable[tuple[str, str]]) -> list[kube.Kind[ApiObject]]:
        """Kinds by apiVersion and name, without those that the API server does not serve."""
        from isthmus import kube
        from isthmus.installation.facts import ApiObject

        kinds = []
        for api_version, name in dict.fromkeys(names):
            with suppress(kube.NotServed):
                kinds.append(await self._client.kind(api_version, name, ApiObject))
        return kinds

    async def _list(self, kind: kube.Kind[T], namespace: str = "", *, label_selector: str = "") -> list[T]:
        from isthmus import kube

        try:
            return await self._client.list(kind, namespace, label_selector=label_selector)
        except kube.NotFound:
            return []

    async def _withdraw(self, kinds: Iterable[kube.Kind[ApiObject]]) -> None:
        """Delete all exports while an operator may still withdraw their records from the etcd."""
        for kind in kinds:
            if kind.kind == "ServiceExport":
                for item in await self._list(kind):
                    await self._remove(kind, item)

    async def _delete(self, objects: Objects, kinds: tuple[str, ...]) -> None:
        for kind, item in objects:
            if kind.kind in kinds:
                await self._remove(kind, item)

    async def _remove(self, kind: kube.Kind[ApiObject], item: ApiObject) -> None:
        """Delete the object that was listed. Another one of its name was not in the question, and stays."""
        from isthmus import kube

        try:
            await self._client.delete(kind, item.metadata.namespace, item.metadata.name, uid=item.metadata.uid)
        except kube.Conflict:
            output.line(f"  {_title(kind, item)} is another one now: left")
        else:
            output.line(f"  {_title(kind, item)} deleted")

    async def _delete_derived(self) -> None:
        """Delete imports, derived Services and their slices, which no operator follows any more."""
        from isthmus import kube
        from isthmus.desired.ownership import is_ours
        from isthmus.mcs.kinds import KINDS

        for ownership in KINDS.values():
            if ownership.selector is None:
                continue
            items = await self._list(ownership.kind, label_selector=ownership.selector)
            derived = [item for item in items if is_ours(item.metadata)]
            for item in derived:
                with suppress(kube.Conflict):  # recreated by another client
                    metadata = item.metadata
                    await self._client.delete(ownership.kind, metadata.namespace, metadata.name, uid=metadata.uid)
            if derived:
                output.line(f"  {len(derived)} {ownership.kind.resource} that the operator made deleted")

    async def _clean_nodes(self, image: str) -> None:
        """Run the pods that remove the node's part, until each node's is ready, and delete them."""
        from isthmus.cli import applying
        from isthmus.cli.surveying import DAEMON_SETS, NAMESPACES
        from isthmus.installation import progress, removal

        if await applying.current(self._client, NAMESPACES, SYSTEM, "") is None:
            return
        await applying.apply(self._client, [removal.cleanup(image)], lambda applied: output.line(f"  {applied}"))

        async def cleaned() -> str:
            item = await self._client.get(DAEMON_SETS, removal.CLEANUP, SYSTEM)
            ready, total = progress.ready(item)
            return "" if progress.is_ready(item) else f"{max(ready, 0)} of {total} nodes are clean"

        try:
            await self._until("the nodes are clean", cleaned)
        except click.ClickException:
            for lack in await applying.lacks(self._client):
                output.paragraph(f"  ✗ {lack.object}: ", lack.reason)
            raise
        await self._client.delete(DAEMON_SETS, SYSTEM, removal.CLEANUP)
        await self._until("the cleaning pods have ended", self._no_pods)

    async def _no_pods(self) -> str:
        from isthmus.cli.surveying import PODS

        pods = await self._client.list(PODS, SYSTEM)
        own = [each.metadata.name for each in pods if _is_own(each)]
        return f"pods {', '.join(own[:3])} of {len(own)}" if own else ""

    async def _all_gone(self) -> str:
        remaining = [_title(kind, item) for kind, item in await self._own_objects()]
        return f"{len(remaining)} objects are left: {', '.join(remaining[:3])}" if remaining else ""

    async def _until(self, what: str, check: Callable[[], Awaitable[str]]) -> None:
        """Wait until a step has nothing left. Raises ClickException with what is left when its time is over."""
        if reason := await proxied.until(check, seconds=self._seconds, every=LOOK):
            raise click.ClickException(f"not seen in {self._seconds:.0f} s that {what}: {reason}; run it again")


def _title(kind: kube.Kind[ApiObject], item: ApiObject) -> str:
    """Kind, name and namespace, for people."""
    place = f" in {item.metadata.namespace}" if item.metadata.namespace else ""
    return f"{kind.kind.lower()}/{item.metadata.name}{place}"


def _is_own(pod: ApiObject) -> bool:
    from isthmus.installation import removal

    return (pod.metadata.labels or {}).get(removal.NAME, "").startswith("isthmus-")
