"""Who cannot see a connect's packets can neither have it moved nor a backend ejected."""

from __future__ import annotations

import subprocess
import sys

import pytest
from bpf_world import HERE, World, group, plan, programmed
from failing_backends import GOOD, SILENT, VIP

from isthmus.datapath import Datapath, view
from isthmus.model.balancing import Ejection

pytestmark = pytest.mark.bpf

POD, PORT = "10.7.0.1", 30888


@pytest.mark.parametrize("kind", ["rst", "icmp"])
def test_an_answer_with_another_sequence_number_moves_nothing_and_blames_nobody(
    rescuing: Datapath, served: World, kind: str
) -> None:
    tiers = group(SILENT), group(GOOD[0], tier=1)
    programmed(rescuing.target(), plan("echo", VIP, *tiers, ejection=Ejection(50, 60.0, 60.0)))
    backend, port = SILENT.split(":")
    command = [sys.executable, str(HERE / "forge.py"), kind, backend, port, POD, str(PORT)]
    forger = subprocess.Popen(["ip", "netns", "exec", served.server, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert forger.stdout is not None
        assert forger.stdout.readline() == "ready\n"
        caller = served.call_from(served.cgroup)
        assert caller.calls("hold", VIP, 80, local=PORT) == [{"answer": GOOD[0]}]
        caller.calls("drop", VIP, 80)
    finally:
        forger.kill()
        forger.communicate(timeout=60)
    assert [(row["backend"], row["reason"]) for row in view.rows(rescuing.maps, "failing")] == [
        (f"{SILENT}/TCP", "silent")
    ]
