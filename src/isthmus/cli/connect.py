"""``isthmus connect`` and ``isthmus disconnect``: ClusterLinks of all pairs of clusters, by kubeconfig contexts.

It copies requests and certificates, which are public, from the status of a link into the spec of the link on the other
side. It reads no Secret.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from isthmus.cli import completion, output, proxied
from isthmus.cli import inventory as inventories
from isthmus.installation import SYSTEM

if TYPE_CHECKING:
    from isthmus import kube
    from isthmus.kube.objects.links import ClusterLink, ClusterLinkStatus
    from isthmus.sources.links import Info

TIMEOUT: Final = 120.0
LOOK_EVERY: Final = 0.5
MANAGER: Final = "isthmus-connect"

_contexts = click.argument("contexts", nargs=-1, required=False, shell_complete=completion.contexts)


@click.command()
@_contexts
@proxied.kubeconfig_option
@click.option(
    "--profiles", metavar="NAMESPACE", help="Connect the clusters of an inventory: the ClusterProfiles of a namespace."
)
@click.option(
    "--inventory", metavar="CONTEXT", default="", shell_complete=completion.contexts,
    help="Context of the cluster with the ClusterProfiles. [default: the current one]",
)  # fmt: skip
@click.option(
    "--endpoint",
    "endpoints",
    multiple=True,
    metavar="CLUSTER=URL",
    help="Where the others reach a cluster's etcd; repeatable. [default: its gateways, else its load balancer]",
)
@click.option("--accept-new-keys", is_flag=True, help="Let a cluster that lost its keys have others from now on.")
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option(
    "-o", "--output", "form", type=click.Choice(["table", "yaml"]), default="table",
    help="yaml: print the links of each cluster as they are to be now, and change nothing, for GitOps.",
)  # fmt: skip
@click.option(
    "--wait/--no-wait",
    default=True,
    help="Wait for load balancers' addresses, and until all links are ready. [default: wait]",
)
@click.option("--timeout", type=click.FloatRange(1), default=TIMEOUT, show_default=True, help="Seconds to wait.")
def connect(
    contexts: tuple[str, ...],
    kubeconfig: Path | None,
    profiles: str | None,
    inventory: str,
    endpoints: tuple[str, ...],
    accept_new_keys: bool,
    dry_run: bool,
    form: str,
    wait: bool,
    timeout: float,
) -> None:
    """Connect clusters, each with each, by ClusterLinks. CONTEXTS are those of the kubeconfig.

    Run again, it changes nothing. Exits with 1 if a link is not ready in time; its conditions have the reason.

    Example: isthmus connect c1 c2 c3
    """
    if bool(contexts) == bool(profiles) or (inventory and not profiles):
        raise click.UsageError("name contexts, or --profiles NAMESPACE and, if need be, --inventory CONTEXT")
    session = _Session(dict(map(_pair, endpoints)), accept_new_keys=accept_new_keys)

    async def act() -> int:
        members = await _members(inventory, profiles, kubeconfig) if profiles else ()
        chosen = _chosen(contexts or tuple(each.context for each in members))
        async with AsyncExitStack() as stack:
            await session.open(stack, chosen, kubeconfig)
            session.compare(members)
            await session.check(timeout if wait and form == "table" and not dry_run else 0.0)
            if form == "yaml":
                return await session.show()
            if dry_run:
                return await session.preview()
            return await session.connect(timeout if wait else 0.0)

    sys.exit(proxied.run(act))


@click.command()
@_contexts
@proxied.kubeconfig_option
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and change nothing.")
def disconnect(contexts: tuple[str, ...], kubeconfig: Path | None, dry_run: bool) -> None:
    """Delete the ClusterLinks between clusters, each with each. CONTEXTS are those of the kubeconfig.

    Each cluster withdraws the other's endpoints and rights at once.

    Example: isthmus disconnect c1 c2
    """
    chosen = _chosen(contexts)
    session = _Session({}, accept_new_keys=False)

    async def act() -> int:
        async with AsyncExitStack() as stack:
            await session.open(stack, chosen, kubeconfig)
            return await session.disconnect(dry_run=dry_run)

    sys.exit(proxied.run(act))


async def _members(context: str, namespace: str, kubeconfig: Path | None) -> Sequence[inventories.Member]:
    """The clusters of an inventory; ClickException if the kubeconfig lacks one of them."""
    members = await inventories.read(context, namespace, kubeconfig)
    if reasons := [each.reason for each in members if each.reason]:
        raise click.ClickException(output.plain("; ".join(reasons)))
    return members


def _chosen(contexts: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(contexts)) < 2:
        raise click.UsageError("name two clusters or more: isthmus connect c1 c2")
    return tuple(dict.fromkeys(contexts))


def _pair(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals or not url.startswith("https://"):
        raise click.UsageError(f"--endpoint {text}: want CLUSTER=https://HOST:PORT")
    return name, url


class _Side:
    """One cluster: its context's API server, and what others need of it."""

    def __init__(self, context: str, client: kube.Client, info: Info) -> None:
        self.context = context
        self.client = client
        self.info = info

    async def link(self, peer: _Side) -> ClusterLink | None:
        """Its link to a peer."""
        from isthmus import kube
        from isthmus.kube.objects.links import CLUSTER_LINK

        try:
            return await self.client.get(CLUSTER_LINK, peer.info.name)
        except kube.NotServed:
            raise
        except kube.NotFound:
            return None


