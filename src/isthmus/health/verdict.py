"""Verdicts from results of probes, with hysteresis, so that users of verdicts need none."""

from __future__ import annotations

from typing import Final, NamedTuple

from isthmus.model.policies import HealthCheck


class Verdict(NamedTuple):
    """Verdict on a backend. ``healthy`` is ``None`` before the first result, and the backend is then used."""

    healthy: bool | None = None
    against: int = 0
    """Results in a row that disagree with the verdict."""


UNKNOWN: Final = Verdict()


def judge(before: Verdict, passed: bool, check: HealthCheck) -> Verdict:
    """The verdict after one more result. Of a backend never probed, one probe that passes is enough."""
    if passed == before.healthy or (passed and before.healthy is None):
        return Verdict(passed)
    against = before.against + 1
    threshold = check.healthy_after if passed else check.unhealthy_after
    return Verdict(passed) if against >= threshold else Verdict(before.healthy, against)
