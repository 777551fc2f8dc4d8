"""From results of probes to a verdict. The hysteresis is here, so that what follows from verdicts has to have none."""

from __future__ import annotations

from typing import Final, NamedTuple

from isthmus.model.policies import HealthCheck


class Verdict(NamedTuple):
    """What is known of a backend. ``healthy`` None: nothing yet, and then it counts as healthy."""

    healthy: bool | None = None
    against: int = 0
    """Results in a row that disagree with the verdict."""


UNKNOWN: Final = Verdict()


def judge(before: Verdict, passed: bool, check: HealthCheck) -> Verdict:
    """The verdict after one more result. Of a backend never probed, one probe that passes is enough."""
    if passed == before.healthy or (passed and before.healthy is None):
        return Verdict(passed)
    against = before.against + 1
    enough = check.healthy_after if passed else check.unhealthy_after
    return Verdict(passed) if against >= enough else Verdict(before.healthy, against)
