"""What a connect may take when no backend answers. It asserts times: in `make test-failover`, not in `make test`."""

from __future__ import annotations

import pytest
from datapath_worlds.bpf_world import Load, group, plan, programmed
from datapath_worlds.failing_backends import REFUSES, REFUSES6, VIP, VIP6

from isthmus.datapath import Datapath
from isthmus.model.balancing import Ejection

pytestmark = [pytest.mark.bpf, pytest.mark.failover]

LONGEST = 1_000
"""Milliseconds."""


@pytest.mark.parametrize("ejection", [Ejection(after=0), Ejection()], ids=["no ejection", "ejection"])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 20])
@pytest.mark.parametrize(("vip", "refuses"), [(VIP, REFUSES), (VIP6, REFUSES6)], ids=["IPv4", "IPv6"])
def test_when_all_backends_refuse_the_call_is_refused_within_a_second(
    rescuing: Datapath, load: Load, vip: str, refuses: str, count: int, ejection: Ejection
) -> None:
    address, _, _ = refuses.rpartition(":")
    programmed(
        rescuing.target(), plan("echo", vip, group(*(f"{address}:{9000 + n}" for n in range(count))), ejection=ejection)
    )
    result = load.run(vip, calls=20, at_once=5)
    assert result.ended == {"ECONNREFUSED": 20}
    print(f"{count} backends: {result.failures[-1]}, {max(took for _, took in result.failures):.0f} ms at most")
    assert max(took for _, took in result.failures) < LONGEST
