"""Who cannot see a connect's packets can neither have it moved nor a backend ejected."""

from __future__ import annotations

import pytest
from datapath_worlds.bpf_world import World, group, plan, programmed
from datapath_worlds.failing_backends import GOOD, SILENT, VIP

from isthmus.datapath import Datapath, view
from isthmus.model.balancing import Ejection

pytestmark = pytest.mark.bpf

PORT = 30888


@pytest.mark.parametrize("kind", ["rst", "icmp", "denial"])
def test_an_answer_with_another_sequence_number_moves_nothing_and_blames_nobody(
    rescuing: Datapath, served: World, kind: str
) -> None:
    tiers = group(SILENT), group(GOOD[0], tier=1)
    programmed(rescuing.target(), plan("echo", VIP, *tiers, ejection=Ejection(50, 60.0, 60.0)))
    caller = served.call_from(served.cgroup)
    with served.forging(kind, SILENT, PORT):
        assert caller.calls("hold", VIP, 80, local=PORT) == [{"answer": GOOD[0]}]
        caller.calls("drop", VIP, 80)
    assert [(row["backend"], row["reason"]) for row in view.rows(rescuing.maps, "failing")] == [
        (f"{SILENT}/TCP", "silent")
    ]
    assert view.rows(rescuing.maps, "denials") == []
