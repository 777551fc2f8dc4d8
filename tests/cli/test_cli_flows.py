"""``isthmus flows`` as people see it, against a process that has some."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rows.admin_world import serving

from isthmus.admin.feed import Feed
from isthmus.cli import flows, root
from isthmus.model.flows import End, Flow

C1, C2 = End("c1", "10.1.1.3:8080"), End("c2", "10.2.1.3:8080")


def flow(n: int = 1, **more: Any) -> Flow:
    found: dict[str, Any] = {
        "time": 1_795_000_000.0 + n,
        "id": n,
        "state": "connected",
        "verdict": "called",
        "protocol": "TCP",
        "node": "n1",
        "pod": "demo/client",
        "source": "10.1.1.9:40000",
        "service": "demo/echo:80",
        "called": "10.96.0.7:80",
        "asked": C1,
        "answered": C1,
        "took": 0.0012,
    }
    return Flow(**(found | more))


FLOWS = (
    flow(1),
    flow(2, verdict="rescued", answered=C2, took=0.2041),
    flow(3, verdict="failed", state="failed", reason="refused", answered=End(), service="shop/cart:443"),
    flow(4, verdict="refused", state="failed", pod="shop/web", source="10.1.1.8", asked=End(), answered=End(), took=0),
    flow(5, state="ended", took=12.0, sent=300, received=4_000),
)


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[Path]:
    found = tmp_path / "agent.sock"
    feed: Feed[Flow] = Feed()
    feed.add(FLOWS, 3)
    async with serving(found, feeds={"flows": feed}):
        yield found


async def run(path: Path, *arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, root, ["flows", "--socket", str(path), *arguments])


async def ids(path: Path, *arguments: str) -> list[int]:
    """Which flows are shown."""
    result = await run(path, "-o", "json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["id"] for line in result.stdout.splitlines()]


async def test_a_line_has_who_called_what_who_answered_and_what_came_of_it(path: Path) -> None:
    result = await run(path)
    head, *lines = [line.split() for line in result.stdout.splitlines()]
    assert head == ["TIME", "POD", "SERVICE", "ASKED", "ANSWERED", "VERDICT", "STATE", "AFTER", "SENT", "RECEIVED"]
    assert [line[1:] for line in lines] == [
        ["demo/client", "demo/echo:80", "c1", "10.1.1.3:8080", "called", "connected", "1.2ms"],
        ["demo/client", "demo/echo:80", "c1", "10.1.1.3:8080", "c2", "10.2.1.3:8080", "rescued", "connected", "204ms"],
        ["demo/client", "shop/cart:443", "c1", "10.1.1.3:8080", "failed", "failed:", "refused", "1.2ms"],
        ["shop/web", "demo/echo:80", "refused", "failed"],
        ["demo/client", "demo/echo:80", "c1", "10.1.1.3:8080", "called", "ended", "12.0s", "300", "4000"],
    ]
    assert result.stderr == "3 records were lost: more came than were read, or than are kept of one caller\n"


async def test_a_backend_that_is_ejected_for_the_caller_alone_is_told_from_one_that_is_for_all(tmp_path: Path) -> None:
    passed = (flow(1, verdict="ejected", answered=C2), flow(2, verdict="ejected", answered=C2, for_caller=True))
    feed: Feed[Flow] = Feed()
    feed.add(passed, 0)
    async with serving(tmp_path / "agent.sock", feeds={"flows": feed}):
        result = await run(tmp_path / "agent.sock")
    assert [line.split()[-3:-1] for line in result.stdout.splitlines()[1:]] == [
        ["ejected", "connected"],
        ["(caller)", "connected"],
    ]


async def test_a_refused_caller_is_shown_with_its_account_number_and_address_and_the_policy(tmp_path: Path) -> None:
    refused = {"pod": "", "service": "", "called": "10.1.1.3:8080", "asked": End(), "answered": End(), "took": 0.0}
    refused |= {"policy": "demo/echo", "source": "10.2.1.9:40000"}
    rows = (
        flow(
            1, verdict="denied", state="failed", reason="not-allowed", caller="c2 demo/web", identity=131_588, **refused
        ),
        flow(2, verdict="audited", state="sent", reason="unsigned", **refused),
    )
    feed: Feed[Flow] = Feed()
    feed.add(rows, 0)
    async with serving(tmp_path / "agent.sock", feeds={"flows": feed}):
        result = await run(tmp_path / "agent.sock", "--service", "demo/echo")
        assert await ids(tmp_path / "agent.sock", "--failed") == [1]
    assert [" ".join(line.split()[1:]) for line in result.stdout.splitlines()[1:]] == [
        "c2 demo/web (131588, 10.2.1.9:40000) 10.1.1.3:8080 by demo/echo denied failed: not-allowed",
        "10.2.1.9:40000 10.1.1.3:8080 by demo/echo audited sent: unsigned",
    ]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ((), [1, 2, 3, 4, 5]),
        (("--service", "demo/echo"), [1, 2, 4, 5]),
        (("--service", "shop/cart:443"), [3]),
        (("--service", "shop/cart:80"), []),
        (("--from", "shop/web"), [4]),
        (("--from", "10.1.1.9"), [1, 2, 3, 5]),
        (("--to-cluster", "c2"), [2]),
        (("--failed",), [3, 4]),
        (("--failed", "--from", "demo/client"), [3]),
        (("--last", "2"), [4, 5]),
        (("--last", "1", "--failed"), [4]),
    ],
)
async def test_options_select(path: Path, asked: tuple[str, ...], found: list[int]) -> None:
    assert await ids(path, *asked) == found


async def test_a_call_that_was_given_up_without_an_answer_is_a_failed_one(tmp_path: Path) -> None:
    path, feed = tmp_path / "agent.sock", Feed[Flow]()
    feed.add((flow(1), flow(2, verdict="rescued", state="given up", answered=End(), took=3.0)))
    async with serving(path, feeds={"flows": feed}):
        assert await ids(path, "--failed") == [2]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (("--since", "2026-11-18T11:06:42.5Z"), [3, 4, 5]),
        (("--since", "2026-11-18T11:06:42.5Z", "--until", "2026-11-18T11:06:44Z"), [3, 4]),
        (("--until", "2026-11-18T11:06:42Z"), [1]),
        (("--since", "10m"), []),
    ],
)
async def test_calls_of_a_time_are_shown_with_what_came_of_them_then(
    path: Path, asked: tuple[str, ...], found: list[int]
) -> None:
    assert await ids(path, *asked) == found


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_a_time_of_day_is_the_last_one_that_has_been() -> None:
    now = datetime(2026, 11, 18, 12, 0).astimezone()
    assert [flows._time_of_day(each, now).timestamp() for each in ("11:59", "12:00:01", "12:00")] == [
        (now - timedelta(minutes=1)).timestamp(),
        (now - timedelta(days=1) + timedelta(seconds=1)).timestamp(),
        now.timestamp(),
    ]


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("now", "utc"),
    [
        (datetime(2026, 3, 29, 10, 0), datetime(2026, 3, 29, 0, 30, tzinfo=UTC)),
        (datetime(2026, 10, 25, 10, 0), datetime(2026, 10, 24, 23, 30, tzinfo=UTC)),
        (datetime(2026, 10, 26, 1, 0), datetime(2026, 10, 24, 23, 30, tzinfo=UTC)),
    ],
)
def test_a_time_of_day_before_the_clocks_were_changed_is_the_one_that_clocks_had(now: datetime, utc: datetime) -> None:
    assert flows._time_of_day("01:30", now.astimezone()) == utc


async def test_an_end_before_the_beginning_is_refused_and_not_answered_by_no_flows(path: Path) -> None:
    result = await run(path, "--since", "2026-11-18T11:06:42Z", "--until", "2026-11-18T11:06:41Z")
    assert (result.exit_code, "before --since" in result.stderr) == (2, True)


@pytest.mark.parametrize("wrong", ["25:00", "14", "14:00:00:00", "-5m", "soon", "2026-13-01T00:00:00Z"])
async def test_a_time_that_is_none_is_refused_with_examples(path: Path, wrong: str) -> None:
    result = await run(path, f"--since={wrong}")
    assert (result.exit_code, f"'{wrong}' is none of 14:03" in result.stderr) == (2, True)


async def test_of_an_hour_that_is_not_kept_any_more_the_command_shows_from_when_on_it_is(tmp_path: Path) -> None:
    path, feed = tmp_path / "agent.sock", Feed[Flow](kept=2, note="one call of 256 is recorded here")
    feed.add(FLOWS[:4])
    async with serving(path, feeds={"flows": feed}):
        result = await run(path, "--since", "2026-11-18T11:06:41Z")
    assert len(result.stdout.splitlines()) == 3
    oldest = datetime.fromtimestamp(FLOWS[2].time + FLOWS[2].took).strftime("%H:%M:%S")
    assert result.stderr.startswith("One call of 256 is recorded here\nOlder records than of " + oldest)


async def test_none_that_is_meant_is_said_beside_the_result(path: Path) -> None:
    result = await run(path, "--service", "demo/none")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No flows" in result.stderr


async def test_what_comes_is_printed_as_it_comes_with_what_was_lost(tmp_path: Path) -> None:
    path, feed = tmp_path / "agent.sock", Feed[Flow]()
    feed.add(FLOWS[:2])
    async with serving(path, feeds={"flows": feed}):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "isthmus", "flows", "--socket", str(path), "-f", "-o", "json", "--failed"),
            *("--last", "0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        assert process.stderr is not None
        while not feed._readers:  # noqa: ASYNC110 that a reader has come is announced by no event
            await asyncio.sleep(0.01)
        feed.add(FLOWS[1:4], 2)
        lines = [json.loads(await process.stdout.readline()) for _ in range(2)]
        noted = await process.stderr.readline()  # it is written after the lines: the signal may not overtake it
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
    assert [line["id"] for line in lines] == [3, 4]
    assert (noted + errors).decode().startswith("2 records were lost: more came than were read")


async def test_where_flows_are_off_the_command_names_the_option(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    async with serving(path, feeds={"flows": Feed(off="flows are not recorded here: set datapath.flows = 16")}):
        result = await run(path)
    assert (result.exit_code, result.stderr) == (1, "Error: flows are not recorded here: set datapath.flows = 16\n")


async def test_when_the_process_ends_following_ends_with_an_error(tmp_path: Path) -> None:
    path, feed = tmp_path / "agent.sock", Feed[Flow]()
    async with serving(path, feeds={"flows": feed}):
        following = asyncio.create_task(run(path, "-f"))
        while not feed._readers:  # noqa: ASYNC110 that a reader has come is announced by no event
            await asyncio.sleep(0.01)
    result = await following
    assert result.exit_code == 1
    assert "has ended" in result.stderr
