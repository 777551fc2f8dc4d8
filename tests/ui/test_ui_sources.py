"""One process that is followed: what stays of it while it does not answer, and what does not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from rows.ui_page import agents, until

from isthmus.cli.ui import sources as module
from isthmus.model import tables
from isthmus.statedb import Database


async def test_rates_after_a_pause_are_not_those_of_the_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.01)
    monkeypatch.setattr(module, "RETRY", 0.01)
    broken: list[Any] = []
    async with agents(tmp_path, "c1", counters={"calls": lambda: [*broken]}) as (_, [source]):
        source.start()

        async def readings() -> bool:
            return len(source.process().counts) > 2

        async def none() -> bool:
            return not source.process().counts

        await until(readings)
        broken.append(7)
        await until(none)
        paused = time.time()
        broken.clear()
        await until(readings)
        assert source.process().counts[0].time >= paused


async def test_rates_are_not_taken_over_a_clock_that_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL", 0.01)
    async with agents(tmp_path, "c1", counters={"calls": list}) as (_, [source]):
        source.start()

        async def readings() -> bool:
            return len(source.process().counts) > 2

        await until(readings)
        now = time.time()
        monkeypatch.setattr("isthmus.cli.ui.sources.time.time", lambda: now - 9_000 + time.monotonic() % 1_000)

        async def anew() -> bool:
            found = source.process().counts
            return bool(found) and found[-1].time < now - 1_000

        await until(anew)
        found = [each.time for each in source.process().counts]
        assert found == sorted(found)


async def test_tables_that_a_process_serves_no_more_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.01)
    async with agents(tmp_path, "c1") as ([process], [source]):
        source.start()

        async def known() -> bool:
            return tables.BACKENDS.name in source.process().tables

        await until(known)
        fewer = tuple(table for table in module.AGENT_TABLES if table is not tables.BACKENDS)
        served = process.server._shown
        process.server.show(Database(*fewer), status=served.status)

        async def forgotten() -> bool:
            return not await known()

        await until(forgotten)
