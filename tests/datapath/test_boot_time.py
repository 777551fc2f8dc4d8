"""Unix times of the kernel's notes, while the clock of the machine is slewed and set."""

from __future__ import annotations

import pytest

from isthmus.datapath.core.clock import STEP, BootTime


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([0.0, 0.1, -0.4, STEP], [0.0, 0.0, 0.0, 0.0]),  # slewed: what is shown of the past does not change
        ([0.0, 3600.0, 3600.2], [0.0, 3600.0, 3600.0]),  # set forward
        ([0.0, -40.0], [0.0, -40.0]),  # set back
        ([0.0, 0.3, 0.6, 0.9, 1.2], [0.0, 0.0, 0.6, 0.6, 1.2]),  # slewed for long
    ],
)
def test_times_move_with_a_clock_that_is_set_and_not_with_one_that_is_slewed(
    offsets: list[float], expected: list[float]
) -> None:
    walls = iter([1000.0, *(1000.0 + each for each in offsets)])
    boot = BootTime(wall=lambda: next(walls), monotonic=lambda: 0.0)
    assert [boot.current() for _ in offsets] == pytest.approx([1000.0 + each for each in expected])
