"""From results of probes to verdicts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.health.verdict import UNKNOWN, Verdict, judge
from isthmus.model.policies import HealthCheck

CHECK = HealthCheck(healthy_after=2, unhealthy_after=3)


def after(results: str, check: HealthCheck = CHECK) -> list[bool | None]:
    """The verdict after each result: ``+`` passes, ``-`` fails."""
    verdict, found = UNKNOWN, []
    for each in results:
        verdict = judge(verdict, each == "+", check)
        found.append(verdict.healthy)
    return found


def test_one_probe_that_passes_is_enough_for_what_was_never_probed() -> None:
    assert after("+") == [True]
    assert after("--+") == [None, None, True]


def test_it_takes_a_run_of_results_to_change_a_verdict() -> None:
    assert after("+--+---") == [True] * 6 + [False]
    assert after("---+-++") == [None, None, False, False, False, False, True]


def test_a_backend_that_answers_every_other_time_never_changes_its_verdict() -> None:
    assert set(after("+" + "-+" * 50)) == {True}
    assert set(after("---" + "+-" * 50)[2:]) == {False}


@given(results=st.text("+-", max_size=60), up=st.integers(1, 4), down=st.integers(1, 4))
def test_a_verdict_is_that_of_the_last_run_long_enough(results: str, up: int, down: int) -> None:
    check = HealthCheck(healthy_after=up, unhealthy_after=down)
    wanted: bool | None = None
    for end in range(1, len(results) + 1):
        seen = results[:end]
        if seen.endswith("+" * up) or (wanted is None and seen.endswith("+")):
            wanted = True
        elif seen.endswith("-" * down):
            wanted = False
        assert after(seen, check)[-1] is wanted


def test_a_verdict_counts_no_further_than_it_has_to() -> None:
    verdict = Verdict(True)
    for _ in range(1_000):
        verdict = judge(verdict, True, CHECK)
    assert verdict == Verdict(True)
