"""``isthmus install``: find out what the cluster is, show a plan, apply it, wait, and print what is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from isthmus.cli import output, proxied, sockets

if TYPE_CHECKING:
    from isthmus import kube
    from isthmus.installation.facts import Facts
    from isthmus.installation.plan import Plan

TIMEOUT: Final = 180.0


@click.command()
@proxied.options(multiple=True)
@click.option("--name", default="", help="The cluster's name in the clusterset. [default: the context's]")
@click.option("--id", "number", type=click.IntRange(1, 255), help="Its number. [default: from the cluster's UID]")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.FIELD=VALUE",
    help="Set a field of the configuration of all processes (docs/configuration.md); repeatable.",
)
@click.option(
    "--with",
    "components",
    multiple=True,
    metavar="COMPONENT",
    help="routes, islands, monitoring, replicated; repeatable.",
)
@click.option(
    "--without", multiple=True, metavar="COMPONENT", help="Leave a component out, mirror for one; repeatable."
)
@click.option(
    "--image",
    default="",
    help="The image of all processes. [default: the installed one of a registry, else isthmus:VERSION]",
)
@click.option("--envoy-image", default="", help="The image with an Envoy, for routes and islands.")
@click.option("--force", is_flag=True, help="Install in spite of what speaks against it.")
@click.option("--dry-run", is_flag=True, help="Print facts and plan, and change nothing.")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "yaml", "json"]),
    default="table",
    help="yaml: print the objects and change nothing, for GitOps; json: facts and plan.",
)
@click.option("--wait/--no-wait", default=True, help="Wait until everything is ready. [default: wait]")
@click.option("--timeout", type=click.FloatRange(1), default=TIMEOUT, show_default=True, help="Seconds to wait.")
def install(
    contexts: tuple[str, ...],
    kubeconfig: Path | None,
    name: str,
    number: int | None,
    settings: tuple[str, ...],
    components: tuple[str, ...],
    without: tuple[str, ...],
    image: str,
    envoy_image: str,
    force: bool,
    dry_run: bool,
    form: str,
    wait: bool,
    timeout: float,
) -> None:
    """Install Isthmus in a cluster, or bring an installation up to date: finds out what it can, and shows a plan.

    What was installed before keeps its values unless an option changes them; a second run changes nothing. kubectl has
    the credentials. Exits with 1 if something speaks against it, or is not ready in time.

    Example: isthmus install --context c1 --image registry.example/isthmus:0.1.0
    """  # fmt: skip
    chosen = contexts or (sockets.context(),)
    if len(chosen) > 1 and (name or number):
        raise click.UsageError("--name and --id are for one --context")
    images = {"isthmus": image} if image else {}
    images |= {"isthmus-envoy": envoy_image} if envoy_image else {}
    options: dict[str, Any] = {
        "name": name, "id": number or 0, "settings": _variables(settings), "components": components,
        "without": without, "images": images,
    }  # fmt: skip
    quiet = dry_run or form != "table"
    session = _Session(kubeconfig, options, form=form, force=force, changes=not quiet, seconds=timeout if wait else 0)
    sys.exit(proxied.run(lambda: session.install(chosen)))


def _variables(settings: tuple[str, ...]) -> dict[str, str]:
    """Variables of the environment by ``section.field=value``, checked as a process checks them."""
    from isthmus.config import ConfigError, load

    try:
        load(None, environment={}, flags=settings)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    pairs = (setting.split("=", 1) for setting in settings)
    return {f"ISTHMUS_{field.replace('.', '_').upper()}": value for field, value in pairs}


class _Session:
    """One run of the command, for its clusters one after the other."""

    def __init__(
        self,
        kubeconfig: Path | None,
        options: dict[str, Any],
        *,
        form: str,
        force: bool,
        changes: bool,
        seconds: float,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._options = options
        self._form = form
        self._force = force
        self._changes = changes
        self._seconds = seconds
        self._taken: set[int] = set()

    async def install(self, contexts: tuple[str, ...]) -> int:
        """Install in each cluster. Returns the exit code."""
        failed = False
        for context in contexts:
            named = context or await proxied.current(self._kubeconfig)
            async with proxied.client(context, self._kubeconfig) as client:
                failed |= bool(await self._install(client, named))
        return int(failed)

    async def _install(self, client: kube.Client, context: str) -> int:
        from isthmus.cli import surveying
        from isthmus.installation import plan as planning
        from isthmus.installation import rendering, shipped

        folder = shipped.directory("deploy")
        facts = await surveying.survey(client)
        flags = planning.Flags(context=context, taken_ids=frozenset(self._taken), **self._options)
        plan = planning.plan(facts, flags, folder)
        self._taken.add(int(plan.variables[planning.ID] or 0))
        objects = rendering.render(folder, plan.options)
        self._print(context, facts, plan, objects)
        if plan.blockers and not self._force:
            return 1
        return await self._carry_out(client, objects) if self._changes else 0

    def _print(self, context: str, facts: Facts, plan: Plan, objects: list[dict[str, Any]]) -> None:
        if self._form == "json":
            output.json({"context": context, "facts": facts, "plan": plan})
        elif self._form == "yaml":
            import yaml

            print(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, explicit_start=True), end="")
        else:
            _tables(context, facts, plan)
            return
        for blocker in plan.blockers:
            output.note(f"{context}: {blocker}")

    async def _carry_out(self, client: kube.Client, objects: list[dict[str, Any]]) -> int:
        from isthmus.cli import applying

        applied = await applying.apply(client, objects, lambda result: output.line(f"  {result}"))
        for kind, item in await applying.obsolete(client, objects):
            await client.delete(kind, item.metadata.namespace, item.metadata.name, uid=item.metadata.uid)
            output.line(f"  {kind.kind.lower()}/{item.metadata.name} deleted: this installation has none")
        changed = sum(each.outcome != "unchanged" for each in applied)
        output.line(f"{len(applied)} objects, {changed} changed")
        if not self._seconds:
            return 0
        if await applying.wait(client, seconds=self._seconds, report=output.line):
            output.line("✓ everything is ready")
            return 0
        for lack in await applying.lacks(client):
            output.paragraph(f"  ✗ {lack.object}: ", lack.reason)
        output.line(f"not ready after {self._seconds:.0f} s; the objects stay, and the same command goes on")
        return 1


def _tables(context: str, facts: Facts, plan: Plan) -> None:
    """Facts with their sources, the plan, and what speaks for another one."""
    from isthmus.installation.facts import ROWS

    output.line(f"cluster of context {context}")
    values = {field: getattr(facts, field) for field in ROWS}
    output.table(("FACT", "VALUE", "READ FROM"), [(ROWS[f], str(fact), fact.source) for f, fact in values.items()])
    output.line()
    rows = [(choice.variable, choice.value or "-", choice.origin) for choice in plan.choices]
    images = [(f"image {name}", image, "") for name, image in plan.images.items()]
    output.table(("PLAN", "VALUE", "FROM"), [*rows, *images, ("components", ", ".join(plan.components) or "-", "")])
    output.line()
    for warning in plan.warnings:
        output.paragraph("  ! ", warning)
    for blocker in plan.blockers:
        output.paragraph("  ✗ ", blocker)
