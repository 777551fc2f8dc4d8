"""Keeps the node's nftables true to Services and EndpointSlices: one atomic write per batch of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from isthmus import kube, logs
from isthmus.kube.objects.core import SERVICE, Service
from isthmus.kube.objects.discovery import ENDPOINT_SLICE, EndpointSlice
from isthmus.lab.families import Scheme
from isthmus.lab.held import Held
from isthmus.lab.node import services
from isthmus.reflector import Reflector

AGAIN = 1.0

log = logs.get("node")


async def run(client: kube.Client, schemes: Sequence[Scheme]) -> None:
    """For ever; runs in the node's network namespace."""
    changed = asyncio.Event()
    known: Held[Service] = Held(changed)
    slices: Held[EndpointSlice] = Held(changed)
    async with asyncio.TaskGroup() as group:
        group.create_task(Reflector(client.store(SERVICE), known, name="services").run())
        group.create_task(Reflector(client.store(ENDPOINT_SLICE), slices, name="endpointslices").run())
        written = ""
        while True:
            await changed.wait()
            changed.clear()
            if not (known.complete and slices.complete):
                continue  # half a view would refuse calls that have somewhere to go
            rules = "".join(
                services.ruleset(services.vips(known.items.values(), slices.items.values(), scheme), scheme)
                for scheme in schemes
            )
            if rules != written:
                if await write(rules):
                    written = rules
                else:
                    await asyncio.sleep(AGAIN)
                    changed.set()


async def write(rules: str) -> bool:
    """One transaction of nft; whether the kernel took it."""
    nft = await asyncio.create_subprocess_exec(
        "nft",
        "-f",
        "-",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await nft.communicate(rules.encode())
    if nft.returncode:
        log.error("nft refused the rules of Services", why=said.decode(errors="replace").strip()[:500])
    return nft.returncode == 0
