"""A failure of a task costs that task alone, for a while, and is displayed for as long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from isthmus.running import MAX_PAUSE, SETTLED, WORKING, Ended, Tasks

pytestmark = pytest.mark.looptime


class Flaky:
    """Work that fails so often in a row, each time after some seconds, and then goes on for ever."""

    def __init__(self, failures: float, *, after: float = 0.0, error: Exception | None = None) -> None:
        self._failures = failures
        self._after = after
        self._error = error or ZeroDivisionError("a bug")
        self.runs: list[float] = []
        """When each run began."""
        self.cancelled = 0

    async def __call__(self) -> None:
        self.runs.append(asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(self._after)
            if len(self.runs) <= self._failures:
                raise self._error
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class InGroup(Flaky):
    """The same in a task of a TaskGroup, after which a task counts as being cancelled before Python 3.13."""

    async def __call__(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().__call__())
            tasks.create_task(asyncio.Event().wait())


async def ends_when_cancelled(group: Callable[[Tasks], Awaitable[None]], *, after: float) -> None:
    """Open a group, let it work for some seconds, and cancel it."""

    async def main() -> None:
        async with Tasks() as tasks:
            await group(tasks)

    task = asyncio.create_task(main())
    await asyncio.sleep(after)
    assert not task.done(), task.exception()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("kind", [Flaky, InGroup])
async def test_a_task_that_fails_is_started_again_and_others_go_on(kind: type[Flaky]) -> None:
    flaky, other = kind(3), Flaky(0)

    async def group(tasks: Tasks) -> None:
        tasks.start("flaky", flaky)
        tasks.start("other", other)

    await ends_when_cancelled(group, after=60)
    assert (len(flaky.runs), len(other.runs)) == (4, 1)
    assert (flaky.cancelled, other.cancelled) == (1, 1)


@pytest.mark.parametrize("kind", [Flaky, InGroup])
@pytest.mark.parametrize("moment", [0.0, 0.05, 0.1, 0.3, 10.0])
async def test_a_cancelled_task_ends_whatever_it_does_at_that_moment(kind: type[Flaky], moment: float) -> None:
    async def group(tasks: Tasks) -> None:
        tasks.start("flaky", kind(float("inf")))
        tasks.start("slow", kind(float("inf"), after=0.3))

    await ends_when_cancelled(group, after=moment)


async def test_the_pause_doubles_up_to_a_bound_and_the_task_is_never_given_up() -> None:
    flaky = Flaky(float("inf"))

    async def group(tasks: Tasks) -> None:
        tasks.start("flaky", flaky)

    await ends_when_cancelled(group, after=3600)
    pauses = [later - earlier for earlier, later in zip(flaky.runs, flaky.runs[1:], strict=False)]
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert pauses[-1] == pytest.approx(MAX_PAUSE)
    assert len(pauses) > 3600 / MAX_PAUSE


async def test_a_task_is_displayed_as_failing_until_it_has_worked_for_a_while() -> None:
    async with Tasks() as tasks:
        task = tasks.start("flaky", Flaky(1))
        await asyncio.sleep(0.05)
        [failure] = tasks.failing()
        assert (failure.task, failure.why, failure.attempts) == ("flaky", "ZeroDivisionError: a bug", 1)
        await asyncio.sleep(SETTLED)
        assert tasks.failing()
        await asyncio.sleep(0.2)
        assert not tasks.failing()
        assert tasks.failures == {"flaky": 1}
        task.cancel()


async def test_a_task_that_fails_again_and_again_is_never_displayed_as_working_in_between() -> None:
    flaky = Flaky(10, after=SETTLED + 1)
    async with Tasks() as tasks:
        task = tasks.start("flaky", flaky)
        while len(flaky.runs) < 5:  # noqa: ASYNC110 of virtual time
            await asyncio.sleep(0.1)
        while len(flaky.runs) < 11:
            assert tasks.failing()
            await asyncio.sleep(0.1)
        await asyncio.sleep(WORKING - 1)
        assert tasks.failing()
        await asyncio.sleep(2)
        assert not tasks.failing()
        task.cancel()


async def test_a_task_that_worked_for_a_minute_begins_anew() -> None:
    flaky = Flaky(20, after=WORKING + 1)
    async with Tasks() as tasks:
        task = tasks.start("flaky", flaky)
        while len(flaky.runs) < 10:  # noqa: ASYNC110 of virtual time
            await asyncio.sleep(1)
        assert flaky.runs[-1] - flaky.runs[-2] == pytest.approx(WORKING + 1 + 0.1)
        task.cancel()


async def test_a_task_that_returns_though_it_must_not_is_a_failure() -> None:
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1

    async with Tasks() as tasks:
        task = tasks.start("short", work)
        await asyncio.sleep(1)
        [failure] = tasks.failing()
        assert failure.why == "it ended, which it must not"
        assert runs > 1
        task.cancel()


async def test_a_task_that_may_end_is_done_then_and_is_started_again_when_it_fails() -> None:
    attempts = iter([ZeroDivisionError("a bug"), None])
    finished = []

    async def work() -> None:
        if (error := next(attempts)) is not None:
            raise error
        finished.append(True)

    async with Tasks() as tasks:
        tasks.start("once", work, ends=True)
    assert finished == [True]
    assert not tasks.failing()
    assert tasks.failures == {"once": 1}


async def test_a_task_that_somebody_else_cancelled_is_started_again() -> None:
    runs = []

    async def work() -> None:
        runs.append(True)
        if len(runs) == 1:
            raise asyncio.CancelledError
        await asyncio.Event().wait()

    async with Tasks() as tasks:
        task = tasks.start("cancelled", work)
        await asyncio.sleep(1)
        [failure] = tasks.failing()
        assert failure.why == "it was cancelled"
        assert len(runs) == 2
        task.cancel()


async def test_a_group_within_a_task_is_part_of_the_same_display() -> None:
    inner = Flaky(float("inf"))

    async def work() -> None:
        async with Tasks() as within:
            within.start("inner", inner)

    async with Tasks() as tasks:
        task = tasks.start("outer", work)
        await asyncio.sleep(10)
        assert [each.task for each in tasks.failing()] == ["outer/inner"]
        assert len(inner.runs) > 3
        task.cancel()
    assert not tasks.failing()


async def test_bad_configuration_ends_the_process_from_within_any_group() -> None:
    async def inner() -> None:
        raise LookupError("no such directory")

    async def outer() -> None:
        async with Tasks() as within:
            within.start("inner", inner)
            within.start("other", Flaky(0))

    async def process() -> None:
        async with Tasks(fatal=(LookupError,)) as tasks:
            tasks.start("outer", outer)
            tasks.start("other", Flaky(0))

    with pytest.raises(ExceptionGroup) as caught:
        await process()
    assert caught.value.subgroup(LookupError) is not None


async def test_what_ends_a_process_at_its_start_is_a_failure_of_a_task_later() -> None:
    async with Tasks(fatal=(LookupError,)) as tasks:
        attempts = iter([ZeroDivisionError("a bug"), LookupError("the address is in use")])

        async def work() -> None:
            raise next(attempts, ZeroDivisionError("a bug"))

        task = tasks.start("work", work)
        await asyncio.sleep(0.15)
        assert [each.why for each in tasks.failing()] == ["LookupError: the address is in use"]
        task.cancel()


async def test_the_owner_of_a_task_receives_each_failure_and_its_end() -> None:
    received: list[str] = []
    async with Tasks() as tasks:
        task = tasks.start("flaky", Flaky(2), report=received.append)
        await asyncio.sleep(10)
        assert received == ["ZeroDivisionError: a bug"] * 2 + [""]
        task.cancel()


async def test_a_failure_is_logged_once_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    async with Tasks() as tasks:
        task = tasks.start("flaky", Flaky(5))
        await asyncio.sleep(1000)
        task.cancel()
    lines = capsys.readouterr().err
    assert lines.count("Traceback") == 1
    assert lines.count("task works again") == 1


async def test_the_first_cause_of_a_failed_group_is_the_reason() -> None:
    async with Tasks() as tasks:
        task = tasks.start("flaky", InGroup(float("inf"), error=Ended("the peer's\nrecord")))
        await asyncio.sleep(1)
        assert [each.why for each in tasks.failing()] == ["the peer's record"]
        task.cancel()
