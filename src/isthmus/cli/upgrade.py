"""``isthmus upgrade``: go from one release to the next, or back: definitions, then one rollout after the other."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from isthmus import __version__
from isthmus.cli import output, proxied, sockets

if TYPE_CHECKING:
    from isthmus import kube
    from isthmus.cli.applying import Applied
    from isthmus.installation.plan import Plan
    from isthmus.installation.upgrading import Upgrade

TIMEOUT: Final = 300.0
HELM: Final = ("app.kubernetes.io/managed-by", "Helm")
"""Label that Helm gives what it installs."""
BY_HELM: Final = "Helm installed Isthmus here, and would not know of this: helm upgrade (docs/upgrade.md)"


@click.command()
@proxied.options(multiple=True)
@click.option("--image", default="", help="The image to go to. [default: the installed one, tagged as this command]")
@click.option("--envoy-image", default="", help="The image with an Envoy to go to, for routes and islands.")
@click.option("--from", "before", default="", metavar="VERSION", help="Installed version, if its image has none.")
@click.option("--force", is_flag=True, help="Go on in spite of what speaks against it.")
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "yaml", "json"]),
    default="table",
    help="yaml: print the objects and change nothing, for GitOps; json: the plan.",
)
@click.option(
    "--timeout", type=click.FloatRange(1), default=TIMEOUT, show_default=True, help="Seconds for each rollout."
)
def upgrade(
    contexts: tuple[str, ...],
    kubeconfig: Path | None,
    image: str,
    envoy_image: str,
    before: str,
    force: bool,
    dry_run: bool,
    form: str,
    timeout: float,
) -> None:
    """Bring an installation to this command's release, or to that of --image; calls and names go on meanwhile.

    Settings and components stay as they are installed. Definitions are applied first, then etcd, keys, operator and
    nodes, each once the one before is ready: a release that does not start has not reached a node. Several clusters are
    taken in turn. One minor version at a time; --image with the earlier one goes back. A second run changes nothing.

    Example: isthmus upgrade --context c1 --dry-run
    """
    chosen = contexts or (sockets.context(),)
    images = {"isthmus": image} if image else {}
    images |= {"isthmus-envoy": envoy_image} if envoy_image else {}
    changes = not dry_run and form == "table"
    session = _Session(kubeconfig, images, before, form=form, force=force, changes=changes, seconds=timeout)
    sys.exit(proxied.run(lambda: session.upgrade(chosen)))


class _Session:
    """One run of the command, for its clusters one after the other."""

    def __init__(
        self,
        kubeconfig: Path | None,
        images: dict[str, str],
        before: str,
        *,
        form: str,
        force: bool,
        changes: bool,
        seconds: float,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._images = images
        self._before = before
        self._form = form
        self._force = force
        self._changes = changes
        self._seconds = seconds

    async def upgrade(self, contexts: tuple[str, ...]) -> int:
        """Upgrade each cluster, up to the first that cannot be. Returns the exit code."""
        for context in contexts:
            named = context or await proxied.current(self._kubeconfig)
            async with proxied.client(context, self._kubeconfig) as client:
                if code := await self._upgrade(client, named):
                    return code
        return 0

    async def _upgrade(self, client: kube.Client, context: str) -> int:
        from isthmus.cli import applying, surveying
        from isthmus.installation import plan as planning
        from isthmus.installation import rendering, shipped, upgrading

        facts = await surveying.survey(client)
        if facts.installed is None:
            raise click.ClickException(f"{context}: Isthmus is not installed: isthmus install --context {context}")
        helm = any((each.metadata.labels or {}).get(HELM[0]) == HELM[1] for each in await applying.workloads(client))
        folder = shipped.directory("deploy")
        change = upgrading.plan(facts.installed.images, self._images, own=__version__, before=self._before)
        plan = planning.plan(facts, planning.Flags(context=context, images=change.images), folder)
        objects = rendering.render(folder, plan.options)
        blockers = (*([BY_HELM] if helm else []), *change.blockers, *plan.blockers)
        stopped = bool(blockers) and not self._force
        outcomes = [] if stopped or self._form == "yaml" else await applying.preview(client, objects)
        self._print(context, change, plan, blockers, outcomes, objects)
        if stopped:
            return 1
        return await self._carry_out(client, change, objects) if self._changes else 0

    def _print(
        self,
        context: str,
        change: Upgrade,
        plan: Plan,
        blockers: tuple[str, ...],
        outcomes: list[Applied],
        objects: list[dict[str, Any]],
    ) -> None:
        if self._form == "json":
            output.json({"context": context, "upgrade": change, "plan": plan, "objects": outcomes})
            return
        if self._form == "yaml":
            import yaml

            print(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, explicit_start=True), end="")
            for blocker in blockers:
                output.note(f"{context}: {blocker}")
            return
        output.line(f"cluster of context {context}: {change.before or 'unknown'} → {change.after}")
        for image in change.images.values():
            output.line(f"  image {image}")
        for warning in (*change.warnings, *plan.warnings):
            output.paragraph("  ! ", warning)
        for blocker in blockers:
            output.paragraph("  ✗ ", blocker)
        for each in outcomes:
            if each.outcome != "unchanged":
                output.line(f"  {each.kind.lower()}/{each.name} {_future(each)}")
        if outcomes and not self._changes:
            counts = Counter(each.outcome for each in outcomes)
            output.line(f"{len(outcomes)} objects, {len(outcomes) - counts['unchanged']} would change")

    async def _carry_out(self, client: kube.Client, change: Upgrade, objects: list[dict[str, Any]]) -> int:
        from isthmus.cli import applying
        from isthmus.installation import upgrading

        changed = 0
        for stage in upgrading.stages(objects):
            applied = await applying.apply(client, stage.objects, _report)
            changed += sum(each.outcome != "unchanged" for each in applied)
            names = stage.workloads
            if names and not await applying.wait(client, seconds=self._seconds, report=output.line, names=names):
                return await self._unready(client, change, names)
        # Pods of the earlier release may start anew until the last rollout has ended, and need its ConfigMaps.
        for kind, item in await applying.obsolete(client, objects):
            await client.delete(kind, item.metadata.namespace, item.metadata.name, uid=item.metadata.uid)
            output.line(f"  {kind.kind.lower()}/{item.metadata.name} deleted: {change.after} has none")
        output.line(f"{len(objects)} objects, {changed} changed")
        output.line(f"✓ every workload runs {change.after}, and is ready")
        return 0

    async def _unready(self, client: kube.Client, change: Upgrade, names: frozenset[str]) -> int:
        from isthmus.cli import applying

        for lack in await applying.lacks(client):
            output.paragraph(f"  ✗ {lack.object}: ", lack.reason)
        output.line(f"{', '.join(sorted(names))} not ready after {self._seconds:.0f} s; what follows was not changed")
        output.line("the same command goes on; --image with the earlier image goes back")
        return 1


def _future(outcome: Applied) -> str:
    words = {"created": "will be created", "configured": "will change", "replaced": "will be deleted and made anew"}
    return words[outcome.outcome]


def _report(applied: Applied) -> None:
    """Print what has changed; what has not is most of it."""
    if applied.outcome != "unchanged":
        output.line(f"  {applied}")
