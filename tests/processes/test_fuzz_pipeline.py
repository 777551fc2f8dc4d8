"""Hostile values in every field of every kind and record: all of a process between its sockets and its effects.

No input may raise out of the pipeline, be a fault that is a bug, hold the loop up, or grow what is kept. ``make fuzz``
runs it for minutes; ``make test`` runs a few thousand inputs.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
import structlog
from hostility.fuzzing import ISLANDS, Fuzz, Turns
from meshes.envoy_world import envoy_world
from msgspec.structs import replace
from rows.pipeline import IDS, Role

from isthmus.clusterset import certificates
from isthmus.config import Config, ProxySection
from isthmus.model import tables
from isthmus.processes import proxying

SEED: Final = int(os.environ.get("ISTHMUS_FUZZ_SEED", "1"))
SECONDS: Final = float(os.environ.get("ISTHMUS_FUZZ_SECONDS", "0"))
INPUTS: Final = 1500
"""Inputs where no time is given."""
LONGEST: Final = 0.1
"""Seconds of CPU time that one turn of a process's loop may take; judged in long runs alone."""
PARTS: Final[dict[Role, float]] = {"agent": 0.4, "operator": 0.4, "gateway": 0.2}
"""Part of the time that each process gets."""
ROUNDS: Final = 15 if not SECONDS else 60
"""Times that a real Envoy gets other resources."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing is logged of the thousands of objects that are refused, and nothing is kept of it."""

    def drop(logger: Any, method: str, event: Any) -> Any:
        raise structlog.DropEvent

    before = structlog.get_config()["processors"]
    processors = [*before]
    before[:] = [drop]
    yield
    before[:] = processors


@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("role", [*PARTS])
def test_no_value_of_any_field_is_a_bug(role: Role) -> None:
    began, inputs, before = time.monotonic(), 0, 0
    fuzz = Fuzz(role, SEED)
    with Turns() as turns, asyncio.Runner() as runner:
        while inputs < INPUTS if not SECONDS else time.monotonic() - began < SECONDS * PARTS[role]:
            inputs += fuzz.change(turns)
            runner.run(fuzz.follow())
            inputs += fuzz.ask(turns)
            assert fuzz.bugs() == [], (SEED, inputs)
            if inputs > 5 * INPUTS and not before:
                before = resident()
    print(f"\n{role}: {inputs:,} inputs, seed {SEED}, the slowest turn {1000 * turns.slowest:.0f} ms")
    print(f"  made: {dict(fuzz.made())}")
    print(f"  rows at the end: {fuzz.rows()}")
    if fuzz.envoy is not None and fuzz.envoy.refused:
        print("  refused before Envoy:", *fuzz.envoy.refused.most_common(5), sep="\n    ")
    if before:
        grown = resident() - before
        print(f"  grown by {grown} kB")
        assert grown < 100_000, f"grown by {grown} kB"
        assert turns.slowest < LONGEST, f"a turn of {turns.slowest:.2f} s"


@pytest.mark.needs("envoy")
@pytest.mark.parametrize("role", ["agent", "gateway"])
def test_an_envoy_takes_all_that_hostile_objects_come_to(role: Role) -> None:
    """A refusal would show a rule of its code that ``proxy/rules.py`` lacks."""
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        config = of_envoy(Path(short))
        fuzz = Fuzz(role, SEED, config=config, served=False)
        asyncio.run(fed(fuzz, config, role))


async def fed(fuzz: Fuzz, config: Config, role: Role) -> None:
    """Change everything again and again, and wait each time until Envoy serves the change."""
    db, envoy = fuzz.pipeline.db, fuzz.envoy
    assert envoy is not None
    secrets = proxying.secrets(db, config, "node" if role == "agent" else "gateway")
    async with envoy_world(Path(config.proxy.directory), db=db):
        for _ in range(ROUNDS):
            for _ in range(4):
                fuzz.change(Turns())
            secrets.renew()
            await fuzz.follow()
            async with asyncio.timeout(60):
                await db.until(lambda now: {row.name for row in now.all(tables.XDS_SERVED)} == envoy.listeners())
            assert [(row.type, row.owner, row.error) for row in fuzz.pipeline.rows(tables.XDS_REFUSED)] == []
    print(f"\n{role}: Envoy took {dict(envoy.made)}")


def of_envoy(directory: Path) -> Config:
    """The configuration of a process beside an Envoy on loopback, with a certificate, and members that it trusts."""
    keys = certificates.authority("test")
    for name in ("node", "gateway"):
        pair = certificates.issue(keys, name, hosts=("localhost",), days=1)
        (directory / f"{name}.crt").write_bytes(pair.certificate)
        (directory / f"{name}.key").write_bytes(pair.key)
    for cluster in IDS:
        (directory / f"{cluster}.ca.crt").write_bytes(keys.certificate)
    first = 6_000 + os.getpid() % 11 * 800  # the next 700 are used, below all that free_ports() gives to other tests
    proxy = ProxySection(
        directory=str(directory / "envoy"), listen=("127.0.0.1",), first_port=first + 2, ports=300, health_port=first
    )
    gateway = replace(
        ISLANDS.gateway,
        identity=str(directory),
        trust=str(directory),
        listen=(f"127.0.0.1:{first + 1}",),
        first_port=first + 302,
        ports=300,
        pod_ports=90,
    )
    return replace(ISLANDS, proxy=proxy, gateway=gateway)


def resident() -> int:
    """Kilobytes of memory that this process has now."""
    gc.collect()
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])