class _Session:
    """One run of a command."""

    def __init__(self, endpoints: Mapping[str, str], *, accept_new_keys: bool) -> None:
        self._endpoints = endpoints
        self._accept_new_keys = accept_new_keys
        self._sides: list[_Side] = []
        self._noted: dict[tuple[str, str], str] = {}

    async def open(self, stack: AsyncExitStack, contexts: Sequence[str], kubeconfig: Path | None) -> None:
        """Read what each cluster is; ClickException where one of them does not say."""
        for context in contexts:
            client = await stack.enter_async_context(proxied.client(context, kubeconfig))
            self._sides.append(_Side(context, client, await self._info(context, client)))

    def compare(self, members: Sequence[inventories.Member]) -> None:
        """ClickException where a context leads to another cluster than its profile describes."""
        names = {side.context: side.info.name for side in self._sides}
        for member in members:
            name = names[member.context]
            if member.cluster and member.cluster != name:
                what = f"context {member.context} is cluster {name}, its ClusterProfile {member.profile}"
                raise click.ClickException(output.plain(f"{what} is of cluster {member.cluster}"))

    async def check(self, patience: float) -> None:
        """ClickException where the clusters cannot be linked; ``patience``: seconds to wait for their addresses."""
        from isthmus.sources import links

        if unknown := self._endpoints.keys() - {side.info.name for side in self._sides}:
            raise click.UsageError(f"--endpoint {min(unknown)}=…: none of these clusters is called so")
        if reason := links.conflict([side.info for side in self._sides]):
            raise click.ClickException(reason)

        async def lacking() -> str:
            """Reason why one of them cannot be reached: a load balancer gets its address after its Service is made."""
            for side in self._sides:
                if links.unreachable(side.info) and patience:
                    self._note(side, side, f"{side.info.name}: waiting for an address of Service isthmus-etcd-peers")
                    side.info = await self._info(side.context, side.client)
                if reason := links.unreachable(side.info):
                    return reason
            return ""

        if reason := await proxied.until(lacking, seconds=patience, every=LOOK_EVERY):
            raise click.ClickException(reason)

    async def _info(self, context: str, client: kube.Client) -> Info:
        from msgspec import structs

        from isthmus import kube
        from isthmus.bounds import OutOfBounds
        from isthmus.kube.objects.core import CONFIG_MAP
        from isthmus.sources import links

        try:
            info = links.read_info(await client.get(CONFIG_MAP, links.INFO, SYSTEM))
        except kube.NotFound:
            what = f"context {context}: there is no ConfigMap {links.INFO} in namespace {SYSTEM}"
            raise click.ClickException(f"{what}: is the component keys installed, and does it run?") from None
        except OutOfBounds as error:
            raise click.ClickException(f"context {context}: ConfigMap {links.INFO}: {error}") from None
        endpoint = self._endpoints.get(info.name)
        return structs.replace(info, endpoints=(endpoint,), gateways=()) if endpoint else info

    def _directions(self) -> Iterator[tuple[_Side, _Side]]:
        for first, second in itertools.combinations(self._sides, 2):
            yield first, second
            yield second, first

    async def _desired(self, side: _Side, peer: _Side) -> tuple[dict[str, Any], list[str], ClusterLink | None]:
        """Spec of a side's link to a peer, the fields of it that differ, and the link as it is."""
        from isthmus.clusterset import links as clusterset_links
        from isthmus.kube.objects.links import ClusterLinkSpec, ClusterLinkStatus
        from isthmus.sources import links

        link, mirror = await side.link(peer), await peer.link(side)
        before = link.spec if link is not None else ClusterLinkSpec()
        peer_status: ClusterLinkStatus = mirror.status if mirror is not None else ClusterLinkStatus()
        request = peer_status.request
        if before.request and request and clusterset_links.same_key(before.request, request):
            request = before.request
        elif before.request and request and not self._accept_new_keys:
            raise click.ClickException(
                f"cluster {peer.info.name} has another key than that which cluster {side.info.name} admitted. If it "
                "lost its Secret isthmus-links: --accept-new-keys. If nothing of the kind happened, find out who wrote "
                f"status.request of ClusterLink {side.info.name} there"
            )
        spec = links.spec_of(
            peer.info, before=before, request=request, certificate=peer_status.certificate, ready=_ready(link)
        )
        return spec, links.changes(before, spec), link

    async def connect(self, seconds: float) -> int:
        """Carry requests and certificates until all links are ready. Returns the exit code."""

        async def step() -> list[str]:
            return [line for pair in self._directions() if (line := await self._step(*pair))]

        waiting = await proxied.until(step, seconds=seconds, every=LOOK_EVERY)
        for line in waiting:
            output.note(output.plain(line))
        return 1 if waiting and seconds else 0

    async def _step(self, side: _Side, peer: _Side) -> str:
        """Bring one link up to date. Returns what it waits for; empty if it is ready, and was left as it is."""
        from isthmus.kube.objects.links import CLUSTER_LINK
        from isthmus.sources import links

        spec, changed, link = await self._desired(side, peer)
        where = f"{side.info.name}: ClusterLink {peer.info.name}"
        if changed:
            body = links.body(peer.info.name, spec)
            await side.client.apply(CLUSTER_LINK, "", peer.info.name, body, field_manager=MANAGER)
            self._note(side, peer, f"{where} {'changed' if link is not None else 'created'}: {', '.join(changed)}")
            return f"{where} was written"
        state = _state(link)
        self._note(side, peer, f"{where}: {state or 'Ready'}")
        return f"{where}: {state}" if state else ""

    def _note(self, side: _Side, peer: _Side, line: str) -> None:
        if self._noted.get((side.info.name, peer.info.name)) != line:
            self._noted[side.info.name, peer.info.name] = line
            output.note(output.plain(line))

    async def preview(self) -> int:
        """Print what one step would change."""
        for side, peer in self._directions():
            _, changed, link = await self._desired(side, peer)
            verb = "is up to date" if not changed else "would be changed" if link is not None else "would be created"
            fields = f": {', '.join(changed)}" if changed else ""
            print(f"{side.info.name}: ClusterLink {peer.info.name} {verb}{fields}")
        return 0

    async def show(self) -> int:
        """Print the links of each cluster."""
        import yaml

        from isthmus.sources import links

        complete = True
        for side, peer in self._directions():
            spec, _, _ = await self._desired(side, peer)
            complete = complete and {"request", "certificate"} <= spec.keys()
            print(f"---\n# of cluster {side.info.name}, context {side.context}")
            print(yaml.dump(links.body(peer.info.name, spec), Dumper=_dumper(), sort_keys=False), end="")
        if not complete:
            output.note("requests or certificates are missing: apply these, and run this again a few seconds later")
        return 0

    async def disconnect(self, *, dry_run: bool) -> int:
        """Delete the links."""
        from isthmus.kube.objects.links import CLUSTER_LINK

        for side, peer in self._directions():
            where = f"{side.info.name}: ClusterLink {peer.info.name}"
            if dry_run:
                print(f"{where} {'would be deleted' if await side.link(peer) is not None else 'does not exist'}")
            else:
                deleted = await side.client.delete(CLUSTER_LINK, "", peer.info.name)
                output.note(f"{where} {'deleted' if deleted else 'does not exist'}")
        return 0


def _ready(link: ClusterLink | None) -> bool:
    return link is not None and not _state(link)


def _state(link: ClusterLink | None) -> str:
    """Reason why a link is not ready in its present generation; empty if it is."""
    if link is None:
        return "it does not exist"
    conditions = {each.type: each for each in link.status.conditions or ()}
    for kind in ("Accepted", "Ready"):
        condition = conditions.get(kind)
        if condition is None or condition.observed_generation != link.metadata.generation:
            return "its cluster has not judged it yet"
        if condition.status != "True":
            return f"{condition.reason}: {condition.message}"
    return ""


def _dumper() -> Any:
    """A dumper that writes certificates line by line."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return Dumper
