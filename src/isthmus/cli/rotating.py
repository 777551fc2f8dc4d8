"""``isthmus clusters rotate-ca``: request another authority of a cluster whose keys live in it, or change it by hand.

The request is a time in a ConfigMap, in which ``isthmus keys`` displays how far it is. So no Secret is read or written
from here, and a repository can hold the same object.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from isthmus.cli import apiserver, joining, output, proxied
from isthmus.cli.apiserver import FIELD_MANAGER, Server

if TYPE_CHECKING:
    from isthmus import kube

LOOK_EVERY: Final = 1.0
MEANING: Final = {
    "steady": "one authority, which signs",
    "trusting": "the new authority is trusted beside the old one",
    "signing": "the new authority signs, and the old one is still trusted",
}


@click.command("rotate-ca")
@click.argument("step", required=False, type=click.Choice(["begin", "switch", "end"]))
@apiserver.options
@click.option("--dry-run", is_flag=True, help="Print the authority and what would be done; change nothing.")
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Print steps until the last, at most so long.")
@click.option("--host", "hosts", multiple=True, help="By hand: as for certs.")
@click.option("--days", default=365, show_default=True, type=click.IntRange(1), help="By hand: life of certificates.")
def rotate_ca(
    step: str | None, dry_run: bool, wait: float, hosts: tuple[str, ...], days: int, file: Path | None, **server: Any
) -> None:
    """Replace the authority of a cluster whose keys live in it. `isthmus keys` does it, in steps that wait for peers.

    By hand, with STEP: begin (both are trusted), switch (the new one signs), end (the old one is forgotten). After each
    step every peer runs `isthmus clusters refresh`.

    Example: isthmus clusters rotate-ca --context c1 --dry-run
    """
    if step is None:
        apiserver.carry_out(Server(file=file, **server), _Request(dry_run, wait).act)
        return
    if dry_run or wait or server["kubeconfig"] or server["context"] or server["namespace"]:
        raise click.ClickException(
            "with STEP the keys are in a folder: give --config; without, in the cluster: no STEP"
        )
    joining.rotate_by_hand(step, file, server["flags"], hosts, days)


class _Request:
    def __init__(self, dry_run: bool, wait: float) -> None:
        self._dry_run = dry_run
        self._wait = wait

    async def act(self, client: kube.Client, namespace: str) -> None:
        from isthmus.clusterset import AUTHORITY_ROTATION, REQUESTED
        from isthmus.kube.objects.core import CONFIG_MAP
        from isthmus.times import timestamp

        state = await _state(client, namespace)
        if not state.get("authority"):
            raise click.ClickException(
                f"ConfigMap {namespace}/{AUTHORITY_ROTATION} names no authority: the keys do not live in this cluster "
                "(component keys), or isthmus keys has not started; by hand: "
                "isthmus clusters rotate-ca begin --config …"
            )
        output.line(f"authority {state['authority']}, made {state.get('made', '')}, ends {state.get('ends', '')}")
        if state.get("step", "steady") != "steady":
            output.note("a rotation is under way; none is requested")
        elif self._dry_run:
            output.note("would be replaced: another one is trusted, then signs, then this one is forgotten")
            output.note(f"each step would wait for the own etcd and for: {state.get('peers') or 'no peer'}")
        else:
            body = {"data": {REQUESTED: timestamp()}}
            await client.apply(CONFIG_MAP, namespace, AUTHORITY_ROTATION, body, field_manager=FIELD_MANAGER)
            output.note("requested; isthmus keys begins within seconds: isthmus status")
            if self._wait:
                await self._follow(client, namespace, before=state["authority"])
            return
        output.line(_line(state))
        if self._wait and not self._dry_run:
            await self._follow(client, namespace, before="")

    async def _follow(self, client: kube.Client, namespace: str, *, before: str) -> None:
        """Print the state as it changes, until an authority other than ``before`` is alone."""
        shown = ""

        async def incomplete() -> bool:
            nonlocal shown
            state = await _state(client, namespace)
            steady, unchanged = state.get("step") == "steady", state.get("authority") == before
            if not (steady and unchanged) and (line := _line(state)) != shown:
                output.line(line)
                shown = line
            return not steady or unchanged

        if await proxied.until(incomplete, seconds=self._wait, every=LOOK_EVERY):
            raise click.ClickException(f"not complete after {self._wait:.0f} s; it goes on by itself: isthmus status")


async def _state(client: kube.Client, namespace: str) -> Mapping[str, str]:
    from isthmus import kube
    from isthmus.clusterset import AUTHORITY_ROTATION
    from isthmus.kube.objects.core import CONFIG_MAP

    try:
        return (await client.get(CONFIG_MAP, AUTHORITY_ROTATION, namespace)).data or {}
    except kube.NotFound:
        return {}


def _line(state: Mapping[str, str]) -> str:
    step, waits = state.get("step", "steady"), state.get("waitsFor", "")
    return f"{step}: {MEANING.get(step, '')}" + (f"; waits for: {waits}" if waits else "")
